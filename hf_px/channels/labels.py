"""What a run knows: labels of activations, elements of parameters, and the trail of what met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from .union_find import Units


@dataclass
class LinearUse:
    """One call of a linear layer: y[out] = W[out, in] x[in] (+ bias)."""

    weight: str
    inputs: Tensor  # units of the input's channels
    outputs: Tensor
    constants: Tensor  # value of each input channel that does not depend on the network's input, nan for the others
    groups: int
    padded: bool  # a convolution with a border of zeros
    positions: int  # where the layer is evaluated: its multiply-adds are positions · elements of W


@dataclass
class Trail:
    """What a run tells: uses of weights, and which units meet which elements of other parameters."""

    units: Units = field(default_factory=Units)
    linear: list[LinearUse] = field(default_factory=list)
    meetings: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)  # (parameter, elements, units)
    grids: list[Tensor] = field(default_factory=list)  # labels that vary along two dimensions or more
    heads: dict[str, Tensor] = field(default_factory=dict)  # {module: units of each head}
    alive: bool = False  # an output depends on the input


class Run:
    """One run; `running` are the names of the modules that are running, innermost last."""

    def __init__(self, model: nn.Module, buffers: Mapping[str, Tensor], running: list[str]) -> None:
        self.trail = Trail()
        self.units = self.trail.units
        self.labels: Any = WeakIdKeyDictionary()  # {activation: labels, of size 1 where they do not vary}
        self.elements: Any = WeakIdKeyDictionary()  # {moved parameter: (name, index of each element)}
        self.running = running
        self.tensors = dict(model.named_parameters()) | dict(buffers)
        self.names = {id(tensor): name for name, tensor in reversed(self.tensors.items())}

    def knows(self, tensor: Tensor) -> bool:
        return tensor in self.labels or tensor in self.elements or id(tensor) in self.names

    def label(self, tensor: Tensor, labels: Tensor) -> None:
        """Label an activation; `labels` has the shape of the tensor, or size 1 along dimensions without change."""
        labels = compressed(labels)
        self.labels[tensor] = labels
        if sum(size > 1 for size in labels.shape) > 1:
            self.trail.grids.append(labels.squeeze())

    def elements_of(self, tensor: Tensor) -> tuple[str, Tensor] | None:
        """(name of the parameter, index of each of its elements) of a parameter or of what was moved out of one."""
        if (found := self.elements.get(tensor)) is not None:
            return found
        if (name := self.names.get(id(tensor))) is not None:
            return name, torch.arange(tensor.numel()).view(tensor.shape)
        return None

    def pin(self, value: Any) -> None:
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor) and (labels := self.labels.get(tensor)) is not None:
                self.units.pin(labels)

    def meet(self, parameter: Tensor, labels: Tensor) -> None:
        """An elementwise meeting of a parameter, broadcast as it stands, with units."""
        if (found := self.elements_of(parameter)) is None:
            return
        name, elements = found
        elements, labels = torch.broadcast_tensors(elements, labels)
        pairs = torch.unique(torch.stack([elements.reshape(-1), labels.reshape(-1)]), dim=1)
        self.trail.meetings.append((name, pairs[0], pairs[1]))


def compressed(labels: Tensor) -> Tensor:
    """Size 1 along each dimension in which labels do not change."""
    for dim in range(labels.dim()):
        first = labels.narrow(dim, 0, 1)
        if labels.shape[dim] > 1 and bool((labels == first).all()):
            labels = first
    return labels


def substituted(tree: Any, values: Callable[[Tensor], Tensor]) -> Any:
    return tree_map_only(Tensor, values, tree)
