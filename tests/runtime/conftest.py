"""Plans of these tests are kept in their own folders, and tuning is quick: how fast a choice is changes no result."""

import pytest

from hf_px.runtime import tuning


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """The folder of HF_PX_CACHE."""
    folder = tmp_path_factory.mktemp("hf-px-cache")
    monkeypatch.setenv("HF_PX_CACHE", str(folder))
    monkeypatch.setattr(tuning, "_REPEATS", 1)
    return folder
