"""Make reference_small.npz: the scores of a tiny network, in plain torch and straight from the formulas, without hf_px.

    python tests/data/make_reference.py            # a new network and new numbers
    python tests/data/make_reference.py --keep     # the stored network; numbers of every method in METHODS anew

The file holds float64: `state/<name>` (parameters and running statistics under their state_dict names),
`x` (batches, samples, 3, 8, 8), `y` (batches, samples), and `<method>/<name>` for every prunable tensor.
A new method is one function and one line in METHODS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

FILE = Path(__file__).with_name("reference_small.npz")

State = dict[str, Tensor]
Method = Callable[[State, Tensor, Tensor], State]

CONVOLUTIONS = {
    "conv": (4, 3, 3, 3),
    "block.conv1": (6, 4, 3, 3),
    "block.conv2": (6, 6, 3, 3),
    "block.shortcut.0": (6, 4, 1, 1),
}
NORM_OF = {"conv": "bn", "block.conv1": "block.bn1", "block.conv2": "block.bn2", "block.shortcut.0": "block.shortcut.1"}
PRUNABLE = [*(f"{name}.weight" for name in CONVOLUTIONS), "fc.weight"]
BATCHES, SAMPLES, CLASSES = 2, 5, 3


def new_network(generator: torch.Generator) -> tuple[State, Tensor, Tensor]:
    """State, inputs and labels; nothing is 0 or 1 by default, so that no term can go missing unseen."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    state: State = {}
    for name, shape in CONVOLUTIONS.items():
        state[f"{name}.weight"] = normal(*shape) * (2 / np.prod(shape[1:])) ** 0.5
        norm = NORM_OF[name]
        state[f"{norm}.weight"] = 1 + 0.2 * normal(shape[0])
        state[f"{norm}.bias"] = 0.2 * normal(shape[0])
        state[f"{norm}.running_mean"] = 0.2 * normal(shape[0])
        state[f"{norm}.running_var"] = (0.3 * normal(shape[0])).exp()
    state["fc.weight"] = normal(CLASSES, 6) * (2 / 6) ** 0.5
    state["fc.bias"] = 0.2 * normal(CLASSES)
    x = normal(BATCHES, SAMPLES, 3, 8, 8)
    y = torch.randint(CLASSES, (BATCHES, SAMPLES), generator=generator)
    return state, x, y


def network(state: State, x: Tensor, running: bool = False) -> Tensor:
    """conv, bn, relu; a basic block of stride 2 with a convolution in its shortcut; average pool; fc.

    BatchNorm takes its statistics from the batch, or from `state` if `running`.
    """

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        norm = NORM_OF[name]
        if running:
            mean, var = state[f"{norm}.running_mean"], state[f"{norm}.running_var"]
        else:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        scale = state[f"{norm}.weight"] / (var + 1e-5).sqrt()
        return (x - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + state[f"{norm}.bias"].view(1, -1, 1, 1)

    x = conv("conv", x).relu()
    branch = conv("block.conv2", conv("block.conv1", x, stride=2).relu())
    x = (branch + conv("block.shortcut.0", x, stride=2)).relu()
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def loss(state: State, x: Tensor, y: Tensor, temperature: float = 1.0) -> Tensor:
    """Σ over batches of the mean cross-entropy within one."""
    total = x.new_zeros(())
    for inputs, labels in zip(x, y):
        log_p = (network(state, inputs) / temperature).log_softmax(1)
        total = total - log_p[torch.arange(len(labels)), labels].mean()
    return total


def magnitude(state: State, x: Tensor, y: Tensor) -> State:
    """|θ|"""
    return {name: state[name].abs() for name in PRUNABLE}


def snip(state: State, x: Tensor, y: Tensor) -> State:
    """|∂L/∂m| at m = 1, where the network runs on θ ⊙ m."""
    m = {name: torch.ones_like(state[name], requires_grad=True) for name in PRUNABLE}
    value = loss({**state, **{name: state[name] * m[name] for name in PRUNABLE}}, x, y)
    return {name: g.abs() for name, g in zip(m, torch.autograd.grad(value, list(m.values())))}


def grasp(state: State, x: Tensor, y: Tensor) -> State:
    """θ ⊙ (H g), H written out as a matrix; logits divided by 200."""
    sizes = [state[name].numel() for name in PRUNABLE]
    theta = torch.cat([state[name].reshape(-1) for name in PRUNABLE])

    def value(flat: Tensor) -> Tensor:
        parts = {name: part.view_as(state[name]) for name, part in zip(PRUNABLE, flat.split(sizes))}
        return loss({**state, **parts}, x, y, temperature=200.0)

    g = torch.func.grad(value)(theta)
    hessian = torch.func.jacrev(torch.func.grad(value))(theta)
    scores = theta * (hessian @ g)
    return {name: part.view_as(state[name]) for name, part in zip(PRUNABLE, scores.split(sizes))}


def watch(state: State, x: Tensor, running: bool) -> tuple[list[Tensor], State]:
    """(where each ReLU is open, γ/σ of each norm layer) on a real pass."""
    gates: list[Tensor] = []
    scales: State = {}

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight, norm = state[f"{name}.weight"], NORM_OF[name]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        batch = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        mean, var = (state[f"{norm}.running_mean"], state[f"{norm}.running_var"]) if running else batch
        scales[name] = state[f"{norm}.weight"] / (var + 1e-5).sqrt()
        shift = state[f"{norm}.bias"] - mean * scales[name]
        return x * scales[name].view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)

    def relu(x: Tensor) -> Tensor:
        gates.append((x > 0).double())
        return x.relu()

    x = relu(conv("conv", x))
    branch = conv("block.conv2", relu(conv("block.conv1", x, stride=2)))
    relu(branch + conv("block.shortcut.0", x, stride=2))
    return gates, scales


