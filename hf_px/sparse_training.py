"""Zeros stay zero: θ ← θ ⊙ M, g ← g ⊙ M, state ← state ⊙ M, now and around every step of the optimizer.

Masked gradients alone are not enough: momentum from before the pruning moves a weight whose gradient is zero.
Masked weights alone are not enough either: the gradients of pruned weights would count in the norm for clipping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .core.errors import UnsupportedModelError
from .core.mask import Mask

# Their steps go entry by entry: what is zero before, with its gradient and its state, is zero after. Compared by exact
# type, since a subclass may add noise.
_ENTRY_BY_ENTRY = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers as wide as an element


def keep_zeros(model: nn.Module, mask: Mask, optimizer: Optimizer, *, ema: nn.Module | None = None) -> Keeper:
    """θ ← θ ⊙ M, g ← g ⊙ M, state ← state ⊙ M: now, and around every step until `remove()`.

    model      bare, or inside DDP or torch.compile
    optimizer  any torch optimizer, also as accelerate prepared it; call once for each if there are several.
               State in the shape of its weight is masked, if it is floating point: a code of 0 in an 8-bit state
               need not mean zero
    ema        a copy of the model, timm's ModelEmaV2 / V3 or torch's AveragedModel, if there is one already;
               an average that is made later starts with the zeros

    It may be called again with a sparser mask: weights that any of the masks pruned stay zero.
    """
    if not isinstance(mask, Mask):
        raise TypeError(f"keep_zeros(model, mask, optimizer): a Mask, not a {type(mask).__name__}")
    optimizer = _real(optimizer)
    weights = _weights(model, mask)
    averages = {} if ema is None else _weights(ema, mask)
    trainable = {name: weight for name, weight in weights.items() if weight.requires_grad}
    _check_held(optimizer, trainable)

    zeros: dict[Tensor, _Zeros] = {}  # by tensor: one with two names is pruned where either name is
    for name, weight in weights.items():
        zeros.setdefault(weight, _Zeros(weight)).add_(~mask.bits[name])
    return Keeper(optimizer, weights, zeros, [(average, zeros[weights[name]]) for name, average in averages.items()])


class Keeper:
    """What `keep_zeros` set up. `remove()` ends it, and so does leaving a `with` block."""

    def __init__(
        self,
        optimizer: Optimizer,
        weights: Mapping[str, Tensor],
        zeros: Mapping[Tensor, _Zeros],
        averages: Iterable[tuple[Tensor, _Zeros]],
    ) -> None:
        self._optimizer = optimizer
        self._zeros = zeros
        held = _held(optimizer)
        self._held = {name: weight for name, weight in weights.items() if weight in held}
        self._averages = list(averages)
        self._mask_grads_()
        self._mask_weights_()
        self._mask_state_()
        self._handles = [
            # on the tensor and out of place: DDP sends gradients off, without waiting, once they have accumulated
            *(weight.register_hook(zero.masked) for weight, zero in zeros.items() if weight.requires_grad),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_load_state_dict_post_hook(self._mask_state_),
        ]

    def remove(self) -> None:
        """Stop masking. Pruned weights stay zero until the optimizer changes them."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _before_step(self, *_: Any) -> None:
        _check_held(self._optimizer, self._held)  # a wrapper may have replaced the parameters
        self._mask_grads_()  # set by hand, or averaged with a process without hooks
        if self._entry_by_entry():
            self._mask_weights_()  # changed by hand

    def _after_step(self, *_: Any) -> None:
        if not self._entry_by_entry():
            self._mask_weights_()
            self._mask_state_()  # Muon mixes the entries of a matrix; some optimizers add noise

    def _entry_by_entry(self) -> bool:
        no_eps = any(group.get("eps", 1) == 0 for group in self._optimizer.param_groups)  # Adam then divides 0 by 0
        return type(self._optimizer) in _ENTRY_BY_ENTRY and not no_eps

    @torch.no_grad()
    def _mask_weights_(self) -> None:
        for weight, zero in self._zeros.items():
            zero.follow_(weight)
            zero.mask_(weight)
        for average, zero in self._averages:
            zero.mask_(average)

    @torch.no_grad()
    def _mask_grads_(self) -> None:
        for weight, zero in self._zeros.items():
            if weight.grad is not None:
                zero.mask_(weight.grad)

    @torch.no_grad()
    def _mask_state_(self, *_: Any) -> None:
        for weight, zero in self._zeros.items():
            for value in self._optimizer.state.get(weight, {}).values():
                # a scalar counts steps, even if the weight is a scalar too; 8-bit codes are left alone
                if isinstance(value, Tensor) and value.shape == weight.shape != () and value.dtype.is_floating_point:
                    zero.mask_(value)


