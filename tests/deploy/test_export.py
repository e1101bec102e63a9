"""An exported file computes what its ticket does, in its own runtime, or there is no file."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import timm
import torch
from support.tickets import deeplab_ticket, own_ticket, pruned, segformer_ticket, timm_ticket, transformers_ticket
from torch import Tensor, nn

import hf_px
from hf_px.core.errors import ExportError
from hf_px.core.forward import output_tensor
from hf_px.data import digits
from hf_px.deploy.real_images import photographs

SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}


def small(name: str, side: int, **args: Any) -> Callable[[], tuple[nn.Module, hf_px.Mask]]:
    def make() -> tuple[nn.Module, hf_px.Mask]:
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=5, **args)
        model.pretrained_cfg |= {"input_size": (args.get("in_chans", 3), side, side)}
        return pruned(model)

    return make


MAKERS = {
    "timm": small("test_resnet", 64),
    "timm, grey": small("test_efficientnet", 64, in_chans=1),
    "vit": small("test_vit", 160),
    "own": own_ticket,
    "transformers": transformers_ticket,
    "transformers, half": lambda: transformers_ticket(dtype=torch.bfloat16),
    "torchvision": small("torchvision_shufflenet_v2_x0_5", 64),
    "deeplab": deeplab_ticket,
    "segformer": segformer_ticket,
}


def saved(directory: Path, made: tuple[nn.Module, hf_px.Mask], **options: Any) -> hf_px.Ticket:
    hf_px.Ticket(*made).save_pretrained(directory, layout="packed", **options)
    return hf_px.Ticket.from_pretrained(directory)


def read(path: Path) -> tuple[Callable[[Tensor], Tensor], dict[str, str]]:
    """(the file in its runtime, its metadata), as somebody without hf_px reads it."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path)
        names = session.get_inputs()[0].name
        about = session.get_modelmeta().custom_metadata_map
        return lambda x: torch.from_numpy(session.run(None, {names: x.numpy()})[0]), about
    if path.suffix == ".xml":
        core = openvino.Core()
        network = core.read_model(path)
        compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda x: torch.from_numpy(np.array(compiled(x.numpy())[0])), network.get_rt_info(["hf_px"]).value
    extra = {"hf_px.json": ""}
    loaded = torch.export.load(path, extra_files=extra).module()
    return lambda x: loaded(x).detach(), json.loads(extra["hf_px.json"])


def images(side: int, channels: int = 3) -> Tensor:
    return digits(side)[1].images[:5, :channels].contiguous()


def expected(ticket: hf_px.Ticket, x: Tensor) -> Tensor:
    with torch.no_grad():
        return output_tensor(nn.Module.float(ticket.to_model())(x))


