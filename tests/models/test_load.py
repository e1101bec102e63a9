"""One name, any source: names that cannot be, weights files and their addresses, what is drawn at random."""

from __future__ import annotations

import argparse
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hf_px
from hf_px.cli import main
from hf_px.core.prunable import prunable
from hf_px.data import data_config
from hf_px.models.convert_weights import convert_dino, convert_moco, convert_state_dict
from hf_px.models.image_config import from_processor
from hf_px.models.load import LoadedModel, check_name, load
from hf_px.models.networks import resnet18_tiny, resnet20, resnet20_a, vgg16_cifar
from hf_px.models.records import backbones


def _image(model: Any, size: int = 64) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))


def _same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# names


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("", {}, "the name of the model is empty"),
        ("resnet5o", {}, "did you mean resnet50"),
        ("moco-resnet50", {}, "did you mean mocov2-resnet50"),
        ("vgg16_cifa", {}, "vgg16_cifar"),
        ("resnet50.tv_in2k", {}, "resnet50.tv_in1k"),
        ("timm/resnet50.nonsense", {}, "unknown weights 'resnet50.nonsense'; there are resnet50.a1_in1k"),
        ("resnet20", {"pretrained": True}, "resnet20 has no pretrained weights"),
        ("vgg16_cifar", {"pretrained": True}, "vgg16_cifar has no pretrained weights"),
        ("resnet50", {"architecture": "resnet50"}, "is already an architecture"),
        ("mine.pth", {"architecture": "resnet50"}, "mine.pth: no such file"),
        ("https://example.com/mine.pth", {}, "does not name its architecture; set `architecture`"),
        ("https://example.com/mine.pth", {"architecture": "resnet5o"}, "unknown architecture 'resnet5o'; did you mean"),
        ("https://example.com/mine.pth", {"architecture": "resnet50", "pretrained": False}, "would not read"),
        ("https://example.com/mine.zip", {"architecture": "resnet50"}, "not the URL of a weights file"),
        ("http://example.com/mine.pth", {"architecture": "resnet50"}, "over https:// only"),
        ("./no/such", {}, "no such directory; a Hub model is written org/name"),
        ("org/name/more", {}, "a Hub model is written org/name"),
        ("org/na me", {}, "neither a directory nor a name on the Hub"),
    ],
)
def test_what_cannot_be_is_refused_without_a_network(
    name: str, options: dict[str, Any], complaint: str, no_network: None
) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        check_name(name, **options)
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        load(name, **options)


