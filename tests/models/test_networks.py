import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import timm.data
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.places import FIXTURES
from torch import nn
from torchvision.models import vgg

import hf_px
from hf_px.core.prunable import prunable
from hf_px.models.load import load
from hf_px.models.networks import (  # fmt: skip
    ARCHITECTURES,
    MODELS,
    SEGMENTERS,
    Classifier,
    kaiming_normal_,
    resnet18_tiny,
    resnet20,
    resnet20_a,
    vgg16_cifar,
)

SMALL = ["resnet20_cifar", "resnet20_cifar_a", "vgg16_cifar", "resnet18_tiny"]
# tests/models/test_deeplab.py has the segmenters
CLASSIFIERS = [name for name in ARCHITECTURES if name not in SEGMENTERS]
EACH = [name if name in SMALL else pytest.param(name, marks=pytest.mark.slow) for name in CLASSIFIERS]


def _seeded(seed: int, **kwargs: int) -> nn.Module:
    return resnet20(generator=torch.Generator().manual_seed(seed), **kwargs)


def test_resnet20_has_the_papers_weights() -> None:
    weights = prunable(_seeded(0))
    assert len(weights) == 22
    assert sum(w.numel() for w in weights.values()) == 270_896


def test_names_and_shapes_are_those_of_the_reference(shared: Path) -> None:
    reference = json.loads((shared / "reference/params.json").read_text())
    assert {name: list(w.shape) for name, w in prunable(_seeded(0)).items()} == reference["prunable"]
    # all else too, but for the reference's identity shortcuts: they multiply by ones, ours do nothing
    state = load_file(shared / "reference/resnet20_seed0_init.safetensors")
    unexpected = resnet20().load_state_dict(state, strict=False).unexpected_keys
    assert unexpected == [f"blocks.{i}.shortcut.weight" for i in (0, 1, 2, 4, 5, 7, 8)]
    assert all(bool((state[name] == 1).all()) for name in unexpected)


def test_weights_are_kaiming_normal() -> None:
    model = _seeded(0)
    for name, w in prunable(model).items():
        w = w.detach()
        sigma = math.sqrt(2 / w[0].numel())  # fan_in
        # the deviation of n normal numbers is off by σ/√2n, give or take: five times that is a bug
        assert abs(float(w.std(correction=0)) / sigma - 1) < 5 / math.sqrt(2 * w.numel()), name
        assert abs(float(w.mean())) < 5 * sigma / math.sqrt(w.numel()), name
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all() and (module.bias == 0).all())
            assert bool((module.running_mean == 0).all() and (module.running_var == 1).all())
    assert bool((model.fc.bias == 0).all())


