"""A real data set on the loopback Hub, opened by its name with the real client."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
from huggingface_hub import HfApi
from PIL import Image
from support.loopback import LoopbackHub

from hf_px.data import PRESETS, load_pruning_set, open_data
from hf_px.models.networks import resnet20


def rows(labels: list[int], names: list[str], seed: int = 0, image: str = "image") -> datasets.Dataset:
    random = np.random.default_rng(seed)
    pictures = [Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in labels]
    features = datasets.Features({image: datasets.Image(), "label": datasets.ClassLabel(names=names)})
    return datasets.Dataset.from_dict({image: pictures, "label": labels}, features=features)


def push(repo: str, token: str = "hf_alice", seed: int = 0, **options) -> datasets.DatasetDict:
    names = ["ant", "bee", "cat"]
    made = datasets.DatasetDict(
        {"train": rows([0, 1, 2, 2, 1, 0], names, seed), "validation": rows([2, 0], names, seed + 1)}
    )
    made.push_to_hub(repo, token=token, **options)
    return made


def pixels(image: Image.Image) -> list:
    return np.asarray(image).tolist()


def test_a_data_set_by_its_name(hub: LoopbackHub) -> None:
    made = push("alice/tiny")
    data = open_data("alice/tiny")
    assert (data.name, data.dataset, data.title, data.preset) == ("alice/tiny", "alice/tiny", "tiny", None)
    assert (data.classes, data.test_split) == (("ant", "bee", "cat"), "validation")
    assert data.train.labels.tolist() == made["train"]["label"][:]
    assert data.test.labels.tolist() == [2, 0]
    for split, part in {"train": data.train, "validation": data.test}.items():
        assert [pixels(part.image(i)) for i in range(len(part))] == [pixels(r["image"]) for r in made[split]]
    ((_, y),) = load_pruning_set("alice/tiny", resnet20(num_classes=3), per_class=2)
    assert y.tolist() == [0, 1, 2] * 2


def test_a_revision_and_a_config(hub: LoopbackHub) -> None:
    first = push("alice/versions")
    before = HfApi(token="hf_alice").dataset_info("alice/versions").sha
    second = push("alice/versions", seed=7)
    for revision, made in {before: first, None: second}.items():
        data = open_data("alice/versions", revision=revision)
        assert pixels(data.train.image(0)) == pixels(made["train"][0]["image"])

    configs = {name: push("alice/configs", seed=seed, config_name=name) for seed, name in enumerate(("dry", "wet"))}
    for name, made in configs.items():
        assert pixels(open_data("alice/configs", config=name).train.image(0)) == pixels(made["train"][0]["image"])
    with pytest.raises(ValueError, match=r"data alice/configs: .*wet"):
        open_data("alice/configs")
    with pytest.raises(ValueError, match=r"data alice/versions: .*nowhere"):
        open_data("alice/versions", revision="nowhere")


def test_a_private_data_set_needs_a_token(hub: LoopbackHub) -> None:
    push("alice/mine", private=True)
    for token in (False, "hf_bob"):
        with pytest.raises(ValueError, match="data alice/mine: "):
            open_data("alice/mine", token=token)
    assert len(open_data("alice/mine", token="hf_alice").train) == 6  # last: datasets keeps what it has once fetched


def test_a_preset_comes_from_the_hub_under_both_names(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_PX_DATA", raising=False)
    hub.add_user("uoft-cs", token="hf_uoft")
    names = [f"class {i}" for i in range(10)]
    made = {"train": rows(list(range(10)), names, image="img"), "test": rows([3], names, image="img")}
    datasets.DatasetDict(made).push_to_hub("uoft-cs/cifar10", token="hf_uoft")
    for source in ("cifar10", "uoft-cs/cifar10"):
        data = open_data(source)
        assert (data.preset, data.dataset, data.title) == (PRESETS["cifar10"], "uoft-cs/cifar10", "CIFAR-10")
        assert pixels(data.test.image(0)) == pixels(made["test"][0]["img"])


def test_what_is_not_there_is_named_with_its_neighbour(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_PX_DATA", raising=False)
    with pytest.raises(ValueError, match=r"data uoft-cs/cifar-10: .*did you mean uoft-cs/cifar10\?"):
        open_data("uoft-cs/cifar-10")
    with pytest.raises(ValueError, match=r"data cifar100: .*HF_PX_DATA=/dir, where /dir/cifar100 holds it"):
        open_data("cifar100")
    with pytest.raises(ValueError, match="data alice/nothing: "):
        open_data("alice/nothing")


def test_a_hub_that_fails_is_an_error_in_one_line(hub: LoopbackHub) -> None:
    push("alice/away")
    with hub.fault("GET", status=500), pytest.raises(ValueError, match="data alice/away: ") as error:
        open_data("alice/away")
    assert "\n" not in str(error.value)


def voc_colours(mask: np.ndarray) -> np.ndarray:
    """The colours by the table that VOC publishes, written out; 255 is the pale boundary."""
    table = {0: (0, 0, 0), 1: (128, 0, 0), 7: (128, 128, 128), 15: (192, 128, 128), 20: (0, 64, 128)}
    picture = np.full((*mask.shape, 3), (224, 224, 192), np.uint8)
    for label, colour in table.items():
        picture[mask == label] = colour
    return picture


def push_voc(repo: str, token: str, masks: list[np.ndarray]) -> None:
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 256, (*m.shape[:2], 3), dtype=np.uint8)) for m in masks]
    made = datasets.Dataset.from_dict({"image": pictures, "mask": [Image.fromarray(m) for m in masks]})
    for column in ("image", "mask"):
        made = made.cast_column(column, datasets.Image())
    datasets.DatasetDict({"train": made, "val": made}).push_to_hub(repo, token=token)


def test_masks_in_vocs_colours_come_as_numbers(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_PX_DATA", raising=False)
    hub.add_user("nateraw", token="hf_nateraw")
    numbers = [np.random.default_rng(i).choice([0, 1, 7, 15, 20, 255], (9, 12)).astype(np.uint8) for i in range(3)]
    push_voc("nateraw/pascal-voc-2012", "hf_nateraw", [voc_colours(m) for m in numbers])
    for source in ("voc2012", "nateraw/pascal-voc-2012"):
        data = open_data(source, task="segmentation")
        assert (data.preset, data.test_split, len(data.classes)) == (PRESETS["voc2012"], "val", 21)
        for part in (data.train, data.test):
            assert all(np.array_equal(part.label_map(i), m) for i, m in enumerate(numbers))
        assert data.train.classes_in(0) == (0, 1, 7, 15, 20)


def test_other_colours_and_other_data_are_refused(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_PX_DATA", raising=False)
    hub.add_user("nateraw", token="hf_nateraw")
    good = voc_colours(np.arange(12, dtype=np.uint8).reshape(3, 4) % 2)
    bad = good.copy()
    bad[1, 2] = (128, 0, 1)  # one step from aeroplane
    push_voc("nateraw/pascal-voc-2012", "hf_nateraw", [good, good, bad])
    with pytest.raises(ValueError, match=r"split train, row 2, column mask: colour \(128, 0, 1\) is not one of the 22"):
        open_data("voc2012", task="segmentation", revision="main")
    push_voc("alice/painted", "hf_alice", [good])  # the same colours, but nobody says what they mean
    with pytest.raises(ValueError, match=r"split train, row 0, column mask: an RGB image, not a label map"):
        open_data("alice/painted", task="segmentation")
    push_voc("alice/numbers", "hf_alice", [good[..., 0] // 128])
    assert open_data("alice/numbers", task="segmentation").classes == ("0", "1")
