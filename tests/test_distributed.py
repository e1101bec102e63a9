"""Several processes: each scores its share of the batches, and one and two give the same mask."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import hf_px

WORKER = str(Path(__file__).with_name("distributed_worker.py"))
LAUNCH = {
    "one": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"],
    "torch": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
    # `--cpu --num_processes 2` would start a single process without a word
    "accelerate": ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"],
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(how: str, folder: Path) -> list[dict]:
    output = folder / how
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    port = ["--main_process_port", str(free_port())] if how == "accelerate" else []
    command = [sys.executable, *LAUNCH[how], *port, WORKER, str(output), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{how}.*"))]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    (found,) = launch("one", tmp_path_factory.mktemp("one"))
    assert found["world"] == 1
    return found


@pytest.mark.parametrize("how", ["torch", "accelerate"])
def test_one_process_and_two_give_the_same_mask(how, alone, tmp_path):
    ranks = launch(how, tmp_path)
    assert [r["world"] for r in ranks] == [2, 2]  # two really ran
    assert [r["rank"] for r in ranks] == [0, 1]
    assert set(alone["masks"]) >= set(hf_px.list_scorers())
    for found in ranks:
        assert found["masks"] == alone["masks"]
        assert found["kept"] == alone["kept"]
        assert "3.weight differs between rank 0 and rank 1" in found["other weights"]
