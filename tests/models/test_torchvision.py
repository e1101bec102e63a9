"""torchvision's classifiers by name: its own modules, trained weights if asked for, tickets that load in one line."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import nn
from torchvision.models import get_model, get_model_weights, list_models

import hf_px
import hf_px.models.load
from hf_px.cli import main
from hf_px.core.errors import TicketError
from hf_px.core.head import head_of
from hf_px.data import data_config
from hf_px.models import architecture
from hf_px.models.load import check_name, load
from hf_px.models.torchvision_models import names

SMALL = "torchvision/shufflenet_v2_x0_5"
FAMILIES = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "maxvit_t", "mnasnet0_5",
    "mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1",
    "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_32", "wide_resnet50_2",
)  # fmt: skip


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_every_classifier_is_offered_or_refused_with_a_reason() -> None:
    known = list_models(module=torchvision.models)
    assert len(names()) > 60
    for name in known:
        if name in names():
            check_name(f"torchvision/{name}")
            check_name(f"torchvision/{name}", pretrained=True)
        else:
            with pytest.raises(ValueError, match=f"torchvision/{name}: torchvision's is not supported: it "):
                check_name(f"torchvision/{name}")


@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(n, marks=pytest.mark.slow) for n in names())])
def test_the_record_builds_torchvisions_own_module(name: str) -> None:
    """Against torchvision itself: the class, every tensor's shape, the head, and the images of its weights."""
    with torch.device("meta"):
        model = timm.create_model(f"torchvision_{name}", num_classes=7)
        own = get_model(name, weights=None, num_classes=7)
    assert type(model) is type(own)
    assert {n: t.shape for n, t in model.state_dict().items()} == {n: t.shape for n, t in own.state_dict().items()}
    last = [n for n, m in own.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1]
    assert model.pretrained_cfg["classifier"] == last and model.num_classes == 7
    if isinstance(own.get_submodule(last), nn.Linear):
        assert head_of(model) == [f"{last}.weight"]
    record = architecture.describe(model)
    assert json.loads(json.dumps(record)) == record and record["architecture"] == f"torchvision_{name}"
    again = architecture.on_meta(record, None, len(own.state_dict()))
    assert type(again) is type(own) and again.state_dict().keys() == own.state_dict().keys()
    images, config = get_model_weights(name).DEFAULT.transforms(), data_config(model)
    assert list(config["mean"]) == images.mean and list(config["std"]) == images.std
    if name != "vit_h_14":  # whose default weights take larger images than it is built for
        assert config["input_size"] == (3, *images.crop_size * 2)
        assert int(images.crop_size[0] / config["crop_pct"]) in (images.resize_size[0], images.resize_size[0] - 1)


@pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "squeezenet1_1", "mobilenet_v3_small"])
def test_a_ticket_loads_in_one_line(name: str, tmp_path: Path) -> None:
    loaded = load(f"torchvision/{name}", num_classes=6, seed=3)
    model = loaded.model
    assert same(model, load(f"torchvision/{name}", num_classes=6, seed=3).model) and not model.training
    assert (loaded.base, loaded.trained) == (None, False)
    mask = hf_px.prune(model, "magnitude", sparsity=0.8, min_per_layer=32, progress=False)
    mask.apply_(model)
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    found = hf_px.from_pretrained(tmp_path)
    assert type(found) is type(get_model(name)) and same(found, model)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(found(x), model(x)) and found(x).shape == (2, 6)
    assert main(["verify", str(tmp_path)]) == 0
    with pytest.warns(UserWarning, match="newly initialised for 9 classes"):
        assert hf_px.from_pretrained(tmp_path, num_classes=9)(x).shape == (2, 9)
    assert "library_name: hf_px" in (tmp_path / "README.md").read_text()  # timm alone does not have the architecture
    assert same(timm.create_model(f"local-dir:{tmp_path}", pretrained=True), model)


