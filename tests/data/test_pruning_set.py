import io
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

from hf_px.data import (
    PRESETS,
    TestImages,
    balanced,
    batches_of,
    check_source,
    data_config,
    digits,
    load_pruning_set,
    num_classes,
    open_data,
    pruning_batches,
    pruning_set,
    some_of,
)
from hf_px.data.labelled_split import ReadArray, Split
from hf_px.models.networks import resnet20


def _picture(colour: tuple[int, int, int], size: tuple[int, int] = (40, 36)) -> Image.Image:
    return Image.new("RGB", size, colour)


def _bytes(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes by folder, 5, 4 and 3 pictures, one colour each."""
    root = tmp_path_factory.mktemp("pictures")
    for label, (name, count) in enumerate({"ant": 5, "bee": 4, "cat": 3}.items()):
        (root / name).mkdir()
        for i in range(count):
            _picture(tuple(255 * (label == c) for c in range(3))).save(root / name / f"{i}.png")
    return root


def _vit(**kwargs) -> ViTForImageClassification:
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    return ViTForImageClassification(ViTConfig(**tiny, image_size=48, patch_size=16, **kwargs))


# digits


def test_digits_are_a_fixed_disjoint_split() -> None:
    (images, labels), test = digits()
    again, _ = digits()
    assert images.shape == (1437, 3, 32, 32)
    assert test.images.shape == (360, 3, 32, 32)
    assert images.dtype == torch.float32
    assert torch.equal(images, again.images)
    assert test.labels.bincount().tolist() == [36] * 10
    assert set(labels.tolist()) == set(range(10))
    seen = {image.numpy().tobytes() for image in images}
    assert not any(image.numpy().tobytes() in seen for image in test.images)


def test_digits_are_normalised_and_grey() -> None:
    images = digits(size=8)[0].images
    assert abs(float(images.mean())) < 1e-5
    assert float(images.std()) == pytest.approx(1, abs=1e-4)
    assert torch.equal(images[:, 0], images[:, 2])


def test_digits_can_be_told_apart() -> None:
    """The labels belong to the images: nearest class mean gets most test digits right."""
    (images, labels), test = digits(size=16)
    means = torch.stack([images[labels == c].mean(0) for c in range(10)])
    found = torch.cdist(test.images.flatten(1), means.flatten(1)).argmin(1)
    assert float((found == test.labels).float().mean()) > 0.85


# the pruning set


@given(
    counts=st.lists(st.integers(4, 9), min_size=1, max_size=6),
    per_class=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    batch_size=st.integers(1, 30),
)
def test_a_pruning_set_is_balanced_seeded_and_whole(
    counts: list[int], per_class: int, seed: int, batch_size: int
) -> None:
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    images = torch.arange(len(labels)).view(-1, 1, 1, 1).float()
    drawn = pruning_set(images, labels, per_class, seed)
    assert drawn.labels.bincount().tolist() == [per_class] * len(counts)
    assert len(set(drawn.images.flatten().tolist())) == len(drawn.images)  # no example twice
    assert torch.equal(labels[drawn.images.flatten().long()], drawn.labels)  # each with its own label
    assert torch.equal(drawn.images, pruning_set(images, labels, per_class, seed).images)
    assert drawn.labels[: len(counts)].tolist() == list(range(len(counts)))  # any stretch is balanced

    batches = batches_of(*drawn, batch_size)
    assert len(batches) == -(-per_class * len(counts) // batch_size)  # B = ceil(|D|·|C| / b)
    assert torch.equal(torch.cat([x for x, _ in batches]), drawn.images)
    assert torch.equal(torch.cat([y for _, y in batches]), drawn.labels)
    sizes = [len(x) for x, _ in batches]
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1


def test_another_seed_draws_other_examples() -> None:
    labels = torch.arange(100) % 2
    assert not torch.equal(balanced(labels, 10, seed=0), balanced(labels, 10, seed=1))


def test_a_class_with_too_few_examples_is_named() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1])
    with pytest.raises(ValueError, match="class 1 has 2 examples, `per_class` is 3"):
        pruning_set(torch.zeros(5, 1), labels, per_class=3)
    with pytest.raises(ValueError, match=r"class 1 \(bee\) has 2 examples"):
        balanced(labels, 3, names=["ant", "bee"])
    with pytest.raises(ValueError, match="`per_class` is 0"):
        balanced(labels, 0)
    with pytest.raises(ValueError, match="empty"):
        balanced(torch.tensor([], dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="3 images, but 2 labels"):
        batches_of(torch.zeros(3, 1), torch.zeros(2), 2)
    with pytest.raises(ValueError, match="`batch_size` is 0"):
        batches_of(torch.zeros(2, 1), torch.zeros(2), 0)


# by source


def test_digits_for_a_model() -> None:
    model = resnet20()
    batches = load_pruning_set("digits", model, per_class=10, batch_size=100, seed=0)
    assert [(x.shape, len(y)) for x, y in batches] == [((100, 3, 32, 32), 100)]
    train, _ = digits()
    drawn = pruning_set(*train, per_class=10, seed=0)
    assert torch.equal(batches[0][1], drawn.labels)
    # what a user gets by hand, up to the unit: the model's mean and deviation here, the data's own there
    mean, std = (torch.tensor(model.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    small = digits(8)[0].images
    scale = 1 / (small.max() - small.min())
    assert torch.allclose(batches[0][0] * std + mean, (drawn.images - small.min()) * scale, atol=1.5 / 255)


def test_noise_for_a_model() -> None:
    model = resnet20(num_classes=7, in_chans=1)
    ((x, y),) = load_pruning_set("random", model, batch_size=64, seed=3)
    assert x.shape == (64, 1, 32, 32)
    assert 0 <= int(y.min()) <= int(y.max()) < 7
    assert torch.equal(x, load_pruning_set("random", model, batch_size=64, seed=3)[0][0])


def test_a_folder_of_pictures(folder: Path) -> None:
    ((x, y),) = load_pruning_set(str(folder), resnet20(num_classes=3), per_class=3)
    assert y.bincount().tolist() == [3, 3, 3]
    assert x.shape == (9, 3, 32, 32)
    # class by colour: the brightest channel is the label, through the model's own mean and deviation
    assert torch.equal(x.mean((2, 3)).argmax(1), y)
    model = resnet20()
    mean, std = (torch.tensor(model.pretrained_cfg[k]) for k in ("mean", "std"))
    red = (torch.tensor([1.0, 0, 0]) - mean) / std
    assert torch.allclose(x[0].mean((1, 2)), red, atol=1e-4)


def test_a_folder_with_a_small_class_or_too_many_classes(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"class 2 \(cat\) has 3 examples, `per_class` is 4"):
        load_pruning_set(str(folder), resnet20(), per_class=4)
    with pytest.raises(ValueError, match="labels go up to 2, but the model has 2 classes; set `num_classes` to 3"):
        load_pruning_set(str(folder), resnet20(num_classes=2), per_class=1)
    with pytest.raises(ValueError, match="no split 'test'; it has train"):
        load_pruning_set(str(folder), resnet20(), per_class=1, split="test")
    with pytest.raises(ValueError, match="the model takes 1 channels"):
        load_pruning_set(str(folder), resnet20(in_chans=1), per_class=1)


def test_no_network_for_local_data(folder: Path, tmp_path: Path) -> None:
    """Not by the offline switch: a fresh process without it, in which any connection is seen and counted."""
    code = """if 1:
        import sys
        calls = []
        hosts = ("socket.connect", "socket.getaddrinfo")
        sys.addaudithook(lambda event, args: calls.append((event, args)) if event in hosts else None)
        from hf_px.data import load_pruning_set
        from hf_px.models.networks import resnet20
        load_pruning_set(sys.argv[1], resnet20(), per_class=1)
        load_pruning_set("digits", resnet20(), per_class=1)
        print("connections:", calls)
        import socket
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except OSError:
            pass
        print("seen:", bool(calls))
    """
    env = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    env["HF_DATASETS_CACHE"] = str(tmp_path)
    run = subprocess.run([sys.executable, "-c", code, str(folder)], env=env, capture_output=True, text=True, check=True)
    assert "connections: []" in run.stdout
    assert "seen: True" in run.stdout  # the hook does see connections


def _parquet(path: Path, images: str, labels: str, values: list, **more: list) -> Path:
    pictures = [{"bytes": _bytes(_picture((20 * i, 0, 0)))} for i in range(len(values))]
    dataset = datasets.Dataset.from_dict({labels: values, **more, images: pictures})
    dataset.cast_column(images, datasets.Image()).to_parquet(path)
    return path


def test_parquet_columns_are_found(tmp_path: Path) -> None:
    model = resnet20()
    for i, (images, labels) in enumerate(
        [("image", "label"), ("img", "labels"), ("img", "fine_label"), ("photo", "label")]
    ):
        path = _parquet(tmp_path / f"{i}.parquet", images, labels, [0, 1, 0, 1], coarse_label=[9, 9, 9, 9])
        ((x, y),) = load_pruning_set(str(path), model, per_class=2)
        assert sorted(y.tolist()) == [0, 0, 1, 1]
        assert x.shape == (4, 3, 32, 32)


def test_parquet_columns_are_asked_for(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "odd.parquet", "photo", "kind", [0, 1], age=[3, 4])
    with pytest.raises(ValueError, match=r"no label column found: .* the data has kind, age, photo: .*label_column"):
        load_pruning_set(str(path), resnet20(), per_class=1)
    with pytest.raises(ValueError, match="`label_column` 'sort' is not in the data; it has kind, age, photo"):
        load_pruning_set(str(path), resnet20(), per_class=1, label_column="sort")
    with pytest.raises(ValueError, match=r"column 'age' holds .*not images"):
        load_pruning_set(str(path), resnet20(), per_class=1, label_column="kind", image_column="age")
    ((_, y),) = load_pruning_set(str(path), resnet20(), per_class=1, label_column="kind")
    assert y.tolist() == [0, 1]


def test_labels_as_words_numbers_and_neither(tmp_path: Path) -> None:
    words = _parquet(tmp_path / "words.parquet", "image", "label", ["dog", "cat", "dog", "cat"])
    ((_, y),) = load_pruning_set(str(words), resnet20(num_classes=2), per_class=2)
    assert y.tolist() == [0, 1, 0, 1]
    for name, values, complaint in [
        ("several", [[0, 1], [1]], "holds list"),
        ("unknown", [0, None], "holds NoneType"),
        ("unlabelled", [-1, -1], "label -1"),
        ("broken", [0.5, 1.5], "holds float"),
    ]:
        path = _parquet(tmp_path / f"{name}.parquet", "image", "label", values)
        with pytest.raises(ValueError, match=complaint):
            load_pruning_set(str(path), resnet20(), per_class=1)


def test_parquet_written_without_datasets(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = {"image": [{"bytes": _bytes(_picture((0, 255 * c, 0)))} for c in (0, 1)], "label": [0, 1]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "bare.parquet")
    ((x, y),) = load_pruning_set(str(tmp_path / "bare.parquet"), resnet20(), per_class=1)
    assert y.tolist() == [0, 1]
    assert float(x[1, 1].mean()) > float(x[0, 1].mean())


def test_sources_that_are_none(tmp_path: Path) -> None:
    for source, complaint in [
        ("digit", "did you mean digits"),
        ("mnist", "written org/name"),  # a bare word never reaches the network
        ("./nowhere", "no such file"),
        (str(tmp_path / "nowhere"), "no such file"),
        ("data/train.parquet", "no such file"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            check_source(source)
    check_source("uoft-cs/cifar10")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"must be a \.parquet file"):
        load_pruning_set(str(tmp_path / "notes.txt"), resnet20())
    (tmp_path / "broken.parquet").write_text("hello")
    with pytest.raises(ValueError, match=r"broken\.parquet"):
        load_pruning_set(str(tmp_path / "broken.parquet"), resnet20())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        load_pruning_set(str(tmp_path / "empty"), resnet20())


def test_a_hub_data_set_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(ValueError, match="data nobody/nothing-here: "):
        load_pruning_set("nobody/nothing-here", resnet20())


# a data set to learn from


def _noise(count: int, size: tuple[int, int] = (8, 8), seed: int = 0) -> list[Image.Image]:
    """Pictures that all differ."""
    random = np.random.default_rng(seed)
    return [Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for _ in range(count)]


def _rows(labels: list, classes: list[str] | None = None, seed: int = 0, **names: str) -> datasets.Dataset:
    pictures = _noise(len(labels), seed=seed)
    image, label = names.get("image", "image"), names.get("label", "label")
    rows = datasets.Dataset.from_dict({image: pictures, label: labels}).cast_column(image, datasets.Image())
    return rows.cast_column(label, datasets.ClassLabel(names=classes)) if classes else rows


def _save(folder: Path, **splits: datasets.Dataset) -> Path:
    """As the Hub lays parquet out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        rows.to_parquet(folder / f"{name}-00000-of-00001.parquet")
    return folder


def _same(image: Image.Image, other: Image.Image) -> bool:
    return image.mode == other.mode == "RGB" and np.array_equal(np.asarray(image), np.asarray(other))


def test_digits_to_learn_from() -> None:
    data = open_data("digits")
    train, test = digits()
    assert torch.equal(data.train.labels, train.labels)
    assert torch.equal(data.test.labels, test.labels)
    assert (data.dataset, data.test_split, data.preset) == ("scikit-learn-digits", "test", PRESETS["digits"])
    assert data.classes == tuple("0123456789")
    from sklearn.datasets import load_digits

    pixels = {(image * 255 / 16).round().astype(np.uint8).tobytes() for image in load_digits().images}
    image = np.asarray(data.test.image(7))
    assert image.shape == (8, 8, 3)
    assert all(image[..., c].tobytes() in pixels for c in range(3))
    with pytest.raises(ValueError, match="no split 'validation'; it has train, test"):
        open_data("digits", test_split="validation")
    with pytest.raises(ValueError, match="is noise, for trying pruning out"):
        open_data("random")


def test_the_same_pictures_by_every_road(tmp_path: Path) -> None:
    """A folder of images, parquet files, a parquet file, save_to_disk: the same labels, names and pixels."""
    names, labels = ["ant", "bee"], {"train": [0, 1, 0, 1, 1], "test": [1, 0]}
    rows = {split: _rows(values, names, seed=len(values)) for split, values in labels.items()}
    parquet = _save(tmp_path / "parquet", **rows)
    datasets.DatasetDict(rows).save_to_disk(tmp_path / "disk")
    datasets.DatasetDict({"train": rows["train"], "val": rows["test"]}).save_to_disk(tmp_path / "other")
    for split, folder in {"train": "train", "test": "valid"}.items():
        for i, label in enumerate(labels[split]):
            (tmp_path / "images" / folder / names[label]).mkdir(parents=True, exist_ok=True)
            rows[split][i]["image"].save(tmp_path / "images" / folder / names[label] / f"{i}.png")
    wanted = {split: sorted((int(r["label"]), r["image"].tobytes()) for r in rows[split]) for split in rows}
    roads = {parquet: "test", tmp_path / "disk": "test", tmp_path / "other": "val", tmp_path / "images": "validation"}
    for path, test_split in roads.items():
        data = open_data(str(path))
        assert (data.name, data.dataset, data.title) == (str(path), path.name, path.name)
        assert (data.classes, data.test_split, data.preset) == (("ant", "bee"), test_split, None)
        for split, part in {"train": data.train, "test": data.test}.items():
            assert part.labels.dtype == torch.int64
            found = sorted((int(part.labels[i]), part.image(i).tobytes()) for i in range(len(part)))
            assert found == wanted[split], path
    swapped = open_data(str(parquet), train_split="test", test_split="train")
    assert (len(swapped.train), len(swapped.test), swapped.test_split) == (2, 5, "train")


def test_a_split_to_test_on_is_found_or_asked_for(folder: Path, tmp_path: Path) -> None:
    hidden = _save(tmp_path / "hidden", train=_rows([0, 1]), test=_rows([-1, -1, -1]), validation=_rows([1]))
    assert open_data(str(hidden)).test_split == "validation"  # as ImageNet has it: no labels in test
    with pytest.raises(ValueError, match=r"label -1 in split 'test'"):
        open_data(str(hidden), test_split="test")
    with pytest.raises(ValueError, match=r"no split 'dev'; it has train, (validation|test)"):
        open_data(str(hidden), test_split="dev")
    with pytest.raises(ValueError, match="'train' is the training split"):
        open_data(str(hidden), test_split="train")
    with pytest.raises(ValueError, match=r"no split 'learn'; it has .*`train_split`"):
        open_data(str(hidden), train_split="learn")
    with pytest.raises(ValueError, match=r"no test split with labels.*it has train: .*`test_split`"):
        open_data(str(folder))  # class folders alone
    _rows([0, 1]).save_to_disk(tmp_path / "single")
    with pytest.raises(ValueError, match="no test split with labels"):
        open_data(str(tmp_path / "single"))
    assert len(load_pruning_set(str(tmp_path / "single"), resnet20(), per_class=1)) == 1  # but it can be pruned by


@pytest.mark.parametrize(
    ("train", "test", "complaint"),
    [
        (_rows([0, 1], ["ant", "bee"]), _rows([0, 1], ["ant", "cat"]), "'train' and 'test' differ: 'bee' and 'cat'"),
        (_rows([0, 1], ["a", "b"]), _rows([0, 1], ["a", "b", "c"]), "differ: '2 names' and '3 names'"),
        (_rows(["ant", "bee"]), _rows(["bee", "cat"]), "'train' has no 'cat'"),
        (_rows(["ant", "bee"]), _rows([0, 1]), "one has names, the other only numbers"),
        (_rows([0, 1], ["a", "b"]), _rows([0, 1]), "one has names, the other only numbers"),
        (_rows([0, 1, 2]), _rows([0, 5]), "labels of 'test' go up to 5, those of 'train' to 2"),
        (_rows([0, 1]), _rows([0, None]), r"holds NoneType \(split 'test', row 1\)"),
        (_rows([0, None]), _rows([0]), r"holds NoneType \(split 'train', row 1\)"),
        (
            _rows([0, 1], label="kind"),
            _rows([0], label="kind"),
            "no label column found.*image, kind.*`label_",
        ),
        (
            _rows([0, 1], image="pic"),
            _rows([0], image="photo"),
            "`image_column` 'pic' is not in .*; it has photo",
        ),
        (_rows([0, 1]).remove_columns("label"), _rows([0]), "no label column found.*the data has image: "),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused(tmp_path: Path, train, test, complaint: str) -> None:
    # not parquet files in one folder: datasets itself wants those to agree
    for name, rows in {"train": train, "test": test}.items():
        rows.save_to_disk(tmp_path / name)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match=complaint) as error:
        open_data(str(tmp_path))
    assert str(error.value).startswith(f"data {tmp_path}: ")


@pytest.mark.skipif(datasets.__version__.startswith("5.1."), reason="datasets 5.1 cannot write an empty split")
def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    folder = _save(tmp_path, train=_rows([0, 1]), test=_rows([0]).select([]))
    with pytest.raises(ValueError, match='"test" corresponds to no data'):  # as datasets puts it
        open_data(str(folder))
    datasets.DatasetDict({"train": _rows([0]).select([]), "test": _rows([0])}).save_to_disk(tmp_path / "disk")
    with pytest.raises(ValueError, match="one of its splits is empty"):
        open_data(str(tmp_path / "disk"))


def test_words_are_numbered_alike_in_both_splits(tmp_path: Path) -> None:
    data = open_data(str(_save(tmp_path, train=_rows(["dog", "ant", "cat"]), test=_rows(["cat", "dog"]))))
    assert data.classes == ("ant", "cat", "dog")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([2, 0, 1], [1, 2])


def test_only_what_is_asked_for_is_decoded(tmp_path: Path) -> None:
    good = _bytes(_picture((9, 9, 9)))
    rows = {"image": [{"bytes": good}, {"bytes": b"no image"}, None], "label": [0, 1, 1]}
    path = tmp_path / "train.parquet"
    datasets.Dataset.from_dict(rows).to_parquet(path)
    data = open_data(str(path), need_test=False)
    assert _same(data.train.image(0), _picture((9, 9, 9)))
    with pytest.raises(ValueError, match="image 1 cannot be read"):
        data.train.image(1)
    with pytest.raises(ValueError, match="image 2 cannot be read: the row is empty"):
        data.train.image(2)
    with pytest.raises(IndexError):
        data.train.image(3)


def test_a_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "photos")
    damaged = tmp_path / "photos" / "bee" / "1.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    split = open_data(str(tmp_path / "photos"), need_test=False).train
    for images in (split, split.only(torch.arange(len(split)))):
        with pytest.raises(ValueError, match=rf"image 6 cannot be read: {damaged}: .*; replace the file, or remove it"):
            images.image(6)


def test_a_folder_without_classes_names_the_layout(folder: Path, tmp_path: Path) -> None:
    example = "one folder per class, for example photos/train/cat/1.jpg and photos/train/dog/1.jpg"
    for place, reason in {
        "": r"its images \(0.png, 1.png, …\) are in no folder of a class",
        "train": r"its images \(0.png, 1.png, …\) are in no folder of a class",
        "bee": "its images are all in one folder, bee, so there is one class only",
        "train/bee": "its images are all in one folder, bee, so there is one class only",
    }.items():
        root = tmp_path / place.replace("/", "-") / "photos"
        shutil.copytree(folder / "ant", root / place)
        with pytest.raises(ValueError, match=f"photos: {reason}; a classifier needs {example}$"):
            open_data(str(root), need_test=False)
    shutil.copytree(folder / "ant", tmp_path / "both" / "photos" / "test")
    shutil.copytree(folder / "ant", tmp_path / "both" / "photos" / "train")
    with pytest.raises(ValueError, match="are in no folder of a class"):  # not two classes, train and test
        open_data(str(tmp_path / "both" / "photos"))
    shutil.copytree(folder, tmp_path / "mixed" / "photos")
    shutil.copy(folder / "ant" / "1.png", tmp_path / "mixed" / "photos" / "9.png")
    with pytest.raises(ValueError, match="at different depths, for example "):
        open_data(str(tmp_path / "mixed" / "photos"), need_test=False)


def test_images_are_the_same_kept_or_not(tmp_path: Path) -> None:
    pictures = _noise(4) + _noise(1, size=(5, 9)) + _noise(2, seed=1)  # one that has no room beside the others
    rows = datasets.Dataset.from_dict({"image": [{"bytes": _bytes(p)} for p in pictures], "label": [0] * 7})
    rows.to_parquet(tmp_path / "train.parquet")
    split = open_data(str(tmp_path / "train.parquet"), need_test=False).train
    for _ in range(2):
        assert all(_same(split.image(i), picture) for i, picture in enumerate(pictures))
    copy = pickle.loads(pickle.dumps(split))
    assert all(_same(copy.image(i), picture) for i, picture in enumerate(pictures))
    grey = datasets.Dataset.from_dict({"image": [_noise(1)[0].convert("L")], "label": [0]})
    grey.cast_column("image", datasets.Image()).to_parquet(tmp_path / "grey.parquet")
    assert open_data(str(tmp_path / "grey.parquet"), need_test=False).train.image(0).mode == "RGB"


# presets


def _copy_of(home: Path, name: str) -> dict[str, datasets.Dataset]:
    """A small data set with the columns, splits and number of classes of the real one."""
    preset = PRESETS[name]
    labels = [i % preset.num_classes for i in range(2 * preset.num_classes)]
    columns = {"image": preset.image_column, "label": preset.label_column}
    splits = {"train": _rows(labels, **columns), preset.test_split: _rows(labels[:7], seed=1, **columns)}
    if name == "cifar100":
        splits = {split: rows.add_column("coarse_label", [0] * len(rows)) for split, rows in splits.items()}
    if name == "imagenet-1k":
        splits["test"] = _rows([-1, -1])
    datasets.DatasetDict(splits).save_to_disk(home / name)
    return splits


def test_a_preset_takes_a_copy_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_PX_DATA", str(tmp_path))
    for name in (name for name in PRESETS if name != "digits" and PRESETS[name].task == "classification"):
        preset, splits = PRESETS[name], _copy_of(tmp_path, name)
        data = open_data(name)
        assert (data.preset, data.dataset, data.title, data.name) == (preset, preset.dataset, preset.title, name)
        assert (len(data.classes), data.test_split) == (preset.num_classes, preset.test_split)
        assert data.train.labels.tolist() == splits["train"][preset.label_column][:]
        assert _same(data.test.image(3), splits[preset.test_split][3][preset.image_column])
        assert open_data(str(tmp_path / name), label_column=preset.label_column).preset is None  # a path is a path


def test_a_copy_may_be_laid_out_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 as folders of images, with val for test."""
    monkeypatch.setenv("HF_PX_DATA", str(tmp_path))
    for split in ("train", "val"):
        for label, picture in enumerate(_noise(10)):
            (tmp_path / "cifar10" / split / f"c{label}").mkdir(parents=True)
            picture.save(tmp_path / "cifar10" / split / f"c{label}" / "0.png")
    data = open_data("cifar10")
    assert data.test_split == "validation"
    assert data.preset is PRESETS["cifar10"]


def test_a_copy_that_is_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_PX_DATA", str(tmp_path))
    names = ["ant", "bee"]
    _save(tmp_path / "cifar10", train=_rows([0, 1], names), test=_rows([0], names))
    with pytest.raises(ValueError, match="data cifar10: 2 classes, but CIFAR-10 has 10"):
        open_data("cifar10")
    monkeypatch.setenv("HF_PX_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"HF_PX_DATA=.*nowhere: no such folder"):
        open_data("cifar10")


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("cifar-10", "cifar10"),
        ("CIFAR100", "cifar100"),
        ("imagenet", "imagenet-1k"),
        ("tiny_imagenet", "tiny-imagenet"),
        ("TinyImageNet", "tiny-imagenet"),
        ("digit", "digits"),
    ],
)
def test_the_nearest_preset_is_named(slip: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"did you mean {meant}\? "):
        check_source(slip)
    with pytest.raises(ValueError, match=rf"did you mean {meant}\? "):
        open_data(slip)


def test_presets_are_known_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_PX_DATA", "/nowhere")
    for name in PRESETS:
        check_source(name)


# batches to prune by


def test_pruning_batches_are_drawn_from_train_and_not_augmented(tmp_path: Path) -> None:
    labels = [0, 1, 2] * 5
    data = open_data(str(_save(tmp_path, train=_rows(labels, ["a", "b", "c"]), test=_rows([0], ["a", "b", "c"]))))
    images = {"input_size": (3, 8, 8), "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    batches = pruning_batches(data, images, per_class=4, batch_size=5, seed=3)
    assert [len(y) for _, y in batches] == [4, 4, 4]  # ceil(4·3 / 5) = 3
    x, y = (torch.cat(part) for part in zip(*batches))
    chosen = balanced(torch.tensor(labels), 4, seed=3)
    assert y.tolist() == [labels[i] for i in chosen]
    wanted = np.stack([np.asarray(data.train.image(int(i))) for i in chosen])
    assert np.array_equal((x * 255).round().byte().permute(0, 2, 3, 1).numpy(), wanted)
    again = pruning_batches(data, images, per_class=4, batch_size=5, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(batches[0], again[0]))


def test_a_class_that_is_short_or_missing_is_named(tmp_path: Path) -> None:
    names = ["ant", "bee", "cat"]
    data = open_data(str(_save(tmp_path, train=_rows([0, 0, 1], names), test=_rows([2], names))))
    images = data_config(resnet20())
    with pytest.raises(ValueError, match=r"class 1 \(bee\) has 1 examples, `per_class` is 2"):
        pruning_batches(data, images, per_class=2)
    with pytest.raises(ValueError, match=r"class 2 \(cat\) has 0 examples, `per_class` is 1"):
        pruning_batches(data, images, per_class=1)  # |D|·|C| counts every class


def test_channels() -> None:
    data = open_data("digits")
    grey = resnet20(in_chans=1)
    ((x, _),) = load_pruning_set("digits", grey, per_class=1)
    assert x.shape == (10, 1, 32, 32)
    colour = TestImages(data, data_config(resnet20()))[5][0]
    single = TestImages(data, data_config(grey))[5][0]
    mean, std = (torch.tensor(resnet20().pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    assert torch.allclose(single * 0.25 + 0.5, (colour * std + mean)[:1], atol=1e-5)
    with pytest.raises(ValueError, match="the model takes 4 channels, digits has RGB images"):
        load_pruning_set("digits", resnet20(in_chans=4))


# what a model expects


def test_models_say_what_they_expect() -> None:
    assert data_config(resnet20())["input_size"] == (3, 32, 32)
    assert data_config(timm.create_model("test_vit"))["input_size"] == (3, 160, 160)
    vit = _vit()
    assert data_config(vit)["input_size"] == (3, 48, 48)
    assert data_config(vit)["mean"] == timm.data.IMAGENET_DEFAULT_MEAN
    tiny = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], num_labels=5)
    resnet = ResNetForImageClassification(tiny)
    assert data_config(resnet)["input_size"] == (3, 224, 224)
    assert [num_classes(m) for m in (resnet20(num_classes=4), vit, resnet)] == [4, 2, 5]
    # what a loader noted goes before what the config says
    vit.image_config = {"input_size": (3, 32, 32), "mean": (0.1, 0.2, 0.3), "interpolation": "bilinear"}
    config = data_config(vit)
    assert (config["input_size"], config["mean"], config["interpolation"]) == ((3, 32, 32), (0.1, 0.2, 0.3), "bilinear")
    assert config["std"] == timm.data.IMAGENET_DEFAULT_STD
    with pytest.raises(ValueError, match=r"Linear has neither .* the images it expects are unknown"):
        data_config(torch.nn.Linear(2, 2))


def test_batches_fit_timm_and_transformers_models(folder: Path) -> None:
    for model in (timm.create_model("test_resnet", num_classes=3).eval(), _vit(num_labels=3).eval()):
        ((x, _),) = load_pruning_set(str(folder), model, per_class=1)
        output = model(x)
        assert getattr(output, "logits", output).shape == (3, 3)


def test_cifar10_as_the_hub_lays_it_out(shared: Path) -> None:
    """The real thing: columns img and label, a folder of parquet files, pixel for pixel."""
    model = resnet20()
    batches = load_pruning_set(str(shared / "data/cifar10"), model, batch_size=64, split="test")
    assert [len(y) for _, y in batches] == [50, 50]
    x, y = (torch.cat(part) for part in zip(*batches))
    assert y.bincount().tolist() == [10] * 10
    mean, std = (torch.tensor(model.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    pixels = (x * std + mean) * 255
    assert torch.allclose(pixels, pixels.round(), atol=1e-2)  # whole numbers again: nothing was resampled
    file = datasets.load_dataset("parquet", data_files=str(shared / "data/cifar10/test-00000-of-00001.parquet"))[
        "train"
    ]
    wanted = np.asarray(file[int(balanced(torch.tensor(file["label"][:]), 10)[7])]["img"])
    assert np.array_equal(pixels[7].round().byte().permute(1, 2, 0).numpy(), wanted)


@pytest.mark.parametrize("count", [1, 7, 10, 33, 40])
def test_some_are_as_many_of_each_class_and_drawn_by_the_seed(count: int) -> None:
    labels = torch.tensor([3, 1, 0, 1] * 10)[torch.randperm(40, generator=torch.Generator().manual_seed(5))]
    found = some_of(labels, count, seed=1)
    assert len(found.unique()) == count and torch.equal(found, found.sort().values)
    counts = labels[found].bincount(minlength=4)
    left = torch.tensor([10, 20, 0, 10]) - counts
    # a class has fewer than another only if it has no more to give
    assert all(counts[a] >= counts[b] - 1 or left[a] == 0 for a in (0, 1, 3) for b in (0, 1, 3))
    assert torch.equal(found, some_of(labels, count, seed=1))
    assert count in (1, 40) or not torch.equal(found, some_of(labels, count, seed=2))
    with pytest.raises(ValueError, match="`count` is 41, there are 40"):
        some_of(labels, 41)


def test_a_part_of_a_split_has_its_images() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    part = pickle.loads(pickle.dumps(Split(torch.arange(6), ReadArray(pixels)).only(torch.tensor([4, 1]))))
    assert len(part) == 2 and part.labels.tolist() == [4, 1]
    assert np.array_equal(np.asarray(part.image(0)), pixels[4]) and np.array_equal(np.asarray(part.image(1)), pixels[1])
