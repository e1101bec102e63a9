"""Damaged tickets, hundreds of them: refused by name or read aright, quickly, in bounded memory, without reaching out.

The cases and their law are in fuzz.py, which runs in a process of its own: it limits its memory, and may crash.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import fuzz
from support.loopback import LoopbackHub
from support.places import REPO


@pytest.fixture
def revision(hub: LoopbackHub, tmp_path: Path) -> str:
    """The commit of the base that mask-only tickets take their weights from."""
    fuzz.homes(None, base=tmp_path / "base")
    files = {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()}
    hub.put(fuzz.BASE, files)
    return hub.commits(fuzz.BASE)[0].id


def held(seed: int, count: int, *more: str, seconds: int = 170) -> dict[str, Any]:
    """Run the cases; how they ended. Fails with a line to repeat each one that broke the law."""
    command = [
        sys.executable,
        str(REPO / "tests" / "support" / "fuzz.py"),
        "--seed",
        str(seed),
        "--count",
        str(count),
        *more,
    ]
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'tests'}", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    broken = [line for line in lines if "broken" in line]
    report = "\n".join(f"{line['what']}\n    {line['fault']}\n    {line['repro']}" for line in broken)
    assert not broken, f"{len(broken)} of {count} broke the law\n{report}"
    assert ran.returncode == 0, f"crashed ({ran.returncode}) at {lines[-1:]}: {' '.join(command)}\n{ran.stderr[-3000:]}"
    return lines[-1]["ends"]


def only_the_base_was_asked_for(hub: LoopbackHub) -> None:
    for request in hub.requests:
        assert request.method in ("GET", "HEAD") and "evil" not in request.path, request


def test_damaged_tickets(hub: LoopbackHub, revision: str) -> None:
    ends = held(0, 80, "--revision", revision)
    assert ends["refused"] > 40 and ends["read"] > 4  # the cases are of both kinds
    only_the_base_was_asked_for(hub)


def test_damaged_tickets_by_transformers_itself(hub: LoopbackHub) -> None:
    ends = held(0, 20, "--native")
    assert ends["refused"] > 6 and ends["read"] > 2
    assert not hub.requests


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_more_damaged_tickets(hub: LoopbackHub, revision: str, part: int) -> None:
    held(1000 + 500 * part, 500, "--revision", revision, seconds=900)
    only_the_base_was_asked_for(hub)


@pytest.mark.slow
def test_many_more_damaged_tickets_by_transformers_itself(hub: LoopbackHub) -> None:
    held(1000, 500, "--native", seconds=900)
    assert not hub.requests