def along_paths(weights: State, scales: State, gates: list[Tensor] | None, x: Tensor, pool: float) -> Tensor:
    """The network without its additive terms, its gates as given or open; `pool` is the weight of one position."""
    opened = iter(gates or [])

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = weights[f"{name}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        return x * scales[name].view(1, -1, 1, 1)

    def gate(x: Tensor) -> Tensor:
        return x if gates is None else x * next(opened)

    x = gate(conv("conv", x))
    branch = conv("block.conv2", gate(conv("block.conv1", x, stride=2)))
    x = gate(branch + conv("block.shortcut.0", x, stride=2))
    return pool * x.sum((2, 3)) @ weights["fc.weight"].T


POOL = 1 / 16  # the average pool is over 4 x 4 positions


def share(total: Tensor, edges: State) -> State:
    """w ⊙ ∂R/∂w"""
    return {
        name: w.detach() * g for (name, w), g in zip(edges.items(), torch.autograd.grad(total, list(edges.values())))
    }


def edges_of(state: State, power: int) -> State:
    return {name: (state[name].abs() ** power).requires_grad_() for name in PRUNABLE}


def flow(power: int) -> Method:
    """SynFlow (1) and SynFlow-L2 (2): all gates open, an input of ones, norms at their stored statistics."""

    def score(state: State, x: Tensor, y: Tensor) -> State:
        edges = edges_of(state, power)
        _, scales = watch(state, x[0], running=True)
        scales = {name: s.abs() ** power for name, s in scales.items()}
        return share(along_paths(edges, scales, None, torch.ones_like(x[0, :1]), POOL).sum(), edges)

    return score


def px(running: bool) -> Method:
    """θ² ⊙ ∂/∂θ² Σ_k G^k h^k, batch by batch."""

    def score(state: State, x: Tensor, y: Tensor) -> State:
        total: State = {name: torch.zeros_like(state[name]) for name in PRUNABLE}
        for inputs in x:
            gates, scales = watch(state, inputs, running)
            ones = {name: torch.ones_like(state[name]) for name in PRUNABLE}
            g = along_paths(ones, {name: torch.ones_like(s) for name, s in scales.items()}, gates, inputs**2, POOL)
            edges = edges_of(state, 2)
            h = along_paths(edges, {name: s**2 for name, s in scales.items()}, None, torch.ones_like(inputs), POOL)
            for name, part in share((g * h).sum(), edges).items():  # as printed: h on every sample
                total[name] += part
        return total

    return score


def px_path(state: State, x: Tensor, y: Tensor) -> State:
    """θ² ⊙ ∂/∂θ² Σ_n Σ_k f̃^k(x_n², (θγ/σ)², a_n): every constant of a path squared too."""
    total: State = {name: torch.zeros_like(state[name]) for name in PRUNABLE}
    for inputs in x:
        gates, scales = watch(state, inputs, running=False)
        edges = edges_of(state, 2)
        squared = {name: s**2 for name, s in scales.items()}
        for name, part in share(along_paths(edges, squared, gates, inputs**2, POOL**2).sum(), edges).items():
            total[name] += part
    return total


METHODS: dict[str, Method] = {
    "magnitude": magnitude,
    "snip": snip,
    "grasp": grasp,
    "synflow": flow(1),
    "synflow-l2": flow(2),
    "px": px(running=False),
    "px running": px(running=True),
    "px-path": px_path,
}


def load(file: Path = FILE) -> tuple[State, Tensor, Tensor, dict[str, State]]:
    """State, inputs, labels, and {method: {name: scores}}."""
    state: State = {}
    scores: dict[str, State] = {}
    with np.load(file) as arrays:
        for key in arrays.files:
            kind, _, name = key.partition("/")
            if kind == "state":
                state[name] = torch.from_numpy(arrays[key])
            elif name:
                scores.setdefault(kind, {})[name] = torch.from_numpy(arrays[key])
        return state, torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]), scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="keep the stored network")
    if parser.parse_args().keep:
        state, x, y, _ = load()
    else:
        state, x, y = new_network(torch.Generator().manual_seed(0))
    arrays = {f"state/{name}": value for name, value in state.items()} | {"x": x, "y": y}
    for method, score in METHODS.items():
        arrays |= {f"{method}/{name}": value for name, value in score(state, x, y).items()}
    np.savez_compressed(FILE, **{key: value.detach().numpy() for key, value in arrays.items()})
    print(f"{FILE}: {len(arrays)} arrays, {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
