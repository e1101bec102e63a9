"""Which kept weights lie on a path from input to output, or a sentence on why that is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batch, Batches
from ..core.errors import UnsupportedModelError
from ..core.forward import input_shape
from ..core.mask import Mask
from ..paths import live_weights


def total(counts: Iterable[int | None]) -> int | None:
    """Their sum; unknown where one of them is."""
    found = list(counts)
    return None if None in found else sum(n for n in found if n is not None)


def live_bits(
    model: nn.Module, mask: Mask, batches: Iterable[Any] | None = None, input_size: Sequence[int] | None = None
) -> tuple[dict[str, Tensor] | None, str]:
    """({name: True where a kept weight is live}, ""), or (None, why); batches or input_size give an input's shape."""
    device = next(iter(mask.tensors_of(model).values())).device
    if batches is not None:
        batch = Batches(batches, device).first()
    else:
        shape = input_shape(model) if input_size is None else tuple(input_size)
        if shape is None:
            return None, "dead weights are unknown: pass input_size= or batches="
        batch = Batch(torch.ones(1, *shape, device=device))
    try:
        return live_weights(model, mask, batch), ""
    except UnsupportedModelError as error:
        return None, f"dead weights are unknown: {error}"
