"""far_device_laws.py, in a process of its own: torch must know a device before the first backward pass."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_what_runs_on_the_cpu_runs_on_another_device(marked: str) -> None:
    laws = Path(__file__).with_name("far_device_laws.py")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--no-header", "-p", "no:cacheprovider", "-m", marked]
    command.append(str(laws))
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=laws.parents[2])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout or "cannot emulate a device" in done.stdout
