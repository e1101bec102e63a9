"""export(ticket, to): the ticket's network for another runtime, compared with the ticket before it is kept.

The files are bytes in memory until they have run in their own runtime on real images and have given what the ticket
gives: max |y - ŷ| / max |y|, both over all outputs of these images, is at most TOLERANCE. Then they are written.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from tqdm.auto import tqdm

from ..core.errors import ExportError, first_line
from ..core.options import at_least
from ..core.text import plain
from ..data.model_inputs import data_config
from ..models.architecture import pipeline_task
from ..tickets.predict import finite_logits, ticket_images
from ..tickets.ticket import Ticket
from .exported import Export
from .formats import FORMATS, Format
from .metadata import metadata_of
from .real_images import prepared, real_images
from .request import Parts, Request
from .traced import DYNAMIC, ImagesToOutput, trace

TOLERANCE = 1e-3
HALF_TOLERANCE = 1e-2  # float16 has 11 bits; fifty layers of rounding took up to 1.2e-3
# the input: a graph that normalises has a name of its own, so that nobody feeds it what is normalised already
NORMALISED, PIXELS, OUTPUT = "pixel_values", "pixels", "logits"


def export(
    ticket: Ticket | str | os.PathLike[str],
    to: str = "onnx",
    output: str | os.PathLike[str] | None = None,
    *,
    shrink: bool = False,
    batch: int | str = DYNAMIC,
    image_size: int | None = None,
    half: bool = False,
    normalise: bool = False,
    data: str | None = None,
    force: bool = False,
    progress: bool = True,
) -> Export:
    """The ticket's network for ONNX Runtime, OpenVINO or torch alone: one graph from images to logits.

    to          "onnx", "openvino" or "torch"
    output      file to write: .onnx, .xml (with .bin beside it) or .pt2; without it nothing is written
    shrink      first remove the channels that the mask has made superfluous
    batch       number of images in a call, or "dynamic" for any number
    image_size  height and width; by default the ticket's own
    half        float16 weights, and in onnx and torch float16 arithmetic; images and outputs stay float32
    normalise   the graph takes pixels from 0 to 1 and normalises them itself
    data        real images to compare on, named as for hf-px prune; by default two photographs of scikit-learn
    force       replace `output` if it exists

    Outputs that differ from the ticket's by more than 1e-3 of the largest one (1e-2 with `half`) are an error.
    """
    kind = check_format(to)
    target = None if output is None else check_target(output, kind, force)
    _check_sizes(batch, image_size)
    images = real_images(data)
    ticket = _loaded(ticket)
    with stages(progress) as stage:
        stage("running the ticket")
        model = _float_copy(ticket)
        settings = _image_settings(ticket, model, image_size)
        x = prepared(images, settings, letterbox=pipeline_task(ticket.model_record()) == "image-segmentation")
        inputs = _batches(x, batch)
        expected = [finite_logits(model, each) for each in inputs]
        metadata = {**metadata_of(ticket, model, settings, normalise, half, shrink), **kind.metadata}
        if shrink:
            stage("removing channels")
            model = _float_copy(ticket.shrink(input_size=settings["input_size"], progress=False))
        stage("tracing")
        model = _halved(model) if half and kind.halves_network else model
        network = ImagesToOutput(model, _scale(settings) if normalise else None)
        program = trace(network, settings["input_size"], batch)
        stage(f"writing for {kind.title}")
        name, shape = (PIXELS if normalise else NORMALISED), (batch, *settings["input_size"])
        parts = _written(kind, program, Request((name, OUTPUT), metadata, shape, half))
        stage(f"comparing in {kind.title}")
        found = _difference(_run(kind, parts, [network.undo(each) for each in inputs]), expected)
    _check_difference(found, len(images), kind, half)
    sides = " x ".join(map(str, ("batch" if isinstance(batch, str) else batch, *shape[1:])))
    about = f"{name}: {sides}, float32, {_range(settings, normalise)}"
    made = Export(kind.title, dict(zip(kind.files, parts)), metadata, about, len(images), found, tolerance(half))
    if target is not None:
        made.write(target)
    return made


def _loaded(ticket: Ticket | str | os.PathLike[str]) -> Ticket:
    if isinstance(ticket, nn.Module):
        raise TypeError("`ticket` is a module; export hf_px.Ticket(model, mask), with the mask of hf_px.prune")
    return ticket if isinstance(ticket, Ticket) else Ticket.from_pretrained(ticket)


def tolerance(half: bool) -> float:
    return HALF_TOLERANCE if half else TOLERANCE


def check_format(to: str) -> Format:
    """The format of that name, if all that it needs is installed."""
    if to not in FORMATS:
        raise ValueError(f"`to` {to!r}: choose one of {', '.join(FORMATS)}")
    FORMATS[to].check_installed()
    return FORMATS[to]


def check_target(output: str | os.PathLike[str], kind: Format, force: bool) -> Path:
    """Refuse a file that cannot or should not be written, before the work."""
    path = Path(output).expanduser()
    if path.suffix != kind.suffix:
        raise ValueError(f"`output` {path}: name a file that ends in {kind.suffix}, as {kind.title} expects")
    if not path.parent.is_dir():
        raise ValueError(f"`output` {path}: no directory {path.parent}; make it first")
    for name in kind.files:
        each = path.with_suffix(Path(name).suffix)
        if each.is_dir():
            raise ValueError(f"`output` {each}: is a directory; name a file in it")
        if each.exists() and not force:
            raise ValueError(f"`output` {each}: exists; name another file, or set `force` to replace it")
    return path


def _check_sizes(batch: int | str, image_size: int | None) -> None:
    if isinstance(batch, str) and batch != DYNAMIC:
        raise ValueError(f"`batch` {batch!r}: a number of images, or {DYNAMIC}")
    at_least(1, batch=None if isinstance(batch, str) else batch, image_size=image_size)


def _float_copy(ticket: Ticket) -> nn.Module:
    """The ticket's network in float32 on the CPU; a live model is copied."""
    model = ticket.to_model()
    model = copy.deepcopy(model) if ticket.contents is None else model
    # transformers' own `to` refuses models with a quantizer, as tickets have
    return nn.Module.to(model, "cpu", torch.float32).eval()


