"""Files: written completely or not at all, and locked by one process at a time."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_atomic(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> None:
    """Write to a temporary file beside `path`, then rename: readers see the old file or the new one, complete."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            for piece in [data] if isinstance(data, bytes) else data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # without it a power cut may leave the new name with no content
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:  # write() and fsync() name no file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def disk_shortage(error: OSError, before: str = "", then: str = "try again") -> str | None:
    """What to do about a full disk or a file that is too large for the shell's limit; None for another error."""
    where = f" at {error.filename}" if error.filename else ""
    if error.errno == errno.EFBIG:
        file = f" {error.filename}" if error.filename else ""
        return f"the file{file} exceeds the size limit of this shell (ulimit -f); {before}raise the limit and {then}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk{where}; {before}free some and {then}"
    return None


def is_temporary(name: str) -> bool:
    """True for the temporary file that write_atomic leaves when it is killed."""
    return re.fullmatch(r"\..+\.\d+\.tmp", name) is not None


def unwritable_parent(directory: Path) -> Path | None:
    """The nearest existing ancestor of `directory`, if nothing can be created in it; else None."""
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    return None if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) else existing


def try_lock(file: Any) -> bool:
    """Lock an open file until it and every child's copy of it is closed; False if another process holds the lock.

    Windows has no flock: every attempt succeeds there.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
