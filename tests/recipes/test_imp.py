"""recipes/imp.py against an IMP written out by hand; and killed, resumed, compared bit for bit."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.launching import REPO, Server, exists, outcome, refusal, results, small_digits

import hf_px
from hf_px.core.prunable import prunable
from hf_px.training.command_line import parse_options
from hf_px.training.plan import loader

RECIPE = REPO / "recipes" / "imp.py"
EPOCHS, STEPS, LR = 2, 4, 0.05  # 192 images in batches of 48


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    sys.path.insert(0, str(RECIPE.parent))
    spec = importlib.util.spec_from_file_location("recipe_imp", RECIPE)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def knobs(data: Path) -> list[Any]:
    return [
        "--data", data, "--model", "resnet20", "--image_size", 8, "--sparsity", 0.8, "--rounds", 2, "--epochs", EPOCHS,
        "--batch_size", 48, "--lr", LR, "--output_dir", "run",
    ]  # fmt: skip


class Done:
    """A run in this process: its job, the masks after each pruning, its ticket and results."""

    def __init__(self, recipe: ModuleType, place: Path, *flags: Any) -> None:
        self.masks: list[hf_px.Mask] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            patch.setenv("HF_PX_CACHE", str(place / "cache"))
            patch.setattr(sys, "argv", ["imp.py", *map(str, flags)])
            patch.setattr(recipe, "Experiment", self._job(recipe.Experiment))
            patch.setattr(recipe, "save", self._save(recipe.save))
            recipe.main()
        self.ticket = hf_px.Ticket.from_pretrained(place / "run")
        self.weights = self.ticket.to_model().state_dict()
        self.recorded = results(place / "run")

    def _job(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def job(*words: Any) -> Any:
            self.job = make(*words)
            return self.job

        return job

    def _save(self, save: Callable[..., None]) -> Callable[..., None]:
        def saved(job: Any, t: int, mask: hf_px.Mask, model: Any) -> None:
            self.masks.append(mask)
            save(job, t, mask, model)

        return saved


def by_hand(job: Any, rounds: int, rewind: str, rewind_epochs: int) -> tuple[list[hf_px.Mask], dict[str, torch.Tensor]]:
    """IMP in plain torch: no Keeper, no allocate, no schedules of ours; only the images are the job's."""
    from hf_px.models.load import load

    def trained(model: torch.nn.Module, mask: dict[str, torch.Tensor], first: int, last: int) -> torch.nn.Module:
        model = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, weight_decay=1e-4)
        batches = loader(job.plan, job.train_images, start=first, rank=0, workers=0)
        for step in range(first, last):
            optimizer.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * step / (EPOCHS * STEPS))) / 2
            x, y = next(batches)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            for name, weight in model.named_parameters():
                if name in mask:
                    weight.data *= mask[name]
        return model

    start = load("resnet20", num_classes=10, seed=0).model
    mask = {name: torch.ones_like(weight) for name, weight in prunable(start).items()}
    total = sum(bits.numel() for bits in mask.values())
    first = rewind_epochs * STEPS
    early = trained(start, mask, 0, first)
    model, masks = trained(start, mask, 0, EPOCHS * STEPS), []
    for t in range(1, rounds + 1):
        kept = round((1 - 0.8) ** (t / rounds) * total) - mask["fc.weight"].numel()  # the head stays whole, and counts
        sizes = {n: w.detach().abs() * mask[n] for n, w in model.named_parameters() if n in mask and n != "fc.weight"}
        least = torch.cat([s.flatten() for s in sizes.values()]).topk(kept).values[-1]
        mask |= {name: (size >= least).float() for name, size in sizes.items()}
        masks.append(hf_px.Mask({name: bits.bool() for name, bits in mask.items()}))
        model = copy.deepcopy(early if rewind == "weights" else model)
        for name, weight in model.named_parameters():
            weight.data *= mask.get(name, 1)
        model = trained(model, mask, first, EPOCHS * STEPS)
    return masks, model.state_dict()


@pytest.fixture(scope="module")
def runs(recipe: ModuleType, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Done]:
    place = tmp_path_factory.mktemp("runs")
    found = {}
    for rewind, epochs in (("weights", 0), ("weights", 1), ("lr", 0)):
        flags = ["--rewind", rewind, "--rewind_epochs", epochs, "--overwrite"]
        found[rewind, epochs] = Done(recipe, place, *knobs(data), *flags)
    return found


@pytest.mark.parametrize(("rewind", "epochs"), [("weights", 0), ("weights", 1), ("lr", 0)])
def test_masks_and_weights_are_those_of_imp_by_hand(
    runs: dict[tuple[str, int], Done], rewind: str, epochs: int
) -> None:
    run = runs[rewind, epochs]
    masks, weights = by_hand(run.job, 2, rewind, epochs)
    assert [mask.digest() for mask in run.masks] == [mask.digest() for mask in masks]
    assert run.ticket.mask == masks[-1]
    for name, weight in weights.items():
        torch.testing.assert_close(run.weights[name], weight, rtol=1e-4, atol=1e-6)


