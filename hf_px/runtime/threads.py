"""Worker threads of the sparse runtime, within torch.get_num_threads(): images of a batch, or rows of one image.

Native steps release the GIL. Threads that share an image wait for each other after every step by spinning, so only one
image at a time is shared; a second call meanwhile runs on its own thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from .kernels import runner

T = TypeVar("T")
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # a forked process has none of its parent's threads
_lock = threading.Lock()
_sharing = threading.Lock()
if hasattr(os, "register_at_fork"):

    def _after_fork() -> None:
        global _lock, _sharing
        _lock, _sharing = threading.Lock(), threading.Lock()  # another thread of the parent may have held them
        torch.set_num_threads(1)  # a fork has none of torch's own threads either, and torch would wait for them forever

    os.register_at_fork(after_in_child=_after_fork)


def workers(count: int) -> ThreadPoolExecutor:
    """A pool of `count` threads in which torch uses one thread per operation."""
    with _lock:
        key = os.getpid(), count
        if key not in _pools:
            threads, ready = torch.get_num_threads(), threading.Barrier(count + 1)

            def begin() -> None:
                torch.set_num_threads(1)
                ready.wait()

            pool = _pools[key] = ThreadPoolExecutor(count, "hf-px", begin)
            for _ in range(count):
                pool.submit(lambda: None)
            ready.wait()
            torch.set_num_threads(threads)  # torch gives new threads the number that was set last
        return _pools[key]


def in_parallel(work: Callable[[int], T], items: Iterable[int], threads: int) -> list[T]:
    """[work(item) for item in items], on several threads."""
    return list(workers(threads).map(work, items))


class Shared:
    """Runs native steps on several threads, which share the rows of each step. Use it as a context manager."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __enter__(self) -> Shared | None:
        """None if another call shares its steps now."""
        self._lock = _sharing  # a fork makes another one
        self._acquired = self._lock.acquire(blocking=False)
        return self if self._acquired else None

    def __exit__(self, *error: object) -> None:
        if self._acquired:
            self._lock.release()

    def __call__(self, first: int, count: int, arena: int) -> None:
        counter, run = np.zeros(1, np.int64), runner()
        pool = workers(self.threads - 1)
        others = [
            pool.submit(run, first, count, arena, thread, self.threads, counter.ctypes.data)
            for thread in range(1, self.threads)
        ]
        run(first, count, arena, 0, self.threads, counter.ctypes.data)
        for other in others:
            other.result()
