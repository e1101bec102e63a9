"""recipes/tradeoff.py: a kept run's mask is found again by its settings, timed, and drawn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from support.launching import REPO, recipe_module

KEPT = REPO / "model_cards" / "results"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The recipe, with one kept run, pruned without data, in place of all."""
    found = recipe_module(REPO / "recipes" / "tradeoff.py")
    run = "cifar10_resnet20_short_head/magnitude-0.982-s0"
    (tmp_path / run).mkdir(parents=True)
    shutil.copy(KEPT / run / "results.json", tmp_path / run)
    monkeypatch.setattr(found, "KEPT", tmp_path)
    return found


@pytest.mark.slow
def test_a_run_is_timed_by_its_mask_found_again(recipe: ModuleType, tmp_path: Path) -> None:
    ((directory, found),) = recipe.runs(["cifar10_resnet20_short_head"], None)
    assert " ms, dense " in recipe.measure((directory, found))
    speed = json.loads((directory / "speed.json").read_text())
    assert speed["digest"] == found["mask"]["digest"] and 0 < speed["sparse_ms"] < speed["dense_ms"]
    assert speed["bytes"] < 40_000
    ((ms, kilobytes, accuracy),) = recipe.points()["magnitude, head kept"]
    assert (ms, kilobytes) == (speed["sparse_ms"], speed["bytes"] / 1e3)
    assert accuracy == 100 * found["results"]["ticket"]["accuracy"]
    assert recipe.picture() == recipe.picture() and recipe.picture().startswith("<svg")


def test_another_mask_is_left_out(recipe: ModuleType) -> None:
    ((directory, found),) = recipe.runs(["cifar10_resnet20_short_head"], ["magnitude"])
    other = found | {"mask": found["mask"] | {"digest": "0" * 64}}
    assert recipe.measure((directory, other)) == "another mask on this machine; left out"
    assert not (directory / "speed.json").exists()
    assert not list(recipe.runs(["cifar10_resnet20_short_head"], ["px"]))
    with pytest.raises(ValueError, match="holds no runs"):
        list(recipe.runs(["nothing"], None))


def test_the_picture_is_of_the_runs_that_are_kept() -> None:
    """Each speed.json is of its run's mask, and the picture is drawn from them."""
    recipe = recipe_module(REPO / "recipes" / "tradeoff.py")
    for path in KEPT.glob("*/*/speed.json"):
        run = json.loads((path.parent / "results.json").read_text())
        assert json.loads(path.read_text())["digest"] == run["mask"]["digest"], path
    assert recipe.PICTURE.read_text() == recipe.picture()
