"""Pictures with masks: opened from every place, each mask checked by name, picture and mask always moved together."""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hf_px.data import PRESETS, Data, Pairs, Split, TestPairs, TrainPairs, load_pruning_set, open_data, pair_batches
from hf_px.data.labelled_split import ReadArray
from hf_px.data.presets import ScaleCrop
from hf_px.data.segmentation.datasets import draw_pairs
from hf_px.data.segmentation.letterbox import Letterbox

COLOURS = np.array([(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255)], np.uint8)
NONE = (255, 0, 255)  # what a pixel without a class is painted in


def expects(height: int, width: int | None = None, **more) -> dict:
    """Pixels from 0 to 1 about a mean of a half, so that a test can read them and padding is not black."""
    return {"input_size": (3, height, width or height), "mean": (0.5,) * 3, "std": (1.0,) * 3, **more}


def blobs(width: int, height: int, seed: int = 0, classes: int = 5, cell: int = 12) -> np.ndarray:
    """Squares of classes, and of none."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, classes + 1, (-(-height // cell), -(-width // cell)))
    coarse[coarse == classes] = 255
    coarse[0, 0] = classes - 1
    return np.kron(coarse, np.ones((cell, cell)))[:height, :width].astype(np.uint8)


def painted(mask: np.ndarray) -> Image.Image:
    """The picture that shows its mask."""
    picture = np.full((*mask.shape, 3), NONE, np.uint8)
    picture[mask != 255] = COLOURS[mask[mask != 255] % len(COLOURS)]
    return Image.fromarray(picture)


def write(folder: Path, masks: Sequence[np.ndarray]) -> None:
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i, mask in enumerate(masks):
        painted(mask).save(folder / "images" / f"p{i}.png")
        Image.fromarray(mask).save(folder / "masks" / f"p{i}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("masks")
    write(root / "train", [blobs(60, 40, 0), blobs(30, 70, 1), blobs(20, 20, 2), blobs(61, 33, 3)])
    write(root / "val", [blobs(50, 45, 4), blobs(24, 24, 5)])
    return root


@pytest.fixture(scope="module")
def data(folder: Path) -> Data[Pairs]:
    return open_data(str(folder), task="segmentation")


def as_read(pairs: Pairs) -> list[tuple[bytes, bytes]]:
    return [(pairs.image(i).tobytes(), pairs.label_map(i).tobytes()) for i in range(len(pairs))]


# where they come from


def test_two_folders_for_a_split(folder: Path, data: Data[Pairs]) -> None:
    assert (data.name, data.dataset, data.title) == (str(folder), folder.name, folder.name)
    assert (data.classes, data.test_split, data.preset) == (tuple("01234"), "val", None)
    assert (len(data.train), len(data.test), data.train.size) == (4, 2, (60, 40))
    for index, mask in enumerate([blobs(60, 40, 0), blobs(30, 70, 1), blobs(20, 20, 2), blobs(61, 33, 3)]):
        assert data.train.label_map(index).dtype == np.uint8
        assert np.array_equal(data.train.label_map(index), mask)
        assert np.array_equal(np.asarray(data.train.image(index)), np.asarray(painted(mask)))
        assert set(data.train.classes_in(index)) == set(mask.flatten().tolist()) - {255}
        assert list(data.train.classes_in(index)) == sorted(data.train.classes_in(index))
        assert data.train.images.name(index) == str(folder / "train" / "images" / f"p{index}.png")
    with pytest.raises(IndexError, match="image 4 of 4"):
        data.train.image(4)
    alone = open_data(str(folder), task="segmentation", need_test=False)
    assert (len(alone.test), alone.test_split, alone.test.size) == (0, "", (0, 0))


def test_classes_by_name_by_number_or_as_many_as_occur(folder: Path, tmp_path: Path) -> None:
    assert open_data(str(folder), task="segmentation", num_classes=9).classes == tuple("012345678")
    write(tmp_path / "train", [blobs(20, 20)])
    write(tmp_path / "test", [np.full((9, 9), 5, np.uint8)])  # the highest label of all is in the other split
    (tmp_path / "test" / "masks" / ".DS_Store").touch()
    assert open_data(str(tmp_path), task="segmentation").classes == tuple("012345")
    (tmp_path / "classes.txt").write_text("sky\ncat\ndog\n\ncow\nsheep\nhen\n")
    assert open_data(str(tmp_path), task="segmentation", num_classes=9).classes[2:4] == ("dog", "cow")
    for text, complaint in {"": "is empty", "a\nb\na": "two classes are called 'a'"}.items():
        (tmp_path / "classes.txt").write_text(text)
        with pytest.raises(ValueError, match=rf"classes.txt: {complaint}"):
            open_data(str(tmp_path), task="segmentation")
    (tmp_path / "classes.txt").write_text("sky\ncat\ndog\ncow\nsheep")
    with pytest.raises(ValueError, match=r"test/masks/p0.png: label 5, but there are 5 classes, 0 to 4"):
        open_data(str(tmp_path), task="segmentation")


@pytest.mark.parametrize("inside", ["", "VOC2012", "VOCdevkit/VOC2012"])
def test_the_tree_that_voc_comes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    root = tmp_path / "voc2012" / inside
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / name).mkdir(parents=True)
    masks = [blobs(30, 20, seed) for seed in range(4)]
    for i, mask in enumerate(masks):
        painted(mask).save(root / "JPEGImages" / f"2007_{i}.jpg")
        palette = Image.fromarray(mask)
        palette.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
        assert palette.mode == "P"
        palette.save(root / "SegmentationClass" / f"2007_{i}.png")
    painted(masks[0]).save(root / "JPEGImages" / "only_detection.jpg")  # most of VOC's pictures have no mask
    painted(masks[0]).save(root / "JPEGImages" / "2008_0.jpg")
    for split, stems in {"train": "2007_2\n2007_0\n", "val": "2007_3\n", "test": "2008_0\n"}.items():
        (root / "ImageSets" / "Segmentation" / f"{split}.txt").write_text(stems)
    found = open_data(str(tmp_path / "voc2012"), task="segmentation")
    assert [np.array_equal(found.train.label_map(i), masks[j]) for i, j in enumerate((2, 0))] == [True, True]
    assert (found.test_split, len(found.test)) == ("val", 1)  # the masks of its test split are not public
    assert found.preset is None  # a path is a path

    monkeypatch.setenv("HF_PX_DATA", str(tmp_path))
    found = open_data("voc2012", task="segmentation")
    preset = PRESETS["voc2012"]
    assert (found.preset, found.dataset, found.title) == (preset, "nateraw/pascal-voc-2012", "Pascal VOC 2012")
    assert (len(found.classes), found.classes[0], found.classes[20]) == (21, "background", "tvmonitor")
    (root / "SegmentationClass" / "2007_0.png").unlink()
    with pytest.raises(ValueError, match=r"2007_0.jpg: has no label map; there is no .*2007_0.png"):
        open_data("voc2012", task="segmentation")
    (root / "JPEGImages" / "2007_2.jpg").unlink()
    with pytest.raises(ValueError, match=r"2007_2.jpg: no such image, but .*train.txt lists it"):
        open_data("voc2012", task="segmentation")


def table(masks: Sequence[np.ndarray], image: str = "image", mask: str = "mask", **more: list) -> datasets.Dataset:
    rows = {image: [painted(m) for m in masks], mask: [Image.fromarray(m) for m in masks], **more}
    made = datasets.Dataset.from_dict(rows)
    for column in (image, mask):
        made = made.cast_column(column, datasets.Image())
    return made


def test_columns_of_what_save_to_disk_wrote(tmp_path: Path, data: Data[Pairs]) -> None:
    splits = {
        name: table([part.label_map(i) for i in range(len(part))], label=[7] * len(part))  # whole numbers are no masks
        for name, part in {"train": data.train, "val": data.test}.items()
    }
    splits["test"] = datasets.Dataset.from_dict({"image": [painted(blobs(8, 8))], "mask": [None], "label": [0]})
    splits["test"] = splits["test"].cast(splits["train"].features)
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    found = open_data(str(tmp_path / "saved"), task="segmentation")
    assert as_read(found.train) == as_read(data.train)
    assert as_read(found.test) == as_read(data.test)
    assert (found.classes, found.test_split) == (data.classes, "val")  # test has no mask
    assert found.train.images.name(3) == "split train, row 3, column image"
    assert list(found.train.digest_parts()) == list(data.train.digest_parts())
    assert isinstance(open_data(str(tmp_path / "saved")).train, Split)  # it has labels too
    with pytest.raises(ValueError, match="split test, row 0, column mask: the row is empty"):
        open_data(str(tmp_path / "saved"), task="segmentation", test_split="test")


@pytest.mark.parametrize("column", ["mask", "label", "annotation", "segmentation_mask", "truth"])
def test_columns_of_a_parquet_file(tmp_path: Path, data: Data[Pairs], column: str) -> None:
    path = tmp_path / "all.parquet"
    masks = [data.train.label_map(i) for i in range(4)]
    table(masks, mask=column, scene=["x"] * 4).to_parquet(path)
    found = open_data(str(path), task="segmentation", need_test=False)
    assert as_read(found.train) == as_read(data.train)
    with pytest.raises(
        ValueError, match=rf"{column!r} holds images: label maps are for" if column != "truth" else "label"
    ):
        open_data(str(path), need_test=False)


def test_columns_are_asked_for_where_there_is_a_choice(tmp_path: Path) -> None:
    path = str(tmp_path / "all.parquet")
    masks = [blobs(8, 8)]
    both = table(masks, mask="left", right=[Image.fromarray(mask) for mask in masks])
    both.cast_column("right", datasets.Image()).to_parquet(path)
    options = {"task": "segmentation", "need_test": False}
    with pytest.raises(ValueError, match=r"no column of label maps found: .*image, left, right: .*`label_column`"):
        open_data(path, **options)
    assert np.array_equal(open_data(path, label_column="right", **options).train.label_map(0), masks[0])
    for column, complaint in {"image": "holds the images themselves", "up": "is not in the data"}.items():
        with pytest.raises(
            ValueError, match=rf"`label_column` '{column}' {complaint}; the data has image, left, right"
        ):
            open_data(path, label_column=column, **options)
    with pytest.raises(ValueError, match="'left' holds images: label maps are for segmentation"):
        open_data(path, label_column="left", need_test=False)


def test_each_task_says_what_fits_it(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"data digits: .* has one label per image; .*needs label maps.*voc2012"):
        open_data("digits", task="segmentation")
    with pytest.raises(ValueError, match=r"data voc2012: .* has a label map per image; .*needs labels.* cifar10"):
        open_data("voc2012")
    with pytest.raises(ValueError, match=r"it has a label map per image; .*needs labels"):
        open_data(str(folder))
    with pytest.raises(ValueError, match=r"noise, .*use voc2012"):
        open_data("random", task="segmentation")
    rows = datasets.Dataset.from_dict({"image": [painted(blobs(8, 8))], "label": [0]})
    rows = rows.cast_column("image", datasets.Image()).cast_column("label", datasets.ClassLabel(names=["a"]))
    rows.to_parquet(tmp_path / "labels.parquet")
    with pytest.raises(ValueError, match=r"column 'label' holds labels, not label maps.*`label_column`"):
        open_data(str(tmp_path / "labels.parquet"), task="segmentation")
    for name in ("cat", "dog"):
        (tmp_path / "classes" / "train" / name).mkdir(parents=True)
        painted(blobs(8, 8)).save(tmp_path / "classes" / "train" / name / "0.png")
    with pytest.raises(ValueError, match="column 'label' holds labels, not label maps"):
        open_data(str(tmp_path / "classes"), task="segmentation")


# what is refused


def spoil(folder: Path, masks: Sequence[np.ndarray] = (blobs(20, 16),)) -> Path:
    write(folder / "train", [blobs(20, 16), *masks])
    write(folder / "val", [blobs(20, 16)])
    return folder / "train" / "masks" / "p1.png"


def refused(folder: Path, complaint: str, **options) -> None:
    with pytest.raises(ValueError, match=complaint) as error:
        open_data(str(folder), task="segmentation", **options)
    assert "\n" not in str(error.value)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "size": (lambda p: Image.new("L", (16, 20)).save(p), "the label map is 16 x 20, its image 20 x 16"),
    "label": (lambda p: Image.new("L", (20, 16), 21).save(p), "label 21, but there are 21 classes, 0 to 20; 255 is"),
    "RGB": (lambda p: Image.new("RGB", (20, 16)).save(p), "an RGB image, not a label map: each pixel must hold"),
    "RGBA": (lambda p: Image.new("RGBA", (20, 16)).save(p), "an RGBA image, not a label map"),
    "LA": (lambda p: Image.new("LA", (20, 16)).save(p), "an LA image, not a label map"),
    "I;16": (lambda p: Image.new("I;16", (20, 16), 300).save(p), "a pixel holds 300; classes are 0 to 254"),
    "noise": (lambda p: p.write_bytes(b"no picture"), "the label map cannot be read: cannot identify"),
    "empty": (lambda p: p.write_bytes(b""), "the label map cannot be read"),
    "short": (lambda p: p.write_bytes(p.read_bytes()[:-30]), "the label map cannot be read"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_bad_mask_is_named(tmp_path: Path, kind: str, split: str) -> None:
    path = spoil(tmp_path)
    if split == "val":
        path = tmp_path / "val" / "masks" / "p0.png"
    change, complaint = BAD[kind]
    change(path)
    refused(tmp_path, rf"{split}/masks/{path.name}: {complaint}", num_classes=21)
    if split == "val":
        open_data(str(tmp_path), task="segmentation", num_classes=21, need_test=False)  # nobody asked for it


@pytest.mark.parametrize("kind", [kind for kind in BAD if kind != "short"])
def test_a_bad_mask_in_a_row_is_named(tmp_path: Path, kind: str) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.fromarray(blobs(20, 16)).save(good)
    change, complaint = BAD[kind]
    change(bad)
    picture = tmp_path / "picture.png"
    painted(blobs(20, 16)).save(picture)
    made = {
        "image": [{"bytes": picture.read_bytes()}] * 2,
        "mask": [{"bytes": path.read_bytes()} for path in (good, bad)],
    }
    datasets.Dataset.from_dict(made).to_parquet(tmp_path / "rows.parquet")
    refused(
        tmp_path / "rows.parquet", rf"split train, row 1, column mask: {complaint}", num_classes=21, need_test=False
    )


def test_a_partner_that_is_missing_is_named(tmp_path: Path) -> None:
    train = spoil(tmp_path).parent.parent
    (train / "masks" / "p1.png").rename(train / "masks" / "q1.png")
    refused(tmp_path, r"train/images/p1.png: has no label map; there is no .*train/masks/p1.png")
    (train / "images" / "p1.png").unlink()
    refused(tmp_path, r"train/masks/q1.png: has no image; there is no .*train/images/q1.jpg")
    (train / "masks" / "q1.png").unlink()
    painted(blobs(20, 16)).save(train / "images" / "p0.webp")
    refused(tmp_path, r"train/images/p0.webp: p0.png has the same stem")
    (train / "images" / "p0.webp").unlink()
    (train / "images" / "p0.png").write_bytes(b"no picture")
    refused(tmp_path, r"train/images/p0.png: the image cannot be read")


def test_a_folder_without_pictures_is_named(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    refused(tmp_path / "none", "label maps are expected in <split>/masks .*JPEGImages")
    write(tmp_path / "empty" / "train", [])
    refused(tmp_path / "empty", r"train/images: no jpg, png or webp image", need_test=False)
    refused(tmp_path / "empty", r"no split 'dev'; it has train: .*`train_split`", train_split="dev")
    refused(tmp_path / "empty", "no test split with labels: none of test, validation, valid, val")
    spoil(tmp_path / "full")
    refused(tmp_path / "full", "`test_split` 'train' is the training split", test_split="train")
    refused(tmp_path / "full", "omit `image_column` and `label_column`", label_column="mask")
    for count in (0, 256):
        refused(tmp_path / "full", f"{count} classes; there may be 1 to 255", num_classes=count)


def test_masks_without_a_class_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train", [np.full((8, 8), 255, np.uint8)] * 2)
    refused(tmp_path, "split 'train': no pixel of its label maps has a class: all hold 255", need_test=False)
    write(tmp_path / "train", [np.full((8, 8), 255, np.uint8), np.eye(8, dtype=np.uint8) * 255])
    refused(tmp_path, "class 0 is the only one in its label maps; if 255 should be the second class", need_test=False)
    assert open_data(str(tmp_path), task="segmentation", need_test=False, num_classes=2).train.classes_in(0) == ()


# what is read


def grey_png(pixels: np.ndarray, bits: int) -> bytes:
    """A grey png of few bits, which Pillow reads and does not write."""
    height, width = pixels.shape
    flat = (pixels[..., None] >> np.arange(bits)[::-1] & 1).reshape(height, -1).astype(np.uint8)
    lines = b"".join(b"\0" + np.packbits(line).tobytes() for line in flat)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["1", "L", "P", "P4", "I;16", "I", "grey 1", "grey 2", "grey 4"])
def test_numbers_stay_as_they_are_in_any_mode(tmp_path: Path, kind: str) -> None:
    high = {"1": 2, "grey 1": 2, "grey 2": 4, "grey 4": 16, "P4": 16}.get(kind, 200)
    mask = np.random.default_rng(0).integers(0, high, (16, 21)).astype(np.uint8)
    mask[0, 0] = high - 1
    path = spoil(tmp_path, [mask])
    if kind.startswith("grey"):
        path.write_bytes(grey_png(mask, int(kind[5:])))
    elif kind.startswith("P"):
        image = Image.fromarray(mask)
        image.putpalette(bytes(range(255, -1, -1)) * 3)
        image.save(path, bits=4 if kind == "P4" else 8)
    elif kind == "1":
        Image.fromarray(mask.astype(bool)).save(path)
    elif kind == "I":
        path.unlink()
        Image.fromarray(mask.astype(np.int32)).save(path, "TIFF")  # Pillow looks into the file, not at its name
    else:
        Image.fromarray(mask.astype(np.uint16) if kind == "I;16" else mask).save(path)
    painted(blobs(21, 16)).save(tmp_path / "train" / "images" / "p1.png")
    found = open_data(str(tmp_path), task="segmentation", num_classes=200)
    assert np.array_equal(found.train.label_map(1), mask)
    assert found.train.classes_in(1) == tuple(np.unique(mask).tolist())


@pytest.mark.parametrize("way", ["files", "columns"])
def test_neither_picture_nor_mask_is_turned(tmp_path: Path, way: str) -> None:
    """A camera's note that says: turn me by a quarter. The mask has none."""
    exif = Image.Exif()
    exif[0x0112] = 6
    spoil(tmp_path)
    picture = tmp_path / "train" / "images" / "p1.png"
    painted(blobs(20, 16)).save(picture, exif=exif)
    source = tmp_path
    if way == "columns":
        files = [picture, tmp_path / "train" / "masks" / "p1.png"]
        made = {name: [{"bytes": file.read_bytes()}] for name, file in zip(("image", "mask"), files)}
        source = tmp_path / "rows.parquet"
        datasets.Dataset.from_dict(made).to_parquet(source)
    pairs = open_data(str(source), task="segmentation", need_test=False).train
    assert pairs.image(len(pairs) - 1).tobytes() == painted(blobs(20, 16)).tobytes()


