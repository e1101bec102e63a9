"""Layers whose output goes into a batch norm and nowhere else: the norm subtracts the mean, so it need not be right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .batches import Batch
from .forward import call
from .linear_maps import LinearMaps


class _Readers(LinearMaps):
    """Notes who reads the output of each layer. Outputs are kept, so that no other tensor takes over their memory."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__(weights, lambda one: None)
        self.outputs: dict[int, tuple[str, Tensor]] = {}
        self.by_norms: set[str] = set()
        self.by_others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs or {})):
            if isinstance(x, Tensor) and (found := self.outputs.get(x.untyped_storage().data_ptr())):
                # the operation has a name for each kind of device
                (self.by_norms if "batch_norm" in str(func) else self.by_others).add(found[0])
        output = func(*args, **(kwargs or {}))
        if (one := self._map(func, args)) is not None:
            self.outputs[output.untyped_storage().data_ptr()] = (one.name, output)
        return output


@torch.no_grad()
def absorbed_means(model: nn.Module, weights: Mapping[str, Tensor], batch: Batch) -> set[str]:
    """Names of such weights, found by a forward pass of one row of the batch."""
    with _Readers(weights) as readers:
        call(model, weights, batch.row())
    return readers.by_norms - readers.by_others
