"""Mask: M in {0, 1}^m, an immutable {state_dict name: bool tensor}; True means kept."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from .prunable import prunable
from .text import name_list


class MaskedWeights(Mapping[str, Tensor]):
    """θ ⊙ M by name, together with M: a kept weight may be exactly zero, so θ ⊙ M does not determine M.

    Its tensors are read-only: if nothing is pruned they are the model's own. Half precision becomes float32. `reuse`
    takes over the memory of an earlier round, since fresh pages cost more time than the products.
    """

    def __init__(self, dense: Mapping[str, Tensor], mask: Mask, reuse: MaskedWeights | None = None) -> None:
        self.mask = mask
        dense = {n: w.detach().float() if w.dtype.itemsize < 4 else w.detach() for n, w in dense.items()}
        self._scratch: dict[str, Tensor] = {} if reuse is None else reuse._scratch
        self._own: dict[str, Tensor] = {} if reuse is None else reuse._own
        self._scratch_is_ones = False
        self._weights: dict[str, Tensor] = dense
        if not mask.keeps_all:
            self._own = self._own or {n: torch.empty_like(w) for n, w in dense.items()}
            ones = self.scratch()  # each is multiplied while it is in the cache
            self._weights = {n: torch.mul(w, self._convert(n, ones[n]), out=self._own[n]) for n, w in dense.items()}
            self._scratch_is_ones = True

    def scratch(self) -> dict[str, Tensor]:
        """Memory in the shape of the weights; the next caller overwrites it."""
        self._scratch = self._scratch or {n: torch.empty_like(w) for n, w in self._weights.items()}
        self._scratch_is_ones = False
        return self._scratch

    def ones(self) -> dict[str, Tensor]:
        """1 ⊙ M, in scratch memory."""
        if not self._scratch_is_ones:
            for name, ones in self.scratch().items():
                self._convert(name, ones)
            self._scratch_is_ones = True
        return self._scratch

    def _convert(self, name: str, into: Tensor) -> Tensor:
        return into.copy_(self.mask.bits[name].view(torch.uint8))  # torch converts bytes much faster than bool

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@dataclass(frozen=True, eq=False)
class Mask:
    """A mask names every prunable tensor of its model, in `bits` or in `excluded`.

    excluded   prunable tensors that the mask leaves out on purpose; None: unknown, in files of earlier versions
    """

    bits: Mapping[str, Tensor]
    excluded: Collection[str] | None = ()

    def __post_init__(self) -> None:
        if self.excluded is not None:
            names = (self.excluded,) if isinstance(self.excluded, str) else self.excluded
            object.__setattr__(self, "excluded", tuple(sorted(set(names) - self.bits.keys())))
        for name, bits in self.bits.items():
            if bits.dtype is not torch.bool:
                raise TypeError(f"{name}: a mask has bool tensors, not {bits.dtype}; compare with 0 first")
        object.__setattr__(self, "bits", MappingProxyType(dict(self.bits)))

    def __reduce__(self) -> tuple[type[Mask], tuple[dict[str, Tensor], Collection[str] | None]]:
        return Mask, (dict(self.bits), self.excluded)  # a MappingProxyType can be neither copied nor pickled

    @classmethod
    def ones(cls, weights: Mapping[str, Tensor]) -> Mask:
        """The mask that keeps everything."""
        return cls({name: torch.ones_like(w, dtype=torch.bool) for name, w in weights.items()})

    def to(self, device: torch.device | str) -> Mask:
        return replace(self, bits={name: bits.to(device) for name, bits in self.bits.items()})

    @property
    def total(self) -> int:
        return sum(bits.numel() for bits in self.bits.values())

    @property
    def kept(self) -> int:
        return sum(_count(bits) for bits in self.bits.values())

    @property
    def keeps_all(self) -> bool:
        """True if nothing is pruned; known at the first pruned tensor, while `kept` reads them all."""
        return all(_count(bits) == bits.numel() for bits in self.bits.values())

    @property
    def density(self) -> float:
        return self.kept / self.total

    @property
    def sparsity(self) -> float:
        return 1.0 - self.density

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        if set(self.bits) != set(other.bits):
            odd = sorted(set(self.bits) ^ set(other.bits))
            raise ValueError(f"masks of different tensors: {odd[0]} is in one only; do both belong to this model?")
        for name, bits in self.bits.items():
            if bits.shape != other.bits[name].shape:
                raise ValueError(f"{name}: masks are {tuple(bits.shape)} and {tuple(other.bits[name].shape)}")
        return replace(self, bits={name: bits & other.bits[name].to(bits.device) for name, bits in self.bits.items()})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return set(self.bits) == set(other.bits) and all(
            bits.shape == other.bits[name].shape and bool((bits == other.bits[name].to(bits.device)).all())
            for name, bits in self.bits.items()
        )

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"Mask({self.kept:,} of {self.total:,} kept, sparsity {self.sparsity:.2%}, {len(self.bits)} tensors)"

    def digest(self) -> str:
        """SHA-256 over names, shapes and bits, in order of name: equal masks, equal digests, on any machine."""
        sha = hashlib.sha256()
        for name in sorted(self.bits):
            bits = self.bits[name].detach().cpu().numpy()
            sha.update(f"{name}\0{bits.shape}\0".encode())
            sha.update(np.packbits(bits.reshape(-1), bitorder="little").tobytes())
        return sha.hexdigest()

    def tensors_of(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's own tensors that this mask names; an error if names or shapes do not fit."""
        if not isinstance(model, nn.Module):
            raise TypeError(f"`model` is {model!r:.40}; expected a torch module, whose weights the mask names")
        own = dict(model.named_parameters(remove_duplicate=False))
        if hasattr(model, "_orig_mod") and not self.bits.keys() <= own.keys():  # torch.compile renames every tensor
            own = dict(model.get_submodule("_orig_mod").named_parameters(remove_duplicate=False))
        for name, bits in self.bits.items():
            if name not in own:
                raise ValueError(f"{name}: in the mask, but the model has no such parameter; is it another model's?")
            if own[name].shape != bits.shape:
                raise ValueError(
                    f"{name}: mask is {tuple(bits.shape)}, weight is {tuple(own[name].shape)}; "
                    "was the head resized after pruning?"
                )
        return {name: own[name] for name in self.bits}

    def left_out(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's prunable tensors that the mask does not name, on purpose or not."""
        named = {id(tensor) for tensor in self.tensors_of(model).values()}
        model = getattr(model, "_orig_mod", model)  # inside torch.compile
        return {name: weight for name, weight in prunable(model).items() if id(weight) not in named}

    def check_covers(self, model: nn.Module) -> None:
        """Raise unless the mask names every prunable tensor of the model, or leaves it out on purpose."""
        missing = [] if self.excluded is None else [n for n in self.left_out(model) if n not in self.excluded]
        if missing:
            named, many = type(model).__name__, len(missing) > 1
            raise ValueError(
                f"{name_list(missing)}: {len(missing)} prunable tensor{'s' * many} of this {named} "
                f"{'are' if many else 'is'} not in the mask; is it another model's? To leave tensors dense on purpose, "
                "prune with `exclude`, or name them in Mask(bits, excluded=[…])"
            )

    def weights(self, model: nn.Module, reuse: MaskedWeights | None = None) -> MaskedWeights:
        """θ ⊙ M; the model is not changed."""
        return MaskedWeights(self.tensors_of(model), self, reuse)

    @torch.no_grad()
    def apply_(self, model: nn.Module) -> nn.Module:
        """θ ← θ ⊙ M in place; returns the model."""
        self.check_covers(model)
        for name, weight in self.tensors_of(model).items():
            # where, not *: a pruned nan must become 0, and -1 * 0 must not leave -0.0
            weight.copy_(torch.where(self.bits[name].to(weight.device), weight, torch.zeros_like(weight)))
        return model


def _count(bits: Tensor) -> int:
    return int(bits.count_nonzero())  # sum() would convert each bit to int64, at three times the cost
