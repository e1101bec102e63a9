"""hf-px eval against predictions of single images, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.tickets import deeplab_ticket, segformer_ticket
from torch import nn

import hf_px
from hf_px.cli import main
from hf_px.core.mask import Mask
from hf_px.data import Split, data_config, open_data, pruning_batches
from hf_px.data.segmentation.pairs import Pairs
from hf_px.models.networks import resnet20
from hf_px.tickets.predict import classify, segment, ticket_images

WORDS = ("nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="module")
def network() -> tuple[nn.Module, Mask]:
    """A pruned ResNet-20 that took a few steps on digits of 16 pixels: right more often than not, and not always."""
    model = resnet20(generator=torch.Generator().manual_seed(0))
    model.pretrained_cfg["input_size"] = (3, 16, 16)
    mask = hf_px.prune(model, "random", sparsity=0.3, keep_head=True, progress=False)
    optimizer = torch.optim.Adam(mask.apply_(model).train().parameters(), lr=0.003)
    hf_px.keep_zeros(model, mask, optimizer)
    for x, y in pruning_batches(open_data("digits"), data_config(model), 40, batch_size=50) * 2:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), mask


def save(network: tuple[nn.Module, Mask], path: Path, names: Sequence[str] = (), **info: object) -> Path:
    model, mask = network
    model.pretrained_cfg.pop("label_names", None)
    model.pretrained_cfg |= {"label_names": list(names)} if names else {}
    hf_px.Ticket(model, mask, **info).save_pretrained(path, layout="packed")
    return path


def right(ticket: Path, test: Split, order: Sequence[int] = range(10)) -> float:
    """Accuracy, one image at a time; `order[i]` is the ticket's number of class i."""
    model, images = hf_px.from_pretrained(ticket), ticket_images(ticket, hf_px.from_pretrained(ticket))
    images |= {"crop_pct": 1.0, "crop_mode": "squash"}
    model.pretrained_cfg = {}
    best = [classify(model, test.image(i), images, 1)[0][0] for i in range(len(test))]
    return float(np.mean([word == f"class {order[label]}" for word, label in zip(best, test.labels.tolist())]))


def pictures(folder: Path, names: Sequence[str], split: str = "", each: int = 4) -> Path:
    """A folder of digits for each class, called names[digit]."""
    test = open_data("digits").test
    for digit, name in enumerate(names):
        (where := folder / split / name).mkdir(parents=True)
        for i in (test.labels == digit).nonzero().view(-1).tolist()[:each]:
            test.image(i).save(where / f"{i}.png")
    return folder


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main(["eval", *map(str, argv), "--quiet"]) == 0
    return capsys.readouterr().out


