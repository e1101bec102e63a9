"""Operations that are linear in the tensors on a path, and how each treats constants, exponents and signs.

An operation that is neither here nor in rules.py counts as non-linear: a missing entry is an error, never a guess.
Signs are dropped (x - y counts as x + y), since a path has a positive weight. Terms that do not come from the input
(biases, tokens, position embeddings) are dropped too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import in_place, per_dimension

if TYPE_CHECKING:
    from .record_replay import Replay

Handler = Callable[["Replay", str, Callable[..., Any], Any, Any], Any]

SMALL_PLANE = 16  # pixels; measured on a ResNet-50: above 16, conv2d is about as fast, and on a ResNet-20 faster

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

# operations that read a value: control flow then depends on the data
READS_VALUES = {"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "equal", "allclose",
                "__contains__", "is_nonzero"}  # fmt: skip


def tensors(args: Any, kwargs: Mapping[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def one_dtype(name: str, args: Any) -> Any:
    """Arguments in one dtype: constants of the code are float32, parameters of the view may be float64."""
    floats = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    if HANDLERS.get(name) not in (_weighted, _product) or len({t.dtype for t in floats}) < 2:
        return args
    widest = max((t.dtype for t in floats), key=lambda dtype: dtype.itemsize)
    return tuple(a.to(widest) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


def _shape(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Move, copy or drop values, or sum them with fixed non-negative weights."""
    output = func(*args, **kwargs)
    for part in tensors((output,), {}):
        if part is not args[0]:
            run.follow(part, args[0])
            # a view shares memory with its source, so both see an in-place change of either, as in the real
            # network, unless the source only borrows its memory
            if run.borrowed(args[0]) and part.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr():
                run._traces[part].twin = run._traces[args[0]].twin
    return output


