"""Splits that are parts of others: the rows that the package datasets itself gives for the same name."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hf_px.data import open_data
from hf_px.data.sampling import held_out


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images, of one colour each, of two classes that alternate; a test split of 8."""
    place = tmp_path_factory.mktemp("table")
    for name, count in (("train", 40), ("test", 8)):
        rows = {
            "image": [Image.new("RGB", (4, 4), (i, 0, 0)) for i in range(count)],
            "label": [i % 2 for i in range(count)],
        }
        made = datasets.Dataset.from_dict(rows, features=datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
        ))  # fmt: skip
        made.to_parquet(place / f"{name}-00000-of-00001.parquet")
    return place


def rows(split) -> list[int]:
    return [split.image(index).getpixel((0, 0))[0] for index in range(len(split))]


@pytest.mark.parametrize("name", ["train[80%:]", "train[:25%]", "train[10:20]", "train[-7:]", "test[50%:]"])
def test_a_slice_is_that_of_datasets_and_is_not_trained_on(table: Path, name: str) -> None:
    data = open_data(str(table), test_split=name)
    expected = [image.getpixel((0, 0))[0] for image in datasets.load_dataset(str(table), split=name)["image"]]
    assert rows(data.test) == expected and data.test_split == name
    left = set(range(40)) - (set(expected) if name.startswith("train") else set())
    assert rows(data.train) == sorted(left)


def test_two_slices_may_be_named_but_not_overlap(table: Path) -> None:
    data = open_data(str(table), train_split="train[:50%]", test_split="train[80%:]")
    assert (rows(data.train), rows(data.test)) == (list(range(20)), list(range(32, 40)))
    with pytest.raises(ValueError, match=r"`train_split` 'train\[:90%\]' and `test_split` .* have 4 rows in common"):
        open_data(str(table), train_split="train[:90%]", test_split="train[80%:]")
    with pytest.raises(ValueError, match="8 rows in common"):
        open_data(str(table), train_split="train", test_split="train[80%:]")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("train[80%", "split 'train\\[80%'.*write for example train\\[80%:\\]"),
        ("train[40:]", "is empty; train has 40 rows"),
        ("trian[80%:]", "no split 'trian\\[80%:\\]'; it has train, test"),
    ],
)
def test_a_wrong_slice_is_refused(table: Path, name: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        open_data(str(table), test_split=name)


def test_a_slice_to_evaluate_on(table: Path) -> None:
    assert rows(open_data(str(table), test_split="train[80%:]", need_train=False).test) == list(range(32, 40))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.floats(0.01, 0.99), st.integers(0, 3))
def test_the_same_part_of_every_class_is_held_out(labels: list[int], share: float, seed: int) -> None:
    found = torch.tensor(labels)
    rest, held = held_out(found, share, seed)
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(len(labels)))
    for label in set(labels):
        count, taken = labels.count(label), int((found[held] == label).sum())
        assert taken < count  # something is left to train on
        assert taken == 0 if count == 1 else taken >= 1 and abs(taken - share * count) <= 1
    again = held_out(found, share, seed)
    assert all(torch.equal(one, other) for one, other in zip((rest, held), again))