def test_a_split_goes_to_workers_by_name(data: Data[Pairs]) -> None:
    data.train.image(0)
    packed = pickle.dumps(data.train)
    assert len(packed) < 2000 + 300 * len(data.train)
    copy = pickle.loads(packed)
    assert as_read(copy) == as_read(data.train)
    assert copy.classes_in(2) == data.train.classes_in(2)


def test_a_cache_knows_the_data_by_its_parts(folder: Path, data: Data[Pairs], tmp_path: Path) -> None:
    parts = list(data.train.digest_parts())
    assert parts == list(open_data(str(folder), task="segmentation").train.digest_parts())
    assert len(parts) == 1 + 2 * 4
    write(tmp_path / "train", [data.train.label_map(i) for i in range(4)])
    mask = data.train.label_map(2).copy()
    mask[:2] = mask[:2][:, ::-1]
    Image.fromarray(mask).save(tmp_path / "train" / "masks" / "p2.png")
    assert list(open_data(str(tmp_path), task="segmentation", need_test=False).train.digest_parts()) != parts
    write(tmp_path / "many" / "train", [blobs(6, 6, seed) for seed in range(40)])
    many = open_data(str(tmp_path / "many"), task="segmentation", need_test=False).train
    assert 1 + 2 * 13 <= len(list(many.digest_parts())) <= 1 + 2 * 16
    # of a Split: labels, then images, in the order of old, so that caches from before are found
    pixels = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 3), dtype=np.uint8)
    split = Split(torch.arange(40), ReadArray(pixels))
    wanted = [torch.arange(40).numpy().tobytes(), *(pixels[i].tobytes() for i in range(0, 40, 3))]
    assert list(split.digest_parts()) == wanted
    assert list(Split(torch.arange(0), ReadArray(pixels)).digest_parts()) == [b""]


