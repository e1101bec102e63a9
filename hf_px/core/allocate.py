"""Scores and a density -> Mask with exactly round(density · n) weights: global, per layer, ERK or N:M.

Ties break by name, then position, so the same scores give the same mask on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .mask import Mask
from .registry import Scores

Floors = Mapping[str, int]  # {tensor name: least number of weights it keeps}
NO_FLOORS: Floors = MappingProxyType({})


class Scope(Protocol):
    """Which weights compete. `check` refuses an impossible request before any work; a call allocates.

    `within` is the mask of the round before; `floors` gives tensors a least number of weights.
    """

    def check(self, shapes: Mapping[str, torch.Size], density: float) -> None:
        return

    def __call__(self, scores: Scores, density: float, within: Mask, floors: Floors = NO_FLOORS) -> Mask: ...


def budget(total: int, density: float) -> int:
    """Number of `total` weights that survive."""
    return round(density * total)


@dataclass(frozen=True)
class Global(Scope):
    """The best round(density · n) weights of the network."""

    def __call__(self, scores: Scores, density: float, within: Mask, floors: Floors = NO_FLOORS) -> Mask:
        names = sorted(scores)
        flat = torch.cat([_ranked(scores[n], within.bits[n], floors.get(n, 0)) for n in names])
        kept = best(flat, min(budget(len(flat), density), within.kept))
        parts = dict(zip(names, kept.split([scores[n].numel() for n in names])))
        return Mask({n: parts[n].view(s.shape).clone() for n, s in scores.items()})


@dataclass(frozen=True)
class PerLayer(Scope):
    """Every layer gets its own budget: the same density for all, or Erdős-Rényi-Kernel densities.

    ERK (Evci et al., ICML 2020): density of a layer ∝ (sum of its dimensions) / (their product), at most 1.
    `apart` has {tensor name: True for some of its weights}: these and the others keep the same density.
    """

    erk: bool = False
    apart: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, scores: Scores, density: float, within: Mask, floors: Floors = NO_FLOORS) -> Mask:
        names = sorted(scores)
        sizes = [scores[n].numel() for n in names]
        rooms = [int(within.bits[n].sum()) for n in names]
        wish = [sum(scores[n].shape) if self.erk else scores[n].numel() for n in names]
        total = min(budget(sum(sizes), density), sum(rooms))
        counts = apportion(wish, rooms, total, floors=[min(floors.get(n, 0), room) for n, room in zip(names, rooms)])
        count = dict(zip(names, counts))
        return Mask({n: self._best(n, s, within.bits[n], count[n]).view(s.shape) for n, s in scores.items()})

    def _best(self, name: str, scores: Tensor, within: Tensor, count: int) -> Tensor:
        ranked = _ranked(scores, within)
        if name not in self.apart:
            return best(ranked, count)
        apart = self.apart[name].reshape(-1).to(ranked.device)
        left = within.reshape(-1).to(ranked.device)
        share = round(count * int(apart.sum()) / len(apart))
        share = min(max(share, count - int((left & ~apart).sum())), int((left & apart).sum()))
        kept = torch.empty_like(apart)
        kept[apart], kept[~apart] = best(ranked[apart], share), best(ranked[~apart], count - share)
        return kept


@dataclass(frozen=True)
class NofM(Scope):
    """The best n of every m neighbours along the input dimension, as sparse tensor cores want them."""

    n: int
    m: int

    def check(self, shapes: Mapping[str, torch.Size], density: float) -> None:
        if not 0 < self.n < self.m:
            raise ValueError(f"`scope` {self.n}:{self.m}: need 0 < n < m, for example 2:4")
        if bad := [name for name, shape in shapes.items() if shape[1] % self.m]:
            first = bad[0]
            raise ValueError(
                f"`scope` {self.n}:{self.m}: {first} has {shapes[first][1]} inputs, which {self.m} does not divide "
                f"({len(bad)} such tensors); `exclude` {' '.join(bad)}"
            )
        if abs(density - self.n / self.m) > 1e-9:
            raise ValueError(
                f"`scope` {self.n}:{self.m} means sparsity {1 - self.n / self.m:g}, not {1 - density:g}; "
                "leave `sparsity` out or make them agree"
            )

    def __call__(self, scores: Scores, density: float, within: Mask, floors: Floors = NO_FLOORS) -> Mask:
        bits = {}
        # in an early round a group keeps as many as the round's density asks for, never fewer than n
        keep = max(self.n, int(np.ceil(self.m * density - 1e-9)))
        for name, score in scores.items():
            ranked = _ranked(score, within.bits[name]).view(score.shape).movedim(1, -1)
            groups = ranked.reshape(-1, self.m)
            order = groups.argsort(dim=1, descending=True, stable=True)[:, :keep]
            kept = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, order, True)
            bits[name] = kept.view(ranked.shape).movedim(-1, 1).contiguous() & within.bits[name]
        return Mask(bits)


def scope(text: str) -> Scope:
    """The scope of a name: global, layer, erk or n:m."""
    named: dict[str, Scope] = {"global": Global(), "layer": PerLayer(), "erk": PerLayer(erk=True)}
    if text in named:
        return named[text]
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        return NofM(int(match[1]), int(match[2]))
    raise ValueError(f"`scope` {text!r} is unknown; there are global, layer, erk, channel and n:m, for example 2:4")


def best(scores: Tensor, count: int) -> Tensor:
    """Bool tensor with exactly `count` True: the highest scores; of equal scores the first."""
    if count <= 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    if count >= len(scores):
        return torch.ones_like(scores, dtype=torch.bool)
    threshold = _kth_largest(scores, count)
    kept = scores > threshold
    missing = count - int(kept.sum())
    equals = (scores == threshold).nonzero().view(-1)
    kept[equals[:missing]] = True
    return kept


def apportion(weights: list[int], rooms: list[int], total: int, floors: list[int]) -> list[int]:
    """Integers ∝ weights, between floors and rooms, that add up to total; the largest remainders round up.

    The upper bound matters even for equal densities: in a sparser round, largest remainders alone may give a layer one
    weight more than it has left (the Alabama paradox).
    """
    w, low, high = (np.asarray(v, dtype=np.float64) for v in (weights, floors, rooms))
    if not low.sum() <= total <= high.sum():
        raise ValueError(f"cannot share {total} weights among layers that must keep {int(low.sum())}")
    # the share λ·w clipped to its bounds grows with λ: bisect for the λ that meets the total
    below, above = 0.0, 1.0 + total / max(w.min(), 1.0)
    for _ in range(200):
        middle = (below + above) / 2
        below, above = (middle, above) if np.clip(middle * w, low, high).sum() < total else (below, middle)
    share = np.clip(above * w, low, high)
    counts = np.floor(share + 1e-9).astype(int)
    for i in sorted(range(len(w)), key=lambda i: (counts[i] - share[i], i)):
        if counts.sum() >= total:
            break
        counts[i] += counts[i] < high[i]
    for i in sorted(range(len(w)), key=lambda i: (share[i] - counts[i], i)):
        if counts.sum() <= total:
            break
        counts[i] -= counts[i] > low[i]
    return [int(c) for c in counts]


def _kth_largest(scores: Tensor, k: int) -> Tensor:
    if scores.device.type == "cpu":
        # numpy's introselect is several times faster than torch.kthvalue on the CPU
        values = (scores.float() if scores.dtype.itemsize < 4 else scores).numpy()
        return torch.as_tensor(np.partition(values, len(values) - k)[len(values) - k], dtype=scores.dtype)
    return scores.kthvalue(len(scores) - k + 1).values


def _ranked(scores: Tensor, within: Tensor, floor: int = 0) -> Tensor:
    """Flat scores with pruned weights at -inf and the best `floor` of the tensor at +inf."""
    flat = scores.detach().reshape(-1).masked_fill(~within.reshape(-1).to(scores.device), -torch.inf)
    if floor:
        flat[best(flat, min(floor, int(within.sum())))] = torch.inf
    return flat


# Schedules: the density after round t of T, from 1 down to the final density

Schedule = Callable[[int, int, float], float]


def exponential(t: int, rounds: int, density: float) -> float:
    """d^(t/T): every round removes the same fraction of what is left."""
    return density ** (t / rounds)


def linear(t: int, rounds: int, density: float) -> float:
    """1 - (1 - d)·t/T: every round removes the same number of weights."""
    return density if t == rounds else 1.0 - (1.0 - density) * t / rounds


def one_shot(t: int, rounds: int, density: float) -> float:
    """d: all in one round."""
    return density


SCHEDULES: dict[str, Schedule] = {"exponential": exponential, "linear": linear, "one-shot": one_shot}
