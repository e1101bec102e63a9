"""Widths: which rows and columns of which tensors a smaller network keeps, as data.

    {"sets": [[0, 2, 5], …], "tensors": {"conv1.weight": [0, null, null, null], …},
     "attributes": {"blocks.0.attn": {"num_heads": 2}, …}, "biases": ["fc.bias"]}

`sets` are kept indices; a tensor names one for each dimension, or null where it keeps all. `attributes` are the numbers
of heads that the forward pass reads, `biases` those that layers have now and had not before.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import TicketError
from ..core.mask import Mask

HEADS = ("num_heads", "num_attention_heads")  # numbers of heads
INNER = ("attn_dim", "all_head_size")  # numbers of channels of all heads
_ATTRIBUTES = (*HEADS, *INNER)
_OF_MODEL = "_hf_px_widths"


@dataclass(frozen=True)
class Widths:
    kept: Mapping[str, list[Tensor | None]]  # {tensor: indices that stay by dimension, None for all}
    full: Mapping[str, tuple[int, ...]]  # shapes before the cut, of the tensors in `kept`
    attributes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    biases: tuple[str, ...] = ()  # biases that layers have now and had not before

    def to_dict(self) -> dict[str, Any]:
        sets: list[list[int]] = []
        number: dict[tuple[int, ...], int] = {}
        tensors: dict[str, list[int | None]] = {}
        for name, kept in self.kept.items():
            places: list[int | None] = []
            for indices in kept:
                if indices is None:
                    places.append(None)
                    continue
                key = tuple(indices.tolist())
                if key not in number:
                    number[key] = len(sets)
                    sets.append(list(key))
                places.append(number[key])
            tensors[name] = places
        attributes = {name: dict(values) for name, values in self.attributes.items()}
        return {"sets": sets, "tensors": tensors, "attributes": attributes, "biases": list(self.biases)}

    @classmethod
    def from_dict(cls, record: Any, shapes: Mapping[str, tuple[int, ...]]) -> Widths:
        """Widths from a file, which is not trusted, for a model with tensors of these shapes."""
        sets = [_indices(indices) for indices in _typed(record, "sets", list)]
        biases = _typed(record, "biases", list)
        for name in biases:
            if not isinstance(name, str) or name in shapes or f"{name.removesuffix('bias')}weight" not in shapes:
                raise TicketError(f"widths: {name!r:.100} cannot be a new bias; the file is damaged")
        shapes = {**shapes, **{name: shapes[f"{name.removesuffix('bias')}weight"][:1] for name in biases}}
        kept, full = {}, {}
        for name, places in _typed(record, "tensors", dict).items():
            if name not in shapes:
                raise TicketError(f"widths: {name!r:.100} is no tensor of this architecture; is it for another one?")
            shape = shapes[name]
            if not isinstance(places, list) or len(places) != len(shape):
                raise TicketError(f"widths: {name} has {len(shape)} dimensions, not {places!r:.100}")
            kept[name] = [None if place is None else _chosen(name, sets, place, n) for place, n in zip(places, shape)]
            full[name] = shape
        attributes = {}
        for name, values in _typed(record, "attributes", dict).items():
            known = isinstance(values, dict) and set(values) <= set(_ATTRIBUTES)
            if not known or not all(type(v) is int and 0 < v < 2**20 for v in values.values()):
                raise TicketError(f"widths: attributes of {name!r:.100} are {values!r:.100}; the file is damaged")
            attributes[name] = values
        return cls(kept, full, attributes, tuple(biases))

    def then(self, later: Widths) -> Widths:
        """Two cuts as one: `later` is of the network that this one left."""
        kept = dict(self.kept)
        for name, chosen in later.kept.items():
            before = self.kept.get(name, [None] * len(chosen))
            kept[name] = [a if b is None else b if a is None else a[b] for a, b in zip(before, chosen)]
        full = {**later.full, **self.full}
        attributes = {
            name: {**self.attributes.get(name, {}), **later.attributes.get(name, {})}
            for name in {**self.attributes, **later.attributes}
        }
        return Widths(kept, full, attributes, (*self.biases, *later.biases))

    def cut_mask(self, mask: Mask) -> Mask:
        """The mask of the full network, cut like its weights."""
        return Mask({name: self.cut(name, bits) for name, bits in mask.bits.items()}, mask.excluded)

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        for dim, indices in enumerate(self.kept.get(name, ())):
            if indices is not None:
                tensor = tensor.index_select(dim, indices.to(tensor.device))
        return tensor

    @torch.no_grad()
    def cut_(self, model: nn.Module) -> nn.Module:
        """Cut the model's tensors, and set what its layers say of their sizes."""
        for name in self.biases:
            module, weight = model.get_submodule(name.rpartition(".")[0]), model.get_parameter(f"{name[:-4]}weight")
            if "bias" not in module._parameters:
                raise TicketError(f"widths: {name} cannot be a new bias; the file is damaged")
            if module.bias is None:
                module.bias = nn.Parameter(weight.new_zeros(len(weight)))
        for name in self.kept:
            prefix, _, local = name.rpartition(".")
            module = model.get_submodule(prefix)
            tensor = getattr(module, local)
            smaller = self.cut(name, tensor.detach()).contiguous()
            if local in module._parameters:
                module._parameters[local] = nn.Parameter(smaller, tensor.requires_grad)
            else:
                module._buffers[local] = smaller
        for name in dict.fromkeys(name.rpartition(".")[0] for name in (*self.kept, *self.biases)):
            _set_sizes(model.get_submodule(name), name, self)
        for name, values in self.attributes.items():
            try:
                module = model.get_submodule(name)
            except AttributeError as error:
                raise TicketError(f"widths: the architecture has no module {name!r:.100}") from error
            for attribute, value in values.items():
                if not isinstance(getattr(module, attribute, None), int):
                    raise TicketError(f"widths: {name} has no number {attribute}; the file is damaged")
                setattr(module, attribute, value)
        before = widths_of(model)
        setattr(model, _OF_MODEL, self if before is None else before.then(self))
        return model


