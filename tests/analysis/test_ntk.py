"""Tangent kernels: closed forms for linear networks, brute force for small ones, and the routes against each other."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from support.common import state_of
from support.places import REPO
from torch import Tensor, nn

from hf_px.analysis.ntk import LostRanks, distance, kernel, lost_ranks, spectrum
from hf_px.analysis.tangent import Tangent
from hf_px.core.errors import UnsupportedModelError
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.core.reinitialize import kaiming
from recipes.architectures import ZOO

N, D, K = 6, 5, 3


def linear(*sizes: int, bias: bool = False, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(a, b, bias=bias) for a, b in pairwise(sizes))).double()


def images(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cnn(norm: bool = True, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4) if norm else nn.Identity(),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 3, stride=2, groups=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(27, K),
    ).double()
    if norm:
        model[1].weight.data.uniform_(0.5, 2.0)
        model[1].running_mean.normal_()
    return model


def random_mask(model: nn.Module, density: float = 0.4, seed: int = 3) -> Mask:
    g = torch.Generator().manual_seed(seed)
    return Mask({name: torch.rand(w.shape, generator=g) < density for name, w in prunable(model).items()})


def by_hand(model: nn.Module, x: Tensor, mask: Mask) -> Tensor:
    """J one output and one image at a time by plain autograd, on a model whose weights are masked in place."""
    mask.apply_(model)
    names = [name for name, _ in model.named_parameters()]
    rows = []
    for image in x:
        for k in range(K):
            model.zero_grad()
            model(image[None])[0, k].backward()
            found = {n: p.grad.clone() for n, p in model.named_parameters()}
            rows.append(torch.cat([(found[n] * mask.bits[n] if n in mask.bits else found[n]).flatten() for n in names]))
    return torch.stack(rows)


# closed forms


def test_one_linear_layer_has_the_gram_matrix_of_its_inputs():
    model, x = linear(D, K), images(N, D)
    gram = x @ x.T
    torch.testing.assert_close(kernel(model, [x]), torch.kron(gram, torch.eye(K, dtype=torch.float64)))
    expected = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).repeat_interleave(K)
    torch.testing.assert_close(torch.tensor(spectrum(model, [x]).values, dtype=torch.float64), expected)


def test_a_masked_linear_layer_has_the_gram_matrix_of_the_inputs_that_each_output_sees():
    model, x = linear(D, K), images(N, D)
    mask = random_mask(model)
    theta = kernel(model, [x], mask).view(N, K, N, K)
    for k in range(K):
        seen = x * mask.bits["0.weight"][k]
        torch.testing.assert_close(theta[:, k, :, k], seen @ seen.T)
        assert not theta[:, k, :, (k + 1) % K].any()  # outputs share no weight


def test_two_linear_layers():
    """Θ = X Xᵀ ⊗ W₂ W₂ᵀ + X W₁ᵀ W₁ Xᵀ ⊗ I."""
    model, x = linear(D, 7, K), images(N, D)
    first, second = (w.detach() for w in prunable(model).values())
    hidden = x @ first.T
    expected = torch.kron(x @ x.T, second @ second.T) + torch.kron(hidden @ hidden.T, torch.eye(K).double())
    torch.testing.assert_close(kernel(model, [x]), expected)


def test_the_fixed_weight_kernel_of_two_linear_layers():
    """W ~ N(0, 2 / fan_in): E Θ = (2 + 2 h / d) X Xᵀ ⊗ I, whatever the model's own weights and biases are."""
    h, x = 7, images(N, D)
    model = linear(D, h, K, bias=True)
    expected = (2 + 2 * h / D) * float((x * x).sum()) * K
    found = spectrum(model, [x], draws=200, over="weights", progress=False)
    assert found.trace == pytest.approx(expected, rel=0.08)
    for p in model.parameters():
        p.data.fill_(9.0)
    assert spectrum(model, [x], draws=200, over="weights", progress=False).trace == found.trace


def test_the_fixed_weight_kernel_is_the_mean_over_draws_that_all_masks_share():
    model, x = cnn(norm=False), images(N, 2, 8, 8)
    mask, thetas = random_mask(model), []
    for i in range(3):
        fresh = cnn(norm=False)
        draw = kaiming(prunable(fresh), torch.Generator().manual_seed(5 * 1_000_003 + i))
        fresh.load_state_dict(fresh.state_dict() | draw | {f"{i}.bias": fresh[i].bias * 0 for i in (0, 3, 6)})
        thetas.append((j := by_hand(fresh, x, mask)) @ j.T)
    expected = torch.linalg.eigvalsh(sum(thetas) / 3).flip(0)
    found = spectrum(model, [x], mask, draws=3, seed=5)
    torch.testing.assert_close(torch.tensor(found.values, dtype=torch.float64), expected, rtol=1e-8, atol=1e-8)


# brute force


