"""Laws that hold for every network: hypothesis draws the networks, torch the weights."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from common import state_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hf_px
from hf_px.mask import Mask

PATH_SCORERS = ["px", "px-path", "synflow", "synflow-l2"]


class Chain(nn.Module):
    """Linear or convolution layers in a row, without additive terms; optionally a shortcut around each middle layer."""

    def __init__(self, widths: list[int], convolution: bool, norm: bool, skip: bool, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            make = (lambda a, b: nn.Conv2d(a, b, 3, padding=1, bias=False)) if convolution else (
                lambda a, b: nn.Linear(a, b, bias=False)
            )
            self.layers = nn.ModuleList(make(a, b) for a, b in itertools.pairwise(widths))
            kind = nn.BatchNorm2d if convolution else nn.BatchNorm1d
            self.norms = nn.ModuleList(kind(b) if norm else nn.Identity() for b in widths[1:])
            self.fc = nn.Linear(widths[-1], 3, bias=False)
        self.skip, self.convolution = skip, convolution
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms):
            y = F.relu(norm(layer(x)))
            x = x + y if self.skip and x.shape == y.shape else y
        return self.fc(x.mean((2, 3)) if self.convolution else x)

    def batch(self, seed: int, samples: int = 6) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        width = self.layers[0].weight.shape[1]
        shape = (samples, width, 5, 5) if self.convolution else (samples, width)
        return torch.randn(shape, generator=generator, dtype=torch.float64)


@st.composite
def chains(draw: st.DrawFn, skip: bool | None = False, norm: bool | None = None) -> Chain:
    widths = draw(st.lists(st.integers(2, 5), min_size=2, max_size=4))
    skip = draw(st.booleans()) if skip is None else skip
    norm = draw(st.booleans()) if norm is None else norm
    if skip:
        widths = [widths[0]] * len(widths)
    return Chain(widths, draw(st.booleans()), norm, skip, draw(st.integers(0, 999)))


few = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@few
@given(chains(), st.sampled_from(PATH_SCORERS))
def test_flow_is_conserved_from_layer_to_layer(model: Chain, scorer: str) -> None:
    totals = torch.stack([s.sum() for s in hf_px.score(model, scorer, [model.batch(0)]).values()])
    torch.testing.assert_close(totals, totals[:1].expand_as(totals), rtol=1e-9, atol=1e-12)


@few
@given(chains(), st.sampled_from(PATH_SCORERS))
def test_flow_is_conserved_at_every_unit(model: Chain, scorer: str) -> None:
    """What comes into a unit goes out of it."""
    scores = list(hf_px.score(model, scorer, [model.batch(0)]).values())
    for before, after in itertools.pairwise(scores):
        into = before.flatten(1).sum(1)
        out = after.transpose(0, 1).flatten(1).sum(1)
        torch.testing.assert_close(into, out, rtol=1e-9, atol=1e-12 * float(into.max() + 1))


@few
@given(chains(skip=True), st.sampled_from(PATH_SCORERS))
def test_a_branch_beside_a_shortcut_carries_at_most_the_whole(model: Chain, scorer: str) -> None:
    """All flow passes the last layer; a layer that a shortcut runs around carries a part of it."""
    totals = {name: float(s.sum()) for name, s in hf_px.score(model, scorer, [model.batch(0)]).items()}
    whole = totals.pop("fc.weight")
    assert all(0 <= part <= whole * (1 + 1e-9) for part in totals.values())
    assert whole > 0 or not any(totals.values())


@few
@given(chains(skip=None), st.sampled_from([*PATH_SCORERS, "logsynflow"]))
def test_path_scores_are_finite_and_not_negative(model: Chain, scorer: str) -> None:
    for s in hf_px.score(model, scorer, [model.batch(0)]).values():
        assert bool(torch.isfinite(s).all()) and bool((s >= 0).all())


@few
@given(chains(skip=None), st.sampled_from(["px", "px-path", "snip", "grasp"]), st.randoms(use_true_random=False))
def test_the_order_of_samples_in_a_batch_changes_nothing(model: Chain, scorer: str, random) -> None:
    x, y = model.batch(0), torch.arange(6) % 3
    order = list(range(6))
    random.shuffle(order)
    straight = hf_px.score(model, scorer, [(x, y)])
    shuffled = hf_px.score(model, scorer, [(x[order], y[order])])
    for name, s in straight.items():
        torch.testing.assert_close(shuffled[name], s, rtol=1e-7, atol=1e-9 * float(s.abs().max()) + 1e-300)


@few
@given(chains(skip=None, norm=False), st.floats(0.1, 10), st.sampled_from(["px", "px-path"]))
def test_scaling_the_input_scales_the_scores_by_its_square(model: Chain, factor: float, scorer: str) -> None:
    """Without additive terms the gates do not move, and g is linear in x²."""
    x = model.batch(0)
    one, scaled = (hf_px.score(model, scorer, [c * x]) for c in (1.0, factor))
    for name, s in one.items():
        torch.testing.assert_close(scaled[name], factor**2 * s, rtol=1e-9, atol=1e-300)


@few
@given(
    chains(skip=None),
    st.sampled_from(["px", "synflow", "snip", "magnitude", "random"]),
    st.floats(0, 0.6),
    st.integers(1, 4),
    st.sampled_from(["global", "layer", "erk"]),
    st.sampled_from(["exponential", "linear"]),
)
def test_counts_are_exact(model: Chain, scorer: str, sparsity: float, rounds: int, scope: str, schedule: str) -> None:
    data = [(model.batch(0), torch.arange(6) % 3)]
    try:
        mask = hf_px.prune(
            model, scorer, sparsity=sparsity, batches=data, rounds=rounds, scope=scope, schedule=schedule, progress=False,
            min_per_layer=1,
        )  # fmt: skip
    except hf_px.errors.HfPxError:
        return  # dead units can cut a network of three units in two: said, not hidden
    assert mask.kept == round((1 - sparsity) * mask.total)


@pytest.mark.parametrize("scorer", hf_px.list_scorers())
def test_the_model_is_unchanged(scorer: str) -> None:
    model = Chain([3, 4, 4], True, True, True, 0).float()
    model.norms[0].eval()
    data = [(model.batch(0).float(), torch.arange(6) % 3)]
    before = state_of(model)
    hf_px.prune(model, scorer, sparsity=0.3, batches=data, rounds=2, progress=False)
    assert state_of(model) == before


@given(st.permutations(["a", "b", "c"]), st.integers(0, 99))
def test_a_digest_does_not_depend_on_the_order_of_names(names: list[str], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    bits = {name: torch.rand(3, 4, generator=generator) < 0.5 for name in "abc"}
    assert Mask({name: bits[name] for name in names}).digest() == Mask(bits).digest()
    flipped = {**bits, "b": ~bits["b"]}
    assert Mask(flipped).digest() != Mask(bits).digest()