@pytest.mark.parametrize("runtime", ["dense", "sparse"])
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], runtime: str) -> None:
    words = ["prune", SMALL, "--num-classes", "10", "--data", "random", "--scorer", "px-path", "--rounds", "2"]
    words += [
        "--device",
        "cpu",
        "--sparsity",
        "0.5",
        "--dtype",
        "float16",
        "--output",
        str(tmp_path / "out"),
        "--quiet",
    ]
    assert main(words) == 0
    assert main(["info", str(tmp_path / "out")]) == 0
    assert "torchvision_shufflenet_v2_x0_5" in capsys.readouterr().out
    x = torch.randn(1, 3, 224, 224)
    dense = hf_px.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        found = hf_px.from_pretrained(tmp_path / "out", runtime=runtime)(x)
    torch.testing.assert_close(found, dense(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("torchvision/reznet18", {}, "no classifier 'reznet18'; did you mean torchvision/resnet18"),
        (
            "torchvision/resnet18.v9",
            {},
            "unknown weights 'torchvision/resnet18.v9'; there are torchvision/resnet18.ima",
        ),
        ("torchvision/resnet18", {"architecture": "resnet18"}, "already an architecture; omit `architecture`"),
        ("torchvision/resnet18", {"revision": "main"}, "does not come from the Hub"),
        ("https://example.com/w.pth", {"architecture": "torchvision/reznet18"}, "no classifier 'reznet18'"),
        ("torchvision/", {}, "no classifier ''"),
    ],
)
def test_what_is_refused_without_a_network(name: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        load(name, **options)


def test_a_directory_and_a_file_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "torchvision" / "resnet18"
    timm.models.save_for_hf(timm.create_model("test_resnet", num_classes=4), folder, model_config={"num_classes": 4})
    assert load("torchvision/resnet18").model.num_classes == 4
    save_file(get_model("squeezenet1_1", num_classes=3).state_dict(), tmp_path / "torchvision" / "own.safetensors")
    found = load("torchvision/own.safetensors", architecture="torchvision/squeezenet1_1", num_classes=5)
    assert found.new_head == ("classifier.1.weight", "classifier.1.bias")
    assert found.model(torch.randn(1, 3, 64, 64)).shape == (1, 5)


# trained weights


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """(address, folder) of a server on loopback, and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    folder = tmp_path / "www"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def published(state: dict[str, torch.Tensor], name: str, web: tuple[str, Path], monkeypatch: Any, sha: str = "") -> str:
    """The address of a file as torchvision publishes it, and its entry for the name changed to that address."""
    address, folder = web
    torch.save(state, folder / "w.pth")
    sha = sha or hashlib.sha256((folder / "w.pth").read_bytes()).hexdigest()[:8]
    (folder / "w.pth").rename(folder / f"{name}-{sha}.pth")
    url, real = f"{address}/{name}-{sha}.pth", hf_px.models.load.weights_of
    monkeypatch.setattr(hf_px.models.load, "weights_of", lambda wanted: replace(real(wanted).value, url=url))
    return url


@pytest.mark.parametrize(("name", "options"), [(".imagenet1k_v1", {}), ("", {"pretrained": True})])
def test_trained_weights_are_torchvisions(name: str, options: Any, web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    own = get_model("squeezenet1_1").eval()
    url = published(own.state_dict(), "squeezenet1_1", web, monkeypatch)
    found = load(f"torchvision/squeezenet1_1{name}", **options)
    assert same(found.model, own) and found.base == url and found.trained and not found.new_head
    found = load(f"torchvision/squeezenet1_1{name}", num_classes=3, **options)
    assert found.model.num_classes == 3 and found.new_head == ("classifier.1.weight", "classifier.1.bias")
    assert same(found.model.features, own.features)


def test_images_are_those_of_the_weights(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """mobilenet_v2 has two sets of weights, tested on images of another size before the crop."""
    published(get_model("mobilenet_v2").state_dict(), "mobilenet_v2", web, monkeypatch)
    found = [data_config(load(f"torchvision/mobilenet_v2.imagenet1k_v{i}").model)["crop_pct"] for i in (1, 2)]
    assert found == [224 / 256, 224 / 232]


def test_densenets_old_names(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = get_model("densenet121").eval()
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", n): t for n, t in own.state_dict().items()}
    assert old.keys() != own.state_dict().keys()
    published(old, "densenet121", web, monkeypatch)
    assert same(load("torchvision/densenet121", pretrained=True).model, own)


def test_a_file_that_is_not_the_one_published_is_refused(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    published(get_model("squeezenet1_1").state_dict(), "squeezenet1_1", web, monkeypatch, sha="0" * 8)
    with pytest.raises(ValueError, match="its SHA-256 is not the one in its name; delete it"):
        load("torchvision/squeezenet1_1", pretrained=True)


def test_a_pickle_that_runs_code_is_refused(web: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    published({"features.0.weight": Bomb()}, "squeezenet1_1", web, monkeypatch)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="loading that would run code"):
        load("torchvision/squeezenet1_1", pretrained=True)
    assert not (tmp_path / "ran").exists()


# untrusted records


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"architecture": "torchvision_resnet9000"},
            "torchvision .* has no model 'resnet9000'; is a newer torchvision",
        ),
        ({"model_args": {"weights": "DEFAULT"}}, "cannot be built with these settings"),
        ({"model_args": {"in_chans": 1}}, "takes images of 3 channels"),
        ({"num_classes": -1}, "not a number of classes"),
        ({"architecture": "torchvision_vgg19"}, "is the ticket for another architecture"),
    ],
)
def test_a_record_downloads_nothing_and_names_what_is_missing(
    change: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    model = load(SMALL, num_classes=4).model
    mask = hf_px.prune(model, "magnitude", sparsity=0.8, min_per_layer=32, progress=False)
    hf_px.Ticket(mask.apply_(model), mask).save_pretrained(tmp_path, layout="packed")
    ticket = hf_px.Ticket.from_pretrained(tmp_path)
    ticket.contents.model.update(change)
    with pytest.raises(TicketError, match=complaint):
        ticket.to_model()
