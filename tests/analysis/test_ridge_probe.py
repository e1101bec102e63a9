"""The ridge head against numpy's least squares and scikit-learn's ridge, and on real features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from hf_px.analysis.ridge_probe import recalibrate_, ridge, with_ridge_head
from hf_px.data import digits
from hf_px.models.load import load


def problem(rows: int = 60, inputs: int = 7, outputs: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64) + 2
    return x, torch.eye(outputs, dtype=torch.float64)[torch.randint(outputs, (rows,), generator=generator)]


@pytest.mark.parametrize("intercept", [True, False])
def test_it_is_scikit_learns(intercept: bool) -> None:
    x, y = problem()
    weight, bias = ridge(x, y, intercept=intercept, lambdas=[0.3])
    centred = x - x.mean(0) if intercept else x
    # theirs is a sum over examples, with λ as it is; ours a mean, with λ in units of the mean eigenvalue
    strength = 0.3 * float(np.linalg.eigvalsh(centred.numpy().T @ centred.numpy()).mean())
    theirs = Ridge(alpha=strength, fit_intercept=intercept).fit(x.numpy(), y.numpy())
    assert np.allclose(weight.numpy(), theirs.coef_, rtol=1e-9)
    assert np.allclose(bias.numpy(), theirs.intercept_, atol=1e-12)


def test_without_a_penalty_it_is_least_squares() -> None:
    x, y = problem()
    weight, bias = ridge(x, y, lambdas=[0.0])
    found = np.linalg.lstsq(np.column_stack([x.numpy(), np.ones(len(x))]), y.numpy(), rcond=None)[0]
    assert np.allclose(weight.numpy(), found[:-1].T) and np.allclose(bias.numpy(), found[-1])


def test_the_penalty_is_the_one_that_does_best_on_every_fifth_row() -> None:
    x, y = problem(rows=100, inputs=60)  # nearly as many inputs as rows: without a penalty it learns them by heart
    y = torch.eye(3, dtype=torch.float64)[
        (x[:, :3] + torch.randn(100, 3, generator=torch.Generator().manual_seed(1))).argmax(1)
    ]
    lambdas = [1e-6, 1e-2, 1.0, 100.0]
    held = np.arange(100) % 5 == 4
    right = []
    for each in lambdas:
        fitted = x[~held]
        scale = float(np.linalg.eigvalsh(np.cov(fitted.numpy().T, bias=True)).mean())
        theirs = Ridge(alpha=each * scale * len(fitted)).fit(fitted.numpy(), y[~held].numpy())
        right.append((theirs.predict(x[held].numpy()).argmax(1) == y[held].numpy().argmax(1)).sum())
    best = max(zip(right, lambdas))[1]
    assert len(set(right)) > 1
    for found, wanted in zip(ridge(x, y, lambdas=lambdas), ridge(x, y, lambdas=[best])):
        assert torch.equal(found, wanted)


def test_statistics_are_the_mean_over_the_batches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 2))
    model[1].running_mean += 7  # what a dense network had left
    batches = [torch.randn(5, 3, 8, 8) for _ in range(3)]
    recalibrate_(model, batches)
    maps = [model[0](x).detach().transpose(0, 1).flatten(1) for x in batches]
    assert torch.allclose(model[1].running_mean, torch.stack([m.mean(1) for m in maps]).mean(0), atol=1e-6)
    assert torch.allclose(model[1].running_var, torch.stack([m.var(1) for m in maps]).mean(0), atol=1e-6)
    assert model[1].momentum == 0.1 and model.training and model[2].training


def test_random_features_of_real_digits_tell_them_apart_and_the_model_stays() -> None:
    model = load("resnet20", num_classes=10, seed=0).model
    train, test = digits(size=16)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    batches = list(zip(train.images[:1000].split(100), train.labels[:1000].split(100)))
    fitted = with_ridge_head(model, batches, 10)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    with torch.no_grad():
        accuracy = float((fitted(test.images).argmax(1) == test.labels).double().mean())
    assert accuracy > 0.5  # 0.61; 0.1 by chance, and as much with the head that was drawn


def test_answers_that_differ_little_are_told_apart_in_half_precision() -> None:
    """Features that hardly vary give answers of 0.1 and a bit for each of ten classes; bfloat16 has no such bits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    batches = [(torch.randn(100, 3, 2, 2), torch.arange(100) % 10)]  # nothing to be learnt: a large λ, small weights
    fitted = with_ridge_head(model, batches, 10)
    assert float(fitted[1].weight.detach().abs().max()) < 1e-2 and abs(float(fitted[1].bias.detach().sum())) < 1e-6
    x = torch.randn(1000, 3, 2, 2)
    with torch.no_grad():
        whole = fitted(x).argmax(1)
        with torch.autocast("cpu", torch.bfloat16):
            half = fitted(x).argmax(1)
    assert float((whole == half).double().mean()) > 0.9


def test_a_head_that_it_cannot_take_the_place_of() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    with pytest.raises(ValueError, match=r"with 5 outputs.*1\.weight"):
        with_ridge_head(model, [(torch.zeros(2, 3, 2, 2), torch.tensor([0, 1]))], 5)
