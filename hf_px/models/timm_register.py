"""Our networks in timm's registry: `import hf_px, timm; timm.create_model("resnet20_cifar", num_classes=10)`.

This module is imported during the import of timm itself (see hf_px/__init__.py), right after timm.models.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from . import torchvision_models as _registered  # noqa: F401  # adds torchvision's, too
from .networks import ARCHITECTURES

default_cfgs = generate_default_cfgs({})


def _register(name: str) -> None:
    builder = ARCHITECTURES[name]

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        # these networks always average; a ticket's record may still hold the argument
        if kwargs.pop("global_pool", "avg") not in ("avg", None):
            raise ValueError(f"{name}: global_pool can only be avg")
        channels = kwargs.get("in_chans", 3)
        if channels != 3 and not kwargs.get("pretrained_cfg"):
            kwargs["pretrained_cfg"] = builder.pretrained_cfg(in_chans=channels)
        return build_model_with_cfg(builder, name, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = name  # timm registers it under this name
    create.__doc__ = builder.__doc__
    default_cfgs.update(generate_default_cfgs({name: builder.pretrained_cfg()}))
    register_model(create)
    globals()[name] = create


__all__: list[str] = []  # filled by timm
for _name in ARCHITECTURES:
    _register(_name)
