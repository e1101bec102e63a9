"""Which tensors may be pruned: the weights of linear maps, found by module type, never by name."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .errors import UnsupportedModelError
from .text import name_list

_LINEAR_MAPS = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)


def prunable(model: nn.Module, exclude: Iterable[str] = ()) -> dict[str, Tensor]:
    """{state_dict name: weight} of every convolution, linear layer and attention projection.

    Biases, normalisation, embeddings and tokens are not pruned, as in the paper. A tensor that several modules share
    appears once, under its first name. `exclude` names tensors to leave out.
    """
    exclude = set(exclude)
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for local in _weight_names(module):
            weight = getattr(module, local)
            if id(weight) in seen:
                continue
            seen.add(id(weight))
            found[f"{prefix}.{local}" if prefix else local] = weight
    unknown = sorted(exclude - set(found))
    if unknown:
        raise ValueError(f"`exclude`: {unknown[0]} is not a prunable tensor of this model; it has {name_list(found)}")
    found = {name: weight for name, weight in found.items() if name not in exclude}
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no prunable tensor: no convolution, linear layer or "
            "attention projection holds a weight of its own"
        )
    return found


def plain_module(model: nn.Module) -> nn.Module:
    """The module itself, taken out of torch.compile, whose tensors have other names and whose code cannot be followed.

    A TypeError for anything but a module; an error for what was compiled in place.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` is {model!r:.40}; expected a torch module, for example timm.create_model('resnet18')")
    model = model.get_submodule("_orig_mod") if hasattr(model, "_orig_mod") else model
    for name, module in model.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            raise UnsupportedModelError(
                f"{name or type(model).__name__}: is compiled; prune and repair the module first, compile it afterwards"
            )
    return model


def check_weights(model: nn.Module) -> None:
    """Refuse parameters that are on the meta device, nan or inf, before any work."""
    for name, tensor in model.named_parameters():
        if tensor.device.type == "meta":
            raise ValueError(f"{name}: on the meta device, so it has no values; load weights before you prune")
        if tensor.is_complex() or not tensor.is_floating_point():
            continue
        if not finite(tensor):
            raise ValueError(f"{name}: holds nan or inf; was the checkpoint damaged, or did training diverge?")


def finite(tensor: Tensor) -> bool:
    """True without inf and nan: both reach amax and amin, which are ten times faster than isfinite(…).all()."""
    tensor = tensor.detach()
    return not tensor.numel() or (math.isfinite(tensor.amax()) and math.isfinite(tensor.amin()))


def _weight_names(module: nn.Module) -> list[str]:
    if parametrize.is_parametrized(module, "weight"):
        return []  # the tensor in state_dict is not the weight itself: zeros in it are not zeros in the weight
    if isinstance(module, _LINEAR_MAPS):
        names = ["weight"]
    elif isinstance(module, nn.MultiheadAttention):
        names = ["in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"]
    else:
        return []
    return [name for name in names if isinstance(getattr(module, name, None), nn.Parameter)]
