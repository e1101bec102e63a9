"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path


def write_atomic(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> None:
    """Write beside `path`, then rename: readers see the old file or the new one, never half of one."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            for piece in [data] if isinstance(data, bytes) else data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # or a power cut may leave the new name with no content
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def closed_above(directory: Path) -> Path | None:
    """The nearest that there is of a directory and those above it, if nothing can be made in it; None if it can."""
    there = directory.absolute()
    while not there.exists():
        there = there.parent
    return None if there.is_dir() and os.access(there, os.W_OK | os.X_OK) else there


def left_over(name: str) -> bool:
    """Is it a file that write_atomic leaves where it is killed in the midst of it?"""
    return re.fullmatch(r"\..+\.\d+\.tmp", name) is not None
