"""What a run keeps: an Entry for each recorded operation, and a Trace for each tensor that it follows."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Entry:
    operation: str
    saved: Any


@dataclass
class Trace:
    """What replay knows of a tensor on a path."""

    exponent: int = 0
    fault: str | None = None  # a non-linear operation without a rule on the way to it
    unmeasured: int = 0  # layers since `rescale` last read the values
    twin: weakref.ref[Tensor] | None = None  # another tensor with the same memory, if it is still in use


@dataclass(frozen=True)
class Flow:
    """An output of the replayed network: values · 2^exponent."""

    values: Tensor
    exponent: int


class Traces:
    """{tensor: Trace} of one replay, stored on the tensors: several times faster than a weak dictionary."""

    def __getitem__(self, tensor: Tensor) -> Trace:
        return tensor.__dict__["_hf_px"][1]

    def __contains__(self, tensor: Tensor) -> bool:
        return self.get(tensor) is not None

    def get(self, tensor: Tensor) -> Trace | None:
        owner, trace = tensor.__dict__.get("_hf_px", (None, None))
        return trace if owner is self else None

    def __setitem__(self, tensor: Tensor, trace: Trace) -> None:
        tensor.__dict__["_hf_px"] = (self, trace)

    def discard(self, tensor: Tensor) -> None:
        tensor.__dict__.pop("_hf_px", None)
