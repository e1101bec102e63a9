"""The paper's claim: at 93.12 % the spectrum of a network that PX has pruned is nearer to the dense one's than others'.

Nearer is `ntk.distance`, chosen before anything was measured. At the initial weights, which is what NTK-SAP and the
paper call the fixed-weight NTK, the claim holds: PX shrinks all eigenvalues alike, to 0.24 to 0.42 of the dense ones.
Over re-drawn weights, where only the mask counts, it holds against SynFlow-L2 and random, but not against SNIP.
"""

from __future__ import annotations

import functools
import os

import pytest
from support.places import SHARED

import hf_px
from hf_px.analysis.ntk import Spectrum, distance, spectrum
from hf_px.data import load_pruning_set
from hf_px.models.load import load

OTHERS = ("synflow-l2", "random", "snip")


def spectra(data: str, per_class: int, rounds: int | None, draws: int) -> dict[str, Spectrum]:
    """Of a ResNet-20 with Kaiming-normal weights, dense and pruned, on the images that it was pruned by."""
    model = load("resnet20", seed=0).model
    batches = load_pruning_set(data, model, per_class, 100, 0)
    found = {"dense": spectrum(model, batches, draws=draws, progress=False)}
    for name in ("px", *OTHERS):
        mask = hf_px.prune(
            model,
            name,
            sparsity=0.9312,
            batches=batches,
            rounds=None if name in ("random", "snip") else rounds,
            keep_head=False,  # as in the paper
            progress=False,
        )
        found[name] = spectrum(model, batches, mask, draws=draws, progress=False)
    return found


def distances(found: dict[str, Spectrum]) -> dict[str, float]:
    return {name: distance(found["dense"], s) for name, s in found.items() if name != "dense"}


def test_px_is_nearest_to_dense_at_the_initial_weights_on_digits() -> None:
    """Ten digits, 10 rounds: 0.39 against 0.64 for SNIP, 0.68 and 1.10."""
    found = distances(spectra("digits", 1, 10, draws=0))
    assert all(found["px"] < 0.8 * found[other] for other in OTHERS), found


@functools.cache
def on_cifar(draws: int) -> dict[str, float]:
    if not (SHARED / "data" / "cifar10").is_dir():
        pytest.skip(f"needs CIFAR-10 in {SHARED / 'data'}")
    os.environ["HF_PX_DATA"] = str(SHARED / "data")
    return distances(spectra("cifar10", 10, None, draws))


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_px_is_nearest_to_dense_at_the_initial_weights(other: str) -> None:
    """100 images of CIFAR-10, 100 rounds: 0.44 against 0.77 for SNIP, 1.19 for random, 1.29 for SynFlow-L2."""
    found = on_cifar(draws=0)
    assert found["px"] < 0.8 * found[other], found


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        "synflow-l2",
        "random",
        pytest.param(
            "snip",
            marks=pytest.mark.xfail(
                strict=True,
                reason="measured 0.20 for px and 0.15 for snip: SNIP's largest eigenvalues are up to 21 times too "
                "large, but the many small ones are nearer than PX's",
            ),
        ),
    ],
)
def test_px_is_nearest_to_dense_in_the_mean_over_redrawn_weights(other: str) -> None:
    found = on_cifar(draws=5)
    assert found["px"] < 0.8 * found[other], found
