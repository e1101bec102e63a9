"""What each kind of operation does to labels; the names are those of aten."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .labels import LinearUse, Run, substituted
from .union_find import PINNED

Call = tuple[Any, ...]


def default(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Any) -> None:
    """An operation without a rule: its units stay, and its result has none."""
    run.pin((args, kwargs))


def move(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Any) -> None:
    """A movement of data: the labels, or the indices of a parameter's elements, move in the same way."""
    tensors = [t for t in tree_leaves(args) if isinstance(t, Tensor)]
    if func._schema.name == "aten::index":  # the second argument holds positions
        tensors = tensors[:1]
    moved = torch.reshape if "view" in func._schema.name else func
    if any(t in run.labels for t in tensors):
        full = {id(t): run.labels[t].expand(t.shape) if t in run.labels else torch.zeros_like(t, dtype=torch.int64)
                for t in tensors}  # fmt: skip
        results = moved(*substituted(args, lambda t: full.get(id(t), t)), **kwargs)
        for tensor, labels in zip(tree_leaves(out), tree_leaves(results)):
            run.label(tensor, labels)
    elif len(tensors) == 1 and (found := run.elements_of(tensors[0])) is not None:
        results = moved(*substituted(args, lambda t: found[1] if t is tensors[0] else t), **kwargs)
        for tensor, elements in zip(tree_leaves(out), tree_leaves(results)):
            run.elements[tensor] = (found[0], elements)


def pad(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Tensor) -> None:
    """A border: along dimensions in which labels vary, new channels, which are pinned."""
    x, widths = args[:2]
    if (labels := run.labels.get(x)) is None:
        return
    pads = [widths[i : i + 2] for i in range(0, len(widths), 2)]
    for dim, (before, after) in zip(range(labels.dim() - 1, -1, -1), pads):
        if labels.shape[dim] > 1 and (before or after):
            edge = [0, 0] * (labels.dim() - 1 - dim) + [before, after]
            labels = torch.nn.functional.pad(labels, edge, value=PINNED)
    run.label(out, labels)


def elementwise(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Any) -> None:
    """Units that meet in one element belong together; one that is broadcast over others stays."""
    out = out if isinstance(out, Tensor) else tree_leaves(out)[0]
    operands = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    labelled = {i: _raised(run.labels[t], out.dim()) for i, t in enumerate(operands) if t in run.labels}
    if not labelled:
        _arithmetic_of_parameters(run, operands, out)
        return
    joint: Tensor | None = None
    for i, labels in labelled.items():
        size = _raised(operands[i], out.dim()).shape
        others = [other for j, other in labelled.items() if j != i]
        if any(size[d] == 1 < other.shape[d] for other in others for d in range(out.dim())):
            run.units.pin(labels)
        elif joint is None:
            joint = labels
        else:
            run.units.join(joint, labels)
            joint = torch.maximum(*torch.broadcast_tensors(joint, labels))
    if joint is None:
        return
    for i, operand in enumerate(operands):
        if i in labelled:
            continue
        if run.elements_of(operand) is not None:
            run.meet(operand, joint)
        else:  # a constant, which cannot be cut: what it spans stays or goes as a whole
            size = _raised(operand, out.dim()).shape
            run.units.join_along(joint, *(d for d in range(out.dim()) if size[d] > 1))
    run.label(out, joint)


def _arithmetic_of_parameters(run: Run, operands: list[Tensor], out: Tensor) -> None:
    """A function of one parameter, element by element, has the parameter's elements."""
    found = [run.elements_of(t) for t in operands if t.dim()]
    if len(found) == 1 and found[0] is not None and found[0][1].shape == out.shape:
        run.elements[out] = found[0]


def _raised(tensor: Tensor, dims: int) -> Tensor:
    return tensor.view((1,) * (dims - tensor.dim()) + tuple(tensor.shape)) if tensor.dim() < dims else tensor


def batch_norm(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Any) -> None:
    x, *parameters = args[:5]
    if (labels := run.labels.get(x)) is None:
        return
    channels = labels.movedim(1, -1)
    for parameter in parameters:
        if parameter is not None:
            run.meet(parameter, channels)
    run.label(out[0], labels)


def layer_norm(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Any) -> None:
    x, shape, *parameters = args[:4]
    if (labels := run.labels.get(x)) is None:
        return
    run.units.join_along(labels, *range(labels.dim() - len(shape), labels.dim()))
    for parameter in parameters:
        if parameter is not None:
            run.meet(parameter, labels)
    run.label(out[0], labels)


