"""shrink(model, mask): y = W x + b = W[:, live] x[live] + (b + W[:, dead] c), the same function with fewer channels.

A channel class goes if nothing reads it, or if what is read of it is a constant c, from biases and norms: the bias of
the layer that reads it takes c up. A convolution with a border of zeros reads c only inside, so there c must be 0.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batch, Batches
from ..core.errors import UnsupportedModelError
from ..core.forward import call, input_shape, undisturbed
from ..core.mask import Mask
from ..core.prunable import plain_module
from .classes import Channels, channels_of
from .cut import cut_copy, families, refused, widths_without
from .labels import LinearUse
from .widths import Widths

TOLERANCE = 1e-4  # of the largest output: float32 rounding over a deep network, summed in another order


@dataclass(frozen=True)
class Removal:
    """What shrink removed, and what it left."""

    channels: tuple[int, int]  # rows of layers: before, after
    weights: tuple[int, int]  # of convolutions and linear layers
    macs: tuple[int, int]  # multiply-adds of those for one input
    bytes: tuple[int, int]  # of all tensors, dense

    def after(self, earlier: Removal) -> Removal:
        """Both removals as one."""
        return Removal(
            (earlier.channels[0], self.channels[1]),
            (earlier.weights[0], self.weights[1]),
            (earlier.macs[0], self.macs[1]),
            (earlier.bytes[0], self.bytes[1]),
        )

    def to_dict(self) -> dict[str, list[int]]:
        return {name: list(pair) for name, pair in vars(self).items()}

    def lines(self) -> list[str]:
        parts = [("channels", self.channels), ("weights", self.weights), ("multiply-adds", self.macs)]
        return [f"{what} {before:,} -> {after:,} ({_less(before, after)})" for what, (before, after) in parts]

    def __str__(self) -> str:
        return "; ".join(self.lines())


def _less(before: int, after: int) -> str:
    return f"{after / before - 1:.1%}" if before != after else "as before"


def shrink(
    model: nn.Module,
    mask: Mask,
    *,
    input_size: Sequence[int] | None = None,
    batches: Iterable[Any] | None = None,
    progress: bool = True,
) -> nn.Module:
    """A smaller copy of the model that computes the same under the mask; the model is not changed.

    mask        of this model: pruned weights are taken as zeros, whatever they are in the model
    input_size  shape of one input, or `batches` of them, if the model does not tell it
    progress    print what went: channels, weights, multiply-adds

    `hf_px.Ticket(model, mask).shrink()` is the same with the mask that is left, as a ticket.
    """
    smaller, _, removal = shrunk(model, mask, input_size=input_size, batches=batches)
    if progress:
        print(f"shrink: {removal}")
    return smaller


def shrunk(
    model: nn.Module,
    mask: Mask,
    *,
    input_size: Sequence[int] | None = None,
    batches: Iterable[Any] | None = None,
) -> tuple[nn.Module, Mask, Removal]:
    """(the smaller network, its mask, what went)"""
    model = plain_module(model)
    if not isinstance(mask, Mask):
        raise TypeError(f"`mask` is a {type(mask).__name__}; expected a Mask, as hf_px.prune returns it")
    mask.check_covers(model)
    batch = one_batch(model, input_size, batches)
    masked = mask.apply_(copy.deepcopy(model))
    channels, weights = analysed(masked, batch), mask.weights(masked)
    if not channels.alive:
        raise ValueError(
            "the mask leaves no path from the input to the output, which is the same for every image: there is "
            "nothing to shrink; prune less, or keep the head"
        )

    def cut(removed: set[int]) -> tuple[nn.Module, Widths]:
        folded, biases = fold(masked, channels, removed)
        widths = widths_without(folded, channels, removed, biases)
        return cut_copy(folded, widths), widths

    while True:
        removed = unneeded(channels, weights)
        smaller, widths = cut(removed)
        if (why := differs(masked, smaller, batch)) is None:
            break
        if not removed:
            raise UnsupportedModelError(f"{type(model).__name__}: two runs of it differ ({why})")
        parts = families(channels, removed)
        channels = channels.without(refused(parts, lambda some: differs(masked, cut(some)[0], batch) is None))
    return smaller, widths.cut_mask(mask), removal_of(channels, widths, masked, smaller)


def one_batch(model: nn.Module, input_size: Sequence[int] | None, batches: Iterable[Any] | None) -> Batch:
    """One input, of random numbers unless `batches` has some."""
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    if batches is not None:
        return Batches(batches, first.device, first.dtype).first()
    shape = input_shape(model) if input_size is None else tuple(input_size)
    if shape is None:
        raise ValueError(
            f"{type(model).__name__} declares no input size; pass `input_size`, such as (3, 224, 224), or `batches`"
        )
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.randn(2, *shape, generator=generator).to(first.device, first.dtype))


def analysed(model: nn.Module, batch: Batch) -> Channels:
    """The channel classes of a model; an error that says why if it has none that could go."""
    check_unshared(model)
    try:
        channels = channels_of(model, batch)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"{type(model).__name__}: its channels could not be followed ({error}); in the run that follows them all "
            "values of the image are nan, and its code must not depend on them"
        ) from error
    if not channels.removable:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no channel that could be removed on its own: its layers are joined by "
            "operations that need all of them, or compute their weights anew at each call"
        )
    return channels


def check_unshared(model: nn.Module) -> None:
    """Refuse a parameter that two modules hold: a cut would give each its own."""
    owner: dict[int, str] = {}
    for prefix, module in model.named_modules():
        for local, tensor in module._parameters.items():
            name = f"{prefix}.{local}" if prefix else local
            if tensor is not None and (first := owner.setdefault(id(tensor), name)) != name:
                raise UnsupportedModelError(
                    f"{first} and {name} are one tensor, whose channels cannot be removed in one place only; "
                    "give each module its own copy, or take another `scope`"
                )


def unneeded(channels: Channels, weights: Any) -> set[int]:
    """Classes that can go without a change: nothing reads them, or what is read is constant and can be folded."""
    removed: set[int] = set()
    candidates = set(channels.removable)
    uses = [(use, weights[use.weight].detach().flatten(2).abs().amax(2) if weights[use.weight].dim() > 2
             else weights[use.weight].detach().abs()) for use in channels.linear if use.weight in weights]  # fmt: skip
    outside = {c for use in channels.linear if use.weight not in weights for c in use.inputs.tolist()}
    candidates -= outside
    while True:
        needed: set[int] = set()
        gone = torch.tensor(sorted(removed), dtype=torch.int64)
        for use, size in uses:
            needed |= _read(use, size, gone)
        found = candidates - needed
        found = spared(channels, found)
        if found == removed:
            return removed
        removed = found


def _read(use: LinearUse, size: Tensor, gone: Tensor) -> set[int]:
    """Classes of which this layer reads something that is no constant to fold."""
    if use.groups > 1:
        return set()  # a group is read by its own class alone
    stays = ~torch.isin(use.outputs, gone)
    foldable = use.constants.isfinite() & ((use.constants == 0) | (not use.padded))
    read = (size[stays] != 0).any(0).cpu() & ~foldable
    return set(use.inputs[read].tolist())


def spared(channels: Channels, removed: set[int]) -> set[int]:
    """The same without the classes that would leave a tensor without rows or columns."""
    removed = set(removed)
    for axis in channels.all_axes():
        members = set(axis.tolist())
        if members <= removed:
            removed.discard(min(members))
    return removed


@torch.no_grad()
def fold(masked: nn.Module, channels: Channels, removed: set[int]) -> tuple[nn.Module, tuple[str, ...]]:
    """(a copy whose biases hold what the removed units send, names of biases that it did not have)"""
    model, gone, new = copy.deepcopy(masked), torch.tensor(sorted(removed), dtype=torch.int64), []
    parameters = dict(model.named_parameters())
    for use in channels.linear:
        dead = torch.isin(use.inputs, gone)
        if use.groups > 1 or not bool(dead.any()):
            continue
        weight = parameters[use.weight].detach()
        constants = torch.where(dead & use.constants.isfinite(), use.constants, 0.0).to(weight.device)
        sent = weight.double().flatten(2).sum(2) @ constants if weight.dim() > 2 else weight.double() @ constants
        if not bool(sent.any()):
            continue
        prefix, _, local = use.weight.rpartition(".")
        module = model.get_submodule(prefix)
        bias = getattr(module, "bias" if local == "weight" else local.replace("weight", "bias"), None)
        if bias is None:
            if local != "weight" or "bias" not in module._parameters:
                raise UnsupportedModelError(
                    f"{use.weight}: reads constants of dead units and can have no bias for them"
                )
            module.bias = bias = nn.Parameter(torch.zeros_like(weight.flatten(1)[:, 0]))
            new.append(f"{prefix}.bias" if prefix else "bias")
        bias += sent.to(bias.dtype)
    return model, tuple(new)


def differs(masked: nn.Module, smaller: nn.Module, batch: Batch) -> str | None:
    """Why the smaller network is not the masked one, on this batch; None if they agree."""
    try:
        with undisturbed(smaller), undisturbed(masked), torch.no_grad():
            a, b = call(masked, {}, batch), call(smaller, {}, batch)
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        return f"its code does not run at the smaller widths ({error})"
    if a.shape != b.shape:
        return f"outputs were {tuple(a.shape)} and are {tuple(b.shape)}"
    gap, size = float((a - b).abs().max()), float(a.abs().max())
    return None if gap <= TOLERANCE * max(size, 1e-6) else f"outputs differ by {gap:.2g}, the largest is {size:.2g}"


def removal_of(channels: Channels, widths: Widths, full: nn.Module, smaller: nn.Module) -> Removal:
    rows, weights, macs = [0, 0], [0, 0], [0, 0]
    counted: set[str] = set()
    for use in channels.linear:
        shape = channels.shapes[use.weight]
        kept = widths.kept.get(use.weight, [None] * len(shape))
        left = [n if indices is None else len(indices) for n, indices in zip(shape, kept)]
        for i, sizes in enumerate((shape, left)):
            elements = torch.Size(sizes).numel()
            macs[i] += elements * use.positions
            if use.weight not in counted:
                rows[i] += sizes[0]
                weights[i] += elements
        counted.add(use.weight)
    return Removal(
        (rows[0], rows[1]), (weights[0], weights[1]), (macs[0], macs[1]), (_bytes_of(full), _bytes_of(smaller))
    )


def _bytes_of(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in model.state_dict().values())


__all__ = ["Removal", "shrink", "shrunk"]
