"""A weights file into an architecture: converted and strict, with a note for each entry that is not used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
from huggingface_hub import HfApi
from timm.models import get_pretrained_cfg
from torch import Tensor

from .convert_weights import convert_state_dict, stages_to_blocks
from .loaded_model import NO_WEIGHTS, LoadedModel, LoadOptions, loading_errors, note
from .names import Kind
from .records import backbones
from .remote import Source, hub_errors
from .torchvision_models import converted, registered_name
from .weights_file import fetch, is_weights_name, load_tensors_, read_weights

_BLOCKS_PER_STAGE = {"resnet20_cifar": 3, "resnet20_cifar_a": 3, "resnet18_tiny": 2}


def from_file(name: str, kind: Kind, architecture: str, options: LoadOptions) -> LoadedModel:
    base, revision = None, None
    if kind == "url":
        path, base = fetch(name), name
    elif kind == "file":
        path = Path(name).expanduser()
    else:
        path, revision = _only_weights(name, kind, options)
        base = name if kind == "hub" else None
    record = backbones.get(architecture)
    build = record.architecture if record else registered_name(architecture)
    try:
        tensors, unused = ((record and record.convert) or convert_state_dict)(read_weights(path))
    except ValueError as error:
        reason = str(error)
        raise ValueError(reason if str(path) in reason else f"{path}: {reason}") from error
    tensors = converted(architecture, tensors)
    if build in _BLOCKS_PER_STAGE and "conv1.weight" in tensors and "conv.weight" not in tensors:
        tensors = stages_to_blocks(tensors, depth=_BLOCKS_PER_STAGE[build])

    classes = _classes(build, tensors)
    overlay: dict[str, Any] = dict(NO_WEIGHTS)
    if record is not None:
        overlay |= {**asdict(record.images), "test_input_size": None, "test_crop_pct": None}
        overlay["license"] = record.license
    if classes is not None:
        overlay["num_classes"] = classes
    with options.seeded():  # with the head of the file; all weights are overwritten
        model = timm.create_model(build, pretrained_cfg_overlay=overlay, num_classes=classes).eval()
    extra = load_tensors_(model, tensors, str(path))
    if extra and record is not None and record.convert is not None:
        raise ValueError(f"{path}: {build} has no tensor {extra[0]}; is it a checkpoint of {record.name}?")
    for line in [*unused, *extra]:
        note(f"{path.name}: {line} is not used")
    return LoadedModel(
        model,
        base=base,
        revision=revision,
        license=record.license if record else None,
        citation=record.citation if record else None,
        trained=True,
        new_head=options.with_head_(model),
    )


def _classes(architecture: str, tensors: Mapping[str, Tensor]) -> int | None:
    """Number of classes of the file's head; 0 if it has no head, None if timm does not name the head."""
    heads = getattr(get_pretrained_cfg(architecture), "classifier", None) or ()
    first = next(iter([heads] if isinstance(heads, str) else heads), None)
    if first is None:
        return None
    weight = tensors.get(f"{first}.weight")
    return 0 if weight is None else len(weight)


def _only_weights(name: str, kind: Kind, options: LoadOptions) -> tuple[Path, str | None]:
    """The weights file of a directory or repo, and its commit."""
    if kind == "directory":
        names = sorted(path.name for path in Path(name).expanduser().iterdir() if path.is_file())
    else:
        with loading_errors(name), hub_errors(name, options.revision):
            names = HfApi(token=options.token).list_repo_files(name, revision=options.revision)
    files = [file for file in names if is_weights_name(file)]
    default = [file for file in ("model.safetensors", "pytorch_model.bin") if file in files]
    if not files or (len(files) > 1 and not default):
        raise ValueError(f"{name}: expected one weights file, it has {', '.join(files) or 'none'}")
    source = Source(name, options.revision, options.token)
    with loading_errors(name):
        path = source.file((default or files)[0])
    assert path is not None
    return path, source.revision