# as a training loop sees them


def agree(x: Tensor, y: Tensor) -> int:
    """Where a pixel and all around it have one label, the picture shows that label's colour. How many do."""
    colours = COLOURS.astype(np.float32) / 255 - 0.5
    labels = y.numpy()
    known = np.pad(labels, 2, constant_values=-1)  # beyond the crop there may be another
    views = [known[i : i + labels.shape[0], j : j + labels.shape[1]] for i in range(5) for j in range(5)]
    inside = np.all([view == labels for view in views], axis=0) & (labels != 255)
    shown = x.permute(1, 2, 0).numpy()
    assert np.abs(shown[inside] - colours[labels[inside]]).max(initial=0) < 0.01
    return int(inside.sum())


def test_picture_and_mask_move_together(data: Data[Pairs]) -> None:
    for size in ((48, 48), (64, 40), (25, 70)):
        train, looked_at = TrainPairs(data, expects(*size), seed=0), []
        for epoch in range(12):
            for index in (0, 1, 3):
                x, y = train[(epoch, index)]
                assert (x.shape, x.dtype, y.shape, y.dtype) == ((3, *size), torch.float32, size, torch.int64)
                looked_at.append(agree(x, y))
        assert np.mean(looked_at) > 200  # else this looks at nothing
        test = TestPairs(data, expects(*size))
        for index in range(len(test)):
            assert agree(*test[index]) > 10