def test_what_can_be_passes_without_a_network(no_network: None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in [*backbones, "resnet50d", "timm/resnet50.tv_in1k", "resnet50.tv_in1k", "microsoft/resnet-18"]:
        check_name(name)
    check_name(str(tmp_path))
    check_name("https://example.com/mine.pth.tar?download=true", architecture="dino-resnet50")
    check_name("resnet50", pretrained=True)
    check_name("microsoft/resnet-18", architecture="resnet18")


def test_every_short_name_has_a_whole_record() -> None:
    wanted = "imagenet-resnet50 mocov2-resnet50 clip-resnet50 dino-resnet50 dino-vit-s16 dinov2-vit-s14"
    own = {"resnet50", "resnet50-original"}
    segmenters = {f"deeplabv3plus-resnet{depth}" for depth in (18, 34, 50, 101)}
    assert set(backbones) == {*wanted.split(), "resnet20", "vgg16-cifar", "resnet18-tiny", *own, *segmenters}
    for name in backbones:
        record = backbones[name]
        assert record.name == name and record.summary and record.citation
        assert timm.is_model(record.architecture)
        assert (record.license is None) == (record.source is None)
        if record.source and record.source.startswith("timm/"):  # timm's own record is the oracle
            config = timm.models.get_pretrained_cfg(record.source.removeprefix("timm/"))
            assert (config.architecture, config.license) == (record.architecture, record.license)
            assert {key: getattr(config, key) for key in asdict(record.images)} == asdict(record.images)
    with pytest.raises(AttributeError):
        backbones["resnet20"].license = "mit"  # type: ignore[misc]


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backbones"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[1 : lines.index("")]}
    assert list(rows) == sorted(backbones)
    assert "cc-by-nc-4.0" in rows["mocov2-resnet50"] and "518x518" in rows["dinov2-vit-s14"]


# random weights


def test_random_ones_come_from_the_seed_alone() -> None:
    oracle = {"resnet20": resnet20, "vgg16-cifar": vgg16_cifar, "resnet18-tiny": resnet18_tiny}
    for name, build in oracle.items():
        found = load(name, num_classes=6, seed=3)
        assert _same(found.model, build(num_classes=6, generator=torch.Generator().manual_seed(3)))
        assert found == LoadedModel(found.model)  # nothing else is known of them
        assert not found.model.training
    assert _same(load("resnet20_cifar_a", seed=1).model, resnet20_a(generator=torch.Generator().manual_seed(1)))
    for name in ("test_vit", "test_resnet"):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        one = load(name, num_classes=4, seed=2).model
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(99)
        assert not _same(one, load(name, num_classes=4, seed=3).model)


def test_resnet50_is_kaiming_normal_with_open_branches(capsys: pytest.CaptureFixture[str]) -> None:
    model = load("resnet50", num_classes=10).model
    for name, w in prunable(model).items():
        w = w.detach()
        n, sigma = w.numel(), (2 / w[0].numel()) ** 0.5
        assert abs(float(w.std(correction=0)) / sigma - 1) < 5 / (2 * n) ** 0.5, name
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
    assert capsys.readouterr().err == ""  # timm's zeros are gone without a word: the record says so
    config = timm.data.resolve_model_data_config(model)
    assert (config["crop_pct"], config["interpolation"], config["input_size"]) == (0.875, "bilinear", (3, 224, 224))
    other = load("timm/resnet50", num_classes=10).model  # timm's own initialisation
    assert not torch.equal(model.conv1.weight, other.conv1.weight)


# weights files. A test_resnet of timm's is a real one and small


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(7)
    model = timm.create_model("test_resnet", num_classes=5, zero_init_last=False)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand(buffer.shape))
    return model.eval()


def _files(model: nn.Module, folder: Path) -> dict[str, Path]:
    state = model.state_dict()
    paths = {kind: folder / f"weights.{kind}" for kind in ("safetensors", "pth", "pt", "bin", "pth.tar")}
    save_file(state, paths["safetensors"])
    torch.save(state, paths["pth"])
    torch.save({"state_dict": state, "epoch": 3}, paths["pt"])
    torch.save({"model": {f"module.{name}": t for name, t in state.items()}}, paths["bin"])
    torch.save({"state_dict": state}, paths["pth.tar"], _use_new_zipfile_serialization=False)  # as in torch 1.5
    return paths


