"""The last layer: which tensors it is, whether it answers by pixel, which classes a mask has left without a weight."""

from __future__ import annotations

from torch import nn

from .mask import Mask


def head_of(model: nn.Module) -> list[str]:
    """Weights of the head: what timm's record names, or else the last linear layer; a segmenter's are convolutions."""
    told = getattr(getattr(model, "timm_model", model), "pretrained_cfg", None) or {}
    named = told.get("classifier") or ()
    named = (named,) if isinstance(named, str) else named
    kind = nn.Conv2d if segments(model) else nn.Linear
    linear = [name for name, module in model.named_modules() if isinstance(module, kind)]
    found = [name for name in linear if any(name == head or name.endswith(f".{head}") for head in named)]
    return [f"{name}.weight" for name in found or linear[-1:]]


def segments(model: nn.Module) -> bool:
    """Whether the model answers for every pixel: one of ours that says so, or transformers'."""
    told = getattr(model, "task", None) == "segmentation"
    return told or type(model).__name__.endswith("ForSemanticSegmentation")


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
