"""load_images: any images do, with labels or without; the same seed draws the same ones."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from hf_px.data import load_images
from hf_px.models.networks import resnet20


def picture(value: int) -> Image.Image:
    return Image.fromarray(np.full((8, 8, 3), value, dtype=np.uint8))


def grey_values(batches: list[torch.Tensor]) -> list[float]:
    return sorted(round(float(x.mean()), 4) for batch in batches for x in batch)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    """The same forty images as a bare folder, as folders of classes, and as a table without labels."""
    bare, classes = tmp_path / "bare", tmp_path / "classes"
    bare.mkdir()
    for name in ("a", "b"):
        (classes / name).mkdir(parents=True)
    for i in range(40):
        picture(6 * i).save(bare / f"{i}.png")
        picture(6 * i).save(classes / "ab"[i % 2] / f"{i}.png")
    table = datasets.Dataset.from_dict({"image": [picture(6 * i) for i in range(40)]})
    table = table.cast_column("image", datasets.Image())
    table.to_parquet(str(tmp_path / "table.parquet"))
    return {"bare": str(bare), "classes": str(classes), "table": str(tmp_path / "table.parquet")}


def test_a_folder_folders_of_classes_and_a_table_give_the_same_images(sources: dict[str, str]) -> None:
    found = {name: load_images(source, resnet20(10), 512) for name, source in sources.items()}
    assert [len(batch) for batch in found["bare"]] == [20, 20]  # of equal size, for batch norm's sake
    values = grey_values(found["bare"])
    assert len(set(values)) == 40
    assert grey_values(found["classes"]) == grey_values(found["table"]) == values


def test_a_seed_draws_the_same_images_and_another_seed_others(sources: dict[str, str]) -> None:
    first, again, other = (grey_values(load_images(sources["bare"], resnet20(10), 9, seed)) for seed in (0, 0, 1))
    assert len(first) == len(set(first)) == 9  # without repetition
    assert first == again != other


def test_what_is_missing_is_named(sources: dict[str, str], tmp_path: Path) -> None:
    model = resnet20(10)
    with pytest.raises(ValueError, match="no split 'night'"):
        load_images(sources["bare"], model, 9, split="night")
    with pytest.raises(ValueError, match="photo"):
        load_images(sources["table"], model, 9, image_column="photo")
    with pytest.raises(ValueError, match="no such file"):
        load_images(str(tmp_path / "nowhere"), model, 9)
