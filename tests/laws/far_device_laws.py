"""What runs on the CPU runs on another device, with the same result; the device is emulated (tests/support).

test_far_device.py runs this file in a process of its own. By hand: python -m pytest tests/laws/far_device_laws.py
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from support.far_device import FarTensor, emulated, far
from support.launching import main, small_digits, small_pairs
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn import functional as F

import hf_px
from hf_px.analysis.cost import cost
from hf_px.analysis.latency import latency
from hf_px.analysis.layer_counts import count_layers
from hf_px.analysis.ntk import spectrum
from hf_px.analysis.overlap import overlap
from hf_px.analysis.ridge_probe import with_ridge_head
from hf_px.analysis.saliency import saliency
from hf_px.analysis.summary import summary
from hf_px.cli import main as command
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.core.reinitialize import fresh_other_parameters
from hf_px.sparse_training import violations
from hf_px.training.experiment import Experiment

CLASSES = 6
QUICK: dict[str, dict[str, Any]] = {"phew": {"walks": 32, "walkers": 16}, "prospr": {"steps": 1}}


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with emulated():
        yield


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(**tiny, image_size=32, patch_size=8, num_labels=CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet": lambda: timm.create_model("test_resnet", num_classes=CLASSES, zero_init_last=False),
    "convnext": lambda: timm.create_model("test_convnext", num_classes=CLASSES),
    "efficientnet": lambda: timm.create_model("test_efficientnet", num_classes=CLASSES),
    "timm vit": lambda: timm.create_model("test_vit", num_classes=CLASSES, img_size=32),
    "transformers vit": vit,
    "deeplab": lambda: timm.create_model("deeplabv3plus_test_resnet", num_classes=CLASSES),
}


def network(name: str) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A network and two batches for it, all on the CPU."""
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    labels = (2, 33, 33) if name == "deeplab" else (2,)
    size = 33 if name == "deeplab" else 32
    if hasattr(model, "pretrained_cfg"):
        model.pretrained_cfg["input_size"] = (3, size, size)
    batches = [(torch.randn(2, 3, size, size), torch.randint(CLASSES, labels)) for _ in range(2)]
    return model, batches


def moved(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(far())


def equal(there: dict[str, Tensor], here: dict[str, Tensor], rel: float = 1e-5) -> None:
    """The same numbers but for rounding: attention takes another route where no fused kernel is."""
    assert there.keys() == here.keys()
    for name, tensor in there.items():
        assert tensor.device == far(), name
        near, want = tensor.detach().cpu(), here[name].detach()
        torch.testing.assert_close(near, want, rtol=rel, atol=rel * float(want.abs().max()), msg=name)


SLOW = {"efficientnet", "timm vit"}  # convnext and the transformers one stand for them


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in NETWORKS])
def test_every_scorer(name: str) -> None:
    model, (batch, _) = network(name)
    there, batches = moved(model), [batch]
    for scorer in hf_px.list_scorers():
        options = {"seed": 3, **QUICK.get(scorer, {})}
        scores = hf_px.score(model, scorer, batches, **options)
        equal(hf_px.score(there, scorer, batches, **options), scores, rel=1e-4 if scorer == "ntk-sap" else 1e-5)
    on_device = [(x.to(far()), y.to(far())) for x, y in batches]
    equal(hf_px.score(there, "snip", on_device), hf_px.score(model, "snip", batches))


@pytest.mark.parametrize(
    ("scorer", "scope"),
    [*((name, "global") for name in ("px", "px-path", "synflow", "force", "random")), ("snip", "erk"), ("snip", "2:4")],
)
def test_prune_in_rounds(scorer: str, scope: str) -> None:
    model, batches = network("resnet")
    asked: dict[str, Any] = {"batches": batches, "rounds": 2, "scope": scope, "progress": False}
    asked |= {"sparsity": 0.5 if scope == "2:4" else 0.8}
    asked |= {"exclude": ["conv1.0.weight"]} if scope == "2:4" else {"min_per_layer": 4}
    mask = hf_px.prune(model, scorer, **asked)
    there = moved(model)
    found = hf_px.prune(there, scorer, **asked)
    assert found.digest() == mask.digest() and {bits.device for bits in found.bits.values()} == {far()}
    # an interrupted one, whose mask was read from a file, goes on
    halves: list[tuple[int, Mask]] = []
    hf_px.prune(model, scorer, **asked, on_round=lambda t, m: halves.append((t, m)))
    assert hf_px.prune(there, scorer, **asked, resume_from=halves[0]).digest() == mask.digest()
    for bits in (mask, found):  # a mask of either device fits
        equal(prunable(bits.apply_(moved(model))), prunable(mask.apply_(copy.deepcopy(model))), rel=0)


