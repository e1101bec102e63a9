"""What a training loop sees: augmentations as the paper has them, and items that depend on nothing but their names."""

import colorsys
import dataclasses
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from hf_px.data import PRESETS, Data, Split, TestImages, TrainImages, data_config, open_data
from hf_px.data import test_transform as at_test
from hf_px.data import train_transform as at_training
from hf_px.data.labelled_split import ReadArray
from hf_px.data.presets import PadCrop, ResizedCrop
from hf_px.data.seeded import uniforms
from hf_px.data.transforms import BatchAugment, NormalisePixels, PadCropFlip
from hf_px.models.networks import resnet20

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "interpolation": "bilinear", "crop_pct": 0.875}


def images(size: int, **more) -> dict:
    """What a model of this input size expects: pixels from 0 to 1, so that a test can read them."""
    return {**PLAIN, "input_size": (3, size, size), **more}


def made(pixels: np.ndarray, preset: str | None, test: np.ndarray | None = None) -> Data:
    """A data set of these pictures, N x H x W x 3."""
    train, test_part = (
        Split(torch.arange(len(part)) % 10, ReadArray(part)) for part in (pixels, pixels if test is None else test)
    )
    names = tuple("0123456789")
    return Data("made", "made", "made", names, train, test_part, "test", PRESETS[preset] if preset else None)


