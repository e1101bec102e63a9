"""timm knows our networks: `import hf_px, timm; timm.create_model("resnet20_cifar", num_classes=10)`.

This file is imported in the midst of timm's own imports (see hf_px/__init__.py), right after timm.models.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from .networks import ARCHITECTURES

# what a network says of itself, without the weights of one
default_cfgs = generate_default_cfgs({})


def _register(name: str) -> None:
    build = ARCHITECTURES[name]

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        # one that averages by itself takes no such argument; a ticket's record may say it
        if kwargs.pop("global_pool", "avg") not in ("avg", None):
            raise ValueError(f"{name}: global_pool can only be avg, which it is by itself")
        channels = kwargs.get("in_chans", 3)
        if channels != 3 and not kwargs.get("pretrained_cfg"):
            kwargs["pretrained_cfg"] = _told(name, channels)
        return build_model_with_cfg(build, name, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = name  # by which timm calls it
    create.__doc__ = build.__doc__
    default_cfgs.update(generate_default_cfgs({name: _told(name)}))
    register_model(create)
    globals()[name] = create


def _told(name: str, in_chans: int = 3) -> dict[str, Any]:
    import torch

    build = ARCHITECTURES[name]
    if hasattr(build, "told"):  # on a network of timm's, which cannot be built yet
        return build.told(in_chans=in_chans)
    with torch.device("meta"):  # no memory, no time
        return build(in_chans=in_chans).pretrained_cfg


__all__: list[str] = []  # filled by timm
for _name in ARCHITECTURES:
    _register(_name)