def ramp(tmp_path: Path, width: int, height: int) -> Data[Pairs]:
    """One picture: red says how far right a pixel is, green how far down; the mask is 1 in the left third."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[..., 0] = np.linspace(0, 255, width).round()
    picture[..., 1] = np.linspace(0, 255, height).round()[:, None]
    picture[..., 2] = 255
    mask = np.zeros((height, width), np.uint8)
    mask[:, : width // 3] = 1
    write(tmp_path / "train", [mask])
    Image.fromarray(picture).save(tmp_path / "train" / "images" / "p0.png")
    return open_data(str(tmp_path), task="segmentation", need_test=False)


@pytest.mark.parametrize(("side", "fits"), [(128, 1.0), (50, 0.5)])
def test_scale_crop_and_flip(tmp_path: Path, side: int, fits: float) -> None:
    """Read off the ramp: the scale is 0.5 to 2 times Fit's own, crops reach every edge, half are mirrored."""
    train = TrainPairs(ramp(tmp_path, 100, 80), expects(side), seed=0)
    scales, flips, edges = [], 0, {"left": 0, "right": 0, "top": 0, "low": 0}
    for epoch in range(300):
        x, y = train[(epoch, 0)]
        there = y[0] != 255
        assert bool((x[2] != 0).eq(y != 255).all())  # padding, and nothing else, is 0 and has no label
        assert bool((x[:, y == 255] == 0).all())
        width, height = int(there.sum()), int((y[:, 0] != 255).sum())
        assert bool((y[:height, :width] != 255).all())  # the picture is at the top left
        red, green = x[0, 0, :width] + 0.5, x[1, :height, 0] + 0.5
        middle = slice(width // 4, -(width // 4))
        step = float((red[middle][-1] - red[middle][0]) / (len(red[middle]) - 1))
        flips += step < 0
        assert float(green[-1]) > float(green[0])  # never upside down
        scales.append(1 / (abs(step) * 99) / fits)
        ends = sorted((float(red[0]), float(red[-1])))
        edges["left"] += ends[0] < 0.02
        edges["right"] += ends[1] > 0.98
        edges["top"] += float(green[0]) < 0.02
        edges["low"] += float(green[-1]) > 0.98
        if scales[-1] < 0.99 * side / (100 * fits):
            assert (width, side) == (min(side, width), side)
            assert ends[0] < 0.02
            assert ends[1] > 0.98  # what is smaller than the crop is whole
    assert 0.48 < min(scales) < 0.53
    assert 1.93 < max(scales) < 2.05
    assert 1.2 < np.mean(scales) < 1.3
    assert 120 < flips < 180
    assert min(edges.values()) > 50


def test_the_preset_varies_as_the_paper_does() -> None:
    assert PRESETS["voc2012"].augmentation == ScaleCrop(scale=(0.5, 2.0), flip=0.5) == ScaleCrop()


def test_at_test_time_the_whole_picture_is_fitted(data: Data[Pairs]) -> None:
    """50 x 45 into 64 x 64: as it is, at the top left; never enlarged, and shrunk where it is larger."""
    x, y = TestPairs(data, expects(64))[0]
    picture = torch.from_numpy(np.asarray(data.test.image(0)).copy()).permute(2, 0, 1) / 255 - 0.5
    assert torch.allclose(x[:, :45, :50], picture, atol=1e-6)
    assert torch.equal(y[:45, :50], torch.from_numpy(data.test.label_map(0)).long())
    for part, value in ((x, 0), (y, 255)):
        assert bool((part[..., 45:, :] == value).all())
        assert bool((part[..., 50:] == value).all())
    x, y = TestPairs(data, expects(20))[0]
    wanted = Letterbox(expects(20))(data.test.image(0), data.test.label_map(0))
    assert torch.equal(x, wanted[0])
    assert torch.equal(y, wanted[1])
    assert bool((y[18:] == 255).all())
    assert {int(label) for label in y.unique()} - {255} <= set(data.test.classes_in(0))


def test_an_item_depends_on_seed_epoch_and_index_alone(data: Data[Pairs]) -> None:
    keys = [(epoch, index) for epoch in range(3) for index in range(4)]
    train = TrainPairs(data, expects(32), seed=5)
    wanted = {key: train[key] for key in keys}
    before = torch.get_rng_state()
    train[(1, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    copy = dataclasses.replace(data, train=pickle.loads(pickle.dumps(data.train)))
    for method in ("fork", None):
        torch.rand(3)
        workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
        found = DataLoader(TrainPairs(copy, expects(32), seed=5), batch_size=None, sampler=keys[::-1], **workers)
        for key, (x, y) in zip(keys[::-1], found):
            assert torch.equal(x, wanted[key][0])
            assert torch.equal(y, wanted[key][1])
    assert not any(torch.equal(wanted[(0, i)][0], wanted[(1, i)][0]) for i in range(4))
    assert not torch.equal(TrainPairs(data, expects(32), seed=6)[(0, 0)][0], wanted[(0, 0)][0])
    with pytest.raises(TypeError, match=r"\(epoch, index\)"):
        train[0]
    for kind in (TestPairs, lambda *args: TrainPairs(*args, seed=0), pair_batches):
        with pytest.raises(ValueError, match="the model takes 4 channels"):
            kind(data, {**expects(32), "input_size": (4, 32, 32)})


# to prune by


class KnownClasses:
    """Pairs of which only the classes are known."""

    def __init__(self, classes: list[tuple[int, ...]]) -> None:
        self.classes = classes

    def __len__(self) -> int:
        return len(self.classes)

    def classes_in(self, index: int) -> tuple[int, ...]:
        return self.classes[index]


@given(
    classes=st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=30),
    per_class=st.integers(1, 6),
    seed=st.integers(0, 2**63),
)
def test_each_class_is_there_as_often_as_asked_or_as_it_can(classes: list[set], per_class: int, seed: int) -> None:
    pairs = KnownClasses([tuple(sorted(found)) for found in classes])
    drawn = draw_pairs(pairs, 6, per_class, seed)
    assert drawn == draw_pairs(pairs, 6, per_class, seed)
    assert len(set(drawn)) == len(drawn) >= 1
    assert len(drawn) <= 6 * per_class
    for label in range(6):
        there = sum(label in found for found in classes)
        assert sum(label in classes[i] for i in drawn) >= min(per_class, there)


def test_classes_take_turns_and_seeds_differ() -> None:
    pairs = KnownClasses([(i % 3,) for i in range(30)])
    drawn = draw_pairs(pairs, 3, 4, seed=0)
    assert [i % 3 for i in drawn] == [0, 1, 2] * 4
    assert drawn != draw_pairs(pairs, 3, 4, seed=1)
    with pytest.raises(ValueError, match="`per_class` is 0"):
        draw_pairs(pairs, 3, 0, seed=0)


def test_pair_batches_are_whole_training_pictures(data: Data[Pairs]) -> None:
    batches = pair_batches(data, expects(48), per_class=10, batch_size=3, seed=1)
    assert [x.shape for x, _ in batches] == [(2, 3, 48, 48)] * 2  # all four pictures, none twice
    x, y = (torch.cat(part) for part in zip(*batches))
    fit = Letterbox(expects(48))
    drawn = draw_pairs(data.train, 5, 10, seed=1)
    assert sorted(drawn) == [0, 1, 2, 3]
    for row, index in enumerate(drawn):
        wanted = fit(data.train.image(index), data.train.label_map(index))
        assert torch.equal(x[row], wanted[0])
        assert torch.equal(y[row], wanted[1])
    again = pair_batches(data, expects(48), per_class=10, batch_size=3, seed=1)
    assert all(torch.equal(a, b) for one, two in zip(batches, again) for a, b in zip(one, two))


class Segmenter(nn.Module):
    task = "segmentation"

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.pretrained_cfg = {"input_size": (3, 24, 30), "mean": (0.5,) * 3, "std": (1.0,) * 3}


def test_load_pruning_set_for_a_model_that_answers_for_every_pixel(folder: Path, tmp_path: Path) -> None:
    ((x, y),) = load_pruning_set(str(folder), Segmenter(5), per_class=1)
    assert x.shape == (len(y), 3, 24, 30)
    assert y.shape == (len(x), 24, 30)
    ((x, y),) = load_pruning_set("random", Segmenter(5), batch_size=4)
    assert (x.shape, y.shape, y.dtype) == ((4, 3, 24, 30), (4, 24, 30), torch.int64)
    assert {int(label) for label in y.unique()} == set(range(5))
    with pytest.raises(ValueError, match=r"train/masks/p0.png: label 4, but there are 4 classes"):
        load_pruning_set(str(folder), Segmenter(4))
    with pytest.raises(ValueError, match=r"data digits: .*needs label maps"):
        load_pruning_set("digits", Segmenter(10))
    write(tmp_path / "train", [blobs(30, 30)])
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd\ne\n")
    with pytest.raises(ValueError, match=r"labels go up to 4, but the model has 3 classes; set `num_classes` to 5"):
        load_pruning_set(str(tmp_path), Segmenter(3))
    assert load_pruning_set(str(tmp_path), Segmenter(8))  # who can tell more apart is welcome


def test_a_part_of_voc(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, under its name: 513 takes every picture as it is."""
    (tmp_path / "voc2012").symlink_to(shared / "data" / "voc2012_subset")
    monkeypatch.setenv("HF_PX_DATA", str(tmp_path))
    data = open_data("voc2012", task="segmentation")
    assert (len(data.train), len(data.test), data.test_split) == (96, 48, "val")
    assert (data.classes[8], len(data.classes)) == ("cat", 21)
    images = {"input_size": (3, 513, 513), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    x, y = TestPairs(data, images)[7]
    picture, mask = data.test.image(7), data.test.label_map(7)
    assert np.array_equal(y[: picture.height, : picture.width].numpy(), mask)
    assert bool((x[:, picture.height :] == 0).all())
    x, y = TrainPairs(data, images, seed=0)[(0, 7)]
    assert set(y.unique().tolist()) <= {*data.train.classes_in(7), 255}


def test_a_truncated_picture_is_named_when_it_is_read(tmp_path: Path) -> None:
    """Only its header is looked at before, for to decode them all takes long."""
    spoil(tmp_path)
    buffer = io.BytesIO()
    Image.effect_noise((20, 16), 50).convert("RGB").save(buffer, "PNG")
    (tmp_path / "train" / "images" / "p1.png").write_bytes(buffer.getvalue()[:-200])
    pairs = open_data(str(tmp_path), task="segmentation").train
    with pytest.raises(ValueError, match=r"train/images/p1.png: the image cannot be read"):
        pairs.image(1)
