"""What all tests share: a Hub on loopback and no other network, caches of their own, ../shared if it is there."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from support.loopback import LoopbackHub
from support.places import REPO, SHARED

if TYPE_CHECKING:
    from support.launching import Server

# read when huggingface_hub and datasets are imported, so set before any test file is. Whatever asks for the Hub gets
# this one, which is empty but for what a test puts there; a token or a cache of who runs the tests must not leak in
SERVER = LoopbackHub().start()
HOME = tempfile.mkdtemp(prefix="hf-px-tests-")
for _name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE"):
    os.environ.pop(_name, None)
os.environ.update(SERVER.env, HF_HOME=HOME, HF_HUB_DISABLE_PROGRESS_BARS="1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
# read by torch: one thread per process. Beside another busy process, two threads on two cores wait for each other
# at every small operation, and tests take five times as long
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("hf_px", deadline=None)  # how long torch takes says nothing about a law
settings.load_profile("hf_px")


# with few and long tests; xdist's own order has files of few tests last
LONG = (
    "laws/test_far_device.py", "recipes/test_prune_finetune.py", "recipes/test_hub_recipe.py",
    "tickets/test_faults.py", "laws/test_sweep.py", "report/test_report.py", "recipes/test_knobs.py",
    "deploy/test_export.py", "recipes/test_imp.py",
    "recipes/test_sweep_recipe.py", "tickets/test_fuzz.py", "tickets/test_hub_tickets.py",
    "recipes/test_ablate.py", "recipes/test_segmentation_recipe.py", "recipes/test_hub_segmentation.py",
    "cli/test_prune.py", "models/test_deeplab.py", "tickets/test_transformers_quantizer.py", "models/test_networks.py",
    "models/test_hub_backbones.py", "data/test_pruning_set.py", "models/test_load.py",
    "scorers/test_reference_paths.py", "analysis/test_px_claim.py", "test_sparse_training.py",
    "support/test_loopback.py", "analysis/test_ntk.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that no worker is left alone with one at the end."""
    place = {REPO / "tests" / name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(LONG)))


def pytest_collection_finish() -> None:
    """What was imported stays: full collections, as accelerate asks for after a training, need not look at it all."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or libraries complain at the exit of what was never freed
    SERVER.stop()
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """An empty Hub with two users, alice (token hf_alice) and bob (hf_bob), and an empty cache to download into."""
    from huggingface_hub import constants
    from huggingface_hub.hf_file_system import HfFileSystem

    SERVER.reset()
    SERVER.add_user("alice", token="hf_alice")
    SERVER.add_user("bob", token="hf_bob")
    # read at each call, so that it can change after the import, where no `cache_dir` is given
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    # fsspec keeps file systems and their listings for the life of the process: the last test's repos
    HfFileSystem.clear_instance_cache()
    yield SERVER
    SERVER.clear_faults()


@pytest.fixture(scope="module", autouse=True)
def no_precision_is_left_behind() -> Iterator[None]:
    """A Trainer sets the precision of the whole process: with bf16 of one file, the next one would train."""
    yield
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Server"]:
    """Runs recipes in processes that have imported them already; one for all files, as it takes seconds to start."""
    from support.launching import Server

    found = Server(tmp_path_factory.mktemp("server"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def shared() -> Path:
    """../shared: reference numbers, CIFAR-10, trained weights. A clone does not have it."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not here: reference numbers, data sets and weights that the repository does not ship")
    return SHARED


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, /…/anna/project, in the home of anna."""
    home = tmp_path / "anna"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "project")
    return home / "project"
