"""One place for what all tests share: no network, a cache of their own, ../shared if it is there."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# read when huggingface_hub and datasets are imported, so set before any test file is
os.environ["HF_HUB_OFFLINE"] = "1"
_CACHE = tempfile.mkdtemp(prefix="hf-px-datasets-")
os.environ["HF_DATASETS_CACHE"] = _CACHE
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
# read by torch: one thread per process. Beside another busy process, two threads on two cores wait for each other
# at every small operation, and tests take five times as long
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("hf_px", deadline=None)  # how long torch takes says nothing about a law
settings.load_profile("hf_px")

REPO = Path(__file__).resolve().parents[1]


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def shared() -> Path:
    """../shared: reference numbers, CIFAR-10, trained weights. A clone does not have it."""
    path = REPO.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"{path} is not here: reference numbers, data sets and weights that the repository does not ship")
    return path