@pytest.mark.parametrize("norm", ["batch", "running"])
def test_a_small_network_against_plain_autograd(norm):
    model, x = cnn(), images(N, 2, 8, 8)
    mask = random_mask(model)
    theta = kernel(model, [x[:4], x[4:]], mask, norm=norm)  # two batches are one kernel
    oracle = cnn()
    if norm == "batch":  # what BatchNorm measures on x through the masked network, as constants
        seen = F.conv2d(x, oracle[0].weight * mask.bits["0.weight"], oracle[0].bias, padding=1)
        oracle[1].running_mean.copy_(seen.detach().mean((0, 2, 3)))
        oracle[1].running_var.copy_(seen.detach().var((0, 2, 3)))
    j = by_hand(oracle.eval(), x, mask)
    torch.testing.assert_close(theta, j @ j.T)


def test_weights_alone_leave_biases_and_scales_out():
    model, x = cnn(), images(N, 2, 8, 8)
    mask = random_mask(model)
    j = by_hand(cnn().eval(), x, mask)
    sizes = [(name, p.numel()) for name, p in model.named_parameters()]
    keep = torch.cat([torch.full((count,), name in mask.bits) for name, count in sizes])
    torch.testing.assert_close(kernel(model, [x], mask, norm="running", over="weights"), j[:, keep] @ j[:, keep].T)


# the routes agree


def test_trace_is_the_sum_of_the_eigenvalues_and_of_squared_derivatives():
    model, x = cnn(), images(N, 2, 8, 8)
    mask = random_mask(model)
    found = spectrum(model, [x], mask, norm="running")
    assert found.exact and found.size == N * K and found.trace_error == 0
    assert found.trace == pytest.approx(sum(found.values), rel=1e-12)
    assert found.trace == pytest.approx(float(by_hand(cnn().eval(), x, mask).square().sum()), rel=1e-10)
    others = sum(p.numel() for name, p in model.named_parameters() if name not in mask.bits)
    assert found.parameters == mask.kept + others
    assert list(found.values) == sorted(found.values, reverse=True) and found.values[-1] >= 0


def test_blocks_that_fit_a_memory_limit_give_the_same_kernel():
    model, x = cnn(), images(N, 2, 8, 8)
    mask = random_mask(model)
    tangent = Tangent(model, [x], mask)
    whole = tangent.block(0, tangent.columns)
    assert whole.shape == (tangent.rows, tangent.columns)
    for width in (1, 7, 50):
        starts = range(0, tangent.columns, width)
        parts = [tangent.block(start, min(start + width, tangent.columns)) for start in starts]
        torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("draws", [0, 2])
def test_lanczos_and_hutchinson_against_the_exact_route(draws):
    model, x = cnn(), images(12, 2, 8, 8)
    mask = random_mask(model)
    exact = spectrum(model, [x], mask, draws=draws)
    top = spectrum(model, [x], mask, draws=draws, top=4, probes=200)
    assert not top.exact and len(top.values) == 4 and top.size == exact.size
    assert top.values == pytest.approx(exact.values[:4], rel=1e-4)
    assert 0 < top.trace_error < 0.2 * exact.trace
    assert abs(top.trace - exact.trace) < 4 * top.trace_error
    # Var zᵀ Θ z = 2 (‖Θ‖² - Σ Θ_ii²) for random signs: the reported error is the true one
    if not draws:
        theta = kernel(model, [x], mask)
        true = math.sqrt(2 * float(theta.square().sum() - theta.diagonal().square().sum()) / 200)
        assert top.trace_error == pytest.approx(true, rel=0.3)


def test_a_large_network_takes_the_route_that_forms_nothing():
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(192, 300), nn.ReLU(), nn.Linear(300, 10)), images(30, 3, 8, 8)
    small = spectrum(model, [x], progress=False)
    large = spectrum(model, [x], memory=2**20, progress=False)  # J: 300 x 60,910 x 4 bytes, nine times 8 MiB
    assert small.exact and not large.exact and len(large.values) == 32
    assert large.values == pytest.approx(small.values[:32], rel=1e-3)


def test_attention_both_ways():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=K, drop_path_rate=0.5)
    torch.nn.init.normal_(model.head.weight)
    x = images(4, 3, 32, 32).float()
    mask = random_mask(model)
    exact, top = spectrum(model, [{"x": x}], mask), spectrum(model, [{"x": x}], mask, top=3)
    assert exact.exact and top.values == pytest.approx(exact.values[:3], rel=1e-3)


def test_the_products_are_those_of_the_matrix():
    model, x = cnn(), images(N, 2, 8, 8)
    tangent = Tangent(model, [x], random_mask(model))
    j = tangent.block(0, tangent.columns)
    v = torch.randn(tangent.rows, dtype=torch.float64)
    back = tangent.vjp(v)
    flat = torch.cat(
        [g.flatten() if tangent.kept[n] is None else g.flatten()[tangent.kept[n]] for n, g in back.items()]
    )
    torch.testing.assert_close(flat, j.T @ v)
    torch.testing.assert_close(tangent.jvp(back), j @ flat)
    assert all(not g[~random_mask(model).bits[n]].any() for n, g in back.items() if n in random_mask(model).bits)


def test_the_model_comes_out_as_it_went_in():
    model, x = cnn().train(), images(N, 2, 8, 8)
    before = state_of(model)
    spectrum(model, [x], random_mask(model), draws=2)
    spectrum(model, [x], random_mask(model), top=2)
    assert state_of(model) == before