def test_a_model_that_an_accelerator_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "far:0")
    _reset()
    accelerator = Accelerator()
    assert accelerator.device == far()
    model, batches = network("resnet")
    mask = hf_px.prune(model, "px", sparsity=0.8, batches=batches, rounds=2, progress=False)
    found = hf_px.prune(model, "px", sparsity=0.8, batches=batches, rounds=2, progress=False, accelerator=accelerator)
    assert found.digest() == mask.digest() and {p.device.type for p in model.parameters()} == {"cpu"}


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("late", [False, True], ids=["there", "moved after keep"])
def test_zeros_stay_zero_in_training(optimizer: str, late: bool) -> None:
    model, batches = network("resnet")
    mask = hf_px.prune(model, "magnitude", sparsity=0.8, progress=False)

    def train(model: nn.Module, there: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        if there and not late:
            model.to(far())
        step = OPTIMIZERS[optimizer](model.parameters())
        ema = ModelEmaV3(model, decay=0.5)
        hf_px.keep_zeros(model, mask, step, ema=ema)
        if there and late:
            with swapped():
                model.to(far()), ema.to(far())
        for x, y in batches * 2:
            loss = F.cross_entropy(model.train()(x.to(_device(model))), y.to(_device(model)))
            loss.backward()
            if not late:  # what moves a model here takes the hooks off its gradients, which no real device does
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            step.step(), step.zero_grad()
            ema.update(model)
        for one in (model, ema.module):
            assert violations(dict(one.named_parameters()), mask) == {}
        return dict(model.state_dict()), dict(ema.module.state_dict())

    here = train(copy.deepcopy(model), False)
    for a, b in zip(train(copy.deepcopy(model), True), here):
        equal(a, b)


@contextmanager
def swapped() -> Iterator[None]:
    """model.to(device) leaves an optimizer its parameters, as it does on a real device."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@pytest.mark.parametrize("name", ["resnet", "transformers vit", "deeplab"])
def test_tickets_come_and_go(name: str, tmp_path: Path) -> None:
    model, _ = network(name)
    mask = hf_px.prune(model, "magnitude", sparsity=0.8, progress=False)
    mask.apply_(model)
    there, mask_there = moved(model), Mask({name: bits.to(far()) for name, bits in mask.bits.items()})
    for layout in ("both", "packed", "dense"):
        hf_px.Ticket(model, mask, scorer="magnitude").save_pretrained(tmp_path / layout / "here", layout=layout)
        hf_px.Ticket(there, mask_there, scorer="magnitude").save_pretrained(tmp_path / layout / "there", layout=layout)
        files = [{p.name: p.read_bytes() for p in (tmp_path / layout / f).iterdir()} for f in ("here", "there")]
        assert files[0] == files[1]
        loaded = hf_px.from_pretrained(tmp_path / layout / "there").to(far())
        equal(dict(loaded.state_dict()), dict(model.state_dict()), rel=0)
    assert command(["verify", str(tmp_path / "both" / "there")]) == 0
    if name == "transformers vit":
        loaded.save_pretrained(tmp_path / "again")
        again = type(model).from_pretrained(tmp_path / "again").to(far())
        assert hf_px.mask_of(again).digest() == mask.digest()
        equal(dict(again.state_dict()), dict(model.state_dict()), rel=0)


@pytest.mark.parametrize("name", ["resnet", pytest.param("timm vit", marks=pytest.mark.slow)])
def test_analysis(name: str) -> None:
    model, batches = network(name)
    there = moved(model)
    mask = hf_px.prune(model, "snip", sparsity=0.7, batches=batches, min_per_layer=4, progress=False)
    mask_there = Mask({name: bits.to(far()) for name, bits in mask.bits.items()})
    size = tuple(batches[0][0].shape[1:])
    for m in (mask, mask_there):
        assert summary(there, m, input_size=size).to_dict() == summary(model, mask, input_size=size).to_dict()
        assert cost(there, m, input_size=size) == cost(model, mask, input_size=size)
        assert count_layers(there, m, None) == count_layers(model, mask, None)
        assert overlap(m, mask).all.jaccard == overlap(mask, m).all.jaccard == 1
        scores = {name: w.abs() for name, w in prunable(there).items()}
        ones = Mask.ones(prunable(there))
        assert saliency(scores, ones, m).rows
    x = batches[0][0]
    for asked in ({"draws": 1}, {"top": 4, "probes": 2}):
        found = spectrum(there, [x.to(far())], mask_there, **asked, progress=False)
        here = spectrum(model, [x], mask, **asked, progress=False)
        assert list(found.values) == pytest.approx(list(here.values), rel=1e-3, abs=1e-3 * here.values[0])
    assert latency({"far": there}, x.to(far()), seconds=0.0, least=1)["far"].median > 0
    equal(
        fresh_other_parameters(there, list(mask.bits)),
        {n: t for n, t in fresh_other_parameters(model, list(mask.bits)).items()},
    )


def test_a_ridge_head() -> None:
    model, batches = network("resnet")
    heads = [with_ridge_head(m, batches, CLASSES).state_dict() for m in (moved(model), model)]
    equal(dict(heads[0]), dict(heads[1]), rel=1e-3)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("cpu", "far"):
        words = ["prune", "resnet20", "--sparsity", "0.8", "--rounds", "2", "--per-class", "2", "--device", device]
        assert not command([*words, "--quiet", "--output", str(tmp_path / device)])
    words = ["report", str(tmp_path / "far"), "--device", "far", "--per-class", "1", "--images", "2", "--quiet"]
    assert not command([*words, "--draws", "0", "--skip", "latency", "--output", str(tmp_path / "report")])
    digests = [json.loads((tmp_path / name / "prune.json").read_text())["digest"] for name in ("cpu", "far")]
    assert digests[0] == digests[1]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Run the recipe on a device; what it found."""

    def run(where: str, *flags: Any, interrupt: bool = False) -> dict[str, Any]:
        _reset()
        monkeypatch.setenv("HF_PX_CACHE", str(tmp_path / f"cache-{where}"))
        if where == "cpu":
            monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
            monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
        else:
            monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "far:0")
            monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
        words = [*map(str, flags), "--output_dir", str(tmp_path / where)]
        if where == "far" and interrupt:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Experiment, "record", _interrupted)
                main([*words, "--checkpoint_steps", "1"])
            assert list((tmp_path / where / "checkpoints").glob("ticket-*"))
            words.append("--resume")
            _reset()
        main(words)
        found = json.loads((tmp_path / where / "results.json").read_text())
        assert found["settings"]["device"] == ("cpu" if where == "cpu" else "far")
        return found

    yield run
    _reset()


