"""Alarms: a sentence where the numbers say that something broke, none where chance explains them."""

import math
from pathlib import Path
from typing import Any

import pytest
import timm

import hf_px
from hf_px.training.alarms import Rates, check_growth, check_loss, dense_is_broken, find_alarms
from hf_px.training.publish import card_results
from hf_px.training.run_directory import results_table

RATES = Rates(own=1000.0, default=1e-4)


def results(count: int = 110, classes: int = 8, **accuracies: float) -> dict[str, Any]:
    return {
        "data": {"test": count, "classes": classes, "title": "photos", "dataset": "photos", "split": "test"},
        "results": {name: {"accuracy": value, "loss": 1.0} for name, value in accuracies.items()},
        "written_by": "hf_px prune_finetune",
        "settings": {"seed": 0, "scorer": "magnitude", "lr": 1e-4, "optimizer": "adamw"},
        "model": {"trained": True},
        "mask": {"sparsity": 0.8, "total": 10, "kept": 2},
        "bytes": {"dense": 100, "ticket.safetensors": 30},
    }


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [
        ({"dense": 0.127, "ticket": 0.77}, ["dense twin is at chance", "above its dense twin"]),
        ({"dense": 0.409, "ticket": 0.791}, ["above its dense twin"]),
        ({"dense": 0.409, "ridge_dense": 0.77, "ticket": 0.35}, ["worse than a linear head"]),
        ({"dense": 0.909, "ticket": 0.14}, ["ticket is at chance"]),
        ({"ticket": 0.13}, ["ticket is at chance"]),
        ({"dense": 0.909, "ridge_dense": 0.92, "ticket": 0.93}, []),  # two images of 110
        ({"dense": 0.909, "ticket": 0.855}, []),
    ],
)
def test_what_is_broken_is_said(accuracies: dict[str, float], words: list[str]) -> None:
    found = find_alarms(results(**accuracies))
    assert len(found) == len(words) and all(word in alarm for word, alarm in zip(words, found))


@pytest.mark.parametrize(
    ("lr", "words"), [(1e-9, "raise --lr 1e-09"), (0.1, "lower --lr 0.1"), (1e-4, "check the labels and the images")]
)
def test_the_advice_depends_on_the_rate(lr: float, words: str) -> None:
    found = results(dense=0.13, ticket=0.13)
    found["settings"]["lr"] = lr
    assert words in find_alarms(found)[0]


def test_more_images_allow_smaller_differences() -> None:
    assert not find_alarms(results(100, 10, dense=0.60, ticket=0.65))
    assert find_alarms(results(10_000, 10, dense=0.60, ticket=0.65))


def test_label_maps_have_no_alarm() -> None:
    found = results()
    found["results"] = {"dense": {"mean_iou": 0.1}, "ticket": {"mean_iou": 0.6}}
    assert find_alarms(found) == []


def test_a_broken_comparison_is_on_no_card(tmp_path: Path) -> None:
    found = results(dense=0.409, ticket=0.791)
    assert card_results(found)[0]["dense"] == 0.409
    found["alarms"] = find_alarms(found)
    row = card_results(found)[0]
    assert dense_is_broken(found) and row["dense"] is None and "above its dense twin" in row["warning"]
    assert f"WARNING: {found['alarms'][0]}\n" in results_table(found, Path("out/run"), None)
    model = timm.create_model("resnet18", num_classes=8)
    mask = hf_px.prune(model, "magnitude", sparsity=0.8, progress=False)
    hf_px.Ticket(mask.apply_(model), mask, results=[row]).save_pretrained(tmp_path, layout="packed")
    card = (tmp_path / "README.md").read_text()
    assert "Warning: The ticket (79.1%) is above its dense twin" in card and "0.409 |" not in card
    assert "| 0.791 | left out: see the warning |" in card


def test_a_ticket_at_chance_keeps_its_dense_twin_on_the_card() -> None:
    found = results(dense=0.909, ticket=0.14)
    found["alarms"] = find_alarms(found)
    assert not dense_is_broken(found) and card_results(found)[0]["dense"] == 0.909


def test_a_loss_that_grows_without_end_stops_the_run() -> None:
    def rows(*losses: float) -> list[dict[str, float]]:
        return [{"epoch": i + 1, "train_loss": loss} for i, loss in enumerate(losses)]

    for fine in ([900.0], [900.0, 800.0, 850.0], [2.0, 2.5, 3.0], [1.0, 40.0, 30.0]):
        check_growth("dense", rows(*fine), 8, RATES)
    with pytest.raises(ValueError, match=r"dense, epoch 4: the loss grows without end, 30, 200, 4e\+03.*`lr`"):
        check_growth("dense", rows(2.0, 30.0, 200.0, 4000.0), 8, RATES)
    with pytest.raises(ValueError, match=r"dense, epoch 1: the loss is nan; lower `lr` 1000 \(default here: 0.0001\)"):
        check_loss("dense", rows(math.nan)[0], RATES)
    assert math.log(8) * 10 < 30