def violations(weights: Mapping[str, Tensor], mask: Mask) -> dict[str, int]:
    """{tensor name: Σ [θ ≠ 0 where M = 0]} of tensors where pruned entries are not zero; nan is not zero."""
    found = {}
    for name, bits in mask.bits.items():
        if name not in weights:
            raise ValueError(f"{name}: in the mask, but not among the weights; are they another model's?")
        weight = weights[name]
        if weight.shape != bits.shape:
            raise ValueError(f"{name}: mask is {tuple(bits.shape)}, weight is {tuple(weight.shape)}")
        count = int(torch.count_nonzero(weight.detach().masked_fill(bits.to(weight.device), 0)))
        if count:
            found[name] = count
    return found


class _Zeros:
    """Where one weight is pruned. Never a product: nan · 0 is nan, and -1 · 0 is -0.0."""

    def __init__(self, weight: Tensor) -> None:
        self.pruned = torch.zeros_like(weight, dtype=torch.bool)
        self._keep: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def add_(self, pruned: Tensor) -> None:
        self.pruned |= pruned.to(self.pruned.device)
        self._keep.clear()

    def follow_(self, weight: Tensor) -> None:
        """Move to the device of the weight: `model.to(device)` runs no hook."""
        if self.pruned.device != weight.device:
            self.pruned = self.pruned.to(weight.device)
            self._keep.clear()

    def mask_(self, tensor: Tensor) -> None:
        if tensor.is_sparse:  # the gradient of nn.Embedding(sparse=True): only rows that were looked up
            pruned = self.pruned.to(tensor.device)[tuple(tensor._indices())]
            tensor._values().masked_fill_(pruned, 0)
        elif (bits := _BITS.get(tensor.element_size())) is None:
            tensor.masked_fill_(self.pruned.to(tensor.device), 0)
        else:
            tensor.view(bits).bitwise_and_(self._bits_to_keep(tensor.device, bits))

    def masked(self, grad: Tensor) -> Tensor:
        if grad.is_sparse:
            grad = grad.clone()
            self.mask_(grad)
            return grad
        bits = _BITS.get(grad.element_size())
        if bits is None or grad.requires_grad:  # with create_graph=True, derivatives go on through the gradient
            return grad.masked_fill(self.pruned.to(grad.device), 0)
        return grad.view(bits).bitwise_and(self._bits_to_keep(grad.device, bits)).view(grad.dtype)

    def _bits_to_keep(self, device: torch.device, bits: torch.dtype) -> Tensor:
        """All bits set where a weight is kept, none where it is pruned: `and` clears any value to +0.0.

        As wide as the tensors that it masks, which takes memory, because torch masks so ten times faster on a CPU than
        by bool.
        """
        if (device, bits) not in self._keep:
            self._keep[device, bits] = self.pruned.to(device).to(bits) - 1
        return self._keep[device, bits]


def _weights(model: nn.Module, mask: Mask) -> dict[str, Tensor]:
    """The tensors that the mask names, in the model or in what it wraps; sharded tensors are refused."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch module, not {type(model).__name__}")
    if dist.is_available() and dist.is_initialized():  # nothing is sharded without processes
        _check_whole(model)
    return mask.tensors_of(bare(model, mask))


def bare(model: nn.Module, mask: Mask) -> nn.Module:
    """The module whose tensors the mask names: the model, or what DDP, torch.compile or an average wraps."""
    inner: nn.Module | None = model
    while inner is not None:
        if mask.bits.keys() <= dict(inner.named_parameters(remove_duplicate=False)).keys():
            return inner
        children = dict(inner.named_children())
        inner = children.get("_orig_mod", children.get("module"))  # torch.compile; DDP and averages
    return model


def _check_whole(model: nn.Module) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    flat = [name for name, module in model.named_modules() if isinstance(module, FullyShardedDataParallel)]
    sharded = [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    for name in flat + sharded:
        raise UnsupportedModelError(
            f"{name or type(model).__name__}: in shards (FSDP or DTensor), and a mask needs complete tensors; "
            "train with DDP instead"
        )


def _real(optimizer: Optimizer) -> Optimizer:
    """The optimizer that has the state and runs hooks, inside wrappers that skip Optimizer.__init__.

    accelerate's AcceleratedOptimizer and timm's Lookahead are such wrappers: they may accept hooks and never call them.
    """
    found: Any = optimizer
    while isinstance(found, Optimizer) and "_optimizer_load_state_dict_post_hooks" not in vars(found):
        found = next((value for value in vars(found).values() if isinstance(value, Optimizer)), None)
    if not isinstance(found, Optimizer):
        raise TypeError(
            f"optimizer: a {type(optimizer).__name__} neither is nor wraps a torch.optim.Optimizer; "
            "if there are several optimizers, call keep_zeros once for each"
        )
    return found


def _held(optimizer: Optimizer) -> set[Tensor]:
    return {weight for group in optimizer.param_groups for weight in group["params"]}


def _check_held(optimizer: Optimizer, weights: Mapping[str, Tensor]) -> None:
    if weights and _held(optimizer).isdisjoint(weights.values()):
        raise ValueError(
            f"{next(iter(weights))}: the optimizer holds neither this tensor nor any other of the mask; "
            "build it from this model's parameters, after anything that replaces them, and call keep_zeros then"
        )