def test_ways_of_rewinding_differ(runs: dict[tuple[str, int], Done]) -> None:
    first, second = ({way: run.masks[i].digest() for way, run in runs.items()} for i in (0, 1))
    assert len(set(first.values())) == 1  # all prune the dense model first
    assert len(set(second.values())) == 3


def test_masks_are_nested_and_exact_and_every_round_is_told(runs: dict[tuple[str, int], Done]) -> None:
    for (rewind, epochs), run in runs.items():
        one, two = run.masks
        assert one & two == two and two.kept == round(0.2 * two.total) and one.kept == round(0.2**0.5 * one.total)
        assert all(not w[~two.bits[n]].any() for n, w in run.weights.items() if n in two.bits)
        rows = run.recorded["rounds"]
        assert [(row["round"], row["kept"]) for row in rows] == [(0, one.total), (1, one.kept), (2, two.kept)]
        found = run.recorded["results"]
        assert rows[0]["accuracy"] == found["dense"]["accuracy"] and rows[2]["accuracy"] == found["ticket"]["accuracy"]
        assert [row["epoch"] for row in run.recorded["history"]["round-1"]] == list(range(epochs + 1, EPOCHS + 1))
        assert set(run.recorded["history"]) == {"dense", "round-1", "ticket"} and set(found) == {
            "dense",
            "pruned",
            "ticket",
        }
        assert run.ticket.config["scorer"] == "imp"
        made_by = run.ticket.config["settings"]["made_by"]
        assert "magnitude with training between rounds: 2 times trained" in made_by
        assert ("weights stay" in made_by) == (rewind == "lr")


def test_the_rewound_dense_twin_is_the_one_of_prune_finetune(runs: dict[tuple[str, int], Done]) -> None:
    """One path in the cache for all ways of rewinding: the first of them trained it, in one go; the others found it."""
    dense = [run.recorded["history"]["dense"] for run in runs.values()]
    assert dense[0] == dense[1] == dense[2]
    assert [("dense" in run.recorded["seconds"]) for run in runs.values()] == [True, False, False]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--rewind_epochs", "2", "--epochs", "2"], "--rewind-epochs 2: there are only 2 epochs"),
        (["--dense", "skip"], "the first round of IMP trains the dense model"),
        (["--sparsity", "98.2"], "did you mean 0.982"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--min_per_layer", "50000", "--image_size", "8"], "--min-per-layer 50000"),
    ],
)
def test_bad_input_is_an_error_before_any_training(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["imp.py", *flags])
    monkeypatch.setattr(recipe, "train", lambda *_, **__: pytest.fail("it trains"))
    with refusal(complaint):
        recipe.main()


@pytest.mark.parametrize(("sparsity", "rounds"), [(0.36, 2), (0.738, 6), (0.982, 18), (0.0, 1)])
def test_a_fifth_of_what_is_left_goes_in_each_round(sparsity: float, rounds: int) -> None:
    assert parse_options("imp", "", ["--sparsity", str(sparsity)]).pruning.rounds == rounds


# killed


WEIGHTS = [  # when to kill it, and what it says when it goes on from the kill before
    ("rewind-00000002*", ""),
    ("dense-00000006*", "rewind: continues after step"),
    ("pruned-00000001*", "dense: continues after step"),
    ("round-1-00000006*", "pruning: continues after round 1 of 2"),
    ("ticket-00000006*", "round-1: continues after step"),
]
LR_ALONE = [("round-1-00000002*", ""), ("pruned-00000002*", "round-1: continues after step")]


@pytest.mark.parametrize(
    ("flags", "stages"),
    [
        (["--rewind", "weights", "--rewind_epochs", 1, "--ema_decay", 0.8, "--distill", 0.3], WEIGHTS),
        pytest.param(
            ["--rewind", "lr", "--gradient_accumulation", 2, "--grad_clip", 1], LR_ALONE, marks=pytest.mark.slow
        ),
    ],
    ids=["weights", "lr"],
)
def test_killed_and_resumed_it_gives_the_same_bits(
    server: Server, data: Path, tmp_path: Path, flags: list[Any], stages: list[tuple[str, str]]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    flags = [*knobs(data), *flags, "--checkpoint_steps", 2]
    server.run(whole, *flags, recipe=RECIPE)
    checkpoints = killed / "run" / "checkpoints"
    for i, (pattern, printed) in enumerate(stages):
        log = server.run(killed, *flags, *["--resume"][:i], recipe=RECIPE, kill=exists(checkpoints, pattern))
        assert printed in log
        assert not results(killed / "run")["finished"]
    assert len(list(checkpoints.glob("pruned-*"))) == 1
    server.run(killed, *flags, "--resume", recipe=RECIPE, kill=exists(killed / "run", "ticket.safetensors"))
    names = {path.name.rpartition("-")[0] for path in checkpoints.iterdir() if not path.name.startswith(".")}
    assert names <= {"pruned", "ticket", "rewind"}  # earlier rounds have left nothing
    server.run(killed, *flags, "--resume", recipe=RECIPE)
    assert outcome(killed / "run") == outcome(whole / "run")
    assert not checkpoints.exists()
