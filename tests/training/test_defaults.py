"""Settings by kind of weights: flags win, and random weights train as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hf_px.training.command_line import parse_options
from hf_px.training.config import TrainingOptions
from hf_px.training.defaults import RATES, SETTINGS
from hf_px.training.loop import best_epoch, make_optimizer


def training(*flags: str) -> TrainingOptions:
    return parse_options("prune_finetune", "", list(flags)).training


def test_random_weights_train_as_the_paper_does() -> None:
    found = training()
    assert (found.optimizer, found.lr, found.batch_size, found.epochs) == ("sgd", 0.1, 128, 12)
    assert (found.warmup_epochs, found.grad_clip, found.head_lr) == (0, None, None)


@pytest.mark.parametrize("model", ["timm/resnet50.tv_in1k", "imagenet-resnet50", "me/some-model"])
def test_trained_weights_have_settings_of_their_own(model: str) -> None:
    found, usual = training("--model", model), SETTINGS["trained"]
    assert (found.optimizer, found.lr) == ("adamw", RATES["trained"]["adamw"])
    assert found.head_lr == usual["head_factor"] * found.lr > found.lr
    assert found.warmup_epochs == usual["warmup"] * found.epochs > 0 and found.grad_clip == usual["grad_clip"]
    assert training("--model", model, "--pretrained", "false") == training()


def test_every_flag_overrides() -> None:
    given = {
        "epochs": "3", "batch_size": "7", "optimizer": "sgd", "lr": "0.5", "warmup_epochs": "2", "grad_clip": "0",
    }  # fmt: skip
    flags = [word for name, value in given.items() for word in (f"--{name}", value)]
    for model in ("resnet20", "timm/resnet50.tv_in1k"):
        found = training("--model", model, *flags)
        assert (found.epochs, found.batch_size, found.optimizer, found.lr) == (3, 7, "sgd", 0.5)
        assert (found.warmup_epochs, found.grad_clip) == (2, None)
        assert found.head_lr is None  # a rate that the user chose is that of the head too
    assert training("--model", "timm/resnet50.tv_in1k", "--lr", "0.5", "--head-lr", "2").head_lr == 2
    assert training("--model", "timm/resnet50.tv_in1k", "--optimizer", "sgd").lr == RATES["trained"]["sgd"]


def test_only_the_new_head_has_the_other_rate() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    options = TrainingOptions(head_lr=0.5, lr=0.1).for_weights(trained=True)
    groups = make_optimizer(model, options, ("1.weight", "1.bias")).param_groups
    rates = {id(weight): group["factor"] * options.lr for group in groups for weight in group["params"]}
    expected = [0.1, 0.1, 0.5, 0.5]
    assert [rates[id(weight)] for weight in model.parameters()] == pytest.approx(expected)
    assert len(make_optimizer(model, options).param_groups) == 1


def test_the_best_epoch_has_the_highest_metric_and_then_the_smallest_loss() -> None:
    def row(epoch: int, accuracy: float, loss: float, part: str = "test") -> dict[str, float]:
        return {"epoch": epoch, f"{part}_accuracy": accuracy, f"{part}_loss": loss}

    assert best_epoch([], "accuracy") is None and best_epoch([{"epoch": 1}], "accuracy") is None
    assert best_epoch([row(1, 0.5, 1), row(2, 0.7, 3), row(3, 0.7, 2), row(4, 0.6, 0)], "accuracy") == 3
    # images held out apart from the test set decide, if there are any
    both = [row(1, 0.5, 1, "val") | row(1, 0.9, 1), row(2, 0.6, 1, "val")]
    assert best_epoch(both, "accuracy") == 2


def test_help_of_every_default_names_both_kinds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        parse_options("prune_finetune", "", ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for value in ("128; 32 for trained weights", "sgd; adamw for trained weights"):
        assert value in text


def test_rates_of_an_optimizer_follow_the_factor() -> None:
    weight = nn.Linear(2, 2)
    options = TrainingOptions(optimizer="adamw", lr=0.1, head_lr=1.0).for_weights(trained=False)
    (group,) = make_optimizer(weight, options, ("weight", "bias")).param_groups
    assert group["factor"] == pytest.approx(10) and isinstance(make_optimizer(weight, options), torch.optim.AdamW)