def _cast(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """x.float(), x.to(…): another device if asked for, but the dtype of the paths."""
    output = func(*args, **kwargs)
    if output.dtype != args[0].dtype:
        output = output.to(args[0].dtype) if output.device != args[0].device else run.alias(args[0])
    return output if output is args[0] else run.follow(output, args[0])


def _average(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """A mean: a constant 1/n on every path, squared if the view squares constants."""
    output = run.follow(func(*args, **kwargs), args[0])
    if run.view.constants > 1:
        size = _window(name, args, kwargs) if name.startswith("avg_pool") else args[0].numel() / output.numel()
        output = run.follow(output / size ** (run.view.constants - 1), output)
    return output


def _window(name: str, args: Any, kwargs: Any) -> int:
    """Number of values that avg_pool averages; padding counts, as it does there by default."""
    size = kwargs["kernel_size"] if "kernel_size" in kwargs else args[1]
    return math.prod(per_dimension(size, int(name[-2])))


def _resize(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    mode = kwargs.get("mode", args[3] if len(args) > 3 else "nearest")
    if mode == "bicubic":
        return run.nonlinear(func, args, kwargs, "in bicubic mode has negative weights")
    return _shape(run, name, func, args, kwargs)


def _unchanged(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Dropout, which is off, and negation, since signs are dropped."""
    return run.alias(args[0])


def _pad(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    if mode == "constant":  # the padding value is an additive term
        return run.follow(func(args[0], kwargs.get("pad", args[1] if len(args) > 1 else None)), args[0])
    return _shape(run, name, func, args, kwargs)


def _weighted(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """conv, linear: y = W x without the bias. W must not depend on the data."""
    kwargs = {k: v for k, v in kwargs.items() if k != "bias"}
    args = [*args, kwargs.pop("weight")] if "weight" in kwargs else list(args)
    if not run.on_path(args[0]) or any(run.on_path(t) for t in tensors(args[1:], kwargs)):
        return run.product(func, tuple(args), kwargs)
    x, weight = args[0], args[1].to(args[0].dtype)
    rest = [None, *args[3:]] if len(args) > 2 else []

    def weighted(x: Tensor, w: Tensor) -> Tensor:
        small = name == "conv2d" and _is_small_row(x, w, (*args[3:], *kwargs.values()))
        return _small_row(x, w, *args[3:], **kwargs) if small else func(x, w, *rest, **kwargs)

    return run.rescale(run.follow(run.weigh(weighted, x, weight), x))


def _is_small_row(x: Tensor, weight: Tensor, settings: Any) -> bool:
    """One sample with planes so small that reading and differentiating the weight is most of the work."""
    row = x.dim() == 4 and len(x) == 1 and math.prod(x.shape[2:]) <= SMALL_PLANE and not x.is_cuda
    return row and weight.requires_grad and weight.shape[1] == x.shape[1] and not any(type(s) is str for s in settings)


def _small_row(
    x: Tensor, weight: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """conv2d as a matrix product: the conv2d of torch fills the weight's gradient with zeros, then adds to it."""
    size = weight.shape[2:]
    stride, padding, dilation = (per_dimension(v, 2) for v in (stride, padding, dilation))
    steps = zip(x.shape[2:], size, stride, padding, dilation)
    shape = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps]
    positions = F.unfold(x, size, dilation, padding, stride)[0].T.contiguous()  # in rows, the faster order here
    fits = ONEDNN and x.dtype is torch.float32 and x.device.type == "cpu"
    product: Any = FewRows.apply if fits else F.linear
    return product(positions, weight.flatten(1)).T.unflatten(1, shape).unsqueeze(0)


class FewRows(torch.autograd.Function):
    """y = x Wᵀ for few rows by oneDNN, which reads W once; the BLAS of torch takes 1.3 to 4 times as long for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _times_transposed(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return _times_transposed(grad, weight.T), _times_transposed(grad.T, x.T)


def _times_transposed(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ"""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return product


def _product(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """matmul, bmm, einsum with one factor on the path."""
    factors = tensors(args, kwargs)
    paths = [t for t in factors if run.on_path(t)]
    if len(paths) > 1:
        return run.product(func, args, kwargs)
    if len(factors) != 2 or kwargs:
        return run.nonlinear(func, args, kwargs, "has more than two factors")
    x = paths[0]
    (weight,) = (t for t in factors if t is not x)

    def multiply(x: Tensor, w: Tensor) -> Tensor:
        pair = (x, w) if factors[0] is paths[0] else (w, x)
        return func(args[0], *pair) if name == "einsum" else func(*pair)

    return run.rescale(run.follow(run.weigh(multiply, x, weight.to(x.dtype)), x))


def _add(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """x + y, x - y: both on the path, or one of them an additive term that is dropped."""
    paths = [a for a in args[:2] if run.on_path(a)]
    if kwargs.get("alpha", 1) != 1 or kwargs.get("out") is not None:
        return run.nonlinear(func, args, kwargs, "with alpha or out")
    inplace = in_place(func, args, kwargs) or name in ("__iadd__", "__isub__")
    if len(paths) == 2:
        if inplace:
            return args[0].add_(run.align_into(args[0], args[1]))
        a, b = run.align([args[0], args[1]])
        return run.follow(run.merge(a, b), a, b)
    x = paths[0]
    other = args[1] if args[0] is x else args[0]
    if not isinstance(other, Tensor):
        return run.alias(x)
    if inplace and args[0] is not x:  # the path is added to a constant
        args[0].zero_()
        return run.follow(args[0].add_(x), x)
    if inplace:
        return x
    shape = torch.broadcast_shapes(x.shape, other.shape)
    return run.alias(x) if shape == x.shape else run.follow(x.expand(shape).clone(), x)


def _multiply(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """x · c and x / c, with c from the parameters, a frozen gate or the code."""
    a, b = args[0], args[1]
    divides = "div" in name
    if name in ("__rtruediv__", "__rdiv__") or (divides and run.on_path(b)):
        return run.nonlinear(func, args, kwargs, "divides by a tensor that depends on the input")
    if run.on_path(a) and run.on_path(b):
        return run.product(func, args, kwargs)
    if kwargs:
        return run.nonlinear(func, args, kwargs, f"with {', '.join(kwargs)}")
    x, c = (a, b) if run.on_path(a) else (b, a)
    # tensors come from the view or from a rule, which have applied their power; numbers in the code need it
    c = c.abs() if isinstance(c, Tensor) else abs(c) ** run.view.constants
    if in_place(func, args, kwargs) or name in ("__imul__", "__itruediv__"):
        run.own(a)
        if a is x:
            return a.div_(c) if divides else a.mul_(c)
        return run.follow(a.copy_(c * x), x)
    return run.follow(x / c if divides else x * c, x)


def _join(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """cat, stack: parts that are not on a path are zero."""
    key = "tensors" if "tensors" in kwargs else None
    parts = list(kwargs[key] if key else args[0])
    paths = [p for p in parts if run.on_path(p)]
    aligned = iter(run.align(paths))
    dtype = paths[0].dtype
    joined = [next(aligned) if run.on_path(p) else torch.zeros_like(p, dtype=dtype) for p in parts]
    sources = [p for p in joined if run.on_path(p)]
    rest = {k: v for k, v in kwargs.items() if k != key}
    return run.follow(func(joined, *(args if key else args[1:]), **rest), *sources)


def _where(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    condition, a, b = args
    if run.on_path(condition):
        return run.nonlinear(func, args, kwargs, "chooses by the data")
    aligned = iter(run.align([t for t in (a, b) if run.on_path(t)]))
    a, b = (next(aligned) if run.on_path(t) else 0.0 for t in (a, b))
    return run.follow(torch.where(condition, a, b), *[t for t in (a, b) if isinstance(t, Tensor)])


def _fill(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    x, where = args[0], args[1] if len(args) > 1 else kwargs["mask"]
    if not run.on_path(x) or run.on_path(where):
        return run.nonlinear(func, args, kwargs, "chooses by the data")
    if in_place(func, args, kwargs):
        return run.own(x).masked_fill_(where, 0)
    return run.follow(x.masked_fill(where, 0), x)


def _assign(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """x[i] = y."""
    x, index, value = args
    if run.on_path(x) and run.on_path(value):
        return func(x, index, run.align_into(x, value))
    if run.on_path(x):
        return func(run.own(x), index, 0)
    if run.on_path(value):
        x.zero_()
        func(x, index, value)
        run.follow(x, value)
        return None
    return func(x, index, value)


def _add_product(run: Replay, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """addcmul(b, c, x) = b + c · x."""
    base, a, b = args[:3]
    if len(args) > 3 or kwargs or (run.on_path(a) and run.on_path(b)):
        return run.product(func, args, kwargs)
    terms = [base] if run.on_path(base) else []
    if run.on_path(a) or run.on_path(b):
        x, c = (a, b) if run.on_path(a) else (b, a)
        terms.append(run.follow(x * c.abs(), x))
    terms = run.align(terms)
    return run.follow(terms[0] + terms[1] if len(terms) == 2 else terms[0].clone(), *terms)


_SHAPES = [
    "view", "reshape", "reshape_as", "view_as", "permute", "transpose", "t", "swapaxes", "swapdims", "movedim",
    "moveaxis", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "repeat",
    "repeat_interleave", "tile", "contiguous", "clone", "detach", "chunk", "split", "split_with_sizes",
    "tensor_split", "unbind", "narrow", "select", "index_select", "gather", "take_along_dim", "__getitem__", "roll",
    "flip", "rot90", "diagonal", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle",
    "unfold", "fold", "sum", "nansum", "get:T", "get:mT", "get:H", "get:data", "grid_sample", "ravel",
    "requires_grad", "as_strided", "unsafe_chunk", "unsafe_split", "broadcast_to", "atleast_1d",
]  # fmt: skip

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_SHAPES, _shape),
    **dict.fromkeys(["to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"], _cast),
    **dict.fromkeys(["mean", *(f"{kind}_pool{d}d" for kind in ("avg", "adaptive_avg") for d in (1, 2, 3))], _average),
    **dict.fromkeys(["interpolate", "upsample"], _resize),
    **dict.fromkeys(["dropout", *(f"dropout{d}d" for d in (1, 2, 3)), "alpha_dropout"], _unchanged),
    "pad": _pad,
    **dict.fromkeys(["linear", *(f"conv{t}{d}d" for t in ("", "_transpose") for d in (1, 2, 3))], _weighted),
    **dict.fromkeys(["matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum"], _product),
    **dict.fromkeys(["add", "sub", "rsub", "subtract", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__",
                     "__isub__"], _add),
    **dict.fromkeys(["mul", "multiply", "div", "divide", "true_divide", "__mul__", "__rmul__", "__imul__",
                     "__truediv__", "__rtruediv__", "__itruediv__", "__div__", "__rdiv__"], _multiply),
    **dict.fromkeys(["neg", "negative", "__neg__"], _unchanged),
    **dict.fromkeys(["cat", "concat", "concatenate", "stack", "hstack", "vstack"], _join),
    "where": _where,
    "masked_fill": _fill,
    "__setitem__": _assign,
    "addcmul": _add_product,
}  # fmt: skip
