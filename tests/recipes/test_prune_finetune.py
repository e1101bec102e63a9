"""recipes/prune_finetune.py, launched or forked: killed and resumed, on two processes, and on bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.launching import Server, exists, launch, launch_and_kill, outcome, results, small_digits, weights

import hf_px
from hf_px.models.load import load
from hf_px.training.run_directory import hold


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_digits(tmp_path_factory.mktemp("digits"))


def knobs(data: Path) -> list[object]:
    """A run of seconds in which all that has a state is in use: momentum, averages, clipping, accumulation, dropout."""
    return [
        "--data", data, "--model", "resnet20", "--image_size", 8, "--sparsity", 0.9, "--rounds", 12, "--per_class", 4,
        "--epochs", 3, "--batch_size", 32, "--lr", 0.05, "--warmup_epochs", 0.5, "--ema_decay", 0.8, "--grad_clip", 1,
        "--gradient_accumulation", 2, "--label_smoothing", 0.1, "--distill", 0.3, "--checkpoint_steps", 2,
        "--output_dir", "run",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(server: Server, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody killed."""
    place = tmp_path_factory.mktemp("whole")
    server.run(place, *knobs(data))  # `two` is launched as a user does
    return place / "run"


def test_it_ends_with_a_ticket_its_numbers_and_the_line_that_loads_it(whole: Path, data: Path) -> None:
    recorded = results(whole)
    assert recorded["finished"] and recorded["settings"]["processes"] == 1
    assert set(recorded["results"]) == {"dense", "pruned", "ticket"}
    assert len(recorded["history"]["dense"]) == len(recorded["history"]["ticket"]) == 3
    ticket = hf_px.Ticket.from_pretrained(whole)
    assert ticket.mask.digest() == recorded["mask"]["digest"] and ticket.mask.kept == round(0.1 * ticket.mask.total)
    assert ticket.mask.bits["fc.weight"].all() and recorded["mask"]["keep_dense"] == ["fc.weight"]
    assert not (whole / "checkpoints").exists()
    card = {(r["metric"], r["value"], r["dense"]) for r in ticket.config["results"]}
    assert card == {
        (m, recorded["results"]["ticket"][m], recorded["results"]["dense"][m]) for m in ("accuracy", "top_5_accuracy")
    }


def test_the_accuracy_it_tells_is_what_the_ticket_does(whole: Path, data: Path) -> None:
    """Measured again without hf_px's data, metrics or loop."""
    import datasets
    import numpy as np
    from torchvision.transforms.v2.functional import normalize, resize

    rows = datasets.load_dataset(str(data), split="test")
    model = hf_px.from_pretrained(whole)
    recorded = model.pretrained_cfg
    assert tuple(recorded["input_size"]) == (3, 8, 8)
    pixels = torch.stack([torch.from_numpy(np.array(row["image"].convert("RGB"))) for row in rows]).permute(0, 3, 1, 2)
    x = normalize(resize(pixels.float() / 255, [8, 8]), list(recorded["mean"]), list(recorded["std"]))
    with torch.no_grad():
        right = int((model(x).argmax(1) == torch.tensor(rows["label"])).sum())
    assert abs(right / len(rows) - results(whole)["results"]["ticket"]["accuracy"]) < 1e-9


def test_killed_at_every_stage_and_resumed_it_gives_the_same_bits(
    server: Server, whole: Path, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stages = [  # when to kill it, and what it must say after the kill before that
        (("checkpoints/mask.safetensors",), ""),  # during the pruning rounds
        (("checkpoints/dense-00000004.safetensors",), "pruning: continues after round"),  # in the midst of an epoch
        (("checkpoints/ticket-00000002.safetensors",), "dense: continues after step"),
        (("checkpoints/ticket-0000001[0-9].safetensors",), "ticket: continues after step"),  # the first rotated away
        ((".*hf_px-new*", "ticket.safetensors"), "ticket: continues after step 1"),  # while the ticket is written
    ]
    for i, (patterns, printed) in enumerate(stages):
        log = server.run(tmp_path, *knobs(data), *["--resume"][:i], kill=exists(run, *patterns))
        assert printed in log
        assert not results(run)["finished"]
    assert len(list((run / "checkpoints").glob("ticket-*"))) == 2  # rotated
    assert "ticket: continues after step 18 of 18" in server.run(tmp_path, *knobs(data), "--resume")
    assert outcome(run) == outcome(whole)


def shared_out(data: Path) -> list[object]:
    """No batch norm in this one, so that an average over processes is an average over the batch."""
    return [
        "--data", data, "--model", "test_convnext", "--image_size", 32, "--sparsity", 0.6, "--rounds", 3,
        "--per_class", 4, "--prune_batch_size", 12, "--epochs", 2, "--batch_size", 48, "--optimizer", "adamw",
        "--lr", 0.002, "--dense", "skip", "--output_dir", "run",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def two(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two processes."""
    place = tmp_path_factory.mktemp("two")
    launch(place, *shared_out(data), "--checkpoint_steps", 3, processes=2)
    return place / "run"


def test_two_processes_agree_and_train_as_one_does(server: Server, two: Path, data: Path, tmp_path: Path) -> None:
    server.run(tmp_path, *shared_out(data), "--gradient_accumulation", 3)
    one = tmp_path / "run"
    alone, both = results(one), results(two)
    assert (alone["settings"]["processes"], both["settings"]["processes"]) == (1, 2)  # two really ran
    assert alone["mask"] == both["mask"]
    mine, theirs, start = weights(one), weights(two), load("test_convnext", num_classes=10, seed=0).model.state_dict()
    assert max(float((mine[n] - start[n]).abs().max()) for n in mine) > 1e-3  # it did train
    for name in mine:
        torch.testing.assert_close(theirs[name], mine[name], rtol=1e-3, atol=1e-5)
    for row, other in zip(alone["history"]["ticket"], both["history"]["ticket"]):
        assert row == pytest.approx(other, rel=1e-3)  # 61 test images: an image counted twice would show


def test_never_two_at_work_on_one_directory(server: Server, data: Path, tmp_path: Path) -> None:
    run, printed = tmp_path / "run", []

    def look() -> bool:
        if not exists(run, "checkpoints/dense-*")():
            return False
        with pytest.raises(ValueError, match="is in use by another process") as refused:
            hold(run, patience=0)
        printed.append(refused.value)
        return True

    server.run(tmp_path, *knobs(data), kill=look)
    assert len(printed) == 1
    hold(run)  # killed, and nothing is in the way


@pytest.mark.slow
def test_two_processes_killed_and_resumed_give_the_same_bits(two: Path, data: Path, tmp_path: Path) -> None:
    flags = [*shared_out(data), "--checkpoint_steps", 3]
    run = tmp_path / "run"
    launch_and_kill(tmp_path, exists(run, "checkpoints/ticket-*"), *flags, processes=2)
    assert "ticket: continues after step" in launch(tmp_path, *flags, "--resume", processes=2)
    assert outcome(run) == outcome(two)
