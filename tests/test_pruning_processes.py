"""Several processes: each scores its share of the batches, and one and two give the same mask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import distributed_worker
from support.processes import together

import hf_px


def ranks_of(how: str, folder: Path, processes: int) -> list[dict[str, Any]]:
    together(processes, distributed_worker.main, str(folder / how), how)
    return read(folder, how)


def read(folder: Path, how: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{how}.*"))]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    (found,) = ranks_of("one", tmp_path_factory.mktemp("one"), 1)
    assert found["world"] == 1
    return found


@pytest.mark.parametrize("how", ["torch", "accelerate"])
def test_one_process_and_two_give_the_same_mask(how, alone, tmp_path):
    same_masks(ranks_of(how, tmp_path, 2), alone)


@pytest.mark.slow  # test_recipe.py starts two processes by accelerate's launcher
def test_started_by_torchs_own_launcher(alone, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    worker = [distributed_worker.__file__, str(tmp_path / "torch"), "torch"]
    subprocess.run([*launch, *worker], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300)
    same_masks(read(tmp_path, "torch"), alone)


def same_masks(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    assert [r["world"] for r in ranks] == [2, 2]  # two really ran
    assert [r["rank"] for r in ranks] == [0, 1]
    assert set(alone["masks"]) >= set(hf_px.list_scorers())
    for found in ranks:
        assert found["masks"] == alone["masks"]
        assert found["kept"] == alone["kept"]
        assert "3.weight differs between rank 0 and rank 1" in found["other weights"]
