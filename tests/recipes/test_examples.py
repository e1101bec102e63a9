"""The tickets under model_cards/examples are what their cards say, measured again on data that ships beside them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from support.launching import REPO, recipe_module

import hf_px
from hf_px.data import Data, TestImages, data_config, open_data
from hf_px.models.remote import Source
from hf_px.tickets.card import SPEED
from hf_px.tickets.verify import verify

HOME = REPO / "model_cards" / "examples"
EXAMPLES = sorted(path.parent for path in HOME.glob("*/config.json"))
ON_CIFAR = [path for path in EXAMPLES if "cifar10" in path.name]
each = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
each_on_cifar = pytest.mark.parametrize("example", ON_CIFAR, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return recipe_module(REPO / "recipes" / "examples.py")


def right(model: torch.nn.Module, data: Data) -> tuple[int, int]:
    """By a plain loop, one image at a time into batches of 200."""
    images = TestImages(data, data_config(model))
    found = 0
    for start in range(0, len(images), 200):
        pairs = [images[i] for i in range(start, min(start + 200, len(images)))]
        with torch.no_grad():
            answers = model(torch.stack([torch.as_tensor(x) for x, _ in pairs])).argmax(1)
        found += int((answers == torch.tensor([int(y) for _, y in pairs])).sum())
    return found, len(images)


@each
def test_it_is_sound_and_its_card_is_up_to_date(example: Path, tmp_path: Path) -> None:
    assert list(verify(Source.of(example)))
    (tmp_path / SPEED).write_bytes((example / SPEED).read_bytes())  # the card shows it
    hf_px.Ticket.from_pretrained(example).save_pretrained(tmp_path, layout="packed")
    for path in example.iterdir():
        if path.is_file() and path.name != "results.json":
            assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


@each
def test_the_numbers_on_the_card_are_those_of_the_run(example: Path) -> None:
    recorded = json.loads((example / "results.json").read_text())
    ticket = hf_px.Ticket.from_pretrained(example)
    runs_own = [r for r in ticket.config["results"] if r["dataset_name"] == recorded["data"]["title"]]
    found = {r["metric"]: (r["value"], r["dense"]) for r in runs_own}
    assert found == {
        m: (v, recorded["results"]["dense"][m]) for m, v in recorded["results"]["ticket"].items() if m != "loss"
    }
    assert recorded["finished"] and recorded["mask"]["digest"] == ticket.mask.digest()


def test_the_digits_are_counted_again() -> None:
    ticket = hf_px.Ticket.from_pretrained(HOME / "resnet20-digits-px-path-98")
    accuracy = next(r["value"] for r in ticket.config["results"] if r["metric"] == "accuracy")
    found, count = right(ticket.to_model(), open_data("digits"))
    # one image either way: the last digits of a convolution differ between machines
    assert count == 360 and abs(found - accuracy * count) <= 1.01


@each_on_cifar
def test_the_slice_is_counted_again(example: Path, recipe: ModuleType) -> None:
    ticket = hf_px.Ticket.from_pretrained(example)
    (recorded,) = (r for r in ticket.config["results"] if r["dataset_name"] == recipe.TITLE)
    data = open_data(str(HOME / "cifar10-slice" / "test.parquet"), train_split="test", need_test=False)
    found, count = right(ticket.to_model(), Data(**{**vars(data), "test": data.train}))
    assert count == 300 and abs(found - recorded["value"] * count) <= 1.01
    assert f"| {recipe.TITLE} |" in (example / "README.md").read_text()


def test_an_example_is_the_runs_ticket_with_one_more_line_on_its_card(recipe: ModuleType, tmp_path: Path) -> None:
    run = HOME / "resnet20-digits-px-path-98"  # it knows no objects, and the card says so
    recipe.copy_with_slice(run, tmp_path / "copy")
    old, new = (hf_px.Ticket.from_pretrained(path) for path in (run, tmp_path / "copy"))
    *kept, added = new.config["results"]
    assert kept == old.config["results"] and 0.02 < added["value"] < 0.3
    assert new.mask == old.mask and new.config["settings"] == old.config["settings"]
    assert (tmp_path / "copy" / "results.json").read_bytes() == (run / "results.json").read_bytes()
    assert recipe.TITLE in (tmp_path / "copy" / "README.md").read_text()


def test_the_first_of_each_class(recipe: ModuleType) -> None:
    assert recipe.first_of_each_class(torch.tensor([1, 0, 1, 1, 0, 2, 0]), 2) == [0, 1, 2, 4, 5]


@each
def test_its_report_is_of_this_ticket(example: Path) -> None:
    recorded = json.loads((example / "report" / "report.json").read_text())
    facts = {row[""]: row[example.name] for row in recorded["facts"]}
    mask = hf_px.Ticket.from_pretrained(example).mask
    assert facts["weights kept"] == f"{mask.kept:,} of {mask.total:,}"
    assert all((example / "report" / name).is_file() for name in recorded["files"])


def test_the_slice_is_the_first_thirty_of_each_class_of_the_test_set(shared: Path) -> None:
    import datasets

    small = datasets.load_dataset("parquet", data_files=str(HOME / "cifar10-slice" / "test.parquet"), split="train")
    whole = datasets.load_dataset(
        "parquet", data_files=str(shared / "data" / "cifar10" / "test-*.parquet"), split="train"
    )
    seen: dict[int, int] = {}
    places = []
    for place, label in enumerate(whole["label"]):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= 30:
            places.append(place)
    assert len(small) == len(places) == 300 and small.features["label"].names == whole.features["label"].names
    for row, place in zip(small, places):
        assert row["label"] == whole[place]["label"]
        assert np.array_equal(np.array(row["img"]), np.array(whole[place]["img"]))


@pytest.mark.slow
@each_on_cifar
def test_the_whole_test_set_is_counted_again(example: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where the run measured in bfloat16: a tenth of a point either way."""
    monkeypatch.setenv("HF_PX_DATA", str(shared / "data"))
    ticket = hf_px.Ticket.from_pretrained(example)
    recorded = json.loads((example / "results.json").read_text())["results"]["ticket"]
    found, count = right(ticket.to_model(), open_data("cifar10"))
    assert count == 10_000 and abs(found / count - recorded["accuracy"]) < 2e-3
