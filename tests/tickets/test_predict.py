"""What a ticket sees in a picture, from the file on disk to names and shares."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from support.common import state_of
from support.tickets import pruned
from torch import nn

import hf_px
from hf_px.data import Data, Split, data_config
from hf_px.data import test_transform as recipe_transform
from hf_px.data.labelled_split import ReadArray
from hf_px.data.presets import PRESETS, preset_of
from hf_px.models.networks import resnet20
from hf_px.tickets.predict import (
    background_class,
    background_legend,
    class_names,
    class_shares,
    classify,
    draw_segmentation,
    read_image,
    segment,
    ticket_images,
)

SQUARE = 65


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth, as photographs are."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def deeplab(classes: int = 5, side: int = SQUARE, names: list[str] | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("deeplabv3plus_test_resnet", num_classes=classes)
    model.pretrained_cfg |= {"input_size": (3, side, side), **({"label_names": names} if names else {})}
    return model.eval()


def segformer(**more: object) -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    tiny = {"depths": [1] * 4, "hidden_sizes": [8] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}
    return SegformerForSemanticSegmentation(SegformerConfig(**tiny, image_size=64, num_labels=4, **more)).eval()


# segment


@pytest.mark.parametrize("size", [(65, 65), (40, 65), (33, 20), (200, 90), (1, 300)])
def test_labels_come_back_at_the_size_of_the_picture(size: tuple[int, int]) -> None:
    model = deeplab()
    before = state_of(model)
    labels = segment(model, noise(*size), data_config(model))
    assert labels.shape == size[::-1] and labels.dtype == np.uint8
    assert state_of(model) == before


def test_labels_of_a_picture_of_the_squares_size_are_the_argmax() -> None:
    model, image = deeplab(), noise(SQUARE, SQUARE)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = model(((x - mean) / std)[None])[0].argmax(0)
    assert len(expected.unique()) > 1
    found = torch.from_numpy(segment(model, image, data_config(model))).long()
    assert float((found == expected).float().mean()) > 0.999  # two ways to normalise differ in the last bit
    model.train()
    assert np.array_equal(segment(model, image, data_config(model)), found) and model.training  # eval, and back


def test_transformers_answers_at_a_quarter_of_the_size() -> None:
    model, image = segformer(), noise(64, 64)
    images = data_config(model)
    assert images["input_size"] == (3, 64, 64)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(images[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        logits = model(((x - mean) / std)[None]).logits
    assert logits.shape[2:] == (16, 16)
    expected = F.interpolate(logits, (64, 64), mode="bilinear", align_corners=False)[0].argmax(0)
    found = torch.from_numpy(segment(model, image, images)).long()
    assert float((found == expected).float().mean()) > 0.999 and len(expected.unique()) > 1


@pytest.mark.parametrize("label", [0, 3])
def test_who_always_says_one_class_says_it_everywhere(label: int) -> None:
    model = deeplab()
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias[label] = 1.0
    labels = segment(model, noise(70, 31), data_config(model))
    assert (labels == label).all()
    assert class_shares(labels, None) == [(label, f"class {label}", 1.0)]


class Answers(nn.Module):
    """The same answer to every picture."""

    def __init__(self, *shape: int, value: float = 0.0, num_classes: int | None = None) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.full(shape, value))
        self.num_classes = shape[0] if num_classes is None else num_classes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.answer[None]


def test_answers_that_are_none() -> None:
    images = data_config(deeplab())
    image = noise(9, 9)
    with pytest.raises(ValueError, match=r"Answers returns shape \(4,\), not logits for every pixel"):
        segment(Answers(4), image, images)
    with pytest.raises(ValueError, match="300 classes; a label map has 255 at most"):
        segment(Answers(300, 65, 65), image, images)
    with pytest.raises(ValueError, match="inf or nan"):
        segment(Answers(4, 65, 65, value=float("nan")), image, images)
    with pytest.raises(ValueError, match=r"returns shape \(4, 65, 65\) and is not a classifier"):
        classify(Answers(4, 65, 65), image, images)
    with pytest.raises(ValueError, match="is not a classifier"):
        classify(Answers(64, num_classes=0), image, images)
    with pytest.raises(ValueError, match=r"Linear does not run on an image of 3x65x65"):
        segment(nn.Linear(3, 3), image, images)
    with pytest.raises(ValueError, match="`k` is 0"):
        classify(Answers(4), image, images, k=0)


def test_shares_are_of_all_pixels_and_the_largest_first() -> None:
    labels = np.array([[0, 0, 2], [2, 2, 1]], np.uint8)
    assert class_shares(labels, ("a", "b", "c")) == [(2, "c", 0.5), (0, "a", 1 / 3), (1, "b", 1 / 6)]


def test_a_wall_is_no_background() -> None:
    image = noise(20, 20)
    labels = np.zeros((20, 20), np.uint8)
    assert [background_class(names) for names in (None, ("Background", "cat"), ("0", "1"))] == [0, 0, 0]
    assert background_class(("wall", "sky")) is None
    assert (
        list(background_legend(("Background", "cat"))) == ["Background: not coloured"]
        and background_legend(("wall",)) == {}
    )
    wall, plainly = (np.array(draw_segmentation(image, labels, names, side=20)) for names in (("wall", "sky"), None))
    black = [(pixels.reshape(-1, 3) == 0).all(1).sum() for pixels in (wall, plainly)]
    assert black[0] > black[1]  # class 0 has a colour, black, in the legend
    many = np.arange(250, dtype=np.uint8).reshape(10, 25)
    assert draw_segmentation(noise(25, 10), many, None, side=400).height < 600  # not 250 names


# classify


def data_of(model: nn.Module, name: str, size: tuple[int, int]) -> tuple[Data, Image.Image]:
    """Data of a preset, or of none, whose only picture is this."""
    image = noise(*size)
    split = Split(torch.zeros(1, dtype=torch.long), ReadArray(np.array(image)[None]))
    return Data(name, name, name, ("0",), split, split, "test", preset_of(name)), image


@pytest.mark.parametrize(
    ("name", "size", "side"),
    [
        ("cifar10", (32, 32), 32),
        ("cifar10", (32, 32), 48),
        ("digits", (8, 8), 16),
        ("tiny-imagenet", (64, 50), 32),
        ("imagenet-1k", (90, 60), 32),
        ("photos", (90, 60), 32),
        ("photos", (30, 20), 32),
    ],
)
def test_a_picture_is_taken_as_in_the_recipes_test(name: str, size: tuple[int, int], side: int, tmp_path: Path) -> None:
    from hf_px.data import takes_whole

    model, mask = pruned(resnet20(num_classes=3, generator=torch.Generator().manual_seed(0)))
    data, image = data_of(model, name, size)
    images = data_config(model) | {"input_size": (3, side, side), "crop_pct": 0.9, "crop_mode": "center"}
    images |= (
        {"crop_pct": 1.0, "crop_mode": "squash"} if takes_whole(data, images) else {}
    )  # as hf_px/training/experiment.py does
    model.pretrained_cfg |= {key: images[key] for key in ("input_size", "crop_pct", "crop_mode")}
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    found = hf_px.from_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(recipe_transform(data, images)(image)[None])[0].softmax(0)
    probabilities = dict(classify(found, image, ticket_images(tmp_path, found)))
    assert [probabilities[f"class {i}"] for i in range(3)] == expected.tolist()  # to the last bit
    assert list(probabilities.values()) == sorted(probabilities.values(), reverse=True)


def test_the_paper_is_tested_on_whole_pictures_but_imagenets() -> None:
    assert {name for name in PRESETS if not PRESETS[name].whole} == {"imagenet-1k"}


def test_fewer_classes_than_asked_for() -> None:
    model = resnet20(num_classes=7)
    images = ticket_images(".", model)
    assert len(classify(model, noise(40, 30), images)) == 5
    found = classify(model, noise(40, 30), images, k=50)
    assert len(found) == 7 and sum(p for _, p in found) == pytest.approx(1)


def test_a_grey_model_sees_a_grey_picture() -> None:
    model = resnet20(in_chans=1, num_classes=3)
    for crop in ({"crop_mode": "squash"}, {"crop_pct": 0.8}, {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.2)}):
        model.pretrained_cfg |= crop
        assert len(classify(model, noise(50, 40), ticket_images(".", model))) == 3


def test_half_precision() -> None:
    model = segformer().bfloat16()
    assert segment(model, noise(30, 40), data_config(model)).shape == (40, 30)


# what a ticket says of itself


def test_class_names() -> None:
    assert class_names(segformer()) is None  # LABEL_0, LABEL_1, …
    assert class_names(segformer(id2label={0: "wall", 1: "sky", 2: "sea", 3: "sky"})) == (
        "wall",
        "sky (1)",
        "sea",
        "sky (3)",
    )
    assert class_names(deeplab()) is None
    assert class_names(deeplab(names=list("abcde"))) == tuple("abcde")
    assert class_names(deeplab(names=list("abcd"))) is None  # one is missing
    assert class_names(nn.Linear(1, 1)) is None
    hostile = class_names(deeplab(names=["\x1b[2Jcat", "a\nb", "x" * 500, "\u202e", "e"]))
    assert hostile == ("[2Jcat", "a b", "x" * 59 + "…", "class 3", "e")


@pytest.mark.parametrize("kind", ["deeplab", "segformer"])
def test_names_and_size_go_round(kind: str, tmp_path: Path) -> None:
    model = (
        deeplab(names=list("abcde"), side=33)
        if kind == "deeplab"
        else segformer(id2label=dict(enumerate("abcd")), label2id={})
    )
    model, mask = pruned(model)
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    found = hf_px.from_pretrained(tmp_path)
    assert class_names(found) == tuple("abcde" if kind == "deeplab" else "abcd")
    images = ticket_images(tmp_path, found)
    assert images["input_size"] == ((3, 33, 33) if kind == "deeplab" else (3, 64, 64))
    assert np.array_equal(segment(found, noise(50, 40), images), segment(model, noise(50, 40), data_config(model)))


def test_the_processor_beside_a_transformers_ticket_counts(tmp_path: Path) -> None:
    model = segformer()
    config = {"size": {"height": 96, "width": 64}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    images = ticket_images(tmp_path, model)
    assert images["input_size"] == (3, 96, 64) and images["mean"] == (0.5,) * 3 and images["std"] == (0.25,) * 3
    assert ticket_images(tmp_path, deeplab())["input_size"] == (3, 65, 65)  # timm's models say it themselves
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert ticket_images(tmp_path, model) == ticket_images(tmp_path / "..", model)


@pytest.mark.parametrize(
    "config",
    [
        {"size": 10**6},
        {"size": 0},
        {"size": {"height": 64, "width": -1}},
        {"size": 64, "image_std": [0, 1, 1]},
        {"size": 64, "image_mean": [float("nan"), 1, 1]},
        {"size": 64, "resample": [1]},
        {"size": {"shortest_edge": 64}, "crop_pct": 1e-9},
        {"size": True, "image_mean": [10**400] * 3},
        [],
        "[" * 100_000,
        "{",
        " " * 2_000_000 + "{}",
    ],
)
def test_a_strangers_processor_is_bounded(config: object, tmp_path: Path) -> None:
    if isinstance(config, dict):
        config = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3} | config
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ValueError, match=r"preprocessor_config.json: invalid image settings"):
        ticket_images(tmp_path, segformer())


@pytest.mark.parametrize(
    "config",
    [
        {"input_size": (3, 10**6, 10**6)},
        {"input_size": (4, 32, 32)},
        {"input_size": (3, 0, 32)},
        {"input_size": "large"},
        {"input_size": (3, 32.5, 32)},
        {"crop_pct": 1e-6},
        {"crop_pct": "all"},
        {"mean": ("a", "b", "c")},
        {"std": (0.0, 1.0, 1.0)},
        {"interpolation": "random"},
    ],
)
def test_a_strangers_record_is_bounded(config: dict[str, object]) -> None:
    model = deeplab()
    model.pretrained_cfg |= config
    with pytest.raises(ValueError, match=r"^\.: config.json: invalid image settings"):
        ticket_images(".", model)


# read_image


def test_a_picture_is_upright_and_rgb(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 10), (250, 0, 0))
    image.paste((0, 0, 250), (0, 0, 10, 10))  # blue at the left
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right to see it upright
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    found = read_image(tmp_path / "turned.jpg")
    assert found.size == (10, 20) and found.mode == "RGB"
    top, bottom = found.getpixel((5, 2)), found.getpixel((5, 17))
    assert top[2] > 200 > bottom[2] and bottom[0] > 200 > top[0]
    for mode in ("L", "P", "RGBA", "1", "CMYK"):
        path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
        image.convert(mode).save(path)
        assert read_image(path).mode == "RGB" and read_image(path).size == (20, 10)


def test_what_is_no_picture_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> str:
        with pytest.raises(ValueError) as caught:
            read_image(tmp_path / name)
        assert name in str(caught.value)
        return str(caught.value)

    assert "no such file" in fails("gone.jpg")
    (tmp_path / "folder.jpg").mkdir()
    assert "is a directory" in fails("folder.jpg")
    (tmp_path / "text.jpg").write_text("hello")
    assert "not an image" in fails("text.jpg")
    (tmp_path / "empty.jpg").touch()
    assert "not an image" in fails("empty.jpg")
    (tmp_path / "program.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    assert "not an image" in fails("program.eps")  # PIL would start Ghostscript
    for suffix in ("jpg", "png"):
        noise(90, 80).save(tmp_path / f"whole.{suffix}")
        data = (tmp_path / f"whole.{suffix}").read_bytes()
        (tmp_path / f"cut.{suffix}").write_bytes(data[: len(data) // 2])
        assert "cannot be read" in fails(f"cut.{suffix}")
    Image.fromarray(np.full((4, 4), 3000, np.uint16)).save(tmp_path / "deep.png")
    assert "8 bits" in fails("deep.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 80 // 2 - 1)
    assert "too many pixels" in fails("whole.png")


def test_a_config_that_is_not_transformers_says_nothing() -> None:
    model = nn.Linear(1, 1)
    model.config = SimpleNamespace(id2label=["a"], num_labels=1)  # type: ignore[assignment]
    assert class_names(model) is None


class Bright(nn.Module):
    """Class 1 where the picture is bright, 0 where it is dark: the answer is known at every pixel."""

    task = "segmentation"

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        light = x.mean(1, keepdim=True) * self.scale
        return torch.cat([-light, light], 1)


@pytest.mark.parametrize("size", [(30, 12), (12, 30), (64, 26), (26, 64), (32, 32)])
def test_labels_lie_where_the_picture_is_whatever_its_shape(size: tuple[int, int]) -> None:
    """Smaller than the square it is padded, larger it is shrunk; in both the labels must come back to their pixels."""
    width, height = size
    truth = np.zeros((height, width), np.uint8)
    truth[: height // 2, : width // 2] = 1  # one corner: a shift along either side would show
    image = Image.fromarray(np.repeat(truth[..., None] * 255, 3, 2))
    images = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    found = segment(Bright(), image, images)
    assert found.shape == truth.shape
    if max(size) <= 32:
        assert np.array_equal(found, truth)
    else:
        assert (found == truth).mean() > 0.9  # a pixel or two along the edge, by the shrinking
