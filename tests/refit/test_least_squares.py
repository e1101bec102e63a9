"""refit_rows against numpy's least squares, row by row, and the laws that hold for any mask."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_px.core.input_moments import Gram
from hf_px.refit.least_squares import refit_rows, row_errors


def problem(rows: int, columns: int, inputs: int, density: float, seed: int):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(inputs, columns, generator=draw, dtype=torch.float64) @ torch.randn(
        columns, columns, generator=draw, dtype=torch.float64
    )
    dense = torch.randn(rows, columns, generator=draw, dtype=torch.float64)
    kept = torch.rand(rows, columns, generator=draw) < density
    return x, dense, kept


def by_lstsq(x, dense, kept, ridge):
    """min ‖X (w - w_d)‖² / n + λ ‖w - m ⊙ w_d‖² over the kept columns, as one system of equations."""
    n = len(x)
    weight = ridge * float((x.square().sum(0) / n).mean())
    solved = torch.zeros_like(dense)
    for row in range(len(dense)):
        at = kept[row].numpy()
        if not at.any():
            continue
        top = x[:, at].numpy() / np.sqrt(n)
        bottom = np.sqrt(weight) * np.eye(at.sum())
        wanted = np.concatenate([(x @ dense[row]).numpy() / np.sqrt(n), np.sqrt(weight) * dense[row].numpy()[at]])
        solved[row, at] = torch.from_numpy(np.linalg.lstsq(np.concatenate([top, bottom]), wanted, rcond=None)[0])
    return solved


@pytest.mark.parametrize("as_matrix", [True, False], ids=["matrix", "inputs"])
@pytest.mark.parametrize("density", [0.1, 0.5, 0.9])
def test_agrees_with_lstsq(as_matrix, density):
    x, dense, kept = problem(7, 12, 200, density, 0)
    gram = Gram(x.t() @ x / len(x)) if as_matrix else Gram(inputs=x)
    found = refit_rows(dense, kept, gram, ridge=0.05)
    torch.testing.assert_close(found, by_lstsq(x, dense, kept, 0.05), rtol=1e-5, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 9), st.integers(1, 30), st.floats(0, 1), st.integers(0, 99), st.floats(1e-3, 1)
)
def test_error_never_rises_and_zeros_stay(rows, columns, inputs, density, seed, ridge):
    x, dense, kept = problem(rows, columns, inputs, density, seed)
    gram = Gram(x.t() @ x / inputs)
    found = refit_rows(dense, kept, gram, ridge=ridge)
    assert not found[~kept].any()
    before, after = (row_errors(w, dense, gram) for w in (dense * kept, found))
    assert (after <= before + 1e-12 * before.max()).all()


def test_with_nothing_pruned_nothing_changes():
    x, dense, _ = problem(4, 6, 50, 1.0, 1)
    kept = torch.ones_like(dense, dtype=torch.bool)
    assert torch.equal(refit_rows(dense, kept, Gram(x.t() @ x / 50)), dense)


def test_a_singular_gram_is_no_obstacle():
    x, dense, kept = problem(5, 8, 3, 0.6, 2)  # three inputs for eight columns
    x[:, 0] = 0
    found = refit_rows(dense, kept, Gram(x.t() @ x / 3))
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, by_lstsq(x, dense, kept, 0.03), rtol=1e-4, atol=1e-5)


def test_a_kept_zero_takes_over_from_what_was_pruned():
    x = torch.randn(50, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).expand(50, 2)
    dense = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    found = refit_rows(dense, torch.tensor([[False, True]]), Gram(x.t() @ x / 50), ridge=1e-6)
    torch.testing.assert_close(found, torch.tensor([[0.0, 2.0]], dtype=torch.float64), rtol=1e-5, atol=1e-5)