def noise(count: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def to_bytes(x: Tensor) -> np.ndarray:
    whole = x * 255
    assert torch.allclose(whole, whole.round(), atol=1e-3)  # 0 … 255 again: nothing came in between
    return whole.round().byte().permute(1, 2, 0).numpy()


# the paper's table: CIFAR


def crops(picture: np.ndarray, padding: int) -> dict[bytes, tuple[int, int, bool]]:
    """Every crop of the padded picture, as it is and flipped."""
    side = len(picture)
    padded = np.zeros((side + 2 * padding, side + 2 * padding, 3), np.uint8)
    padded[padding : padding + side, padding : padding + side] = picture
    found = {}
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[top : top + side, left : left + side]
            found[crop.tobytes()] = (top, left, False)
            found[crop[:, ::-1].tobytes()] = (top, left, True)
    return found


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_one_of_81_crops_or_their_mirror_images(name: str) -> None:
    picture = noise(1, 32)
    known = crops(picture[0], padding=4)
    assert len(known) == 162
    train = TrainImages(made(picture, name), images(32), seed=0)
    seen = [known[to_bytes(train[(epoch, 0)][0]).tobytes()] for epoch in range(1000)]
    # 1 - 161/162 to the 1000th: each is missing with 0.2 %, so 5 of them with next to nothing
    assert len(set(seen)) >= 158
    assert 440 < sum(flip for *_, flip in seen) < 560
    for axis in (0, 1):
        assert np.bincount([s[axis] for s in seen], minlength=9).min() > 70  # of 111 expected


def test_cifar_for_a_large_model_loses_the_same_share() -> None:
    """32 to 224: the image is resized whole, and 4 · 224/32 = 28 pixels of padding move it."""
    picture = noise(1, 32)
    data = made(picture, "cifar10")
    whole = TestImages(data, images(224))[0][0]
    padded = F.pad(whole, [28] * 4)
    train = TrainImages(data, images(224), seed=0)
    offsets = []
    for epoch in range(40):
        x = train[(epoch, 0)][0]
        assert x.shape == (3, 224, 224)
        for view in (x, x.flip(2)):
            # where the middle row and column say it is
            found = [
                (top, left)
                for top in range(57)
                for left in range(57)
                if padded[0, top + 112, left + 112] == view[0, 112, 112]
                and torch.equal(padded[:, top : top + 224, left : left + 224], view)
            ]
            offsets += found
    assert len(offsets) == 40
    tops, lefts = zip(*offsets)
    assert min(tops) < 9 < 47 < max(tops)
    assert min(lefts) < 9 < 47 < max(lefts)


# the paper's table: Tiny-ImageNet and ImageNet


def map_of_places(width: int, height: int) -> np.ndarray:
    """A picture in which red says how far right a pixel is, and green how far down."""
    picture = np.zeros((1, height, width, 3), np.uint8)
    picture[..., 0] = np.linspace(0, 255, width).round()
    picture[..., 1] = np.linspace(0, 255, height).round()[:, None]
    return picture


@pytest.mark.parametrize(
    ("preset", "size", "scale", "ratio"),
    [
        ("tiny-imagenet", 64, (0.1, 1.0), (0.8, 1.25)),
        ("tiny-imagenet", 224, (0.1, 1.0), (0.8, 1.25)),
        (None, 64, (0.08, 1.0), (3 / 4, 4 / 3)),
    ],
)
def test_a_random_part_of_the_image(preset: str | None, size: int, scale: tuple, ratio: tuple) -> None:
    """Read off the map which part of it is left: its share of the area, its form, and whether it is mirrored."""
    train = TrainImages(made(map_of_places(256, 256), preset), images(size), seed=0)
    shares, forms, flips = [], [], 0
    for epoch in range(500):
        x = train[(epoch, 0)][0]
        assert x.shape == (3, size, size)
        # the pixels' centres are (size - 1)/size of the part apart
        width, height = ((x[0, 0, -1] - x[0, 0, 0]), (x[1, -1, 0] - x[1, 0, 0]))
        flips += int(width < 0)
        assert height > 0  # never upside down
        shares.append(float(width.abs() * height) * (size / (size - 1)) ** 2)
        forms.append(float(width.abs() / height))
    # what does not fit into the picture is drawn again, up to ten times, so that shares near 1 are rare
    assert scale[0] * 0.95 < min(shares) < scale[0] * 1.25
    assert 0.9 < max(shares) < 1.03
    assert ratio[0] * 0.97 < min(forms) < ratio[0] * 1.05
    assert ratio[1] * 0.95 < max(forms) < ratio[1] * 1.03
    assert 200 < flips < 300


def imagenet(picture: np.ndarray, draws: int) -> list[Tensor]:
    train = TrainImages(made(picture, "imagenet-1k"), images(32), seed=0)
    return [train[(epoch, 0)][0] for epoch in range(draws)]


def test_imagenet_is_grey_once_in_five_and_shifts_in_hue() -> None:
    red = np.zeros((1, 64, 64, 3), np.uint8)
    red[..., 0] = 200
    colours = [x[:, 16, 16].tolist() for x in imagenet(red, 500)]
    grey = [c for c in colours if max(c) - min(c) < 0.01]
    assert 70 < len(grey) < 130  # 100 expected, deviation 9
    hues = [colorsys.rgb_to_hsv(*c)[0] for c in colours if c not in grey]
    turns = [hue - 1 if hue > 0.5 else hue for hue in hues]
    assert -0.42 < min(turns) < -0.37
    assert 0.37 < max(turns) < 0.42


def test_imagenet_varies_in_brightness() -> None:
    # on an even grey picture contrast, saturation and hue do nothing: what is left is brightness, 1 ± 0.4
    even = np.full((1, 64, 64, 3), 120, np.uint8)
    values = [float(x.mean()) * 255 / 120 for x in imagenet(even, 400)]
    assert 0.59 < min(values) < 0.63
    assert 1.37 < max(values) < 1.41


def test_imagenet_varies_in_contrast() -> None:
    """Two greys, 100 and 140: contrast keeps the mean and stretches the distance, brightness scales both."""
    halves = np.full((1, 240, 320, 3), 100, np.uint8)
    halves[:, :, 160:] = 140
    found, mirrored = [], 0
    for x in imagenet(halves, 400):
        low, mean, high = (float(v) * 255 for v in (x.min(), x.mean(), x.max()))
        if high - low < 12:
            continue  # the part holds one half only
        mirrored += bool(x[:, :, 0].mean() > x[:, :, -1].mean())
        share = (mean - low) / (high - low)  # of the brighter half
        brightness = mean / (100 + 40 * share)
        found.append((high - low) / (40 * brightness))
    assert len(found) > 200
    assert 0.52 < min(found) < 0.68  # bytes are rounded: a distance of 12 to a twelfth
    assert 1.32 < max(found) < 1.48
    assert 0.4 < mirrored / len(found) < 0.6


def test_imagenet_as_the_paper_has_it() -> None:
    vary = PRESETS["imagenet-1k"].augmentation
    assert vary == ResizedCrop(scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3), grey=0.2, jitter=0.4, flip=0.5)


