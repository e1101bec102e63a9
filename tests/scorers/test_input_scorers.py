"""wanda and obs against their formulas, from the inputs of each layer as hooks and unfold see them."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import hf_px


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 2, groups=2), nn.Flatten(), nn.Linear(54, 5)
    ).eval()


def columns_of(model: nn.Module, x: torch.Tensor) -> dict[str, list[np.ndarray]]:
    """{weight: X of each group}."""
    first = F.unfold(x, 3, stride=2, padding=1)
    y = torch.relu(model[0](x))
    second = [F.unfold(y[:, group : group + 2], 2) for group in (0, 2)]
    z = model[2](y).flatten(1)
    flat = [[u.transpose(1, 2).flatten(0, 1).detach().double().numpy() for u in us] for us in ([first], second)]
    return {"0.weight": flat[0], "2.weight": flat[1], "4.weight": [z.detach().double().numpy()]}


def test_wanda():
    model, x = net(), torch.randn(60, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = hf_px.score(model, "wanda", [x[:20], x[20:]])
    for name, groups in columns_of(model, x).items():
        weight = model.get_parameter(name).detach().double().flatten(1).numpy()
        parts = np.split(weight, len(groups))
        wanted = np.concatenate([np.abs(w) * np.sqrt((g**2).mean(0)) for w, g in zip(parts, groups)])
        np.testing.assert_allclose(found[name].flatten(1).numpy(), wanted / wanted.mean(), rtol=1e-4)


def test_obs():
    model, x = net(), torch.randn(60, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = hf_px.score(model, "obs", [x])
    for name, groups in columns_of(model, x).items():
        weight = model.get_parameter(name).detach().double().flatten(1).numpy()
        wanted = []
        for w, g in zip(np.split(weight, len(groups)), groups):
            gram = g.T @ g / len(g)
            inverse = np.linalg.inv(gram + 0.03 * gram.diagonal().mean() * np.eye(len(gram)))
            wanted.append(w**2 / inverse.diagonal())
        scores = np.concatenate(wanted)
        np.testing.assert_allclose(found[name].flatten(1).numpy(), scores / scores.mean(), rtol=2e-3)


def test_a_layer_without_input_scores_zero():
    model = net()
    with torch.no_grad():
        model[0].weight.zero_(), model[0].bias.fill_(-1.0)  # nothing passes the ReLU
    found = hf_px.score(model, "obs", [torch.randn(5, 3, 8, 8)])
    assert not found["2.weight"].any()
    assert all(torch.isfinite(scores).all() for scores in found.values())
