"""f(x; θ ⊙ M): run a model with other weights than its own, without changing it; the shape of x."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from .batches import Batch, Batches

IGNORE = 255  # label of a pixel without a class, as in Pascal VOC
Loss = Callable[[Tensor, Any], Tensor]  # (output, labels) -> loss


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Eval mode; the flags of all modules are restored afterwards."""
    flags = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def undisturbed(model: nn.Module, batch_statistics: bool = False) -> Iterator[None]:
    """Dropout off, BatchNorm on batch or stored statistics, no TF32; all flags are restored afterwards."""
    # TF32 has 10 bits, too few to rank weights
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    try:
        with evaluating(model), exact:
            for module in model.modules() if batch_statistics else ():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.training = True
            yield
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise ValueError(f"{error}: batch statistics of one value have no variance; use larger batches") from error
        raise


def call(model: nn.Module, weights: Mapping[str, Tensor], batch: Batch, x: Tensor | None = None) -> Tensor:
    """The model's output tensor on this batch with `weights` in place of its own; buffers are copies."""
    state = {name: buffer.clone() for name, buffer in model.named_buffers()}
    # half precision becomes float32: the 8 bits of bfloat16 cannot rank millions of weights
    state |= {name: p.detach() for name, p in model.named_parameters() if p.dtype.itemsize < 4}
    state = {name: t.float() if t.is_floating_point() and t.dtype.itemsize < 4 else t for name, t in state.items()}
    args, kwargs = batch.call_args(x)
    return output_tensor(call_with(model, {**state, **weights}, args, kwargs))


def call_with(model: nn.Module, state: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """model(*args, **kwargs) with `state` in place of its own tensors, shared tensors and modules included.

    torch.func.functional_call alone would swap a module with two names twice, and could not swap it back.
    """
    first: dict[int, str] = {}
    again: dict[str, str] = {}  # later name -> first name of the same tensor
    for prefix, module in model.named_modules():  # lists a shared module once
        for local, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                place = f"{prefix}.{local}" if prefix else local
                if first.setdefault(id(tensor), place) != place:
                    again[place] = first[id(tensor)]
    state = {**state, **{place: state[name] for place, name in again.items() if name in state}}
    return functional_call(model, state, args, kwargs, tie_weights=False)


def input_shape(model: nn.Module) -> tuple[int, ...] | None:
    """Shape of one input, from the config of timm or transformers or from a first linear layer; None if unknown."""
    for record in (getattr(model, "pretrained_cfg", None), getattr(model, "default_cfg", None)):
        config = record if isinstance(record, Mapping) else vars(record or object)
        if size := config.get("input_size"):
            # timm's config has 3 channels even for a model created with in_chans=1; its stem is right
            stem = config.get("first_conv")
            conv = dict(model.named_modules()).get(stem) if isinstance(stem, str) else None
            return (getattr(conv, "in_channels", size[0]), *size[1:])
    of_transformers: Any = getattr(model, "config", None)
    if hasattr(of_transformers, "num_channels"):
        # ResNet and others take any size and declare none: 224, as for ImageNet
        side = getattr(of_transformers, "image_size", None) or 224
        return (of_transformers.num_channels, *(side if isinstance(side, (list, tuple)) else (side, side)))
    first = next((m for m in model.modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))), None)
    return (first.in_features,) if isinstance(first, nn.Linear) else None


def output_tensor(output: Any) -> Tensor:
    """The output to score: logits if there are any, else the first tensor that the model returns."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "out", "last_hidden_state"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    parts = list(output.values()) if isinstance(output, Mapping) else output
    for part in parts if isinstance(parts, (list, tuple)) else ():
        return output_tensor(part)
    raise TypeError(f"the model returned a {type(output).__name__} without a tensor to score by")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy, for label maps over the pixels that have a label; zero if none has."""
    _check_labels(labels, logits.shape[1])
    if not labels.is_floating_point() and labels.numel():
        dense = labels.dim() > 1
        high = int(torch.where(labels == IGNORE, 0, labels).max() if dense else labels.max())
        if high >= logits.shape[1]:
            raise ValueError(f"label {high}, but the model has {logits.shape[1]} classes, 0 to {logits.shape[1] - 1}")
    if labels.dim() < 2 or labels.is_floating_point():
        return F.cross_entropy(logits, labels)
    if logits.shape[2:] != labels.shape[1:]:  # transformers' segmentation models have outputs of a quarter of the size
        logits = F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum") / (labels != IGNORE).sum().clamp(min=1)