def group_norm(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Any) -> None:
    x, weight, bias, _, channels, _, groups, _ = args
    if (labels := run.labels.get(x)) is None:
        return
    if any(size > 1 for d, size in enumerate(labels.shape) if d != 1) or labels.shape[1] != channels:
        default(run, func, args, kwargs, out)
        return
    run.units.join_along(labels.reshape(groups, channels // groups), 1)
    for parameter in (weight, bias):
        if parameter is not None:
            run.meet(parameter, labels.flatten())
    run.label(out[0], labels)


def softmax(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Tensor) -> None:
    if (labels := run.labels.get(args[0])) is not None:
        run.units.join_along(labels, args[1])
        run.label(out, labels)


def reduction(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Tensor) -> None:
    """A sum, mean, variance or norm along dimensions: what it sums over stays or goes as a whole."""
    if (labels := run.labels.get(args[0])) is None:
        return
    named = dict(zip((argument.name for argument in func._schema.arguments), args)) | kwargs
    dims = named.get("dim")
    dims = range(labels.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    dims = sorted({d % labels.dim() for d in dims}, reverse=True) or list(range(labels.dim()))[::-1]
    run.units.join_along(labels, *dims)
    for dim in dims:
        labels = labels.narrow(dim, 0, 1) if named.get("keepdim") else labels.select(dim, 0)
    run.label(out, labels)


def pooling(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Any) -> None:
    """Pooling and resizing over the last two dimensions, channel by channel."""
    if (labels := run.labels.get(args[0])) is None:
        return
    if max(labels.shape[-2:]) > 1:
        default(run, func, args, kwargs, out)
    else:
        run.label(tree_leaves(out)[0], labels)


def product(run: Run, func: Any, args: Call, kwargs: dict[str, Any], out: Tensor) -> None:
    """a[b, n, k] · a'[b, k, m] of two activations; where labels vary along b, they are heads."""
    first, second = (args[-2], args[-1]) if func._schema.name == "aten::bmm" else args[1:3]
    if (x := run.labels.get(first)) is None or (y := run.labels.get(second)) is None or len(args) > 2:
        default(run, func, args, kwargs, out)
        return
    units = run.units
    if max(x.shape[0], y.shape[0]) > 1:
        heads = first.shape[0]
        for labels in (x, y):
            if labels.shape[0] > 1:
                units.join_along(labels, 1, 2)
            else:
                units.pin(labels)
        units.join(x.narrow(1, 0, 1).narrow(2, 0, 1), y.narrow(1, 0, 1).narrow(2, 0, 1))
        of_head = (x if x.shape[0] > 1 else y)[:, 0, 0].expand(heads)
        if run.running:
            run.trail.heads[run.running[-1]] = of_head
        columns = y if y.shape[2] > 1 else of_head.view(heads, 1, 1)
        run.label(out, columns.narrow(1, 0, 1))
        return
    if x.shape[2] > 1 or y.shape[1] > 1:
        if x.shape[1] > 1 or y.shape[2] > 1:
            default(run, func, args, kwargs, out)
        else:
            units.join(x.transpose(1, 2), y)
        return
    if x.shape[1] > 1 and y.shape[2] > 1:
        default(run, func, args, kwargs, out)
        return
    run.label(out, y if y.shape[2] > 1 else x)


def convolution(run: Run, func: Any, args: Call, kwargs: dict[str, Any]) -> Tensor:
    """A convolution whose weight is a parameter as it stands: a linear use."""
    x, weight, bias, _, padding, _, transposed, _, groups = args
    name = run.names.get(id(weight))
    if name is None or transposed:
        out = func(*args, **kwargs)
        run.pin(x)
        return out
    labels = _along(run, x, 1)
    weights = weight.detach()
    out = _without_nan(
        x, lambda v: func(v, weights, bias, *args[3:]), lambda p: func(p, _edges(weights), None, *args[3:])
    )
    inputs = _units_of(labels, x.shape[1])
    outputs = run.units.new(len(weight))
    if groups > 1:  # a group stays or goes as a whole, with its inputs
        members = torch.cat([inputs.view(groups, -1), outputs.view(groups, -1)], dim=1)
        run.units.join_along(members, 1)
    constants = _constants(x.movedim(1, 0).reshape(x.shape[1], -1))
    positions = math.prod(out.shape[2:]) * out.shape[0]
    run.trail.linear.append(LinearUse(name, inputs, outputs, constants, groups, any(padding), positions))
    _meet_bias(run, bias, outputs)
    run.label(out, outputs.view(1, -1, *(1,) * (out.dim() - 2)))
    return out


def linear(run: Run, func: Any, args: Call, kwargs: dict[str, Any]) -> Tensor:
    """x · Wᵀ (+ bias) with W a parameter or rows of one, as addmm or mm."""
    bias, x, weight = args if len(args) == 3 else (None, *args)
    found = run.elements_of(weight)
    rows = _rows(found) if found is not None and not kwargs else None
    if rows is None:
        out = func(*args, **kwargs)
        run.pin((args, kwargs))
        return out
    assert found is not None
    edges, labels = _edges(weight), _along(run, x, 1)
    out = _without_nan(x, lambda v: func(*((bias,) if bias is not None else ()), v, weight), lambda p: p @ edges)
    inputs, outputs = _units_of(labels, x.shape[1]), run.units.new(weight.shape[1])
    constants = _constants(x.T)
    run.trail.linear.append(LinearUse(found[0], inputs, outputs, constants, 1, False, len(x)))
    if len(rows) != len(run.tensors[found[0]]) or bool((rows != torch.arange(len(rows))).any()):
        run.units.pin(outputs)  # rows of a larger tensor, whose other uses have other inputs
        run.units.pin(inputs)
    _meet_bias(run, bias, outputs)
    run.label(out, outputs.view(1, -1))
    return out


def _rows(found: tuple[str, Tensor]) -> Tensor | None:
    """Rows of the parameter that Wᵀ [in, out] holds, if it holds whole rows in their order."""
    _, elements = found
    columns = elements.shape[0]
    first = elements[0] if columns else elements.new_zeros(elements.shape[1])
    whole = bool((elements == first + torch.arange(columns).view(-1, 1)).all())
    return first // columns if columns and whole and bool((first % columns == 0).all()) else None


def _meet_bias(run: Run, bias: Tensor | None, outputs: Tensor) -> None:
    if bias is None:
        return
    if run.elements_of(bias) is not None and bias.shape == outputs.shape:
        run.meet(bias, outputs)
    else:
        run.units.pin(outputs)  # a computed bias cannot be cut


def _along(run: Run, x: Tensor, dim: int) -> Tensor | None:
    """Labels of a layer's input channels; None, and pinned, if they also vary from place to place."""
    labels = run.labels.get(x)
    if labels is None or all(size == 1 for d, size in enumerate(labels.shape) if d != dim):
        return labels
    run.pin(x)
    return None


def _units_of(labels: Tensor | None, channels: int) -> Tensor:
    return torch.full((channels,), PINNED) if labels is None else labels.flatten().expand(channels).contiguous()


def _edges(weight: Tensor) -> Tensor:
    return (weight != 0).to(weight.dtype)


def _without_nan(x: Tensor, run: Any, reached: Any) -> Tensor:
    """The layer's output: nan where a weight that is not zero reads nan."""
    poison = x.isnan()
    if not bool(poison.any()):
        return run(x)
    out = run(x.masked_fill(poison, 0.0))
    return out.masked_fill_(reached(poison.to(x.dtype)) > 0.5, math.nan)


def _constants(channels: Tensor) -> Tensor:
    """The value of each row if all of it is one number, else nan."""
    first = channels[:, :1]
    return torch.where((channels == first).all(1), first[:, 0], math.nan).double()


_MOVES = (
    "view", "_unsafe_view", "permute", "transpose", "t", "expand", "slice", "select", "split", "split_with_sizes",
    "unbind", "unsqueeze", "squeeze", "cat", "stack", "roll", "flip", "repeat", "index", "alias", "detach",
    "pixel_shuffle", "pixel_unshuffle", "unfold",
)  # fmt: skip
LINEAR = {"convolution": convolution, "addmm": linear, "mm": linear}
RULES: dict[str, Any] = {
    **dict.fromkeys(_MOVES, move),
    "constant_pad_nd": pad,
    "native_batch_norm": batch_norm,
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax"), softmax),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "var", "linalg_vector_norm"), reduction),
    **dict.fromkeys(
        (
            "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d",
            "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
            "_upsample_bilinear2d_aa",
        ),
        pooling,
    ),
    "bmm": product,
    "baddbmm": product,
}  # fmt: skip
