"""Files are written completely or not at all, and an error names the one that could not be written."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from hf_px.core.files import disk_shortage, write_atomic


def test_a_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mask.safetensors"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as caught:
            write_atomic(path, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
    assert disk_shortage(caught.value) == (
        f"the file {path} exceeds the size limit of this shell (ulimit -f); raise the limit and try again"
    )


def test_what_to_do_about_a_full_disk() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "out/x")
    assert disk_shortage(full) == "no space left on the disk at out/x; free some and try again"
    assert disk_shortage(OSError(errno.EACCES, "Permission denied", "out/x")) is None