def fails(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main(["eval", *map(str, argv), "--quiet"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("hf-px: error: ") and len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("runtime", ["dense", "sparse"])
def test_the_accuracy_is_that_of_single_images_and_stands_beside_the_cards(
    network: tuple[nn.Module, Mask], tmp_path: Path, capsys: pytest.CaptureFixture[str], runtime: str
) -> None:
    result = {"dataset": "scikit-learn-digits", "split": "test", "metric": "accuracy", "value": 0.5, "dense": 0.75}
    other = {**result, "dataset": "uoft-cs/cifar10", "value": 0.25}
    ticket = save(network, tmp_path / "ticket", results=[other, {**result, "split": "train", "value": 0.9}, result])
    true = right(ticket, open_data("digits").test)
    assert 0.3 < true < 1
    out = run(capsys, ticket, "--data", "digits", "--runtime", runtime, "--json", tmp_path / "x.json")
    assert f"360 images of 16x16, {runtime} runtime" in out and "images a second" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("accuracy")]
    assert row == ["accuracy", f"{true:.4f}", "0.5000", "0.7500"]
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["metrics"]["accuracy"] == true and found["runtime"] == runtime and found["images_per_second"] > 0
    assert found["card"]["accuracy"] == {"value": 0.5, "dense": 0.75, "split": "test"}
    out = run(capsys, ticket, "--data", "digits", "--split", "train", "--batch-size", 7)
    assert "1,437 images" in out and " 0.9000 " in out


def test_classes_are_matched_by_their_names(
    network: tuple[nn.Module, Mask], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder's classes are in alphabetical order, a ticket's in any."""
    ticket = save(network, tmp_path / "ticket", WORDS)
    folder = pictures(tmp_path / "data", WORDS)
    test = open_data(str(folder), need_train=False).test
    true = right(ticket, test, [WORDS.index(name) for name in sorted(WORDS)])
    assert f"accuracy        {true:.4f}" in run(capsys, ticket, "--data", folder) and true > 0.3
    by_number = right(ticket, test)
    assert by_number != true
    assert f"accuracy        {by_number:.4f}" in run(capsys, ticket, "--data", folder, "--by-number")
    save(network, ticket)  # no names: by number
    assert f"accuracy        {by_number:.4f}" in run(capsys, ticket, "--data", folder)


def test_the_split_is_the_test_split_or_the_only_one(
    network: tuple[nn.Module, Mask], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket, folder = save(network, tmp_path / "ticket"), tmp_path / "data"
    assert "split train: 10 images" in run(capsys, ticket, "--data", pictures(folder / "one", WORDS, each=1))
    two = pictures(folder / "two", WORDS, "train", each=2)
    pictures(two, WORDS, "validation", each=3)
    assert "split validation: 30 images" in run(capsys, ticket, "--data", two)
    assert "split train: 20 images" in run(capsys, ticket, "--data", two, "--split", "train")
    assert "no split 'rest'; it has train, validation" in fails(capsys, ticket, "--data", two, "--split", "rest")


def test_mean_iou_is_that_of_single_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    names = ("background", "cat", "dog", "cow", "car")
    for kind in ("images", "masks"):
        (tmp_path / "data" / "val" / kind).mkdir(parents=True)
    for i in range(3):
        pixels = random.integers(0, 256, (33, 33, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / "val" / "images" / f"{i}.png")
        Image.fromarray(random.integers(0, 5, (33, 33), np.uint8)).save(tmp_path / "data/val/masks" / f"{i}.png")
    (tmp_path / "data" / "classes.txt").write_text("\n".join(names))
    hf_px.Ticket(*deeplab_ticket(names=names)).save_pretrained(ticket := tmp_path / "ticket")
    model, images = hf_px.from_pretrained(ticket), ticket_images(ticket, hf_px.from_pretrained(ticket))
    test: Pairs = open_data(str(tmp_path / "data"), need_train=False, task="segmentation").test
    seen = np.stack([segment(model, test.image(i), images) for i in range(3)])
    true = np.stack([test.label_map(i) for i in range(3)])
    iou = [np.sum((seen == c) & (true == c)) / np.sum((seen == c) | (true == c)) for c in range(5)]
    out = run(capsys, ticket, "--data", tmp_path / "data", "--json", tmp_path / "x.json")
    assert f"mean_iou        {np.mean(iou):.4f}" in out
    found = json.loads((tmp_path / "x.json").read_text())["metrics"]
    assert list(found["iou"].values()) == pytest.approx(iou) and list(found["iou"]) == list(names)
    (tmp_path / "data" / "classes.txt").unlink()  # labels 0 to 4, as the ticket has them
    assert f"{np.mean(iou):.4f}" in run(capsys, ticket, "--data", tmp_path / "data")
    hf_px.Ticket(*segformer_ticket()).save_pretrained(ticket)  # four classes, at a quarter of the size
    assert "val/masks/" in (err := fails(capsys, ticket, "--data", tmp_path / "data")) and "label 4" in err
    for path in (tmp_path / "data" / "val" / "masks").iterdir():
        Image.fromarray(np.minimum(np.asarray(Image.open(path)), 3)).save(path)
    assert "mean_iou" in run(capsys, ticket, "--data", tmp_path / "data")


def test_what_does_not_fit_is_said_before_the_work(
    network: tuple[nn.Module, Mask], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket, folder = save(network, tmp_path / "ticket", WORDS), tmp_path / "data"
    nine = pictures(folder / "nine", WORDS[:9], each=1)
    assert "has 9 classes (eight, five, four, nought, …)" in (err := fails(capsys, ticket, "--data", nine))
    assert "but the ticket has 10 (nought, one, two, three, …); take data with the ticket's classes" in err
    renamed = pictures(folder / "renamed", ("zero", *WORDS[1:]), each=1)
    err = fails(capsys, ticket, "--data", renamed)
    assert "has a class 'zero', but the ticket's classes are nought, one" in err and "set --by-number" in err
    flat = folder / "nine" / "one"
    assert "a classifier needs one folder per class" in fails(capsys, ticket, "--data", flat)
    for argv, complaint in (
        (("--data", "random"), "data 'random' is noise"),
        (("--data", "voc2012"), "a classifier needs labels"),
        (("--data", tmp_path / "nowhere"), "no such file or folder"),
        (("--data", "digits", "--split", "rest"), "no split 'rest'; it has train, test"),
        (("--data", "digits", "--json", tmp_path / "a.png"), "a.png: name a file that ends in .json"),
        (("--data", "digits", "--json", tmp_path / "no" / "a.json"), "no directory"),
    ):
        assert complaint in fails(capsys, ticket, *argv), argv
    assert "no such directory" in fails(capsys, tmp_path / "nothing", "--data", "digits")
    damaged = pictures(folder / "damaged", WORDS, each=2)
    (bad := next((damaged / "six").iterdir())).write_bytes(b"\x89PNG\r\n\x1a\n")
    assert bad.name in fails(capsys, ticket, "--data", damaged)