def _image_settings(ticket: Ticket, model: nn.Module, image_size: int | None) -> dict[str, Any]:
    """The ticket's image settings, in another size if one is given."""
    settings = dict(data_config(model)) if ticket.source is None else ticket_images(ticket.source, model)
    channels, *size = settings["input_size"]
    return settings | {"input_size": (channels, *([image_size] * 2 if image_size else size))}


def _scale(settings: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """(mean, std), to be applied to images of channels x height x width."""
    mean, std = (torch.tensor(settings[key]).view(-1, 1, 1) for key in ("mean", "std"))
    return mean, std


def _batches(x: Tensor, batch: int | str) -> list[Tensor]:
    """The images as the file will be called: one, then all; or `batch` of them, repeated if they are few."""
    return [x[:1], x] if isinstance(batch, str) else [x[torch.arange(batch) % len(x)]]


def _halved(model: nn.Module) -> nn.Module:
    """The network in float16, all of its tensors; one that does not fit is an error."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.isfinite().all() and not tensor.half().isfinite().all():
            raise ExportError(f"{name}: {float(tensor.abs().max()):.4g} does not fit in float16; omit `half`")
    return nn.Module.half(model)


def _written(kind: Format, program: ExportedProgram, wanted: Request) -> Parts:
    try:
        return kind.write(program, wanted)
    except ExportError:
        raise
    except Exception as error:  # a converter may raise anything on an operation that it does not know
        raise ExportError(f"the network cannot be written for {kind.title} ({_reason(error)})") from error


def _reason(error: BaseException) -> str:
    """The first line of what went wrong first; torch.onnx puts its own advice before it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return plain(first_line(error), 200)


def _run(kind: Format, parts: Parts, inputs: Sequence[Tensor]) -> list[Tensor]:
    try:
        network = kind.run(parts, 0)
        return [network(x.contiguous()).float() for x in inputs]
    except Exception as error:  # a runtime may raise anything on a graph that it does not support
        raise ExportError(f"{kind.title} does not run the exported network ({first_line(error)})") from error


def _difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """max |y - ŷ| / max |y|; infinite if shapes differ."""
    if [y.shape for y in outputs] != [y.shape for y in expected]:
        return float("inf")
    largest = max(float(y.abs().max()) for y in expected) or 1.0
    return float(max((y - found).abs().max() for y, found in zip(expected, outputs))) / largest


def _check_difference(found: float, images: int, kind: Format, half: bool) -> None:
    if not found <= tolerance(half):  # nan too
        raise ExportError(
            f"{kind.title}: the outputs for {images} images differ from the ticket's by {found:.1e} of the largest, "
            f"more than {tolerance(half):g}; nothing is written{'; omit `half`' if half else ''}"
        )


def _range(settings: Mapping[str, Any], normalise: bool) -> str:
    colours = "RGB" if settings["input_size"][0] == 3 else "grey"
    if normalise:
        return f"{colours} from 0 to 1"
    mean, std = (", ".join(f"{value:g}" for value in settings[key]) for key in ("mean", "std"))
    return f"{colours} from 0 to 1, normalised by mean {mean} and std {std}"


@contextmanager
def stages(progress: bool) -> Iterator[Callable[[str], None]]:
    """Show what is being done and for how long, on a terminal."""
    bar = tqdm(desc="export", bar_format="{desc}", disable=None if progress else True, leave=False)
    with bar:
        yield lambda text: bar.set_description_str(f"export: {text} …")
