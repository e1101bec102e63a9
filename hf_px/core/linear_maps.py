"""y = W x as it happens: which prunable weight meets which input in a forward pass of any model.

A TorchDispatchMode sees every convolution and matrix product below the modules: functional calls, padding that a module
adds by itself, and the thirds of a packed attention projection, all as they are computed. Nothing is matched by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class LinearMap:
    """One product of a weight with its input x: [n, columns] for a matrix product, else images of a convolution."""

    name: str  # of the weight
    first_row: int  # of the weight: attention may use a third of its rows at a time
    num_rows: int
    x: Tensor
    kernel: tuple[int, ...] = ()  # empty for a matrix product
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.first_row

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.num_rows)

    @property
    def positions(self) -> int:
        """The number of inputs that the weight meets: tokens, or output pixels of all images."""
        return len(self.x) * math.prod(self._output_size())

    def inputs(self, most: int) -> Tensor:
        """X of [groups, n, columns] with n about `most`, or all; the columns are those of W.flatten(1).

        Positions are drawn by a fixed seed, so two networks that see the same images give pairs of rows.
        """
        if not self.kernel:
            return self.x[_draw(len(self.x), most).to(self.x.device)].unsqueeze(0)
        x = F.pad(self.x, [p for side in reversed(self.padding) for p in (side, side)])
        at = _draw(math.prod(self._output_size()), -(-most // len(x)))
        index = torch.zeros(len(at), 1, dtype=torch.long)  # [positions, kernel] into the flattened image
        corners = torch.unravel_index(at, self._output_size())
        for size, corner, k, s, d in zip(x.shape[2:], corners, self.kernel, self.stride, self.dilation):
            index = (index * size).unsqueeze(-1) + (corner * s).view(-1, 1, 1) + torch.arange(k) * d
            index = index.flatten(1)
        patches = x.flatten(2)[:, :, index.to(x.device)]  # [images, channels, positions, kernel]
        patches = patches.unflatten(1, (self.groups, -1)).permute(1, 0, 3, 2, 4)
        return patches.reshape(self.groups, len(x) * len(at), -1)

    def _output_size(self) -> tuple[int, ...]:
        sides = zip(self.x.shape[2:], self.kernel, self.stride, self.padding, self.dilation)
        return tuple((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sides)


class LinearMaps(TorchDispatchMode):
    """Calls `on_map` with each LinearMap of `weights` just before it is computed.

    Products that are none of y = W x, such as transposed convolutions, are passed over.
    """

    def __init__(self, weights: Mapping[str, Tensor], on_map: Callable[[LinearMap], None]) -> None:
        super().__init__()
        self.weights = {w.untyped_storage().data_ptr(): (name, w) for name, w in weights.items()}
        self.on_map = on_map

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (found := self._map(func, args)) is not None:
            self.on_map(found)
        return func(*args, **(kwargs or {}))

    def _map(self, func: Any, args: Any) -> LinearMap | None:
        if func is aten.convolution.default:
            x, w, _, stride, padding, dilation, transposed, _, groups = args
            if (place := self._place(w)) is None or transposed or w.shape != place[1].shape:
                return None
            sizes = (tuple(w.shape[2:]), tuple(stride), tuple(padding), tuple(dilation))
            return LinearMap(place[0], 0, len(w), x, *sizes, groups=groups)
        if func is aten.linear.default:
            x, w = args[0], args[1]
        elif func in (aten.mm.default, aten.addmm.default):
            x, w = args[-2], args[-1].t()
        elif func is aten.bmm.default and args[1].stride(0) == 0:
            x, w = args[0], args[1][0].t()
        else:
            return None
        place = self._place(w)
        if place is None or w.dim() != 2:
            return None
        name, own = place
        columns = own[0].numel()
        start, odd = divmod(w.storage_offset() - own.storage_offset(), columns)
        if odd or w.shape[1] != columns or w.stride() != (columns, 1):
            return None
        return LinearMap(name, start, len(w), x.reshape(-1, columns))

    def _place(self, w: Tensor) -> tuple[str, Tensor] | None:
        return self.weights.get(w.untyped_storage().data_ptr())


def _draw(count: int, most: int) -> Tensor:
    """`most` of `count` indices, in order, without repetition."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values
