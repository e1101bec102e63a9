import io
import os
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
    balanced,
    batches_of,
    check_source,
    data_config,
    digits,
    load_pruning_set,
    num_classes,
    pruning_set,
)
from hf_px.models import resnet20


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
    with pytest.raises(ValueError, match="class 1 has 2 examples, 3 per class asked"):
        pruning_set(torch.zeros(5, 1), labels, per_class=3)
    with pytest.raises(ValueError, match=r"class 1 \(bee\) has 2 examples"):
        balanced(labels, 3, names=["ant", "bee"])
    with pytest.raises(ValueError, match="per_class is 0"):
        balanced(labels, 0)
    with pytest.raises(ValueError, match="empty"):
        balanced(torch.tensor([], dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="3 images, but 2 labels"):
        batches_of(torch.zeros(3, 1), torch.zeros(2), 2)
    with pytest.raises(ValueError, match="batch_size is 0"):
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
    with pytest.raises(ValueError, match=r"class 2 \(cat\) has 3 examples, 4 per class asked"):
        load_pruning_set(str(folder), resnet20(), per_class=4)
    with pytest.raises(ValueError, match="labels run to 2, but the model has 2 classes; give it num_classes=3"):
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
        from hf_px.models import resnet20
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
    with pytest.raises(
        ValueError, match=r"which column is the label\? .* the data has kind, age, photo: .*label_column"
    ):
        load_pruning_set(str(path), resnet20(), per_class=1)
    with pytest.raises(ValueError, match="label column 'sort' is not in the data; it has kind, age, photo"):
        load_pruning_set(str(path), resnet20(), per_class=1, label_column="sort")
    with pytest.raises(ValueError, match=r"image column 'age' holds .*not images"):
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
    with pytest.raises(ValueError, match="Linear does not say what images it expects"):
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