def _check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels in a form that torch would call by its own names; floats of N x classes are probabilities."""
    shape = tuple(labels.shape)
    if labels.dim() < 2 and labels.is_floating_point():
        raise ValueError(f"labels are {labels.dtype}; expected the number of a class: pass labels.long()")
    if labels.dim() == 0 or (labels.dim() == 2 and not labels.is_floating_point()):
        way = "labels.argmax(1)" if shape[1:] == (classes,) else "labels.flatten()"
        raise ValueError(f"labels have shape {shape}; expected one number of a class per image: pass {way}")
    if not labels.is_floating_point() and labels.numel() and int(labels.min()) < 0:
        unlabelled = f" ({IGNORE} for a pixel without a class)" if labels.dim() > 1 else ""
        raise ValueError(f"label {int(labels.min())}, but labels start at 0{unlabelled}")


def input_advice(model: nn.Module, x: Tensor) -> str:
    """What may be wrong with the shape of inputs on which a model for images does not run; "" if it looks right."""
    first = next((m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))), None)
    if not isinstance(first, nn.Conv2d):
        return ""
    channels, shape = (input_shape(model) or (first.in_channels,))[0], tuple(x.shape)
    if x.dim() == 3:
        return f"inputs have shape {shape}, one image without a batch; pass x[None], or a DataLoader of batches"
    if x.dim() == 4 and shape[1] != channels == shape[3]:
        return f"inputs have shape {shape}, with channels last; this model takes them first: pass x.permute(0, 3, 1, 2)"
    return ""


def check_inputs(model: nn.Module, batch: Batch) -> None:
    """Refuse a batch that looks wrong by its shape, if the model does not run on it or takes it for one image."""
    if not (advice := input_advice(model, batch.x)):
        return
    try:
        with undisturbed(model), torch.no_grad():
            runs = batch.x.dim() == 4 and len(call(model, {}, batch)) == len(batch.x)
    except (RuntimeError, ValueError, IndexError, AssertionError) as error:
        raise ValueError(f"`batches`: {advice}") from error
    if not runs:
        raise ValueError(f"`batches`: {advice}")


def labelled_output(output: Tensor, labels: Tensor | None) -> Tensor:
    """The output with 0 at pixels that have no label, as no loss counts them; unchanged without labels per pixel."""
    if labels is None or labels.dim() != 3 or output.dim() != 4:
        return output
    labelled = (labels != IGNORE).unsqueeze(1).to(output.dtype)
    return output * F.interpolate(labelled, output.shape[2:], mode="nearest")


def gradients(model: nn.Module, weights: Mapping[str, Tensor], batches: Batches, loss: Loss) -> dict[str, Tensor]:
    """Σ_b ∂L_b/∂(θ ⊙ M), for pruned weights too, with batch statistics: what the first training step will see."""

    def gradient(batch: Batch) -> dict[str, Tensor]:
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        return derivatives(loss(call(model, leaves, batch), batch.labels), leaves)

    with undisturbed(model, batch_statistics=True):
        return batches.sum(gradient, like=weights)


def derivatives(value: Tensor, of: Mapping[str, Tensor], create_graph: bool = False) -> dict[str, Tensor]:
    """∂value/∂tensor by name; zero if the value does not depend on the tensor."""
    found = torch.autograd.grad(value, list(of.values()), create_graph=create_graph, allow_unused=True)
    return {name: torch.zeros_like(t) if g is None else g for (name, t), g in zip(of.items(), found)}


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """For methods that differentiate a gradient: torch has no second derivative of fused attention and hardsigmoid."""
    with sdpa_kernel(SDPBackend.MATH), _HardsigmoidByRelu6():
        yield


class _HardsigmoidByRelu6(TorchFunctionMode):
    """hardsigmoid(x) = relu6(x + 3) / 6, which torch can differentiate twice."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.hardsigmoid:
            return func(*args, **kwargs)
        y = F.relu6(args[0] + 3) / 6
        return args[0].copy_(y) if kwargs.get("inplace") else y


@torch.no_grad()
def batch_statistics(
    model: nn.Module, weights: Mapping[str, Tensor], batch: Batch, x: Tensor | None = None
) -> dict[str, Tensor]:
    """BatchNorm's statistics of this batch as {buffer name: value}; passed with the weights, they are held fixed."""
    norms = {
        f"{prefix}." if prefix else "": module
        for prefix, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None
    }
    measured = {
        f"{prefix}{local}": torch.zeros_like(getattr(module, local))
        for prefix, module in norms.items()
        for local in ("running_mean", "running_var")
    }
    momenta = {module: module.momentum for module in norms.values()}
    try:
        for module in momenta:
            module.momentum = 1.0  # then the running statistics are those of this batch
        with undisturbed(model, batch_statistics=True):
            call(model, {**weights, **measured}, batch, x)
    finally:
        for module, momentum in momenta.items():
            module.momentum = momentum
    return measured
