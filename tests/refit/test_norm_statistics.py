"""measure_norms against NumPy on all values at once; the network stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from hf_px.core.batches import Batch
from hf_px.refit.norm_statistics import measure_norms


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batches_of_any_size_give_the_statistics_of_all_values(momentum):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, momentum=momentum)
    net = nn.Sequential(nn.Conv2d(2, 3, 1), norm, nn.Dropout(), nn.BatchNorm2d(3, track_running_stats=False)).eval()
    net(torch.randn(2, 2, 4, 4))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = 5 + 2 * torch.randn(9, 2, 4, 4)
    found = measure_norms(net, [Batch(part, None, index=i) for i, part in enumerate(x.split([5, 1, 3]))])
    values = net[0](x).detach().double().numpy().transpose(1, 0, 2, 3).reshape(3, -1)
    assert found.keys() == {"1"}  # the other norm stores nothing
    np.testing.assert_allclose(found["1"][0], values.mean(1), rtol=1e-5)
    np.testing.assert_allclose(found["1"][1], values.var(1), rtol=1e-5)
    assert norm.momentum == momentum and not norm.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_norm_that_runs_twice_is_measured_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            return self.norm(x) + self.norm(3 * x)

    torch.manual_seed(0)
    x = torch.randn(50, 2)
    mean, variance = measure_norms(Twice().eval(), [Batch(x, None)])["norm"]
    both = torch.cat([x, 3 * x]).double().numpy()
    np.testing.assert_allclose(mean, both.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, both.var(0), rtol=1e-5)
