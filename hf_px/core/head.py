"""The head: its tensors, whether it predicts a class for every pixel, and classes that a mask left without a weight."""

from __future__ import annotations

from torch import nn

from .mask import Mask


def head_of(model: nn.Module) -> list[str]:
    """Weights of the head: the classifier of timm's config, or the last linear layer (a convolution in segmentation).

    A feature extractor, with no classes, has no head.
    """
    config = getattr(getattr(model, "timm_model", model), "pretrained_cfg", None) or {}
    named = config.get("classifier") or ()
    named = (named,) if isinstance(named, str) else named
    kind = nn.Conv2d if segments(model) else nn.Linear
    linear = [name for name, module in model.named_modules() if isinstance(module, kind)]
    found = [name for name in linear if any(name == head or name.endswith(f".{head}") for head in named)]
    if named and not found and getattr(model, "num_classes", None) == 0:
        return []
    return [f"{name}.weight" for name in found or linear[-1:]]


def segments(model: nn.Module) -> bool:
    """True for a segmentation model of ours or of transformers."""
    return getattr(model, "task", None) == "segmentation" or type(model).__name__.endswith("ForSemanticSegmentation")


def silent_classes(model: nn.Module, mask: Mask) -> list[int]:
    """Classes whose output has no weight left, so that it is a constant."""
    heads = [mask.bits[name] for name in head_of(model) if name in mask.bits]
    if not heads:
        return []
    silent = ~heads[0].flatten(1).any(1)
    for bits in heads[1:]:  # a distilled DeiT has two heads and takes the mean of both
        if len(bits) == len(silent):
            silent &= ~bits.flatten(1).any(1)
    return silent.nonzero().view(-1).tolist()
