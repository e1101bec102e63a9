"""An oracle that knows nothing of hf_px: a network written out unit by unit, every path of it enumerated.

v_p = product of the weights on path p, c_p = product of its constants (pooling), a_p = product of its gates.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import product

import numpy as np


@dataclass(frozen=True)
class Path:
    source: int  # index of the input unit
    weights: tuple[tuple[str, tuple[int, ...]], ...]
    constant: float  # pooling and the like
    scale: float  # normalisation, an edge γ/σ
    gates: tuple[object, ...]


@dataclass
class Net:
    """Units in order of computation; each has a kind, incoming edges and a bias."""

    params: dict[str, np.ndarray]
    kinds: list[str] = field(default_factory=list)
    edges: list[list[tuple]] = field(default_factory=list)  # per unit: (source unit, param or None, constant, scale)
    biases: list[float] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)

    def unit(self, kind, edges=(), bias=0.0):
        self.kinds.append(kind)
        self.edges.append(list(edges))
        self.biases.append(bias)
        return len(self.kinds) - 1

    def input(self, *shape):
        self.inputs = [self.unit("input") for _ in range(int(np.prod(shape)))]
        return np.array(self.inputs).reshape(shape)

    def linear(self, x, name, bias=None):
        w = self.params[name]
        return np.array(
            [
                self.unit(
                    "sum", [(x[i], (name, (o, i)), 1.0, 1.0) for i in range(len(x))], 0.0 if bias is None else bias[o]
                )
                for o in range(len(w))
            ]
        )

    def conv(self, x, name, stride=1, pad=0, dilation=1):
        w = self.params[name]
        (out, _, kh, kw), (c, h, wd) = w.shape, x.shape
        ho = (h + 2 * pad - dilation * (kh - 1) - 1) // stride + 1
        wo = (wd + 2 * pad - dilation * (kw - 1) - 1) // stride + 1
        y = np.zeros((out, ho, wo), dtype=int)
        for o, i, j in product(range(out), range(ho), range(wo)):
            edges = []
            for ci, a, b in product(range(c), range(kh), range(kw)):
                r, s = i * stride - pad + a * dilation, j * stride - pad + b * dilation
                if 0 <= r < h and 0 <= s < wd:
                    edges.append((x[ci, r, s], (name, (o, ci, a, b)), 1.0, 1.0))
            y[o, i, j] = self.unit("sum", edges)
        return y

    def relu(self, x):
        return self._each(x, lambda u: self.unit("relu", [(u, None, 1.0, 1.0)]))

    def scale(self, x, factors, shifts):
        """Normalisation at given statistics: per channel y = factor · x + shift."""
        y = np.zeros_like(x)
        for c in range(len(x)):
            y[c] = self._each(x[c], lambda u, c=c: self.unit("sum", [(u, None, 1.0, factors[c])], shifts[c]))
        return y

    def add(self, x, y):
        z = np.zeros_like(x)
        for index in np.ndindex(x.shape):
            z[index] = self.unit("sum", [(x[index], None, 1.0, 1.0), (y[index], None, 1.0, 1.0)])
        return z

    def pool(self, x, size, kind):
        c, h, w = x.shape
        y = np.zeros((c, h // size, w // size), dtype=int)
        weight = 1.0 / size**2 if kind == "sum" else 1.0
        for index in np.ndindex(y.shape):
            k, i, j = index
            window = x[k, i * size : (i + 1) * size, j * size : (j + 1) * size].ravel()
            y[index] = self.unit(kind, [(u, None, weight, 1.0) for u in window])
        return y

    @staticmethod
    def _each(x, make):
        y = np.zeros_like(x)
        for index in np.ndindex(x.shape):
            y[index] = make(x[index])
        return y

    def run(self, x):
        """(value of every unit, gates that are open) on one sample."""
        values, gates = {}, defaultdict(float)
        values.update(zip(self.inputs, np.ravel(x)))
        for unit, kind in enumerate(self.kinds):
            if kind == "input":
                continue
            terms = [
                values[s] * c * k * (1.0 if p is None else self.params[p[0]][p[1]]) for s, p, c, k in self.edges[unit]
            ]
            if kind == "max":
                winner = int(np.argmax(terms))
                gates[(unit, self.edges[unit][winner][0])] = 1.0
                values[unit] = terms[winner]
                continue
            total = sum(terms) + self.biases[unit]
            gates[unit] = float(total > 0)
            values[unit] = max(total, 0.0) if kind == "relu" else total
        return values, gates

    def paths(self, unit):
        """Every path from an input to this unit."""
        if self.kinds[unit] == "input":
            return [Path(self.inputs.index(unit), (), 1.0, 1.0, ())]
        found = []
        for source, param, constant, scale in self.edges[unit]:
            for p in self.paths(source):
                gates = p.gates
                if self.kinds[unit] == "relu":
                    gates += (unit,)
                if self.kinds[unit] == "max":
                    gates += ((unit, source),)
                weights = p.weights + (() if param is None else (param,))
                found.append(Path(p.source, weights, p.constant * constant, p.scale * scale, gates))
        return found

    def value(self, path):
        return float(np.prod([self.params[name][index] for name, index in path.weights]))


@dataclass
class Answer:
    """Everything the tests ask of a network with outputs `out` on samples `xs`."""

    net: Net
    out: np.ndarray
    xs: np.ndarray

    def __post_init__(self):
        self.paths = [self.net.paths(unit) for unit in np.ravel(self.out)]
        self.gates = [self.net.run(x)[1] for x in self.xs]

    def active(self, path, n):
        return float(np.prod([self.gates[n][gate] for gate in path.gates]))

    def G(self, k, constants=1):
        """Σ_n Σ_{p→k} a_p c_p x_s²."""
        return sum(
            self.active(p, n) * p.constant**constants * np.ravel(x)[p.source] ** 2
            for n, x in enumerate(self.xs)
            for p in self.paths[k]
        )

    def H(self, k):
        """Σ_{p→k} c_p (v_p · γ/σ)²."""
        return sum(p.constant * (self.net.value(p) * p.scale) ** 2 for p in self.paths[k])

    def shares(self, weight_of_path):
        """{param: Σ over outputs and paths through each weight}."""
        scores = {name: np.zeros_like(w) for name, w in self.net.params.items()}
        for k, paths in enumerate(self.paths):
            for p in paths:
                part = weight_of_path(k, p)
                for name, index in p.weights:
                    scores[name][index] += part
        return scores

    def px(self):
        g = [self.G(k) for k in range(len(self.paths))]
        return self.shares(lambda k, p: g[k] * p.constant * (self.net.value(p) * p.scale) ** 2)

    def px_path(self):
        def part(k, p):
            seen = sum(self.active(p, n) * np.ravel(x)[p.source] ** 2 for n, x in enumerate(self.xs))
            return seen * (p.constant * self.net.value(p) * p.scale) ** 2

        return self.shares(part)

    def synflow(self):
        return self.shares(lambda k, p: p.constant * abs(self.net.value(p) * p.scale))

    def synflow_l2(self):
        return self.shares(lambda k, p: p.constant * (self.net.value(p) * p.scale) ** 2)

    # the matrices of the paper, for networks without constants

    def path_activation(self):
        """J_v^f, one row for each sample and output, one column for each path."""
        rows = []
        every = [(k, p) for k, paths in enumerate(self.paths) for p in paths]
        for n, x in enumerate(self.xs):
            for k in range(len(self.paths)):
                rows.append([self.active(p, n) * np.ravel(x)[p.source] if kk == k else 0.0 for kk, p in every])
        return np.array(rows)

    def path_jacobian(self):
        """J_θ^v, one row for each path, one column for each weight."""
        columns = {
            (name, i): j
            for j, (name, i) in enumerate((n, i) for n, w in self.net.params.items() for i in np.ndindex(w.shape))
        }
        rows = []
        for paths in self.paths:
            for p in paths:
                row = np.zeros(len(columns))
                for name, index in p.weights:
                    rest = [self.net.params[a][b] for a, b in p.weights if (a, b) != (name, index)]
                    row[columns[(name, index)]] = np.prod(rest)
                rows.append(row)
        return np.array(rows)