def test_every_kind_of_file_gives_the_model_back(
    small: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = _image(small)
    for kind, path in _files(small, tmp_path).items():
        found = load(str(path), architecture="test_resnet")
        assert _same(found.model, small), kind
        assert (found.base, found.revision, found.trained, found.new_head) == (None, None, True, ())
        assert not found.model.training and found.model.num_classes == 5
        with torch.no_grad():
            assert torch.equal(found.model(x), small(x))
        printed = capsys.readouterr().err
        assert printed == ("hf-px: weights.pt: epoch is not used\n" if kind == "pt" else "")


def test_a_head_of_another_size_is_drawn_from_the_seed(small: nn.Module, tmp_path: Path) -> None:
    path = str(_files(small, tmp_path)["pth"])
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = load(path, architecture="test_resnet", num_classes=3, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two = load(path, architecture="test_resnet", num_classes=3, seed=4)
    assert one.new_head == two.new_head == ("fc.weight", "fc.bias")
    assert _same(one.model, two.model)
    other = load(path, architecture="test_resnet", num_classes=3, seed=5).model
    assert not torch.equal(other.fc.weight, one.model.fc.weight)
    body = {n: t for n, t in small.state_dict().items() if not n.startswith("fc.")}
    assert all(torch.equal(one.model.state_dict()[name], tensor) for name, tensor in body.items())
    assert load(path, architecture="test_resnet", num_classes=5).new_head == ()  # the same number is no other
    with pytest.raises(ValueError, match="not a number of classes"):
        load(path, architecture="test_resnet", num_classes=0)


def test_what_is_missing_is_named_and_what_is_left_over_too(
    small: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = small.state_dict()
    path = tmp_path / "a.pth"
    torch.save({**state, "extra.one": torch.ones(1), "extra.two": torch.ones(1)}, path)
    assert _same(load(str(path), architecture="test_resnet").model, small)
    printed = capsys.readouterr().err.splitlines()
    assert printed == [f"hf-px: a.pth: extra.{n} is not used" for n in ("one", "two")]

    torch.save({name: t for name, t in state.items() if name != "layer3.0.conv2.weight"}, path)
    with pytest.raises(ValueError, match=r"a\.pth: lacks layer3\.0\.conv2\.weight; is it of another"):
        load(str(path), architecture="test_resnet")
    torch.save({**state, "conv1.0.weight": torch.ones(2, 2)}, path)
    with pytest.raises(ValueError, match=r"conv1\.0\.weight is \(2, 2\), the architecture's is \("):
        load(str(path), architecture="test_resnet")
    with pytest.raises(ValueError, match=r"lacks .*, …; it has conv1\.0\.weight"):
        load(str(path), architecture="resnet18")
    counted = {name: t for name, t in state.items() if not name.endswith("num_batches_tracked")}
    torch.save(counted, path)  # as files of torch 0.4 are
    x = _image(small)
    with torch.no_grad():
        assert torch.equal(load(str(path), architecture="test_resnet").model(x), small(x))


class _Poison:
    def __reduce__(self) -> Any:
        return os.system, ("touch poisoned",)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for legacy in (True, False):
        torch.save({"fc.weight": _Poison()}, "bad.pth", _use_new_zipfile_serialization=not legacy)
        with pytest.raises(ValueError, match=r"bad\.pth: refused: besides tensors it holds posix\.system"):
            load("bad.pth", architecture="test_resnet")
    torch.save(timm.create_model("test_resnet"), "whole.pth")  # a whole module needs code as well
    with pytest.raises(ValueError, match=r"whole\.pth: refused: .* holds timm\.\w+"):
        load("whole.pth", architecture="test_resnet")
    assert not Path("poisoned").exists()


def test_files_cut_short_or_of_something_else(small: nn.Module, tmp_path: Path) -> None:
    for kind, path in _files(small, tmp_path).items():
        whole = path.read_bytes()
        for size in (0, 10, 1000, len(whole) // 2, len(whole) - 100):
            path.write_bytes(whole[:size])
            with pytest.raises(ValueError, match=rf"weights\.{kind}: (damaged|no state_dict)"):
                load(str(path), architecture="test_resnet")
    path = tmp_path / "list.pth"
    torch.save([torch.ones(2)], path)
    with pytest.raises(ValueError, match="holds a list, not a state_dict"):
        load(str(path), architecture="test_resnet")
    torch.save({"epoch": 3}, path)
    with pytest.raises(ValueError, match=r"list\.pth: no state_dict: epoch holds no tensor"):
        load(str(path), architecture="test_resnet")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match="not the name of a weights file"):
        load(str(tmp_path / "notes.txt"))


def test_names_of_torchvision_become_ours(tmp_path: Path) -> None:
    model = resnet20_a(generator=torch.Generator().manual_seed(3))

    def theirs(name: str) -> str:
        first, _, rest = name.partition(".")
        if first == "blocks":
            i, _, rest = rest.partition(".")
            return f"layer{int(i) // 3 + 1}.{int(i) % 3}.{rest}"
        return {"conv": "conv1.", "bn": "bn1.", "fc": "linear."}[first] + rest

    path = tmp_path / "a.safetensors"
    save_file({theirs(name): tensor for name, tensor in model.state_dict().items()}, path)
    assert _same(load(str(path), architecture="resnet20_cifar_a").model, model)
    with pytest.raises(ValueError, match=r"lacks blocks\.3\.shortcut\.0\.weight"):  # the other shortcuts
        load(str(path), architecture="resnet20")


def test_a_directory_of_one_weights_file(small: nn.Module, tmp_path: Path) -> None:
    torch.save(small.state_dict(), tmp_path / "epoch_90.pth")
    assert _same(load(str(tmp_path), architecture="test_resnet").model, small)
    with pytest.raises(ValueError, match=r"a directory without config\.json"):
        load(str(tmp_path))
    torch.save(small.state_dict(), tmp_path / "epoch_91.pth")
    with pytest.raises(ValueError, match=r"expected one weights file, it has epoch_90\.pth, epoch_91\.pth"):
        load(str(tmp_path), architecture="test_resnet")


# MoCo v2 and DINO: checkpoints with the names that their authors gave them


@pytest.fixture(scope="module")
def body() -> nn.Module:
    """A ResNet-50 without a head, as those networks are evaluated."""
    torch.manual_seed(11)
    return timm.create_model("resnet50", num_classes=0, zero_init_last=False).eval()


def moco_checkpoint(body: nn.Module) -> dict[str, Any]:
    """As main_moco.py saves it; the key encoder shares storage here, which keeps the file small."""
    state: dict[str, Tensor] = {}
    for encoder in ("encoder_q", "encoder_k"):
        state |= {f"module.{encoder}.{name}": tensor for name, tensor in body.state_dict().items()}
        for layer in (0, 2):
            state[f"module.{encoder}.fc.{layer}.weight"] = torch.ones(8, 8)
            state[f"module.{encoder}.fc.{layer}.bias"] = torch.ones(8)
    state["module.encoder_k.conv1.weight"] = torch.zeros(64, 3, 7, 7)  # momentum: never quite the same
    state |= {"module.queue": torch.ones(128, 16), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    return {"epoch": 800, "arch": "resnet50", "state_dict": state, "optimizer": {"state": {}, "param_groups": []}}


def dino_checkpoint(body: nn.Module) -> dict[str, Any]:
    """As main_dino.py saves it."""
    head = {f"head.mlp.{i}.{kind}": torch.ones(4) for i in (0, 2, 4) for kind in ("weight", "bias")}
    head |= {"head.last_layer.weight_g": torch.ones(4, 1), "head.last_layer.weight_v": torch.ones(4, 4)}
    teacher = {f"backbone.{name}": tensor for name, tensor in body.state_dict().items()} | head
    student = {f"module.{name}": tensor + 1 for name, tensor in teacher.items() if "bn1.weight" in name}
    options = argparse.Namespace(arch="resnet50", lr=0.03)
    return {"student": student, "teacher": teacher, "optimizer": {}, "epoch": 800, "args": options, "dino_loss": {}}


@pytest.fixture(scope="module")
def checkpoints(body: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    found = {
        "mocov2-resnet50": (folder / "moco_v2.pth.tar", moco_checkpoint(body)),
        "dino-resnet50": (folder / "dino_full.pth", dino_checkpoint(body)),
        "dino-resnet50 alone": (folder / "dino.pth", body.state_dict()),
    }
    for path, checkpoint in found.values():
        torch.save(checkpoint, path)
    return {name: path for name, (path, _) in found.items()}


LEFT = {
    "mocov2-resnet50": [
        "module.encoder_q.fc.* (4 tensors)",
        "module.encoder_k.* (322 tensors)",
        "module.queue* (2 tensors)",
        "epoch",
        "arch",
        "optimizer",
    ],
    "dino-resnet50": ["head.* (8 tensors)", "student", "optimizer", "epoch", "args", "dino_loss"],
    "dino-resnet50 alone": [],
}


@pytest.mark.parametrize("name", LEFT)
def test_the_authors_checkpoints_are_converted(
    name: str, checkpoints: dict[str, Path], body: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    path, short = checkpoints[name], name.partition(" ")[0]
    found = load(str(path), architecture=short)
    assert _same(found.model, body)  # bit for bit the network that the checkpoint was made from
    x = _image(body)
    with torch.no_grad():
        assert torch.equal(found.model(x), body(x))
    assert (found.license, found.citation) == (backbones[short].license, backbones[short].citation)
    assert (found.base, found.trained, found.new_head) == (None, True, ())
    printed = capsys.readouterr().err.splitlines()
    assert sorted(printed) == sorted(f"hf-px: {path.name}: {line} is not used" for line in LEFT[name])
    config: Any = found.model.pretrained_cfg
    assert config["architecture"] == "resnet50" and config["crop_pct"] == 0.875 and config["mean"][0] == 0.485
    assert not config.get("hf_hub_id") and not config.get("url")  # these are not timm's weights
    assert config["license"] == found.license


def test_a_converted_one_gets_a_head_and_becomes_a_ticket(
    checkpoints: dict[str, Path], body: nn.Module, tmp_path: Path
) -> None:
    argv = ["prune", str(checkpoints["mocov2-resnet50"]), "--architecture", "mocov2-resnet50", "--num-classes", "10"]
    argv += ["--scorer", "magnitude", "--sparsity", "0.9", "--min-per-layer", "8", "--quiet"]
    argv += ["--output", str(tmp_path / "out")]
    assert main(argv) == 0
    config = hf_px.Ticket.from_pretrained(tmp_path / "out").config
    assert config["license"] == "cc-by-nc-4.0" and "base" not in config
    assert config["settings"]["weights"].startswith("as trained")
    model = hf_px.from_pretrained(tmp_path / "out")
    assert model.num_classes == 10
    kept = model.layer1[0].conv1.weight != 0
    assert bool((model.layer1[0].conv1.weight == body.layer1[0].conv1.weight)[kept].all())


def test_checkpoints_of_something_else_are_refused(body: nn.Module) -> None:
    state = {name: tensor for name, tensor in body.state_dict().items() if name.startswith("conv1")}
    with pytest.raises(ValueError, match=r"not a checkpoint of MoCo v2: no module\.encoder_q\. among conv1\.weight"):
        convert_moco(state)
    odd = moco_checkpoint(body)
    odd["state_dict"]["module.decoder.weight"] = torch.ones(1)
    with pytest.raises(ValueError, match=r"module\.decoder\.weight: not part of a MoCo v2 checkpoint"):
        convert_moco(odd)
    odd = dino_checkpoint(body)
    odd["teacher"]["neck.weight"] = torch.ones(1)
    with pytest.raises(ValueError, match=r"neck\.weight: not part of a DINO checkpoint"):
        convert_dino(odd)
    with pytest.raises(ValueError, match="no state_dict"):
        convert_state_dict({})
    wrapped = {"teacher": {"module.backbone.conv1.weight": torch.ones(1), "module.head.mlp.0.bias": torch.ones(1)}}
    assert list(convert_dino(wrapped).tensors) == ["conv1.weight"] and convert_dino(wrapped).unused == [
        "head.mlp.0.bias"
    ]


def test_a_checkpoint_with_a_tensor_too_many_is_refused(body: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "dino.pth"
    torch.save({**body.state_dict(), "layer5.0.conv1.weight": torch.ones(1)}, path)
    with pytest.raises(ValueError, match=r"resnet50 has no tensor layer5\.0\.conv1\.weight"):
        load(str(path), architecture="dino-resnet50")


# addresses


class _Quiet(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []
    broken = False

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if type(self).broken:
            data = (Path(self.directory) / self.path.strip("/")).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            return
        super().do_GET()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """(address, folder) of a server on loopback, and an empty cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    folder = tmp_path / "www"
    folder.mkdir()
    _Quiet.asked, _Quiet.broken = [], False
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def test_an_address_is_fetched_once_and_whole(
    web: tuple[str, Path], small: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, folder = web
    torch.save(small.state_dict(), folder / "w.pth")
    url = f"{address}/w.pth"
    for _ in range(2):
        found = load(url, architecture="test_resnet", num_classes=3)
        assert (found.base, found.revision, found.new_head) == (url, None, ("fc.weight", "fc.bias"))
    assert _Quiet.asked == ["/w.pth"]
    home = tmp_path / "home" / "hf_px"
    assert [path.name for path in home.rglob("*") if path.is_file() and not path.name.startswith(".lock")] == ["w.pth"]
    with pytest.raises(ValueError, match="the server answered 404"):
        load(f"{address}/other.pth", architecture="test_resnet")
    with pytest.raises(ValueError, match="has no revisions"):
        load(url, architecture="test_resnet", revision="main")


def test_half_a_file_is_never_kept(web: tuple[str, Path], small: nn.Module, tmp_path: Path) -> None:
    address, folder = web
    torch.save(small.state_dict(), folder / "w.pth")
    _Quiet.broken = True
    with pytest.raises(ValueError, match=r"w\.pth: the connection (broke|failed)"):
        load(f"{address}/w.pth", architecture="test_resnet")
    home = tmp_path / "home" / "hf_px"
    assert not [path for path in home.rglob("*") if path.is_file() and path.suffix in (".pth", ".part")]
    _Quiet.broken = False
    assert _same(load(f"{address}/w.pth", architecture="test_resnet").model, small)


def test_a_server_that_is_not_there(web: tuple[str, Path]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ValueError, match="the connection failed"):
        load(f"http://127.0.0.1:{port}/w.pth", architecture="test_resnet")


def test_a_ticket_of_an_address_says_where_its_weights_came_from(
    web: tuple[str, Path], small: nn.Module, tmp_path: Path
) -> None:
    address, folder = web
    torch.save(small.state_dict(), folder / "w.pth")
    argv = ["prune", f"{address}/w.pth", "--architecture", "test_resnet", "--scorer", "magnitude", "--quiet"]
    assert main([*argv, "--sparsity", "0.5", "--output", str(tmp_path / "out")]) == 0
    config = hf_px.Ticket.from_pretrained(tmp_path / "out").config
    assert "base" not in config and config["settings"]["weights_from"] == f"{address}/w.pth"


# images


@pytest.mark.parametrize(
    ("processor", "size", "pct", "mode"),
    [
        ({"size": {"height": 224, "width": 192}}, (224, 192), 1.0, "squash"),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
            (224, 224),
            0.875,
            "center",
        ),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.9}, (224, 224), 0.9, "center"),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.9}, (384, 384), 1.0, "squash"),
        ({"size": 96}, (96, 96), 1.0, "squash"),
        ({"size": {"shortest_edge": 64}}, (64, 64), 1.0, "center"),
    ],
)
def test_processors_in_timms_words(processor: dict[str, Any], size: tuple[int, int], pct: float, mode: str) -> None:
    norm = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "resample": 3}
    found = from_processor({**processor, **norm})
    assert found == {
        "input_size": (3, *size),
        "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6),
        "interpolation": "bicubic",
        "crop_pct": pct,
        "crop_mode": mode,
    }
    plain_ = from_processor({**processor, "do_normalize": False})
    assert plain_ is not None and (plain_["mean"], plain_["std"]) == ((0.0,) * 3, (1.0,) * 3)
    assert from_processor({**norm}) is None


# real weights


@pytest.mark.slow
@pytest.mark.parametrize("scorer", ["px", "magnitude"])
def test_a_real_resnet50_is_pruned_to_the_papers_sparsity(scorer: str, shared: Path) -> None:
    import numpy as np
    from PIL import Image

    path = shared / "weights/resnet50_imagenet_caffe.safetensors"
    model: Any = load(str(path), architecture="resnet50-original").model
    assert model.num_classes == 1000
    paths = sorted((shared / "data/voc2012_subset/train/images").iterdir())[:16]
    pixels = [torch.from_numpy(np.array(Image.open(path).convert("RGB").resize((224, 224)))) for path in paths]
    mean, std = (torch.tensor(data_config(model)[key]).view(3, 1, 1) for key in ("mean", "std"))
    x = (torch.stack(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        sure = model(x).softmax(1).amax(1)
    assert float(sure.median()) > 0.5  # photographs of things that it knows: loaded wrongly it would guess
    batches = [(x, torch.zeros(len(x), dtype=torch.long))]
    scores = hf_px.score(model, scorer, batches=batches)
    assert all(bool(torch.isfinite(s).all()) for s in scores.values())
    mask = hf_px.prune(
        model, scorer, sparsity=0.956, batches=batches, rounds=5 if scorer == "px" else 1, progress=False
    )
    assert mask.kept == round((1 - 0.956) * mask.total)
    if scorer == "px":
        assert all(bool(bits.any()) for bits in mask.bits.values())
    mask.apply_(model)
    with torch.no_grad():
        assert bool(torch.isfinite(model(x)).all())
