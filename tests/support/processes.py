"""Several processes as a launcher starts them, but forked from this one: imports alone would take them ten seconds."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def together(count: int, target: Callable[..., Any], *args: Any, timeout: float = 120) -> None:
    """target(*args) on each of `count` processes, to its end; an error if one of them fails."""
    port, fork = str(free_port()), multiprocessing.get_context("fork")
    started = [fork.Process(target=_one, args=(rank, count, port, target, args)) for rank in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout)
        process.kill()
    assert [process.exitcode for process in started] == [0] * count


def _one(rank: int, count: int, port: str, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    from accelerate.state import AcceleratorState

    # as torchrun and accelerate launch set them
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "ACCELERATE_USE_CPU": "true"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    AcceleratorState._reset_state(reset_partial_state=True)  # another test's, from before the fork
    target(*args)
