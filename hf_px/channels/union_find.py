"""Disjoint sets of units, as arrays. The set of unit 0 is pinned: nothing in it is ever removed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PINNED = 0


class Units:
    def __init__(self) -> None:
        self.parent = np.zeros(1, dtype=np.int64)

    def new(self, count: int) -> Tensor:
        """Ids of `count` new units, each a set of its own."""
        ids = np.arange(len(self.parent), len(self.parent) + count)
        self.parent = np.concatenate([self.parent, ids])
        return torch.from_numpy(ids)

    def find(self, ids: Tensor) -> Tensor:
        """The set of each unit: the id of its smallest member."""
        found = ids.numpy()
        while True:
            above = self.parent[found]
            if np.array_equal(above, found):
                return torch.from_numpy(np.ascontiguousarray(found))
            found = above

    def join(self, first: Tensor, second: Tensor) -> None:
        """Make one set of first[i] and second[i], for each i; the two are broadcast."""
        a, b = (self.find(t).reshape(-1) for t in torch.broadcast_tensors(first, second))
        for x, y in torch.unique(torch.stack([a, b]), dim=1).T[:].tolist():
            x, y = self._root(x), self._root(y)
            low, high = min(x, y), max(x, y)
            self.parent[high] = low

    def join_along(self, labels: Tensor, *dims: int) -> None:
        """Make one set of the units that differ only in their place along these dimensions."""
        for dim in dims:
            if labels.shape[dim] > 1:
                self.join(labels, labels.narrow(dim, 0, 1))

    def pin(self, labels: Tensor) -> None:
        self.join(labels, torch.tensor(PINNED))

    def copy(self) -> Units:
        other = Units()
        other.parent = self.parent.copy()
        return other

    def _root(self, x: int) -> int:
        while self.parent[x] != x:
            self.parent[x] = self.parent[self.parent[x]]
            x = int(self.parent[x])
        return x
