"""A real data set on the loopback Hub, opened by its name with the real client."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
from hub.loopback import LoopbackHub
from huggingface_hub import HfApi
from PIL import Image

from hf_px.data import PRESETS, load_pruning_set, open_data
from hf_px.models import resnet20


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
    with pytest.raises(ValueError, match=r"data cifar100: .*HF_PX_DATA=/dir, where /dir/cifar100 is it"):
        open_data("cifar100")
    with pytest.raises(ValueError, match="data alice/nothing: "):
        open_data("alice/nothing")


def test_a_hub_that_fails_is_an_error_in_one_line(hub: LoopbackHub) -> None:
    push("alice/away")
    with hub.fault("GET", status=500), pytest.raises(ValueError, match="data alice/away: ") as error:
        open_data("alice/away")
    assert "\n" not in str(error.value)
