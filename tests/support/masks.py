"""Masks that tests write by hand."""

from __future__ import annotations

import torch


def bits(*rows: str) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])
