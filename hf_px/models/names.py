"""What a backbone's name stands for, and whether it can be; without a network, a model or a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import timm
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..core.errors import first_line
from ..core.registry import backbones, nearest
from . import records as _records  # noqa: F401  # fills `backbones`
from . import timm_register as _registered  # noqa: F401  # our networks are timm's too
from .networks import MODELS, encoder_of
from .weights_file import SUFFIXES, check_url, is_weights

Kind = Literal["record", "url", "file", "directory", "hub", "timm"]


def check_name(
    name: str, *, pretrained: bool | None = None, architecture: str | None = None, backbone: str | None = None
) -> None:
    """A ValueError for what cannot be, with the nearest names; touches no network, loads nothing."""
    if not name:
        raise ValueError("the name of the model is empty; `hf-px backbones` lists the short ones")
    if backbone is not None:
        encoder = encoder_of(name)
        if encoder is None:
            raise ValueError(
                f"{name} is not built on a backbone, {backbone} or other; leave backbone (--backbone) out, or name a "
                "model as deeplabv3plus-resnet50"
            )
        if encoder_of(backbone) is not None:
            raise ValueError(f"backbone {backbone}: a whole segmenter; name a {encoder}, as {known_as(encoder)}")
        return check_name(backbone, pretrained=pretrained, architecture=architecture)
    kind = kind_of(name)
    if kind in ("record", "timm") and architecture is not None:
        raise ValueError(f"{name} is an architecture already; leave architecture (--architecture) out")
    if architecture is not None:
        _check_architecture(architecture)
        if pretrained is False:
            raise ValueError(f"{name}: weights, which pretrained=False would not read; name {architecture} instead")
    if kind in ("url", "file"):
        if kind == "url":
            check_url(name)
        elif not Path(name).expanduser().is_file():
            raise ValueError(f"{name}: no such file")
        if architecture is None:
            raise ValueError(
                f"{name}: a file of weights does not say of what; name it with architecture (--architecture), for "
                "example resnet50, or mocov2-resnet50 for a checkpoint of MoCo v2"
            )
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
    elif kind == "timm" or (kind == "record" and pretrained and backbones[name].source is None):
        if pretrained and (encoder := encoder_of(name)) is not None:
            raise ValueError(
                f"{name} has no pretrained weights of its own; name those of its encoder with backbone (--backbone): "
                f"{known_as(encoder)}"
            )
        if name in MODELS:
            raise ValueError(f"{name} has no pretrained weights; leave --pretrained out")
        _check_timm_name(name.removeprefix("timm/"), means_trained(name, pretrained))


def known_as(encoder: str) -> str:
    """Names that give trained weights of this architecture."""
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
    if is_weights(name):
        return "file"
    if path.is_file():
        raise ValueError(f"{name}: not a weights file by its name; those end in {', '.join(SUFFIXES)}")
    return "hub" if "/" in name and not name.startswith("timm/") else "timm"


def means_trained(name: str, pretrained: bool | None) -> bool:
    """Whether trained weights are meant: who names weights asks for them, who names an architecture does not."""
    if pretrained is not None:
        return pretrained
    kind = kind_of(name)
    if kind == "record":
        return backbones[name].source is not None
    return "." in name if kind == "timm" else True


def on_hub(name: str) -> bool:
    if name in backbones:
        return "://" not in (backbones[name].source or "")
    return kind_of(name) in ("hub", "timm")


def _check_timm_name(name: str, pretrained: bool) -> None:
    if not timm.is_model(name):
        raise ValueError(
            f"unknown model {name!r}; {nearest(name, [*backbones, *timm.list_models()])}`hf-px backbones` lists the "
            "short names, timm.list_models() timm's; a Hub model is written org/name"
        )
    bare, _, tag = name.partition(".")
    tags = [full for full in timm.list_pretrained(f"{bare}.*") if full.partition(".")[0] == bare]
    if tag and name not in tags:
        raise ValueError(f"unknown weights {name!r}; there are {', '.join(tags) or 'none for this model'}")
    if pretrained and not tags:
        raise ValueError(f"{name} has no pretrained weights in timm; leave --pretrained out")


def _check_architecture(name: str) -> None:
    name = name.removeprefix("timm/")
    if name not in backbones and not timm.is_model(name):
        hint = nearest(name, [*backbones, *timm.list_models()])
        raise ValueError(f"unknown architecture {name!r}; {hint}it is a timm name, or one of `hf-px backbones`")
    if name not in backbones and "." in name:
        _check_timm_name(name, False)
