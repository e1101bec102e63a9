"""torchvision's classifiers in timm's registry: torchvision/resnet18 is timm's model `torchvision_resnet18`.

So they load, prune, train and become tickets as timm's do, with torchvision's own module, tensor names and images. The
module gets three attributes of timm's models, pretrained_cfg, default_cfg and num_classes, and no other change.

This module is imported during the import of timm, which imports torchvision itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torchvision.models as torchvision_models
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from .config_marks import OF_TORCHVISION as REGISTERED

PREFIX = "torchvision/"
# the last layer, by the beginning of the name
_HEADS = {
    "alexnet": "classifier.6",
    "convnext": "classifier.2",
    "densenet": "classifier",
    "efficientnet": "classifier.1",
    "maxvit": "classifier.5",
    "mnasnet": "classifier.1",
    "mobilenet_v2": "classifier.1",
    "mobilenet_v3": "classifier.3",
    "resnet": "fc",
    "resnext": "fc",
    "shufflenet": "fc",
    "squeezenet": "classifier.1",
    "swin": "head",
    "vgg": "classifier.6",
    "vit": "heads.head",
    "wide_resnet": "fc",
}
_NOT_OFFERED = {
    "googlenet": "it has auxiliary heads",
    "inception": "it has auxiliary heads; inception_v3.tv_in1k is timm's, with the same weights",
    "regnet": "it cannot be built without memory, as a ticket's is to check it; timm's regnetx_… and regnety_… "
    "have its weights under the tag tv2_in1k",
}
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")  # names in its weights files
_VIT_SIDE = 224  # of the position embedding, whatever the size that the default weights are for
default_cfgs = generate_default_cfgs({})


def names() -> list[str]:
    """torchvision's names of its classifiers, without those of _NOT_OFFERED."""
    return [name for name in torchvision_models.list_models(module=torchvision_models) if _head(name)]


def _head(name: str) -> str | None:
    return next((head for start, head in _HEADS.items() if name.startswith(start)), None)


def registered_name(name: str) -> str:
    """The name in timm's registry: of torchvision/resnet18 torchvision_resnet18, of timm/resnet18 resnet18."""
    if name.startswith(PREFIX):
        return REGISTERED + name.removeprefix(PREFIX)
    return name.removeprefix("timm/")


def check_torchvision(name: str, pretrained: bool) -> None:
    """Raise ValueError for an unknown architecture or tag of weights in torchvision/NAME or torchvision/NAME.TAG."""
    bare, _, tag = name.removeprefix(PREFIX).partition(".")
    if why := next((why for start, why in _NOT_OFFERED.items() if bare.startswith(start)), None):
        raise ValueError(f"{PREFIX}{bare}: torchvision's is not supported: {why}")
    if bare not in (known := names()):
        from ..core.registry import nearest  # here: loading a ticket does not need it

        hint = nearest(name, [f"{PREFIX}{other}" for other in known])
        raise ValueError(
            f"torchvision has no classifier {bare!r}; {hint}torchvision.models.list_models() lists them; for a repo "
            "of this name on the Hub, download it and name the directory"
        )
    tags = [weights.name.lower() for weights in torchvision_models.get_model_weights(bare)]
    if tag and tag.lower() not in tags:
        raise ValueError(f"unknown weights {name!r}; there are {', '.join(f'{PREFIX}{bare}.{t}' for t in tags)}")
    if pretrained and not tags:
        raise ValueError(f"{name} has no pretrained weights in torchvision; omit `pretrained`")


def weights_of(name: str) -> Any:
    """torchvision's entry for torchvision/NAME.TAG; its default one without a tag."""
    bare, _, tag = name.removeprefix(PREFIX).partition(".")
    entries = torchvision_models.get_model_weights(bare)
    return next((entry for entry in entries if entry.name.lower() == tag.lower()), entries.DEFAULT)


def images_of(name: str, weights: Any) -> dict[str, Any]:
    """The images that these weights expect, under timm's names."""
    images = weights.transforms()
    crop, edge = images.crop_size[0], images.resize_size[0]
    side = _VIT_SIDE if name.removeprefix(PREFIX).startswith("vit") else crop
    return {
        "input_size": (3, side, side),
        "mean": tuple(images.mean),
        "std": tuple(images.std),
        "interpolation": images.interpolation.value,
        "crop_pct": crop / edge,
    }


def converted(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of torchvision's own weights under the names of its modules, which differ in DenseNet."""
    if not name.startswith(f"{PREFIX}densenet"):
        return dict(tensors)
    return {_OLD_DENSENET.sub(r"\1\2", key): tensor for key, tensor in tensors.items()}


def check_hash(path: Path) -> None:
    """torchvision's weights files end in the first digits of their SHA-256."""
    named = re.search(r"-([0-9a-f]{8,})\.pth$", path.name)
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    if named and not found.hexdigest().startswith(named[1]):
        raise ValueError(f"{path}: its SHA-256 is not the one in its name; delete it, and it is downloaded again")


def reset_head_(model: Any, num_classes: int) -> None:
    """Give a model a new last layer, drawn from torch's global generator as torchvision draws a linear layer's."""
    place, _, local = model.pretrained_cfg["classifier"].rpartition(".")
    owner = model.get_submodule(place)
    old = getattr(owner, local)
    if isinstance(old, nn.Conv2d):  # SqueezeNet
        new: nn.Module = nn.Conv2d(old.in_channels, num_classes, old.kernel_size)  # type: ignore[arg-type]
    else:
        new = nn.Linear(old.in_features, num_classes)
    setattr(owner, local, new.to(old.weight.device, old.weight.dtype))
    model.num_classes = num_classes


def _register(name: str) -> None:
    def build(num_classes: int = 1000, in_chans: int = 3) -> nn.Module:
        if in_chans != 3:
            raise ValueError(f"{PREFIX}{name}: takes images of 3 channels, not {in_chans}")
        model = torchvision_models.get_model(name, weights=None, num_classes=num_classes)
        model.num_classes = num_classes
        return model

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        # a record may hold it; these networks pool in their own way
        if kwargs.pop("global_pool", None) not in ("avg", None):
            raise ValueError(f"{PREFIX}{name}: global_pool cannot be chosen; omit it")
        return build_model_with_cfg(build, f"{REGISTERED}{name}", pretrained, **kwargs)

    registered = f"{REGISTERED}{name}"
    create.__name__ = create.__qualname__ = registered  # timm registers it under this name
    create.__doc__ = f"torchvision's {name}."
    images = images_of(name, torchvision_models.get_model_weights(name).DEFAULT)
    default_cfgs.update(generate_default_cfgs({registered: {**images, "num_classes": 1000, "classifier": _head(name)}}))
    register_model(create)
    globals()[registered] = create


__all__: list[str] = []  # filled by timm
for _name in names():
    _register(_name)