def _reset() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def _interrupted(experiment: Any, name: str, model: nn.Module, record: Any = Experiment.record) -> None:
    if name == "ticket":
        raise KeyboardInterrupt  # trained, and its results are only in checkpoints
    record(experiment, name, model)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_the_recipe(task: str, recipe: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    if task == "segmentation":
        small_pairs(tmp_path / "data", train=8, test=3)
        flags = ["--model", "deeplabv3plus_test_resnet", "--image_size", 33, "--batch_size", 8, "--per_class", 2]
    else:
        small_digits(tmp_path / "data", train=64, test=20)
        flags = ["--model", "resnet20", "--image_size", 8, "--batch_size", 32, "--per_class", 2, "--ema_decay", 0.5]
        flags += ["--ridge_per_class", 2, "--gradient_accumulation", 2, "--label_smoothing", 0.1, "--grad_clip", 1]
    flags += ["--data", tmp_path / "data", "--epochs", 2, "--rounds", 2, "--sparsity", 0.8, "--distill", 0.3]
    here, there = (recipe(where, *flags, interrupt=task == "classification") for where in ("cpu", "far"))
    assert there["mask"] == here["mask"]
    for name, found in here["results"].items():
        for metric, value in found.items():
            if isinstance(value, float):
                assert there["results"][name][metric] == pytest.approx(value, rel=1e-3), (name, metric)
    weights = [hf_px.from_pretrained(tmp_path / where).state_dict() for where in ("cpu", "far")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-4)


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    there = torch.ones(3, device=far())
    assert isinstance(there, FarTensor) and (there + torch.tensor(1.0)).tolist() == [2, 2, 2]
    assert torch.equal(there.cpu(), torch.ones(3)) and torch.ones(3).to(far()).device == far()
    for wrong in (
        lambda: there + torch.ones(3),
        lambda: torch.ones(3) * there,
        lambda: there[torch.tensor([0, 1])],
        lambda: torch.cat([there, torch.ones(3)]),
        lambda: there.numpy(),
        lambda: torch.rand(3, device=far(), generator=torch.Generator()),
        lambda: there.uniform_(generator=torch.Generator()),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            wrong()