def test_weights_come_from_the_generator_alone() -> None:
    torch.manual_seed(1)
    first = _seeded(3).state_dict()
    torch.manual_seed(2)
    again, other = _seeded(3).state_dict(), _seeded(4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv.weight"], other["conv.weight"])


@pytest.mark.parametrize(("num_classes", "in_chans"), [(10, 3), (100, 3), (7, 1)])
def test_shapes_through_the_network(num_classes: int, in_chans: int) -> None:
    model = _seeded(0, num_classes=num_classes, in_chans=in_chans).eval()
    sizes = []
    for i in (0, 3, 6):
        model.blocks[i].register_forward_hook(lambda module, args, output: sizes.append(tuple(output.shape[1:])))
    assert model(torch.randn(2, in_chans, 32, 32)).shape == (2, num_classes)
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_shortcuts_carry_the_signal() -> None:
    """With the residual branches at zero, only stem, shortcuts and head are left: still a function of x."""
    model = _seeded(0).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.conv2.weight.zero_()
    x = torch.randn(2, 3, 32, 32)
    assert not torch.allclose(model(x)[0], model(x)[1])


def test_timm_finds_the_input_size() -> None:
    config = timm.data.resolve_model_data_config(_seeded(0))
    assert config["input_size"] == (3, 32, 32)
    assert config["crop_pct"] == 1.0  # a 32x32 image goes in pixel by pixel
    assert MODELS["resnet20"] is resnet20


def _lived_in(model: nn.Module) -> nn.Module:
    """With scales, shifts and statistics as training leaves them: at 1 and 0 a wrong order would not show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    tensor.add_(torch.rand(tensor.shape, generator=generator) / 3)
    return model.eval()


# others' networks as oracles


def test_resnet18_tiny_is_timms_resnet18_with_another_stem() -> None:
    ours = _lived_in(resnet18_tiny(generator=torch.Generator().manual_seed(0)))
    theirs = timm.create_model("resnet18", num_classes=200)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    # timm's first stage keeps width and stride: no shortcut there, as in ours
    names = {"conv1": "conv", "bn1": "bn", "fc": "fc"}
    names |= {f"layer{s + 1}.{i}": f"blocks.{2 * s + i}" for s in range(4) for i in range(2)}
    state = ours.state_dict()

    def own(name: str) -> str:
        prefix = next(p for p in names if name.startswith(f"{p}."))
        return names[prefix] + name[len(prefix) :].replace("downsample", "shortcut")

    assert {own(name) for name in theirs.state_dict()} == state.keys()
    theirs.load_state_dict({name: state[own(name)] for name in theirs.state_dict()})
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs.eval()(x), atol=1e-4)
    assert ours.num_classes == 200


def test_vgg16_is_torchvisions_without_the_last_pool() -> None:
    ours = _lived_in(vgg16_cifar(generator=torch.Generator().manual_seed(0)))
    theirs = vgg.make_layers(vgg.cfgs["D"], batch_norm=True)[:-1].eval()
    state = [tensor for name, tensor in ours.state_dict().items() if not name.startswith("fc.")]
    slots = [tensor for name, tensor in theirs.state_dict().items()]
    convs = {id(m.bias) for m in theirs.modules() if isinstance(m, nn.Conv2d)}
    biases = {p.data_ptr() for p in theirs.parameters() if id(p) in convs}
    slots = [slot for slot in slots if slot.data_ptr() not in biases]  # ours has none: the norm takes them away
    assert [s.shape for s in slots] == [s.shape for s in state]
    with torch.no_grad():
        for module in theirs.modules():
            if isinstance(module, nn.Conv2d):
                module.bias.zero_()
        for slot, tensor in zip(slots, state):
            slot.copy_(tensor)
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
        features = theirs(x)
        assert features.shape == (2, 512, 2, 2)
        assert torch.allclose(ours(x), ours.fc(F.adaptive_avg_pool2d(features, 1).flatten(1)), atol=1e-4)
    assert sum(w.numel() for w in prunable(ours).values()) == 14_710_464 + 512 * 10
    assert sum(isinstance(m, nn.Conv2d) for m in ours.modules()) == 13


def test_option_a_has_no_weights_in_its_shortcuts() -> None:
    model = resnet20_a(generator=torch.Generator().manual_seed(0))
    assert len(prunable(model)) == 20
    assert not any("shortcut" in name for name in model.state_dict())
    x = torch.randn(2, 16, 32, 32)
    y = model.blocks[3].shortcut(x)
    assert y.shape == (2, 32, 16, 16)
    assert torch.equal(y[:, 8:24], x[:, :, 0::2, 0::2])
    assert not y[:, :8].any() and not y[:, 24:].any()


# what timm's users expect of a model


@pytest.mark.parametrize("name", EACH)
def test_timm_builds_it_and_its_parts_answer(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, in_chans=1).eval()
    assert isinstance(model, nn.Module) and model.pretrained_cfg["architecture"] == name
    assert name in timm.list_models(name) and not timm.list_pretrained(f"{name}*")
    config = timm.data.resolve_model_data_config(model)
    assert config["input_size"][0] == 1 and len(config["mean"]) == 1
    x = torch.randn(2, *config["input_size"])
    with torch.no_grad():
        features = model.forward_features(x)
        assert torch.equal(model.forward_head(features), model(x))
        pooled = model.forward_head(features, pre_logits=True)
        assert pooled.shape == (2, model.num_features)
        assert torch.equal(model.get_classifier()(pooled), model(x))
        model.reset_classifier(3)
        assert model(x).shape == (2, 3) and model.num_classes == 3
        model.reset_classifier(0)
        assert torch.equal(model(x), pooled)
    if isinstance(model, Classifier):  # one that is timm's own may do otherwise
        with pytest.raises(ValueError, match="averages"):
            model.reset_classifier(3, "max")
    assert model.get_submodule(model.pretrained_cfg["first_conv"]).in_channels == 1


def test_timms_record_is_the_networks_own() -> None:
    for name, build in ((name, ARCHITECTURES[name]) for name in (*CLASSIFIERS, "deeplabv3plus_test_resnet")):
        own = build().pretrained_cfg
        theirs = timm.create_model(name).pretrained_cfg
        assert {key: theirs[key] for key in own} == own
    assert timm.create_model("resnet18_tiny").num_classes == 200
    assert {build for build in MODELS.values()} < {build for build in ARCHITECTURES.values()}


@pytest.mark.parametrize(
    "order",
    [
        pytest.param("hf_px, timm", marks=pytest.mark.slow),  # test_transformers.py has both orders for both libraries
        pytest.param("timm, hf_px", marks=pytest.mark.slow),
        pytest.param("hf_px, timm.data", marks=pytest.mark.slow),
        pytest.param("hf_px, transformers, timm", marks=pytest.mark.slow),
    ],
)
def test_timm_knows_them_whichever_is_imported_first(order: str) -> None:
    code = f"""if 1:
        import sys
        import {order.split(", ")[0]}
        assert ("timm" in sys.modules) == {order.startswith("timm")}
        import {order}, timm
        print(timm.create_model("resnet20_cifar", num_classes=10).fc.out_features)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:hf_px", "-c", code], capture_output=True, text=True
    )
    assert done.stdout == "10\n", done.stderr