def test_half_precision_is_measured_in_float32():
    model, x = linear(D, K).bfloat16(), images(N, D).bfloat16()
    torch.testing.assert_close(kernel(model, [x]), torch.kron(x.double() @ x.double().T, torch.eye(K).double()))


class Interrupted(dict):
    """A memo that raises KeyboardInterrupt after a number of new entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, name, value):
        if len(self) == self.most:
            raise KeyboardInterrupt
        super().__setitem__(name, value)


@pytest.mark.parametrize(
    ("how", "most"), [({"draws": 3}, 2), ({"top": 4, "probes": 5}, 9), ({"top": 4, "probes": 5}, 3)]
)
def test_what_was_interrupted_goes_on_and_ends_the_same(how, most, monkeypatch):
    model, x = cnn(), images(12, 2, 8, 8)
    whole = {}
    straight = spectrum(model, [x], memo=whole, **how)
    memo = Interrupted(most)
    with pytest.raises(KeyboardInterrupt):
        spectrum(model, [x], memo=memo, **how)
    kept, memo.most = set(memo), 10**6
    assert len(kept) == most
    fresh = []
    monkeypatch.setattr(
        Interrupted, "__setitem__", lambda self, name, value: (fresh.append(name), dict.__setitem__(self, name, value))
    )
    assert spectrum(model, [x], memo=memo, **how) == straight
    assert set(fresh) == set(whole) - kept  # nothing twice


# distance


def test_distance_counts_decades():
    model, x = cnn(norm=False), images(N, 2, 8, 8)
    dense = spectrum(model, [x])
    assert distance(dense, dense) == 0
    tenth = type(dense)(tuple(v / 10 for v in dense.values), dense.size, 0.0, 0.0, 1, 0)
    assert distance(dense, tenth) == pytest.approx(1)
    assert lost_ranks(dense, tenth) == LostRanks(0, 0.0, pytest.approx(1))
    half = replace(dense, values=tuple(v if i < 9 else 0.0 for i, v in enumerate(dense.values)))
    assert lost_ranks(dense, half) == LostRanks(9, 1.0, 0.0)
    gone = type(dense)((0.0,) * dense.size, dense.size, 0.0, 0.0, 1, 0)
    assert distance(dense, gone) == pytest.approx(sum(math.log10(v / dense.values[0]) + 10 for v in dense.values) / 18)
    with pytest.raises(ValueError, match="over 0 and 1 draws of the weights do not compare"):
        distance(dense, spectrum(model, [x], draws=1))
    with pytest.raises(ValueError, match="18 and 9 eigenvalues do not compare"):
        distance(dense, spectrum(model, [x[:3]]))


# bad input


def test_what_cannot_be_measured_is_refused():
    model, x = cnn(), images(N, 2, 8, 8)
    for wrong in ({"draws": -1}, {"top": 0}, {"probes": 1}, {"memory": 10}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` is"):
            spectrum(model, [x], **wrong)
    for wrong in ({"norm": "Batch"}, {"over": "weight"}):
        with pytest.raises(ValueError, match="one of"):
            spectrum(model, [x], **wrong)
    for wrong, message in ((None, "`batches` is None"), (x, "a single batch"), ([], "`batches` is empty")):
        with pytest.raises(ValueError, match=message):
            spectrum(model, wrong)
    with pytest.raises(ValueError, match="different sizes"):
        spectrum(model, [x, images(N, 2, 10, 10)])
    with pytest.raises(UnsupportedModelError, match="has no running statistics"):
        spectrum(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)), [x.float()])
    with pytest.raises(ValueError, match="no such parameter"):
        spectrum(model, [x], Mask({"9.weight": torch.ones(2, dtype=torch.bool)}))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_a_kernel_of_a_thousand_rows_fits_in_four_gibibytes():
    command = [sys.executable, str(REPO / "recipes" / "benchmark.py"), "--kernel"]
    record = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert record["peak_bytes"] < 4 * 2**30  # measured 2.1 GiB; its seconds are for benchmarks


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ZOO, ids=lambda a: a.name)
def test_both_routes_agree_on_every_architecture(architecture):
    """In float64: near a kink, float32 rounds an image one way alone and the other way among others."""
    model, batches = architecture.model().double(), [(x.double(), y) for x, y in architecture.batches(1, 3)]
    exact = spectrum(model, batches, top=15, progress=False)
    found = spectrum(model, batches, top=2, probes=2, progress=False)
    assert exact.exact and found.values == pytest.approx(exact.values[:2], rel=1e-6)


def test_what_is_no_mask_and_what_is_a_single_batch_is_said():
    model, x = cnn(norm=False), images(N, 2, 8, 8)
    with pytest.raises(TypeError, match=r"`mask` is a Linear; pass what hf_px\.prune returns"):
        spectrum(model, [x], nn.Linear(1, 1))
    for batch in (x, (x, torch.zeros(len(x), dtype=torch.long))):
        with pytest.raises(ValueError, match=r"a single batch; put it in a list"):
            spectrum(model, batch)
