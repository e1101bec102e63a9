"""recipes/prune_finetune.py on pictures with masks: killed and resumed, on two processes, and on bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.launching import Server, exists, main, outcome, refusal, results, small_pairs

import hf_px
from hf_px.tickets.predict import class_names


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_pairs(tmp_path_factory.mktemp("pairs"))


def knobs(data: Path) -> list[object]:
    return [
        "--model", "deeplabv3plus_test_resnet", "--data", data, "--image_size", 33, "--scorer", "px", "--sparsity", 0.9,
        "--rounds", 3,
        "--per_class", 4, "--prune_batch_size", 4, "--epochs", 8, "--batch_size", 8, "--lr", 0.05, "--distill", 0.2,
        "--gradient_accumulation", 2, "--eval_epochs", 4, "--output_dir", "run",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(server: Server, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody killed."""
    place = tmp_path_factory.mktemp("whole")
    server.run(place, *knobs(data))
    return place / "run"


def test_it_ends_with_a_ticket_a_picture_and_numbers_by_class(whole: Path) -> None:
    recorded = results(whole)
    ticket = hf_px.Ticket.from_pretrained(whole)
    assert recorded["finished"] and ticket.mask.kept == round(0.1 * ticket.mask.total)
    assert recorded["settings"]["norm"] == "flow" and recorded["mask"]["emptied"] == []
    assert recorded["mask"]["keep_dense"] == ["classifier.weight"]
    for name in ("dense", "pruned", "ticket"):
        found = recorded["results"][name]
        assert list(found["iou"]) == ["background", "disk", "square"] and 0 <= found["mean_iou"] <= 1
    assert all(isinstance(value, (int, float)) for row in recorded["history"]["ticket"] for value in row.values())
    first, *_ = ticket.config["results"]
    assert first["by_class"] == recorded["results"]["ticket"]["iou"] and first["task"] == "image-segmentation"
    assert first["dense_by_class"] == recorded["results"]["dense"]["iou"]
    card = (whole / "README.md").read_text()
    assert "predictions.png" in card and "IoU by class" in card and "pipeline_tag: image-segmentation" in card
    with Image.open(whole / "predictions.png") as picture:
        assert picture.width > 4 * 200 and picture.height > 4 * 150  # four columns, four rows
    model = ticket.to_model()
    assert class_names(model) == ("background", "disk", "square")
    for name, weight in ticket.mask.tensors_of(model).items():
        assert not weight[~ticket.mask.bits[name]].any(), name


def mean_iou(folder: Path, data: Path) -> dict[str, float]:
    """Of a ticket, measured without hf_px's data, metrics or loop: sets of pixels, at the size of the network."""
    model = hf_px.from_pretrained(folder)
    recorded = model.pretrained_cfg
    side = recorded["input_size"][1]
    hits, either = np.zeros(3), np.zeros(3)
    for path in sorted((data / "val/images").iterdir()):
        image, mask = Image.open(path), Image.open(data / "val/masks" / path.name)
        scale = min(1.0, side / image.width, side / image.height)
        size = (round(image.width * scale), round(image.height * scale))
        pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR), np.float32) / 255
        labels = np.asarray(mask.resize(size, Image.Resampling.NEAREST))
        x = np.zeros((1, 3, side, side), np.float32)
        x[0, :, : size[1], : size[0]] = (
            (pixels - np.float32(recorded["mean"])) / np.float32(recorded["std"])
        ).transpose(2, 0, 1)
        with torch.no_grad():
            answer = model(torch.from_numpy(x))[0].argmax(0).numpy()[: size[1], : size[0]]
        for c in range(3):
            mine, theirs = (answer == c) & (labels != 255), labels == c
            hits[c], either[c] = hits[c] + (mine & theirs).sum(), either[c] + (mine | theirs).sum()
    return {name: hits[c] / either[c] for c, name in enumerate(("background", "disk", "square"))}


def test_the_mean_iou_it_tells_is_what_the_ticket_does(whole: Path, data: Path) -> None:
    recorded, found = results(whole)["results"], mean_iou(whole, data)
    assert recorded["ticket"]["iou"] == pytest.approx(found, abs=1e-9)
    assert recorded["ticket"]["mean_iou"] == pytest.approx(np.mean(list(found.values())), abs=1e-9)
    assert recorded["dense"]["mean_iou"] > 0.5 > recorded["pruned"]["mean_iou"]  # it does learn to see them


@pytest.mark.slow
def test_killed_and_resumed_it_gives_the_same_bits(server: Server, whole: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    server.run(tmp_path, *knobs(data), kill=exists(run, "checkpoints/ticket-00000004.safetensors"))
    assert not results(run)["finished"]
    assert "ticket: continues after step" in server.run(tmp_path, *knobs(data), "--resume")
    assert outcome(run) == outcome(whole)  # the picture too


def test_two_processes_measure_what_one_does(server: Server, whole: Path, data: Path, tmp_path: Path) -> None:
    """Five pictures on two processes: the last batch is uneven. Batch norm trains otherwise; the mask is the same."""
    flags = [*knobs(data), "--epochs", 1, "--eval_epochs", 1, "--gradient_accumulation", 1, "--dense", "skip"]
    server.run(tmp_path, *flags, "--distill", 0, processes=2)  # test_recipe.py launches two as a user does
    both, alone = results(tmp_path / "run"), results(whole)
    assert both["settings"]["processes"] == 2 and both["mask"] == alone["mask"]
    mine, theirs = both["results"]["pruned"], alone["results"]["pruned"]
    assert mine["iou"] == theirs["iou"] and mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    assert mean_iou(tmp_path / "run", data) == pytest.approx(both["results"]["ticket"]["iou"], abs=1e-9)


# bad input


def refused(data: object, *flags: object, match: str, folder: Path) -> None:
    with refusal(match):
        main([str(word) for word in [*knobs(data), *flags, "--output_dir", folder / "run"]])  # type: ignore[arg-type]
    assert not (folder / "run").exists()


def test_a_model_and_data_of_two_tasks(data: Path, tmp_path: Path) -> None:
    refused("digits", match="label maps", folder=tmp_path)
    refused(data, "--model", "resnet20", match="it has a label map per image", folder=tmp_path)


def test_too_few_pictures_in_a_step(data: Path, tmp_path: Path) -> None:
    refused(data, "--batch_size", 2, match="raise --batch-size to 4", folder=tmp_path)


def test_a_bad_mask_is_named_before_the_work(tmp_path: Path) -> None:
    data = small_pairs(tmp_path / "pairs", train=4, test=2)
    bad = data / "train" / "masks" / "001.png"
    with Image.open(bad) as mask:
        mask.convert("RGB").save(bad)
    refused(data, match=r"train/masks/001\.png.*label map", folder=tmp_path)


def test_more_classes_than_there_are(data: Path, tmp_path: Path) -> None:
    refused(data, "--num_classes", 7, match="--num-classes 7: .* has 3 classes", folder=tmp_path)


def test_a_backbone_for_a_model_that_has_none(data: Path, tmp_path: Path) -> None:
    refused(data, "--model", "resnet20", "--backbone", "resnet18", match="has no separate backbone", folder=tmp_path)
