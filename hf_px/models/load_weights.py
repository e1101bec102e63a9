"""A weights file into an architecture: converted, strict, with a line for all that is left over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from huggingface_hub import HfApi
from timm.models import get_pretrained_cfg
from torch import Tensor

from ..core.registry import backbones
from .convert_weights import by_blocks, plain
from .loaded_model import NO_WEIGHTS, How, Loaded, plainly, say
from .names import Kind
from .remote import Source, explained
from .weights_file import fetch, fill_, is_weights, read

_BLOCKS = {"resnet20_cifar": 3, "resnet20_cifar_a": 3, "resnet18_tiny": 2}  # a stage, where files go by stages


def from_file(name: str, kind: Kind, architecture: str, how: How) -> Loaded:
    """A checkpoint into an architecture: converted, strict, with a line for all that is left over."""
    base, revision = None, None
    if kind == "url":
        path, base = fetch(name), name
    elif kind == "file":
        path = Path(name).expanduser()
    else:
        path, revision = _only_weights(name, kind, how)
        base = name if kind == "hub" else None
    record = backbones.get(architecture)
    build = record.architecture if record else architecture.removeprefix("timm/")
    try:
        tensors, left = ((record and record.convert) or plain)(read(path))
    except ValueError as error:
        reason = str(error)
        raise ValueError(reason if str(path) in reason else f"{path}: {reason}") from error
    if build in _BLOCKS and "conv1.weight" in tensors and "conv.weight" not in tensors:
        tensors = by_blocks(tensors, depth=_BLOCKS[build])

    classes = _classes(build, tensors)
    overlay: dict[str, Any] = dict(NO_WEIGHTS)
    if record is not None:
        overlay |= {**record.images.config(), "test_input_size": None, "test_crop_pct": None}
        overlay["license"] = record.license
    if classes is not None:
        overlay["num_classes"] = classes
    with how.drawing():  # with the head of the file; what is drawn here is overwritten
        model = timm.create_model(build, pretrained_cfg_overlay=overlay, num_classes=classes).eval()
    extra = fill_(model, tensors, str(path))
    if extra and record is not None and record.convert is not None:
        raise ValueError(f"{path}: {extra[0]} has no place in a {build}; is it a checkpoint of {record.name}?")
    for line in [*left, *extra]:
        say(f"{path.name}: {line} left over, not loaded")
    return Loaded(
        model,
        base=base,
        revision=revision,
        license=record.license if record else None,
        citation=record.citation if record else None,
        trained=True,
        new_head=how.with_head_(model),
    )


def _classes(architecture: str, tensors: Mapping[str, Tensor]) -> int | None:
    """How many classes the file's head has; 0 if it has none, None if timm does not say which tensor that is."""
    told = get_pretrained_cfg(architecture)
    heads = getattr(told, "classifier", None) or ()
    first = next(iter([heads] if isinstance(heads, str) else heads), None)
    if first is None:
        return None
    weight = tensors.get(f"{first}.weight")
    return 0 if weight is None else len(weight)


def _only_weights(name: str, kind: Kind, how: How) -> tuple[Path, str | None]:
    """The weights file of a directory or repo, and the commit."""
    if kind == "directory":
        names = sorted(path.name for path in Path(name).expanduser().iterdir() if path.is_file())
    else:
        with plainly(name), explained(name, how.revision):
            names = HfApi(token=how.token).list_repo_files(name, revision=how.revision)
    found = [file for file in names if is_weights(file)]
    usual = [file for file in ("model.safetensors", "pytorch_model.bin") if file in found]
    if not found or (len(found) > 1 and not usual):
        raise ValueError(f"{name}: which file are the weights? It has {', '.join(found) or 'none that could be'}")
    source = Source(name, how.revision, how.token)
    with plainly(name):
        path = source.file((usual or found)[0])
    assert path is not None
    return path, source.revision