# without variation


def test_digits_are_not_varied() -> None:
    data = open_data("digits")
    expects = data_config(resnet20())
    train = TrainImages(data, expects, seed=0)
    x = train[(0, 11)][0]
    assert torch.equal(x, train[(9, 11)][0])
    assert torch.equal(x, at_test(data, expects)(data.train.image(11)))


def test_small_images_are_tested_whole() -> None:
    picture = np.zeros((1, 32, 32, 3), np.uint8)
    picture[0, 0, 0] = picture[0, -1, -1] = 255
    for preset in ("cifar10", "cifar100", "tiny-imagenet", None):
        x = TestImages(made(picture, preset), images(32))[0][0]
        assert np.array_equal(to_bytes(x), picture[0])
        x = TestImages(made(picture, preset), images(224))[0][0]
        assert float(x[:, 0, 0].min()) > 0.9  # both corners are there
        assert float(x[:, -1, -1].min()) > 0.9


@pytest.mark.parametrize("name", ["resnet50.tv_in1k", "vit_small_patch16_224.dino", "test_resnet.r160_in1k"])
def test_imagenet_is_tested_as_timm_does(name: str) -> None:
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    photo = np.repeat(np.repeat(noise(1, 40), 7, axis=1), 9, axis=2)
    data = made(photo, "imagenet-1k")
    wanted = timm.data.create_transform(**config, is_training=False)(Image.fromarray(photo[0]))
    assert torch.equal(TestImages(data, config)[0][0], wanted)
    assert torch.equal(TestImages(dataclasses.replace(data, preset=None), config)[0][0], wanted)  # large, unknown


def test_mean_and_deviation_are_the_models() -> None:
    data = made(np.full((1, 32, 32, 3), 51, np.uint8), "cifar10")
    expects = images(32, mean=(0.1, 0.2, 0.3), std=(0.1, 0.5, 1.0))
    for transform in (
        at_test(data, expects),
        at_training(dataclasses.replace(data, preset=PRESETS["digits"]), expects),
    ):
        x = transform(data.train.image(0))
        assert x.dtype == torch.float32
        assert torch.allclose(x[:, 3, 3], torch.tensor([1.0, 0.0, -0.1]), atol=1e-6)


def test_unknown_data_is_varied_by_its_size() -> None:
    """Up to the model's input as CIFAR is, an eighth at each side; larger ones as photographs."""
    picture = noise(1, 32)
    train = TrainImages(made(picture, None), images(32), seed=0)
    known = crops(picture[0], padding=4)
    assert all(to_bytes(train[(epoch, 0)][0]).tobytes() in known for epoch in range(20))
    assert PRESETS["cifar10"].augmentation == PadCrop(size=32, padding=4)


# items are pure


def states() -> tuple:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("preset", ["cifar10", "tiny-imagenet", "imagenet-1k", None])
def test_an_item_depends_on_seed_epoch_and_index_alone(preset: str | None) -> None:
    data = made(noise(4, 40), preset)
    train = TrainImages(data, images(32), seed=5)
    wanted = {(epoch, index): train[(epoch, index)][0] for epoch in (0, 1) for index in range(4)}
    before = states()
    torch.rand(3)  # whatever came before
    other = TrainImages(data, images(32), seed=5)
    for key in sorted(wanted, reverse=True):  # in another order
        x, label = other[key]
        assert torch.equal(x, wanted[key])
        assert label == key[1]
    torch.set_rng_state(torch.tensor(before[0], dtype=torch.uint8))
    other[(3, 3)]
    assert states() == before  # nobody's random numbers were used up
    assert not any(torch.equal(wanted[(0, i)], wanted[(1, i)]) for i in range(4))
    assert not all(torch.equal(TrainImages(data, images(32), seed=6)[key][0], wanted[key]) for key in wanted)


def test_images_of_an_epoch_do_not_vary_together() -> None:
    """Ten copies of one picture, ten crops; and neither does the next epoch shift them along by one."""
    data = made(np.repeat(noise(1, 32), 10, axis=0), "cifar10")
    train = TrainImages(data, images(32), seed=2**64 - 1)
    epochs = [[train[(epoch, i)][0].numpy().tobytes() for i in range(10)] for epoch in range(4)]
    assert len({x for epoch in epochs for x in epoch}) > 30  # 40 out of 162: 36 expected
    other = TrainImages(data, images(32), seed=0)
    assert sum(other[(0, i)][0].numpy().tobytes() == epochs[0][i] for i in range(10)) < 3


