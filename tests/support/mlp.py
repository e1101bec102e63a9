"""A small multi-layer perceptron, and data for it."""

from __future__ import annotations

import itertools

import torch
from torch import nn


def mlp(widths=(6, 8, 8, 4), bias=True, seed=0):
    torch.manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4


DATA = [(X[:8], Y[:8]), (X[8:], Y[8:])]