def difference(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape and found.dtype is torch.float32
    return float((found - wanted).abs().max() / wanted.abs().max())


CASES = [(kind, "onnx") for kind in MAKERS if kind != "torchvision"]
CASES += [("timm", "openvino"), ("segformer", "openvino"), ("timm", "torch"), ("torchvision", "torch")]


@pytest.mark.parametrize(("kind", "to"), CASES)
def test_the_file_computes_what_the_ticket_does(tmp_path: Path, kind: str, to: str) -> None:
    ticket = saved(tmp_path / "ticket", MAKERS[kind]())
    path = tmp_path / f"net{SUFFIXES[to]}"
    made = hf_px.export(ticket, to, path, progress=False)
    network, about = read(path)
    how = json.loads(about["preprocessing"])
    x = images(how["size"][0], len(how["mean"]))
    for count in (1, 5):  # any number of images
        assert difference(network(x[:count]), expected(ticket, x[:count])) < 1e-4
    assert about == dict(made.metadata) and about["digest"] == ticket.mask.digest()
    assert made.difference <= 1e-3 and made.nbytes == sum(len(data) for data in made.files.values())
    assert made.gzip_bytes() < 0.7 * made.nbytes  # four of five weights are zeros


@pytest.mark.parametrize("to", SUFFIXES)
def test_a_file_says_nothing_of_this_machine_and_holds_no_pickle(to: str) -> None:
    made, again = (hf_px.export(hf_px.Ticket(*own_ticket()), to, progress=False) for _ in range(2))
    assert made.files == again.files  # nor of what this process did before
    data = b"".join(made.files.values())
    for place in (Path(torch.__file__).parents[1], Path(__file__).parents[2], Path.home() / "x"):
        assert str(place).encode() not in data
    if to == "torch":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert not [i.filename for i in archive.infolist() if archive.read(i).startswith((b"\x80\x02", b"PK"))]
            assert b'"use_pickle": true' not in data


def test_an_onnx_file_is_dense_and_names_what_it_is(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    ticket = hf_px.Ticket(model, mask, license="mit", class_names=["a", "b", "c", "d", "é"])
    ticket.save_pretrained(tmp_path / "ticket")
    made = hf_px.export(tmp_path / "ticket", progress=False)
    (data,) = made.files.values()
    graph = onnx.load_from_string(data)
    onnx.checker.check_model(graph, full_check=True)
    assert [(s.domain, s.version) for s in graph.opset_import] == [("", 18)] and made.metadata["opset"] == "18"
    assert graph.ir_version <= 10  # ONNX Runtime reads it from 1.18 on
    assert not graph.graph.sparse_initializer and made.nbytes > 4 * mask.total
    (x,), (y,) = graph.graph.input, graph.graph.output
    shape = [side.dim_param or side.dim_value for side in x.type.tensor_type.shape.dim]
    assert (x.name, shape, y.name) == ("pixel_values", ["batch", 3, 160, 160], "logits")
    assert json.loads(made.metadata["class_names"]) == ["a", "b", "c", "d", "é"] and made.metadata["license"] == "mit"


def test_normalisation_in_the_graph(tmp_path: Path) -> None:
    ticket = saved(tmp_path / "ticket", own_ticket())
    hf_px.export(ticket, "onnx", tmp_path / "net.onnx", normalise=True, progress=False)
    network, about = read(tmp_path / "net.onnx")
    how = json.loads(about["preprocessing"])
    assert (how["mean"], how["std"]) == ([0.0] * 3, [1.0] * 3)  # nothing is left for the caller
    mean, std = (torch.tensor(how["in_graph"][key]).view(3, 1, 1) for key in ("mean", "std"))
    pixels = images(32).sigmoid()
    assert difference(network(pixels), expected(ticket, (pixels - mean) / std)) < 1e-4
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert graph.input[0].name == "pixels"  # nobody feeds it what is normalised already


@pytest.mark.parametrize("to", SUFFIXES)
def test_half_precision_halves_the_file(tmp_path: Path, to: str) -> None:
    ticket = saved(tmp_path / "ticket", MAKERS["timm"]())
    whole = hf_px.export(ticket, to, progress=False)
    path = tmp_path / f"net{SUFFIXES[to]}"
    half = hf_px.export(ticket, to, path, half=True, progress=False)
    assert half.nbytes < 0.62 * whole.nbytes and half.tolerance == 1e-2  # the graph stays
    x = images(64)[:2]
    assert 1e-6 < difference(read(path)[0](x), expected(ticket, x)) < 1e-2
    assert half.metadata["dtype"] == "float16"
    assert next(iter(ticket.to_model().parameters())).dtype is torch.float32


def test_a_ticket_in_float16_is_exported_in_float32(tmp_path: Path) -> None:
    ticket = saved(tmp_path / "ticket", own_ticket(), dtype="float16")
    made = hf_px.export(ticket, "onnx", tmp_path / "net.onnx", progress=False)
    assert made.metadata["dtype"] == "float32" and made.difference < 1e-4
    assert difference(read(tmp_path / "net.onnx")[0](images(32)), expected(ticket, images(32))) < 1e-4


def test_shrink_makes_the_file_smaller(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=5, zero_init_last=False)
    model.pretrained_cfg |= {"input_size": (3, 64, 64)}
    mask = hf_px.prune(model, "magnitude", sparsity=0.6, scope="channel", progress=False)
    ticket = saved(tmp_path / "ticket", (mask.apply_(model).eval(), mask))
    whole = hf_px.export(ticket, progress=False)
    made = hf_px.export(ticket, "onnx", tmp_path / "net.onnx", shrink=True, progress=False)
    assert made.nbytes < 0.6 * whole.nbytes and made.metadata["shrunk"] == "yes" and whole.metadata["shrunk"] == "no"
    assert made.metadata["digest"] == ticket.mask.digest()
    x = images(64)[:2]
    assert difference(read(tmp_path / "net.onnx")[0](x), expected(ticket, x)) < 1e-4
    smaller = ticket.shrink(progress=False)
    smaller.save_pretrained(tmp_path / "smaller", layout="packed")
    again = hf_px.export(tmp_path / "smaller", progress=False)
    assert again.metadata["shrunk"] == "yes" and again.nbytes == pytest.approx(made.nbytes, rel=0.01)


def test_a_fixed_batch_and_another_size(tmp_path: Path) -> None:
    ticket = saved(tmp_path / "ticket", timm_ticket())
    hf_px.export(ticket, "openvino", tmp_path / "net.xml", batch=3, image_size=64, progress=False)
    network = openvino.Core().read_model(tmp_path / "net.xml")
    assert list(network.input().shape) == [3, 3, 64, 64]
    run, about = read(tmp_path / "net.xml")
    assert json.loads(about["preprocessing"])["size"] == [64, 64]
    assert difference(run(images(64)[:3]), expected(ticket, images(64)[:3])) < 1e-4


def test_the_images_are_real_and_may_be_ones_own(tmp_path: Path) -> None:
    assert {image.size for image in photographs()} == {(640, 427), (320, 427)}
    slice_ = Path(__file__).parents[2] / "model_cards" / "examples" / "cifar10-slice" / "test.parquet"
    ticket = saved(tmp_path / "ticket", own_ticket())
    found = [hf_px.export(ticket, "torch", data=data, progress=False) for data in (None, str(slice_), "digits")]
    assert [each.images for each in found] == [6, 6, 6]
    (tmp_path / "photos").mkdir()
    photographs()[0].save(tmp_path / "photos" / "one.png")
    assert hf_px.export(ticket, "torch", data=str(tmp_path / "photos"), progress=False).images == 1


def test_the_converter_reports_to_nobody() -> None:
    hf_px.export(hf_px.Ticket(*own_ticket()), "openvino", progress=False)
    import openvino_telemetry

    assert openvino_telemetry.Telemetry().consent is False


class Odd(nn.Module):
    """A network of ours that timm does not know; `behave` changes its output."""

    def __init__(self, behave: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.fc, self.behave = nn.Conv2d(3, 8, 3), nn.Linear(8, 4), behave
        self.pretrained_cfg = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.5,) * 3}
        self.num_classes = 4

    def forward(self, x: Tensor) -> Tensor:
        return self.behave(self.fc(self.conv(x).relu().mean((2, 3))))


def odd(behave: Callable[[Tensor], Tensor]) -> hf_px.Ticket:
    torch.manual_seed(0)
    return hf_px.Ticket(*pruned(Odd(behave), 0.5))


def unknown_to_onnx(y: Tensor) -> Tensor:
    return torch.special.bessel_j0(y)


def another_when_traced(y: Tensor) -> Tensor:
    return y + 0.01 * torch.compiler.is_exporting()


def by_value(y: Tensor) -> Tensor:
    return y if y.sum() > 0 else -y


def by_count(y: Tensor) -> Tensor:
    return torch.cat([each[None] for each in y])  # one node for each image


@pytest.mark.parametrize("to", SUFFIXES)
@pytest.mark.parametrize("before", [None, b"mine"])
def test_a_file_that_computes_something_else_is_not_kept(tmp_path: Path, to: str, before: bytes | None) -> None:
    path = tmp_path / f"net{SUFFIXES[to]}"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(
        ExportError, match=r"6 images differ from the ticket's by .* more than 0.001; nothing is written"
    ):
        hf_px.export(odd(another_when_traced), to, path, force=True, progress=False)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([before] if before else [])


def test_what_cannot_be_traced_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^Odd cannot be traced by torch.export \("):
        hf_px.export(odd(by_value), "onnx", tmp_path / "net.onnx", progress=False)
    with pytest.raises(ExportError, match=r"^Odd: its number of images is fixed while it is traced .*set `batch`"):
        hf_px.export(odd(by_count), "onnx", tmp_path / "net.onnx", progress=False)
    assert not list(tmp_path.iterdir())
    assert hf_px.export(odd(by_count), "onnx", batch=2, progress=False).difference < 1e-4


def test_an_operation_that_the_format_does_not_have() -> None:
    with pytest.raises(ExportError, match=r"the network cannot be written for ONNX Runtime \("):
        hf_px.export(odd(unknown_to_onnx), progress=False)
    assert hf_px.export(odd(unknown_to_onnx), "torch", progress=False).difference == 0


def test_a_weight_beyond_float16_is_named() -> None:
    model, mask = own_ticket()
    with torch.no_grad():
        model.bn.running_var[0] = 1e6
    with pytest.raises(ExportError, match=r"bn.running_var: 1e\+06 does not fit in float16; omit `half`"):
        hf_px.export(hf_px.Ticket(model, mask), half=True, progress=False)
    assert model.bn.running_var.dtype is torch.float32  # the live model is not touched


def test_openvino_files_are_replaced_together(tmp_path: Path) -> None:
    made = hf_px.export(hf_px.Ticket(*own_ticket()), "openvino", progress=False)
    (tmp_path / "net.xml").write_bytes(b"old")
    (tmp_path / "net.bin").mkdir()  # cannot be replaced
    with pytest.raises(Exception, match=r"net\.bin"):
        made.write(tmp_path / "net.xml")
    assert not (tmp_path / "net.xml").exists()  # no old graph that would be read with new weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "tflite"}, "`to` 'tflite': choose one of onnx, openvino, torch"),
        ({"output": "net.pt"}, r"`output` .*net.pt: name a file that ends in .onnx"),
        ({"output": "none/net.onnx"}, r"no directory .*none; make it first"),
        ({"output": "there.onnx"}, r"there.onnx: exists; name another file, or set `force`"),
        ({"output": "there.xml", "to": "openvino"}, r"there.bin: exists"),
        ({"batch": "any"}, "`batch` 'any': a number of images, or dynamic"),
        ({"batch": 0}, "`batch` 0 is too small"),
        ({"image_size": 0}, "`image_size` 0 is too small"),
        ({"data": "random"}, "`data` random is noise"),
        ({"data": "nowhere/at/all"}, "`data` 'nowhere/at/all': no such file"),
    ],
)
def test_bad_input_is_refused_before_the_ticket_is_read(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "there.onnx").write_bytes(b"mine")
    (tmp_path / "there.bin").write_bytes(b"mine")
    if "output" in options:
        options = options | {"output": tmp_path / options["output"]}
    with pytest.raises(ValueError, match=message):
        hf_px.export(tmp_path / "no-ticket", progress=False, **options)
    assert (tmp_path / "there.onnx").read_bytes() == b"mine"


def test_a_size_that_the_model_refuses(tmp_path: Path) -> None:
    ticket = saved(tmp_path / "ticket", pruned(timm.create_model("test_vit", num_classes=5)))
    with pytest.raises(ValueError, match=r"VisionTransformer does not run on an image of 3x100x100: .*100"):
        hf_px.export(ticket, image_size=100, progress=False)


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it were not installed
    with pytest.raises(ExportError, match=r"ONNX Runtime needs onnxruntime: pip install 'hf-px\[export\]'"):
        hf_px.export(tmp_path / "no-ticket")