def test_an_error_leaves_random_states_alone() -> None:
    train = TrainImages(made(noise(2, 32), "cifar10"), images(32), seed=0)
    before = states()
    with pytest.raises(IndexError, match="image 7 of 2"):
        train[(0, 7)]
    assert states() == before
    with pytest.raises(TypeError, match=r"\(epoch, index\)"):
        train[0]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("small")
    for split, count in {"train": 50, "test": 9}.items():
        rows = {"image": [Image.fromarray(p) for p in noise(count, 16)], "label": [i % 5 for i in range(count)]}
        table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        table.to_parquet(folder / f"{split}-0.parquet")
    return open_data(str(folder))


def all_of(dataset: TrainImages, keys: list, **options) -> tuple[Tensor, Tensor]:
    batches = list(DataLoader(dataset, batch_size=7, sampler=keys, **options))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_give_the_same_images(on_disk: Data, method: str) -> None:
    keys = [(epoch, index) for epoch in range(2) for index in range(50)]
    dataset = TrainImages(on_disk, images(16), seed=1)
    x, y = all_of(dataset, keys)
    torch.rand(1)  # workers get seeds of their own: they must not matter
    other = TrainImages(dataclasses.replace(on_disk, train=pickle.loads(pickle.dumps(on_disk.train))), images(16), 1)
    xs, ys = all_of(other, keys, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    assert torch.equal(x, xs)
    assert torch.equal(y, ys)
    assert y.tolist() == on_disk.train.labels.tolist() * 2


def test_forked_workers_decode_for_all(on_disk: Data) -> None:
    """What a worker has decoded is kept where this process and the workers of the next epoch find it."""
    split = pickle.loads(pickle.dumps(on_disk.train))
    reads: list[int] = []
    count_reads(split, reads.append)
    dataset = TrainImages(dataclasses.replace(on_disk, train=split), images(16), seed=1)
    all_of(dataset, [(0, i) for i in range(50)], num_workers=2, multiprocessing_context="fork")
    assert not reads  # they did it
    wanted = [np.asarray(on_disk.train.image(i)) for i in range(50)]
    assert all(np.array_equal(np.asarray(split.image(i)), wanted[i]) for i in range(50))
    assert not reads  # and nothing was left to do


def count_reads(split: Split, seen: Callable[[int], None]) -> None:
    read = split._read

    def counted(index: int) -> Image.Image:
        seen(index)
        return read(index)

    split._read = counted


def test_a_data_set_goes_to_workers_by_name(on_disk: Data) -> None:
    """Its files are named, its pixels stay: some kilobytes and the labels."""
    dataset = TrainImages(on_disk, images(16), seed=1)
    dataset[(0, 0)]
    assert len(pickle.dumps(dataset)) < 20_000 + 8 * len(dataset)


def test_cifar10_by_its_name(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, found by HF_PX_DATA: sizes, names, and the crops of a real image."""
    monkeypatch.setenv("HF_PX_DATA", str(shared / "data"))
    data = open_data("cifar10")
    assert (len(data.train), len(data.test), data.dataset) == (50_000, 10_000, "uoft-cs/cifar10")
    assert data.classes[3] == "cat"
    assert data.train.labels.bincount().tolist() == [5000] * 10
    train = TrainImages(data, images(32), seed=0)
    known = crops(np.asarray(data.train.image(77)), padding=4)
    assert all(to_bytes(train[(epoch, 77)][0]).tobytes() in known for epoch in range(30))


# small images, a batch at a time


@pytest.mark.parametrize("preset", ["cifar10", None])
def test_a_batch_is_its_items_stacked(preset: str | None) -> None:
    """Whoever it is drawn with: alone, in another order, with images of another epoch."""
    train = TrainImages(made(noise(12, 32), preset), images(32, mean=(0.2, 0.3, 0.4), std=(0.5, 0.6, 0.7)), seed=3)
    assert train.batch_augment is not None
    keys = [(epoch, index) for epoch in (0, 5) for index in (7, 2, 11, 2)]
    x, y = train.batch(keys)
    assert torch.equal(x, torch.stack([train[key][0] for key in keys]))
    assert y.tolist() == [index % 10 for _, index in keys]
    assert torch.equal(x[1], x[3]) and not torch.equal(x[1], x[5])
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_together_is_one_by_one_with_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """PadCropFlip slices and mirrors a single image; the batch is gathered by index: two ways to one picture."""
    pixels, draws = noise(40, 10), np.random.default_rng(1).random((40, 3))
    draws[:4] = [[0, 0, 0], [1 - 2**-53] * 3, [0, 1 - 2**-53, 0.5], [0.5, 0.25, 0.499]]
    expects = images(10, mean=(0.1, 0.5, 0.9), std=(0.2, 0.3, 0.4))
    found = BatchAugment(expects, 3, 2, 0.5)(pixels, draws)
    alone, normalise = PadCropFlip(3, 2, 0.5), NormalisePixels(expects)
    for x, picture, drawn in zip(found, pixels, draws):
        monkeypatch.setattr(torch, "rand", lambda _, drawn=drawn: torch.from_numpy(drawn))
        assert torch.equal(x, normalise(alone(torch.from_numpy(picture).permute(2, 0, 1))))


def test_uniforms_are_uniform_and_unlike_their_neighbours() -> None:
    epochs, indices = (part.ravel() for part in np.meshgrid(np.arange(40), np.arange(500), indexing="ij"))
    drawn = uniforms(0, epochs, indices, 3)
    assert drawn.shape == (20_000, 3) and drawn.min() >= 0 and drawn.max() < 1
    counts = np.histogram(drawn, bins=50, range=(0, 1))[0]
    assert ((counts - 1200) ** 2 / 1200).sum() < 86  # chi-squared, 49 degrees of freedom: beyond it in 0.1 % of cases
    by_epoch = drawn.reshape(40, 500, 3)
    pairs = {
        "columns": (drawn[:, 0], drawn[:, 1]),
        "neighbours": (drawn[:-1, 0], drawn[1:, 0]),
        "epochs": (by_epoch[:-1].ravel(), by_epoch[1:].ravel()),
        "epoch for index": (by_epoch[1:, :-1].ravel(), by_epoch[:-1, 1:].ravel()),
        "seeds": (drawn.ravel(), uniforms(1, epochs, indices, 3).ravel()),
    }
    for name, (a, b) in pairs.items():
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(len(a)), name
    assert len(np.unique(drawn)) == drawn.size
    assert np.array_equal(uniforms(2**64 + 5, epochs, indices, 3), uniforms(5, epochs, indices, 3))


def test_one_image_of_another_size_is_resized_among_the_others() -> None:
    """A folder of 16x16 images with one of 20x12: in its batch and alone it is what a transform makes of it."""
    small = [Image.fromarray(picture) for picture in noise(5, 16)]
    odd = Image.fromarray(np.random.default_rng(9).integers(0, 256, (12, 20, 3), dtype=np.uint8))
    pictures = [*small, odd]
    split = Split(torch.arange(6), lambda index: pictures[index])
    data = dataclasses.replace(made(noise(1, 16), "digits"), train=split)  # digits: as they are
    train = TrainImages(data, images(16), seed=0)
    assert train.batch_augment is not None
    x, _ = train.batch([(0, index) for index in range(6)])
    for index in range(6):
        assert torch.equal(x[index], at_test(data, images(16))(split.image(index)))


@pytest.mark.parametrize(
    ("preset", "size", "expects"),
    [
        ("cifar10", 32, images(64)),
        ("tiny-imagenet", 32, images(32)),
        ("digits", 8, {**images(8), "input_size": (1, 8, 8)}),
    ],
)
def test_all_others_go_one_by_one(preset: str, size: int, expects: dict) -> None:
    train = TrainImages(made(noise(4, size), preset), expects, seed=0)
    assert train.batch_augment is None
    x, y = train.batch([(0, 1), (1, 3)])
    assert x.shape == (2, *expects["input_size"]) and y.tolist() == [1, 3]
    assert torch.equal(x[1], train[(1, 3)][0])
