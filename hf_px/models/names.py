"""What a model's name refers to, and whether it is valid; uses no network and builds no model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import timm
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..core.errors import first_line
from ..core.registry import nearest
from . import timm_register as _registered  # noqa: F401  # adds our networks to timm's registry
from .networks import MODELS, encoder_of
from .records import backbones
from .torchvision_models import PREFIX, check_torchvision
from .weights_file import SUFFIXES, check_url, is_weights_name

Kind = Literal["record", "url", "file", "directory", "hub", "timm", "torchvision"]


def check_name(
    name: str, *, pretrained: bool | None = None, architecture: str | None = None, backbone: str | None = None
) -> None:
    """Raise ValueError for an invalid name or combination, with the nearest names; uses no network, loads nothing."""
    if not name:
        raise ValueError("the name of the model is empty; hf-px backbones lists the short ones")
    if backbone is not None:
        encoder = encoder_of(name)
        if encoder is None:
            raise ValueError(
                f"{name} has no separate backbone; omit `backbone` {backbone}, or name a segmenter such as "
                "deeplabv3plus-resnet50"
            )
        if encoder_of(backbone) is not None:
            raise ValueError(
                f"`backbone` {backbone}: is a segmenter itself; name a {encoder}, for example {trained_names(encoder)}"
            )
        return check_name(backbone, pretrained=pretrained, architecture=architecture)
    kind = kind_of(name)
    if kind in ("record", "timm", "torchvision") and architecture is not None:
        raise ValueError(f"{name} is already an architecture; omit `architecture`")
    if architecture is not None:
        _check_architecture(architecture)
        if pretrained is False:
            raise ValueError(f"{name}: holds weights, which `pretrained` False would not read; name {architecture}")
    if kind in ("url", "file"):
        _check_file(name, kind, architecture)
    elif kind == "directory" and architecture is None:
        if not (Path(name).expanduser() / "config.json").is_file():
            raise ValueError(f"{name}: a directory without config.json; was it written by save_pretrained?")
    elif kind == "hub":
        if name.count("/") > 1 or name.startswith((".", "/", "~")):
            raise ValueError(f"{name}: no such directory; a Hub model is written org/name")
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise ValueError(f"{name}: neither a directory nor a name on the Hub ({first_line(error)})") from error
    elif kind == "torchvision":
        check_torchvision(name, means_trained(name, pretrained))
    elif kind == "timm" or (kind == "record" and pretrained and backbones[name].source is None):
        if pretrained and (encoder := encoder_of(name)) is not None:
            raise ValueError(
                f"{name} has no pretrained weights of its own; name those of its encoder with `backbone`: "
                f"{trained_names(encoder)}"
            )
        if name in MODELS:
            raise ValueError(f"{name} has no pretrained weights; omit `pretrained`")
        _check_timm_name(name.removeprefix("timm/"), means_trained(name, pretrained))


def _check_file(name: str, kind: Kind, architecture: str | None) -> None:
    if kind == "url":
        check_url(name)
    elif not Path(name).expanduser().is_file():
        raise ValueError(f"{name}: no such file")
    if architecture is None:
        raise ValueError(
            f"{name}: a weights file does not name its architecture; set `architecture`, for example resnet50, or "
            "mocov2-resnet50 for a checkpoint of MoCo v2"
        )


def trained_names(encoder: str) -> str:
    """Names of trained weights for this architecture."""
    named = [n for n in backbones if backbones[n].architecture == encoder and backbones[n].source]
    return ", ".join([*named, *timm.list_pretrained(f"{encoder}.*")[:1]])


def kind_of(name: str) -> Kind:
    if name in backbones:
        return "record"
    if "://" in name:
        return "url"
    path = Path(name).expanduser()
    if path.is_dir():
        return "directory"
    if is_weights_name(name):
        return "file"
    if path.is_file():
        raise ValueError(f"{name}: not the name of a weights file, which ends in {', '.join(SUFFIXES)}")
    if name.startswith(PREFIX):
        return "torchvision"
    return "hub" if "/" in name and not name.startswith("timm/") else "timm"


def means_trained(name: str, pretrained: bool | None) -> bool:
    """`pretrained` if given; otherwise True if the name refers to weights, False if it is a bare architecture."""
    if pretrained is not None:
        return pretrained
    kind = kind_of(name)
    if kind == "record":
        return backbones[name].source is not None
    return "." in name if kind in ("timm", "torchvision") else True


def loads_trained(
    name: str, *, pretrained: bool | None = None, architecture: str | None = None, backbone: str | None = None
) -> bool:
    """Whether `load` with these arguments gives trained weights, at least in the backbone."""
    return architecture is not None or means_trained(name if backbone is None else backbone, pretrained)


def on_hub(name: str) -> bool:
    if name in backbones:
        return "://" not in (backbones[name].source or "")
    return kind_of(name) in ("hub", "timm")


def _check_timm_name(name: str, pretrained: bool) -> None:
    if not timm.is_model(name):
        raise ValueError(
            f"unknown model {name!r}; {nearest(name, [*backbones, *timm.list_models()])}hf-px backbones lists the "
            "short names, timm.list_models() timm's; a Hub model is written org/name"
        )
    bare, _, tag = name.partition(".")
    tags = [full for full in timm.list_pretrained(f"{bare}.*") if full.partition(".")[0] == bare]
    if tag and name not in tags:
        raise ValueError(f"unknown weights {name!r}; there are {', '.join(tags) or 'none for this model'}")
    if pretrained and not tags:
        raise ValueError(f"{name} has no pretrained weights in timm; omit `pretrained`")


def _check_architecture(name: str) -> None:
    if name.startswith(PREFIX):
        return check_torchvision(name.partition(".")[0], False)
    name = name.removeprefix("timm/")
    if name not in backbones and not timm.is_model(name):
        hint = nearest(name, [*backbones, *timm.list_models()])
        raise ValueError(
            f"unknown architecture {name!r}; {hint}it is a timm name, torchvision/NAME, or one of hf-px backbones"
        )
    if name not in backbones and "." in name:
        _check_timm_name(name, False)