def widths_of(model: nn.Module) -> Widths | None:
    """How a model was cut, None if it was not."""
    return getattr(model, _OF_MODEL, None)


def _set_sizes(module: nn.Module, name: str, widths: Widths) -> None:
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, nn.modules.conv._ConvNd):
        rows = widths.full.get(f"{name}.weight" if name else "weight", (len(weight),))[0]
        if module.groups > 1:
            module.groups = module.groups * len(weight) // rows
        module.out_channels, module.in_channels = len(weight), weight.shape[1] * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        sized = weight if weight is not None else module.running_mean
        module.num_features = len(sized) if sized is not None else module.num_features
    elif isinstance(module, nn.GroupNorm) and weight is not None:
        module.num_groups = module.num_groups * len(weight) // module.num_channels
        module.num_channels = len(weight)


def _typed(record: Any, key: str, kind: type) -> Any:
    value = record.get(key, kind()) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise TicketError(f"widths: {key} is {value!r:.100}; the file is damaged")
    return value


def _indices(values: Any) -> Tensor:
    rising = isinstance(values, list) and values and all(type(v) is int for v in values)
    if not rising or values[0] < 0 or any(a >= b for a, b in itertools.pairwise(values)):
        raise TicketError(f"widths: {values!r:.100} are no rising indices; the file is damaged")
    return torch.tensor(values, device="cpu")  # also where models are built on the meta device


def _chosen(name: str, sets: list[Tensor], place: Any, size: int) -> Tensor:
    if type(place) is not int or not 0 <= place < len(sets) or int(sets[place][-1]) >= size:
        raise TicketError(f"widths: {name} keeps {place!r:.100} of {size}; the file is damaged")
    return sets[place]