@pytest.mark.parametrize("name", EACH)
def test_tickets_of_them_load(name: str, tmp_path: Path) -> None:
    model = _lived_in(ARCHITECTURES[name](num_classes=5, generator=torch.Generator().manual_seed(0)))
    mask = hf_px.prune(model, "magnitude", sparsity=0.9, progress=False)
    hf_px.Ticket(mask.apply_(model), mask, scorer="magnitude").save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == name
    x = torch.randn(2, *model.pretrained_cfg["input_size"], generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for loaded in (hf_px.from_pretrained(tmp_path), timm.create_model(f"local-dir:{tmp_path}", pretrained=True)):
            assert torch.equal(loaded.eval()(x), model(x))
            assert loaded.pretrained_cfg["mean"] is not None
        headless = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=0).eval()
        assert torch.equal(headless(x), model.forward_head(model.forward_features(x), pre_logits=True))


def test_tickets_with_the_old_name_load() -> None:
    """Before timm knew it, the architecture was called resnet20."""
    example = FIXTURES / "old-ticket"
    ticket = hf_px.Ticket.from_pretrained(example)
    assert ticket.config["model"]["architecture"] == "resnet20"
    model = ticket.to_model()
    assert model.pretrained_cfg["architecture"] == "resnet20_cifar"
    assert hf_px.from_pretrained(example, num_classes=3).fc.out_features == 3


@pytest.mark.parametrize("name", SMALL)
def test_px_finds_its_way_through_them(name: str) -> None:
    model = ARCHITECTURES[name](num_classes=4, generator=torch.Generator().manual_seed(0))
    x = torch.randn(4, *model.pretrained_cfg["input_size"], generator=torch.Generator().manual_seed(1))
    mask = hf_px.prune(model, "px", sparsity=0.9, rounds=1, batches=[(x, torch.arange(4))], progress=False)
    assert mask.kept == round(0.1 * mask.total)
    assert all(bool(bits.any()) for bits in mask.bits.values())


def test_kaiming_normal_reaches_a_network_of_timms() -> None:
    model = timm.create_model("resnet18")
    kaiming_normal_(model, torch.Generator().manual_seed(0))
    for name, w in prunable(model).items():
        w = w.detach()
        sigma = math.sqrt(2 / w[0].numel())
        assert abs(float(w.std(correction=0)) / sigma - 1) < 5 / math.sqrt(2 * w.numel()), name
    assert all(bool((m.weight == 1).all()) for m in model.modules() if isinstance(m, nn.BatchNorm2d))  # branches open


# the first ResNet-50


def test_the_first_resnet50_halves_where_it_was_published_to() -> None:
    """Table 1 of He et al.: 56, 28, 14, 7; in the first convolution of a stage, before its 3x3."""
    model = ARCHITECTURES["resnet50_original"](generator=torch.Generator().manual_seed(0)).eval()
    sides: dict[str, int] = {}
    for stage in range(1, 5):
        for part in ("conv1", "conv2"):
            module = model.get_submodule(f"layer{stage}.0.{part}")
            module.register_forward_hook(lambda m, i, out, at=f"{stage}.{part}": sides.update({at: out.shape[-1]}))
    with torch.no_grad():
        model(torch.zeros(1, 3, 224, 224))
    assert sides == {f"{stage}.{part}": 112 // 2**stage for stage in range(1, 5) for part in ("conv1", "conv2")}
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    assert {m.eps for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {1e-3}
    config = timm.data.resolve_model_data_config(model)
    seen = (torch.tensor([0.0, 1.0]).view(2, 1) - torch.tensor(config["mean"])) / torch.tensor(config["std"])
    wanted = torch.tensor([[0.0], [255.0]]) - torch.tensor([123.68, 116.779, 103.939])  # as Caffe's images were
    assert torch.allclose(seen, wanted, atol=1e-3)


# real weights


@pytest.mark.slow
def test_real_weights_reproduce_their_accuracy(shared: Path) -> None:
    """Trained by others, with names of their own: 91.73 % on the whole test set."""
    import datasets
    import numpy as np

    found = load(str(shared / "weights/resnet20_cifar10.safetensors"), architecture="resnet20_cifar_a")
    assert (found.trained, found.base, found.new_head, found.model.num_classes) == (True, None, (), 10)
    (path,) = (shared / "data/cifar10").glob("test*.parquet")
    data = datasets.load_dataset("parquet", data_files=str(path), split="train")
    right = 0
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        for rows in data.iter(batch_size=500):
            pixels = torch.stack([torch.from_numpy(np.array(image.convert("RGB"))) for image in rows["img"]])
            x = (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std
            right += int((found.model(x).argmax(1) == torch.tensor(rows["label"])).sum())
    assert len(data) == 10_000
    assert right / len(data) == pytest.approx(0.9173, abs=1e-4)  # an image on the edge, on another machine
