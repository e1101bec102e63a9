"""The operations of a model, from torch.export: convolutions and linear layers with all that one step can do fused in.

    conv -> batch norm -> + residual -> clamp (ReLU, ReLU6)      one Layer
    linear -> + residual -> clamp                                one Layer
    max-pooling of values that are not negative                  one Pool
    everything else                                              a TorchOp, run as it is

The list is data (names, numbers, names of aten operators), so that it can be kept on disk.
"""

from __future__ import annotations

import math
import operator
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UnsupportedModelError, first_line

Shape = tuple[int, ...]
aten = torch.ops.aten
_CONVOLUTIONS = {aten.conv2d.default, aten.convolution.default}
_NORMS = {aten._native_batch_norm_legit_no_training.default, aten.batch_norm.default}
_CLAMPS = {aten.relu.default: (0.0, math.inf), aten.relu6.default: (0.0, 6.0), aten.hardtanh.default: (-1.0, 1.0)}
_IDENTITIES = {aten.alias.default, aten.detach.default, aten.clone.default, aten.lift_fresh_copy.default}
# f(0) = 0: run on planes with their border, which stays zero
ELEMENTWISE = {
    "gelu.default", "silu.default", "hardswish.default", "relu.default", "hardtanh.default", "leaky_relu.default",
    "elu.default", "tanh.default", "relu6.default", "mish.default",
}  # fmt: skip


_GEOMETRY = ("stride", "padding", "dilation")


@dataclass(frozen=True)
class Ref:
    """A value by its name: the result of an operation, an input, or a parameter."""

    name: str


@dataclass
class Layer:
    """A convolution, or a linear layer (stride None), with what is fused into it."""

    out: str
    x: str
    weight: str
    bias: str | None = None
    norm: tuple[Any, ...] | None = None  # names of weight, bias, mean and variance, and eps
    stride: tuple[int, int] | None = None
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    residual: str | None = None
    low: float = -math.inf
    high: float = math.inf

    @property
    def clamps(self) -> bool:
        return (self.low, self.high) != (-math.inf, math.inf)


@dataclass
class Pool:
    """Max-pooling."""

    out: str
    x: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@dataclass
class TorchOp:
    out: str
    target: str  # "aten.softmax.int", or "getitem"
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def x(self) -> str:
        """The first argument, for an elementwise operation."""
        return self.args[0].name

    @property
    def elementwise(self) -> bool:
        """True for f(x) with f(0) = 0. Hardtanh may be between other bounds."""
        if self.target == "aten.hardtanh.default" and len(self.args) == 3:
            return self.args[1] <= 0 <= self.args[2]
        return self.target.removeprefix("aten.") in ELEMENTWISE

    def function(self) -> Any:
        if self.target == "getitem":
            return operator.getitem
        if self.target in ("aten.view.default", "aten._unsafe_view.default"):
            return torch.reshape  # strides here may differ from those of the export
        package, name, overload = self.target.split(".")
        return getattr(getattr(getattr(torch.ops, package), name), overload)


Op = Layer | Pool | TorchOp


@dataclass
class Graph:
    """Operations in order; `tensors` maps names in the graph to names in the model's state_dict or to constants."""

    ops: list[Op]
    inputs: list[str]
    outputs: list[str]
    shapes: dict[str, Shape]
    tensors: dict[str, str]
    constants: dict[str, Tensor]
    out_spec: Any = None

    def last_uses(self) -> dict[str, int]:
        """{value: index of the last operation that reads it}"""
        found = {name: len(self.ops) for name in self.outputs}
        for i, op in reversed(list(enumerate(self.ops))):
            for name in reads(op):
                found.setdefault(name, i)
        return found


def reads(op: Op) -> list[str]:
    """Names of the values that the operation reads."""
    if isinstance(op, Layer):
        return [op.x, *([op.residual] if op.residual else [])]
    if isinstance(op, Pool):
        return [op.x]
    return [ref.name for ref in _refs([op.args, op.kwargs])]


def _refs(value: Any) -> list[Ref]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [ref for part in value for ref in _refs(part)]
    return [value] if isinstance(value, Ref) else []


