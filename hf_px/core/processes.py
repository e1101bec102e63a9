"""Rank and number of processes of torch.distributed: 0 and 1 where none are started."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if initialized() else 1


def gather(value: Any) -> list[Any]:
    """The value of every process, in order of rank."""
    everyone: list[Any] = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(everyone, value)
    return everyone
