"""Trained weights on data of their own: the head's start, images held out, the best epoch kept; killed and resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import timm
import torch
from support.launching import Server, exists, main, outcome, refusal, results, small_digits, weights

import hf_px


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """A network with statistics of noise and a head of seven classes, on digits without a test split."""
    place = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=7).train()
    with torch.no_grad():
        for _ in range(30):
            model(torch.randn(8, 3, 32, 32))
    timm.models.save_for_hf(model.eval(), place / "trained", model_config={"num_classes": 7})
    data = small_digits(place / "digits")
    alone = place / "alone"
    alone.mkdir()
    shutil.copy(next(data.glob("train*.parquet")), alone)
    return [
        "--model", place / "trained", "--data", alone, "--image_size", 32, "--rounds", 2, "--epochs", 3,
        "--repair_images", 32, "--output_dir", "run",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def done(server: Server, flags: list[object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run that nobody killed, and what it printed."""
    place = tmp_path_factory.mktemp("whole")
    return place / "run", server.run(place, *flags)


def test_the_first_lines_say_how_it_trains(done: tuple[Path, str]) -> None:
    text = " ".join(done[1].split())
    assert "settings for trained weights unless given: 3 epochs in batches of 32; adamw, learning rate 0.0001" in text
    assert "new head from the ridge solution, learning rate 0.001" in text


def test_without_a_test_split_a_part_of_the_training_images_is_held_out(done: tuple[Path, str]) -> None:
    found = results(done[0])
    data = found["data"]
    assert data["split"] == "20% of train, held out" and data["validation"] == data["test"]
    assert data["test"] == pytest.approx(0.2 * (data["train"] + data["test"]), abs=10)
    history = found["history"]["ticket"]
    best = max(history, key=lambda row: (row["test_accuracy"], -row["test_loss"]))
    assert found["results"]["ticket"]["accuracy"] == best["test_accuracy"]
    assert found["keep"] == "best"
    card = (done[0] / "README.md").read_text()
    kept = "the best of 3 epochs" if best["epoch"] else "as before training, which none of 3 epochs improves,"
    assert f"{kept} by these same images" in card and "ridge solution" in card


def test_the_ridge_head_is_better_than_guessing_before_any_training(done: tuple[Path, str]) -> None:
    found = results(done[0])["results"]
    assert found["ridge_dense"]["accuracy"] > 0.3 and found["pruned"]["accuracy"] > 0.3


def test_killed_it_ends_with_the_same_bits(
    server: Server, done: tuple[Path, str], flags: list[object], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    server.run(tmp_path, *flags, kill=exists(run, "checkpoints/ticket-best-*.safetensors"))
    assert not results(run)["finished"]
    server.run(tmp_path, *flags, "--resume")
    assert outcome(run) == outcome(done[0])


def test_a_random_head_and_the_last_epoch(server: Server, flags: list[object], tmp_path: Path) -> None:
    text = server.run(tmp_path, *flags, "--head", "random", "--keep", "last", "--dense", "skip", "--epochs", 2)
    found = results(tmp_path / "run")
    assert "new head from random" in text and "ridge_dense" not in found["results"] and "keep" not in found
    assert found["results"]["ticket"]["accuracy"] == found["history"]["ticket"][-1]["test_accuracy"]
    assert "last epoch" in (tmp_path / "run" / "README.md").read_text()


def test_images_apart_from_the_test_split_choose(server: Server, flags: list[object], tmp_path: Path) -> None:
    data = small_digits(tmp_path / "digits")
    server.run(tmp_path, *flags, "--data", data, "--val-fraction", 0.25, "--dense", "skip", "--train-images", 40)
    found = results(tmp_path / "run")
    assert found["data"]["split"] == "test" and found["data"]["validation"] == 10 == found["data"]["train"] / 3
    history = found["history"]["ticket"]
    assert all("val_accuracy" in row and "test_accuracy" not in row for row in history)
    kept = "epochs by 10 other" if found["kept_epoch"]["ticket"] else "epochs improves, by 10 other"
    assert f"{kept} images held out" in (tmp_path / "run/README.md").read_text()
    ticket = hf_px.Ticket.from_pretrained(tmp_path / "run")
    assert not any(weights(tmp_path / "run")[name][~bits].any() for name, bits in ticket.mask.bits.items())


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--val-fraction", 0], "has no test split; --val-fraction 0 holds none of its images out"),
        (["--val-fraction", 1], "--val-fraction 1 is outside"),
        (["--num-classes", 10, "--pretrained", "false", "--head", "ridge"], "--head ridge needs trained weights"),
        (["--test-split", "train[95%:]", "--train-split", "train"], "rows in common"),
    ],
)
def test_what_contradicts_itself_is_refused(
    flags: list[object], tmp_path: Path, more: list[object], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refusal(error):
        main([str(word) for word in (*flags, *more)])
    assert not (tmp_path / "run").exists()


def test_training_that_only_harms_is_not_kept(server: Server, flags: list[object], tmp_path: Path) -> None:
    text = server.run(tmp_path, *flags, "--lr", 0.1, "--norms", "train", "--dense", "skip")
    found = results(tmp_path / "run")
    start, *trained = found["history"]["ticket"]
    assert start["epoch"] == 0 and all(row["test_accuracy"] < start["test_accuracy"] for row in trained)
    assert "ticket: none of 3 epochs improves it" in text and found["kept_epoch"]["ticket"] == 0
    assert found["results"]["ticket"]["accuracy"] == start["test_accuracy"] == found["results"]["pruned"]["accuracy"]
    assert "as before training, which none of 3 epochs improves" in (tmp_path / "run" / "README.md").read_text()


def test_a_run_that_diverges_says_so_in_its_results(
    flags: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refusal(r"dense, epoch 1: the loss is nan; lower --lr 1e\+30 \(default here: 0.0001\)"):
        main([str(word) for word in (*flags, "--lr", "1e30", "--grad-clip", 0)])
    found = results(tmp_path / "run")
    assert not found["finished"] and "the loss is nan" in found["alarms"][0]
