"""Tiny models and their tickets, for tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

import hf_px
from hf_px.models.networks import MODELS
from support.readers import outputs


def model_args(kind: str) -> dict[str, Any]:
    return {"in_chans": 1} if kind.endswith("-grey") else {}


@cache
def dense(kind: str, seed: int = 0) -> nn.Module:
    """A model with all its weights. Do not change it: tests share it."""
    torch.manual_seed(seed)
    if kind == "transformers":
        config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
        model: nn.Module = ResNetForImageClassification(config)
    elif kind == "wide":  # of the same names and other shapes
        config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 24], depths=[1, 1], num_labels=4)
        model = ResNetForImageClassification(config)
    elif kind in MODELS:
        model = MODELS[kind](num_classes=10, generator=torch.Generator().manual_seed(seed))
    else:
        model = timm.create_model(kind.removesuffix("-grey"), num_classes=10, **model_args(kind))
    with torch.no_grad():  # as a trained network has them, not as a reader would draw them by itself
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.dim() == 1 and tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape) / 5)
    return model.eval()


def pruned(kind: str, seed: int = 0, sparsity: float = 0.8) -> tuple[nn.Module, hf_px.Mask]:
    model = dense.__wrapped__(kind, seed)
    mask = _mask(kind, seed, sparsity)
    return mask.apply_(model), mask


@cache
def _mask(kind: str, seed: int, sparsity: float) -> hf_px.Mask:
    size = (1, 160, 160) if kind.endswith("-grey") else None
    return hf_px.prune(
        dense(kind, seed), "random", sparsity=sparsity, min_per_layer=8, progress=False, seed=seed, input_size=size
    )


@cache
def ticket(kind: str, seed: int = 0, **provenance: Any) -> hf_px.Ticket:
    return hf_px.Ticket(*pruned(kind, seed), scorer="random", model_args=model_args(kind), **provenance)


@cache
def expected_outputs(kind: str, seed: int = 0, channels: int = 3, size: int = 32) -> list[float]:
    """What the ticket's model says, before it went anywhere."""
    return outputs(pruned(kind, seed)[0], channels, size)


def same(ticket: hf_px.Ticket, other: hf_px.Ticket) -> bool:
    """Every tensor and every bit of the mask."""
    a, b = ticket.to_model().state_dict(), other.to_model().state_dict()
    return ticket.mask == other.mask and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def push_base(hub, kind: str, folder: Path, seed: int = 0, id: str = "alice/base") -> str:
    """Push a dense model as its author would; returns the commit."""
    model = dense.__wrapped__(kind, seed)
    if kind in ("transformers", "wide"):
        model.save_pretrained(folder)
        return hub.put(id, {path.name: path.read_bytes() for path in folder.iterdir()})
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    return hub.put(id, {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")})
