"""The last layer of a classifier: which tensors it is, and which classes a mask has left without a weight."""

from __future__ import annotations

from torch import nn

from .mask import Mask


def head_of(model: nn.Module) -> list[str]:
    """Weights of the head: what timm's record names, or else the last linear layer."""
    told = getattr(getattr(model, "timm_model", model), "pretrained_cfg", None) or {}
    named = told.get("classifier") or ()
    named = (named,) if isinstance(named, str) else named
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    found = [name for name in linear if any(name == head or name.endswith(f".{head}") for head in named)]
    return [f"{name}.weight" for name in found or linear[-1:]]


def silent_classes(model: nn.Module, mask: Mask) -> list[int]:
    """Classes whose output has no weight left: the ticket answers the same for them whatever it is shown."""
    heads = [mask.bits[name] for name in head_of(model) if name in mask.bits]
    if not heads:
        return []
    silent = ~heads[0].flatten(1).any(1)
    for bits in heads[1:]:  # distilled DeiT has two heads and takes their mean
        if len(bits) == len(silent):
            silent &= ~bits.flatten(1).any(1)
    return silent.nonzero().view(-1).tolist()