def export(model: nn.Module, example: Tensor) -> Graph:
    """The graph of the model for one image of the example's shape."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(model, (example,), strict=False)
            program = program.run_decompositions({})
        except Exception as error:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be exported by torch.export, which the sparse runtime needs: "
                f"{type(error).__name__}: {first_line(error):.300}"
            ) from error
    return _Reader(program).graph()


class _Reader:
    """Fuses while it walks: `alias` maps a node to the value that stands for it."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.ops: list[Op] = []
        self.by_out: dict[str, Op] = {}
        self.alias: dict[str, str] = {}
        self.shared: set[str] = set()  # nodes that stand for a value which others read too
        self.shapes: dict[str, Shape] = {}
        self.nonnegative: set[str] = set()

    def graph(self) -> Graph:
        signature = self.program.graph_signature
        tensors = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        constants = {n: self.program.constants[k] for n, k in signature.inputs_to_lifted_tensor_constants.items()}
        self.known = {*tensors, *constants}
        outputs: list[str] = []
        for node in self.program.graph.nodes:
            if isinstance(node.meta.get("val"), Tensor):
                self.shapes[node.name] = tuple(int(n) for n in node.meta["val"].shape)
            if node.op == "call_function":
                self.add(node)
            elif node.op == "output":
                outputs = self.outputs(node.args[0])
        return Graph(
            self.ops, list(signature.user_inputs), outputs, self.shapes, tensors, constants,
            self.program.call_spec.out_spec,
        )  # fmt: skip

    def outputs(self, values: Any) -> list[str]:
        signature = self.program.graph_signature
        for name in [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]:
            raise UnsupportedModelError(f"the model changes {name} when it is called; the sparse runtime cannot")
        for value in values:
            if not isinstance(value, torch.fx.Node):
                raise UnsupportedModelError(f"the model returns {value} beside tensors; the sparse runtime cannot")
        return [self.name(value) for value in values]

    def add(self, node: Any) -> None:
        if node.target in _IDENTITIES or (node.target is aten.dropout.default and not node.args[2]):
            self.alias[node.name] = self.name(node.args[0])
            if len(node.args[0].users) > 1 or node.args[0].name in self.shared:
                self.shared.add(node.name)
        elif not self.fuse(node):
            self.append(self.convolution(node) or self.linear(node) or self.pool(node) or self.torch_op(node))

    def append(self, op: Op) -> None:
        self.ops.append(op)
        self.by_out[op.out] = op

    def name(self, node: Any) -> str:
        return self.alias.get(node.name, node.name)

    def is_parameter(self, node: Any) -> bool:
        return isinstance(node, torch.fx.Node) and self.name(node) in self.known

    def linear(self, node: Any) -> Layer | None:
        if node.target is not aten.linear.default:
            return None
        x, weight, bias = (*node.args, None)[:3]
        if self.is_parameter(x) or not self.are_parameters(weight, bias):
            return None
        return Layer(node.name, self.name(x), self.name(weight), bias and self.name(bias))

    def are_parameters(self, *nodes: Any) -> bool:
        """True if all of them are parameters or None."""
        return all(node is None or self.is_parameter(node) for node in nodes)

    def convolution(self, node: Any) -> Layer | None:
        if node.target not in _CONVOLUTIONS:
            return None
        values = dict(zip(("x", "weight", "bias", "stride", "padding", "dilation"), node.args))
        rest = node.args[6:]
        if node.target is aten.convolution.default:  # …, transposed, output_padding, groups
            if rest[0]:
                return None
            rest = rest[2:]
        groups = int(rest[0]) if rest else 1
        bias = values.get("bias")
        if self.is_parameter(values["x"]) or not self.are_parameters(values["weight"], bias):
            return None
        if len(self.shapes[self.name(values["weight"])]) != 4:
            return None
        stride, padding, dilation = (_pair(values.get(key, 0 if key == "padding" else 1)) for key in _GEOMETRY)
        return Layer(
            node.name, self.name(values["x"]), self.name(values["weight"]), bias and self.name(bias),
            None, stride, padding, dilation, groups,
        )  # fmt: skip

    def fuse(self, node: Any) -> bool:
        """Make the node part of the Layer whose result it reads, if nobody else reads that result."""
        target, args = node.target, node.args
        if target is operator.getitem and args[1] == 0 and args[0].target in _NORMS:
            layer = self.by_out.get(self.alias.get(args[0].name, ""))
            return isinstance(layer, Layer) and self.rename(layer, node)
        if target in _NORMS:
            return self.fuse_norm(node)
        if target in _CLAMPS:
            return self.fuse_clamp(node)
        if target is aten.add.Tensor and not node.kwargs and all(isinstance(a, torch.fx.Node) for a in args):
            return self.fuse_add(node)
        return False

    def fuse_norm(self, node: Any) -> bool:
        layer, is_plain = self.layer_of(node.args[0]), node.target is aten.batch_norm.default
        if layer is None or not layer.stride or layer.norm or layer.residual or layer.clamps:
            return False
        gamma, beta, mean, variance = node.args[1:5]
        if mean is None or variance is None or not self.are_parameters(gamma, beta, mean, variance):
            return False
        names = [parameter and self.name(parameter) for parameter in node.args[1:5]]
        if is_plain:  # x, gamma, beta, mean, variance, training, momentum, eps
            if node.args[5]:
                return False
            layer.norm = (*names, float(node.args[7]))
            return self.rename(layer, node)
        if not all(user.target is operator.getitem and user.args[1] == 0 for user in node.users):
            return False
        layer.norm = (*names, float(node.args[6]))
        self.alias[node.name] = layer.out  # the layer makes the first of its three results
        return True

    def fuse_clamp(self, node: Any) -> bool:
        layer = self.layer_of(node.args[0])
        if layer is None or layer.clamps:
            return False
        low, high = _CLAMPS[node.target]
        given = node.args[1:3] if node.target is aten.hardtanh.default else ()
        layer.low, layer.high = (*map(float, given), *(low, high)[len(given) :])
        if layer.low >= 0:
            self.nonnegative.add(node.name)
        return self.rename(layer, node)

    def fuse_add(self, node: Any) -> bool:
        """The later of two results adds the earlier, which is there when it runs."""
        if len({self.shapes.get(n.name) for n in (node, *node.args)}) != 1 or any(map(self.is_parameter, node.args)):
            return False
        order = {op.out: i for i, op in enumerate(self.ops)}
        first, last = sorted(node.args, key=lambda n: order.get(self.name(n), -1))
        layer = self.layer_of(last)
        if layer is None or layer.clamps or layer.residual or first is last:
            return False
        layer.residual = self.name(first)
        return self.rename(layer, node)

    def layer_of(self, node: Any) -> Layer | None:
        """The layer that makes this value, if this is its only use."""
        op = self.by_out.get(self.name(node)) if isinstance(node, torch.fx.Node) else None
        single = isinstance(node, torch.fx.Node) and len(node.users) == 1 and node.name not in self.shared
        return op if isinstance(op, Layer) and single else None

    def rename(self, layer: Layer, node: Any) -> bool:
        """The layer now makes the value of this node."""
        old = layer.out
        del self.by_out[old]
        layer.out = node.name
        self.by_out[node.name] = layer
        for name, to in list(self.alias.items()):
            if to == old:
                self.alias[name] = node.name
        self.alias[old] = node.name
        # a fused value is ready when the layer runs: later than what it reads, since it moves to the end
        self.ops.remove(layer)
        self.ops.append(layer)
        return True

    def pool(self, node: Any) -> Pool | None:
        if node.target is not aten.max_pool2d.default or self.name(node.args[0]) not in self.nonnegative:
            return None
        x, kernel, stride, padding, dilation, ceil = (*node.args, *(None,) * 6)[:6]
        if ceil:
            return None
        kernel = _pair(kernel)
        self.nonnegative.add(node.name)
        return Pool(node.name, self.name(x), kernel, _pair(stride or kernel), _pair(padding or 0), _pair(dilation or 1))

    def torch_op(self, node: Any) -> TorchOp:
        target = "getitem" if node.target is operator.getitem else str(node.target)
        if not callable(node.target) or (target != "getitem" and not isinstance(node.target, torch._ops.OpOverload)):
            raise UnsupportedModelError(f"the sparse runtime has no way to run {node.target} ({node.name})")
        args, kwargs = (self.plain(value) for value in (node.args, node.kwargs))
        return TorchOp(node.name, target, args, kwargs)

    def plain(self, value: Any) -> Any:
        """Nodes as Refs, and fx's immutable containers as lists and dicts."""
        if isinstance(value, torch.fx.Node):
            return Ref(self.name(value))
        if isinstance(value, (list, tuple)):
            return [self.plain(part) for part in value]
        return {key: self.plain(part) for key, part in value.items()} if isinstance(value, dict) else value


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    a, b = (*value, *value)[:2]
    return int(a), int(b)
