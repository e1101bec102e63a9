"""What the authors' newest code computes: h with BatchNorm on the statistics of identical samples is rounding noise.

h has all gates open, so it is linear but for its norms; each of those makes the mean over samples and pixels zero, and
the network ends with that mean, since the samples are identical: h = 0 whatever the weights, and ∂h/∂θ² = 0. What comes
out instead falls with the precision, as no score does. RESULTS.md says so; `norm="released"` is the code of April 2024,
which runs h on the images.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from hf_px.models.load import load


class OpenGates(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is F.relu else func(*args, **(kwargs or {}))


def scores(dtype: torch.dtype, batch_statistics: bool) -> torch.Tensor:
    """|θ² ∂Σh/∂θ²| of every convolution, h(1, θ², 1) as plainly as torch can say it."""
    model = load("resnet20", num_classes=10, seed=0).model.to(dtype).train(batch_statistics)
    squares = {name: p.detach().square().requires_grad_() for name, p in model.named_parameters() if p.dim() == 4}
    with OpenGates():
        h = functional_call(model, squares, torch.ones(20, 3, 32, 32, dtype=dtype))
    found = torch.autograd.grad(h.sum(), list(squares.values()))
    return torch.cat([(g * square).detach().abs().view(-1) for g, square in zip(found, squares.values())])


def middle(dtype: torch.dtype, batch_statistics: bool) -> float:
    found = scores(dtype, batch_statistics)
    return float(found[found > 0].median())


def test_on_identical_samples_it_falls_with_the_precision() -> None:
    single, double = (middle(dtype, batch_statistics=True) for dtype in (torch.float32, torch.float64))
    assert double < 1e-6 * single  # 8e-9 of it


def test_by_stored_statistics_it_does_not() -> None:
    single, double = (middle(dtype, batch_statistics=False) for dtype in (torch.float32, torch.float64))
    assert abs(double / single - 1) < 1e-3
