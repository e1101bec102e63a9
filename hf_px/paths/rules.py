"""One rule per family of non-linear operations: what to record on a real forward pass, and how to replay it.

Gate            y = a · x with a = y/x (at 0 the derivative), for activations with f(0) = 0. For ReLU this is the
                paper's indicator; for the others it extends the theory.
MaxPool         passes on the recorded winner, as the largest value of an axis does; with every gate open it sums.
Normalisation   y = γ/σ · x; centring and bias are additive terms and are dropped.
Attention       attention weights are gates of the values; queries and keys only steer them.
FrozenGate      softmax, sigmoid: gates in [0, 1] computed from the data. Weights that only steer a frozen gate
                (queries, keys, squeeze-and-excitation) are on no path: their path score is zero.
Product         of two activations: each is a gate of the other, and the shares of both ways are added.
Statistic       variances, roots and norms that a model computes by hand: scales, as in Normalisation.
"""

from __future__ import annotations

from .activations import Clamp, FrozenGate, Gate, GatedUnit, Power
from .attention import Attention, MultiHeadAttention
from .base import Rule
from .normalisation import Normalisation, Statistic
from .pooling import Largest, MaxPool
from .products import PRODUCTS

RULES: dict[str, Rule] = {
    "relu": Gate(0.0, binary=True),
    "relu6": Gate(0.0), "hardtanh": Clamp(), "clamp": Clamp(), "clip": Clamp(), "clamp_min": Clamp(),
    "leaky_relu": Gate(1.0), "rrelu": Gate(1.0), "prelu": Gate(1.0), "elu": Gate(1.0), "celu": Gate(1.0),
    "selu": Gate(1.0507009873554805), "gelu": Gate(0.5), "silu": Gate(0.5), "mish": Gate(0.6),
    "hardswish": Gate(0.5), "tanh": Gate(1.0), "softsign": Gate(1.0), "tanhshrink": Gate(0.0),
    "hardshrink": Gate(0.0), "softshrink": Gate(0.0), "square": Gate(0.0), "pow": Power(), "__pow__": Power(),
    "glu": GatedUnit(),
    "softmax": FrozenGate(), "sigmoid": FrozenGate(), "hardsigmoid": FrozenGate(), "softmin": FrozenGate(),
    "var": Statistic(), "std": Statistic(), "var_mean": Statistic(), "std_mean": Statistic(),
    "norm": Statistic(), "vector_norm": Statistic(), "linalg_vector_norm": Statistic(),
    "scaled_dot_product_attention": Attention(),
    "multi_head_attention_forward": MultiHeadAttention(),
    "sqrt": Statistic(), "rsqrt": Statistic(), "amax": Largest(), "max": Largest(),
    **PRODUCTS,
    **{f"max_pool{d}d": MaxPool(d) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": MaxPool(d, adaptive=True) for d in (1, 2, 3)},
    **{kind: Normalisation(kind) for kind in
       ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize")},
}  # fmt: skip
