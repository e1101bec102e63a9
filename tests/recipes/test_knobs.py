"""Every knob of recipes/prune_finetune.py does what it says, on runs of a second; none is passed over in silence."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import timm
import torch
from accelerate.state import AcceleratorState, GradientState
from safetensors.torch import load_file, save_file
from support.launching import main, outcome, results, small_digits, weights
from torch import nn

import hf_px
import hf_px.training.experiment
import hf_px.training.loop
from hf_px.core.registry import scorers
from hf_px.data import TestImages, data_config, open_data
from hf_px.prune_config import PruneConfig
from hf_px.sparse_training import violations
from hf_px.tickets.card import read_words
from hf_px.training.alarms import dense_is_broken
from hf_px.training.checkpoint import Checkpoints
from hf_px.training.command_line import option_names
from hf_px.training.config import DataOptions, ModelOptions, OutputOptions, TrainingOptions
from hf_px.training.loop import TrainingLoop
from hf_px.training.tasks import Task

recipe: Any = sys.modules["prune_finetune"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_digits(tmp_path_factory.mktemp("digits"), train=96, test=31)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny transformer without batch norm: a sum over parts of a batch is the sum over the batch."""
    from transformers import ViTConfig, ViTForImageClassification

    place = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(place)
    return place


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process has one precision for life; and each test a cache of dense twins of its own."""
    monkeypatch.setenv("HF_PX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    _reset()
    yield
    _reset()


def _reset() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


Run = Callable[..., Path]


@pytest.fixture
def run(digits: Path, vit: Path, tmp_path: Path) -> Run:
    """run(name, flags...): 6 steps of the ticket alone, unless the flags say otherwise; its directory."""

    def go(name: str, *flags: Any) -> Path:
        _reset()
        usual = {
            "--data": digits, "--model": vit, "--sparsity": 0.8, "--rounds": 2, "--per_class": 2, "--epochs": 2,
            "--batch_size": 32, "--lr": 0.05, "--dense": "skip", "--output_dir": tmp_path / name, "--optimizer": "sgd",
            "--warmup_epochs": 0, "--grad_clip": 0,
        }  # fmt: skip
        main([str(word) for word in (*(word for pair in usual.items() for word in pair), *flags)])
        return tmp_path / name

    return go


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that the recipe's `train` returns, as they come."""
    found: list[nn.Module] = []
    real = recipe.train

    def train(*args: Any, **kwargs: Any) -> nn.Module:
        found.append(real(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(recipe, "train", train)
    return found


def same(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def distance(one: Path, other: Path) -> float:
    mine, theirs = weights(one), weights(other)
    return max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine)


def zeros_are_kept(place: Path) -> None:
    ticket = hf_px.Ticket.from_pretrained(place)
    assert not violations(hf_px.from_pretrained(place).state_dict(), ticket.mask)


def cut_after(monkeypatch: pytest.MonkeyPatch, saves: int) -> Any:
    """A power cut right after so many checkpoints."""
    real, count = Checkpoints.save, [0]

    def save(self: Any, *args: Any) -> None:
        real(self, *args)
        count[0] += 1
        if count[0] == saves:
            raise RuntimeError("power cut")

    monkeypatch.setattr(Checkpoints, "save", save)


# precision, compilation


def test_bf16(run: Run, trained: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--mixed_precision", "bf16", "--ema_decay", 0.5, "--checkpoint_steps", 2]
    whole = run("whole", *flags)
    assert results(whole)["settings"]["mixed_precision"] == "bf16"
    zeros_are_kept(whole)
    stored = [t for path in whole.glob("*.safetensors") for t in load_file(path).values() if t.is_floating_point()]
    assert stored and {t.dtype for t in stored} == {torch.float32}
    assert not same(whole, run("plain", *flags[2:]))  # it did compute in another format

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        cut_after(patch, 1)
        run("again", *flags)
    place = next((whole.parent / "again" / "checkpoints").glob("ticket-*"))
    kept = load_file(place)
    assert {t.dtype for name, t in kept.items() if t.is_floating_point()} == {torch.float32}
    assert any(name.startswith("optimizer.") for name in kept)
    again = run("again", *flags, "--resume")
    assert outcome(again, ("seconds", "command")).keys() == outcome(whole, ("seconds", "command")).keys()
    assert same(again, whole) and results(again)["history"] == results(whole)["history"]

    run("last", "--mixed_precision", "bf16")
    assert "forward" not in vars(trained[-1])  # without an average it is the very model that accelerate had patched
    x = torch.rand(2, 3, 16, 16)
    assert trained[-1](x).logits.dtype == torch.float32
    assert "_is_accelerate_prepared" not in vars(trained[-1])  # or accelerate would leave it in float32 the next time
    twin = copy.deepcopy(trained[-1])
    with torch.no_grad():
        for weight in trained[-1].parameters():
            weight.zero_()
    assert twin(x).logits.abs().max() > 0  # its forward is its own


def test_fp16_on_a_cpu_is_refused_for_accelerate_would_pass_over_it(run: Run) -> None:
    with pytest.raises(ValueError, match=r"fp16.*CPU; take bf16"):
        run("run", "--mixed_precision", "fp16")


@pytest.mark.slow  # a minute in the compiler
def test_compiled_is_the_same_up_to_rounding(run: Run, trained: list[nn.Module]) -> None:
    flags = ["--optimizer", "adamw", "--lr", 0.002, "--dense", "train", "--distill", 0.3]
    eager, compiled = run("eager", *flags), run("compiled", *flags, "--compile")
    zeros_are_kept(compiled)
    assert distance(eager, compiled) < 1e-5
    assert results(eager)["mask"] == results(compiled)["mask"]
    for row, other in zip(results(eager)["history"]["ticket"], results(compiled)["history"]["ticket"]):
        assert row == pytest.approx(other, rel=1e-4)
    assert trained[-1]._compiled_call_impl is None  # nothing of the compiler stays with the model
    assert not any("_orig_mod" in name for name in copy.deepcopy(trained[-1]).state_dict())


# what one step does


def per_step(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """The weights after every step, seen from outside: whatever `train` hands the optimizer."""
    found: list[dict[str, torch.Tensor]] = []
    real = hf_px.training.loop.make_optimizer

    def make(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        optimizer = real(model, *args, **kwargs)
        found.append(copy.deepcopy(model.state_dict()))
        step = optimizer.step

        def stepped(*a: Any, **k: Any) -> Any:
            out = step(*a, **k)
            found.append(copy.deepcopy(model.state_dict()))
            return out

        optimizer.step = stepped
        return optimizer

    monkeypatch.setattr(hf_px.training.loop, "make_optimizer", make)
    return found


def test_the_ticket_is_the_average_over_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """θ̄ ← d θ̄ + (1 - d) θ after every step, from θ at the start."""
    steps = per_step(monkeypatch)
    place = run("ema", "--ema_decay", 0.7)
    assert len(steps) == 7
    bits = hf_px.Ticket.from_pretrained(place).mask.bits
    for name, recorded in weights(place).items():
        average = steps[0][name].double()
        for state in steps[1:]:
            average = 0.7 * average + 0.3 * state[name].double()
        average = average * bits[name] if name in bits else average
        torch.testing.assert_close(recorded.double(), average, rtol=1e-4, atol=1e-6)
        assert name not in bits or not recorded[~bits[name]].any()
    assert max(float((steps[-1][n] - steps[0][n]).abs().max()) for n in steps[0]) > 1e-3


def test_no_average_is_the_last_step(run: Run) -> None:
    assert same(run("none"), run("zero", "--ema_decay", 0))
    assert distance(run("tiny", "--ema_decay", 1e-9), run("none2")) < 1e-5


def test_distillation(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teachers: list[dict[str, torch.Tensor]] = []
    real = TrainingLoop._teacher_logits

    def teacher_logits(self: TrainingLoop) -> torch.Tensor | None:
        if self._teacher is not None:
            assert not self._teacher.training
            teachers.append(copy.deepcopy(self._teacher.state_dict()))
        return real(self)

    monkeypatch.setattr(TrainingLoop, "_teacher_logits", teacher_logits)
    none = run("none", "--dense", "train")
    assert same(none, run("zero", "--dense", "train", "--distill", 0)) and not teachers
    some = run("some", "--dense", "train", "--distill", 0.5)
    (cached,) = (tmp_path / "cache" / "dense").glob("*.safetensors")
    twin = load_file(cached)
    assert len(teachers) == 6  # once a step
    for seen in (teachers[0], teachers[-1]):  # the dense twin, which learns nothing more
        assert seen.keys() == twin.keys() and all(torch.equal(seen[name], twin[name]) for name in twin)
    assert not same(some, none)
    assert not same(some, run("hot", "--dense", "train", "--distill", 0.5, "--distill_temperature", 8))


def test_a_ticket_in_float16_is_measured_as_it_is_stored(run: Run, digits: Path) -> None:
    """The loss on its card is that of the rounded weights: to the last digit, and not that of the trained ones."""
    full, half = run("full"), run("half", "--dtype", "float16")
    matrices = {name: tensor for name, tensor in weights(full).items() if tensor.dim() > 1}
    rounded = {name: tensor.half() for name, tensor in matrices.items()}
    stored = load_file(half / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values() if tensor.dim() > 1} == {torch.float16}
    loaded = hf_px.from_pretrained(half)
    assert all(torch.equal(loaded.state_dict()[name], want.float()) for name, want in rounded.items())
    before, after = results(full)["results"], results(half)["results"]
    assert before["pruned"] == after["pruned"] and before["ticket"]["loss"] != after["ticket"]["loss"]
    found = results(half)
    assert found["settings"]["dtype"] == "float16" and found["bytes"]["model.safetensors"] < found["bytes"]["dense"]
    assert loss_of(loaded, digits) == pytest.approx(after["ticket"]["loss"], rel=1e-6)
    assert not any("rounded" in result["note"] for result in hf_px.Ticket.from_pretrained(half).config["results"])
    card = (half / "README.md").read_text()
    assert "Weights are stored in float16" in card and f"{found['bytes']['ticket.safetensors']:,}" in card


def loss_of(model: nn.Module, data: Path) -> float:
    """The mean cross-entropy on the test images, without the recipe's loop."""
    images = TestImages(open_data(str(data)), data_config(model))
    x, y = (torch.stack([torch.as_tensor(images[i][part]) for i in range(len(images))]) for part in (0, 1))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x).logits, y))


def test_a_part_of_the_training_images(run: Run) -> None:
    recorded = results(run("some", "--train_images", 40, "--per_class", 2))
    assert (
        recorded["data"]["train"] == 40
        and recorded["settings"]["train_images"] == 40
        and recorded["data"]["test"] == 31
    )
    with pytest.raises(ValueError, match="`train_images` is 97, there are 96"):
        run("more", "--train_images", 97)


def test_a_part_of_the_test_images(run: Run) -> None:
    """The same ones for every seed: a saved model, pruned by its magnitudes, answers them alike."""
    flags = ["--test_images", 20, "--scorer", "magnitude", "--sparsity", 0.5]
    recorded = [results(run(f"some-{seed}", *flags, "--seed", seed)) for seed in (0, 1)]
    assert recorded[0]["results"]["pruned"] == recorded[1]["results"]["pruned"]
    assert all(one["data"]["test"] == 20 and one["data"]["train"] == 96 for one in recorded)
    assert all(20 * one["results"]["ticket"]["accuracy"] % 1 == 0 for one in recorded)
    with pytest.raises(ValueError, match="`test_images` is 32, there are 31"):
        run("more", "--test_images", 32)


def test_a_ridge_head_before_training(run: Run) -> None:
    found = results(run("fitted", "--ridge_per_class", 5, "--dense", "train"))["results"]
    assert set(found["ridge"]) == set(found["ridge_dense"]) == {"accuracy", "top_5_accuracy"}
    assert found["ridge_dense"]["accuracy"] > 0.2  # 0.26 by sixteen random features; 0.1 by chance
    alone = results(run("alone", "--ridge_per_class", 5))["results"]  # without a dense twin
    assert alone["ridge"] == found["ridge"] and "ridge_dense" not in alone
    plain = results(run("plain"))["results"]
    assert not {"ridge", "ridge_dense"} & set(plain) and plain["ticket"] == found["ticket"]  # it changes nothing else
    with pytest.raises(ValueError, match="ridge_per_class"):
        run("pixels", "--model", "deeplabv3plus-resnet18", "--ridge_per_class", 1)


def test_label_smoothing_raises_the_loss_of_the_first_step_as_its_formula_says(run: Run) -> None:
    """(1 - ε) CE + ε/C Σ_c -log p_c: linear in ε, on the first and only step."""
    loss = {}
    for smooth in (0.0, 0.2, 0.4):
        place = run(f"s{smooth}", "--epochs", 1, "--batch_size", 96, "--label_smoothing", smooth)
        loss[smooth] = results(place)["history"]["ticket"][0]["train_loss"]
    assert loss[0.4] - loss[0.2] == pytest.approx(loss[0.2] - loss[0.0], abs=1e-5) != 0


def test_the_gradient_is_clipped_after_all_parts_are_summed(run: Run, monkeypatch) -> None:
    norms: list[float] = []
    real = hf_px.training.loop.make_optimizer

    def make(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        optimizer = real(model, *args, **kwargs)
        optimizer.register_step_pre_hook(
            lambda *_: norms.append(math.sqrt(sum(float(w.grad.square().sum()) for w in model.parameters())))
        )
        return optimizer

    monkeypatch.setattr(hf_px.training.loop, "make_optimizer", make)
    run("free", "--gradient_accumulation", 2)
    free, norms[:] = list(norms), []
    bound = min(free) / 2
    run("bound", "--gradient_accumulation", 2, "--grad_clip", bound)
    assert len(norms) == len(free) == 6  # one step for both parts
    assert norms == pytest.approx([bound] * 6, rel=1e-4)


def test_accumulation_is_the_same_step_in_parts(run: Run) -> None:
    """32 images a step in parts of 11, 11 and 10: each image counts the same."""
    one = run("one", "--batch_size", 33)
    three = run("three", "--batch_size", 33, "--gradient_accumulation", 3)
    assert distance(one, three) < 1e-5 and not same(one, three)


def test_schedules_show_in_the_history(run: Run) -> None:
    """The learning rate of the last of three steps of each epoch."""

    def rates(*flags: Any) -> list[float]:
        name = "-".join(str(flag).strip("-") for flag in flags)
        place = run(name, "--epochs", 4, "--eval_epochs", 4, "--sparsity", 0.5, "--rounds", 1, *flags)
        return [row["lr"] for row in results(place)["history"]["ticket"]]

    at = [2 / 3, 5 / 3, 8 / 3, 11 / 3]
    assert rates("--lr_schedule", "constant") == [0.05] * 4
    assert rates("--lr_schedule", "step", "--lr_drops", 1, 3, "--lr_drop_factor", 0.5) == pytest.approx(
        [0.05, 0.025, 0.025, 0.0125]
    )
    assert rates("--lr_schedule", "cosine") == pytest.approx([0.025 * (1 + math.cos(math.pi * t / 4)) for t in at])
    warm = rates("--lr_schedule", "constant", "--warmup_epochs", 2)
    assert warm == pytest.approx([0.05 * 2 / 3 / 2, 0.05 * 5 / 3 / 2, 0.05, 0.05])


# the dense twin


def test_the_dense_twin_is_trained_once(run: Run, tmp_path: Path, digits: Path, capsys) -> None:
    cache = tmp_path / "cache" / "dense"
    quick = ["--dense", "train", "--epochs", 1]
    one = run("one", *quick)
    assert "cached in" not in capsys.readouterr().out
    (path,) = cache.iterdir()
    other = run("other", *quick, "--scorer", "magnitude", "--sparsity", 0.5, "--layout", "packed")
    assert f"dense twin: cached in {path}" in capsys.readouterr().out
    for part in ("results", "history"):
        assert results(one)[part]["dense"] == results(other)[part]["dense"]

    small = small_digits(tmp_path / "fewer", train=80, test=31)
    differing = [["--lr", 0.01], ["--seed", 1], ["--data", small]]
    for i, flags in enumerate(differing):
        run(f"d{i}", *quick, *flags)
        assert "cached in" not in capsys.readouterr().out, flags
        assert len(list(cache.iterdir())) == 2 + i

    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    again = run("again", *quick, "--overwrite")
    recorded = capsys.readouterr()
    assert "cached in" not in recorded.out and "damaged cache file" in recorded.err and str(path) in recorded.err
    assert path.read_bytes() == whole  # and mended
    assert same(again, one)


# trackers


def rows_of_tensorboard(place: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place / "hf_px"))
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def rows_of_history(place: Path) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for name, history in results(place)["history"].items():
        for row in history:
            for key, value in row.items():
                found.setdefault(f"{name}/{key}", {})[row["epoch"]] = pytest.approx(value, rel=1e-6)
    return found


def test_tensorboard_has_the_history(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    flags = ["--report_to", "tensorboard", "--dense", "train"]
    place = run("run", *flags)
    assert set(results(place)["history"]) == {"dense", "ticket"}
    assert rows_of_tensorboard(place) == rows_of_history(place)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        cut_after(patch, 1)
        run("cut", "--report_to", "tensorboard")
    assert rows_of_tensorboard(place := run("cut", "--report_to", "tensorboard", "--resume")) == rows_of_history(place)
    place = run("cut", "--report_to", "tensorboard", "--epochs", 1, "--overwrite")
    assert rows_of_tensorboard(place) == rows_of_history(place)  # nothing is left of the run before


def test_a_refused_run_leaves_nothing_of_its_tracker(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    flags = ["--report_to", "tensorboard", "--epochs", 1]
    with pytest.raises(ValueError, match="'picture' is not in the data"):
        run("run", *flags, "--image_column", "picture")
    assert not (tmp_path / "run").exists()
    run("run", *flags)


def test_trackio_has_the_history_and_two_trackers_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("trackio")  # its files are under HF_HOME, which is the tests' own
    from trackio.sqlite_storage import SQLiteStorage

    def rows(name: str) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for row in SQLiteStorage.get_logs("hf_px", name):
            for key, value in row.items():
                if "/" in key:
                    found.setdefault(key, {})[row["step"]] = value
        return found

    place = run("both", "--report_to", "tensorboard", "trackio")
    assert rows("both") == rows_of_history(place)
    assert rows_of_tensorboard(place) == rows_of_history(place)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        cut_after(patch, 1)
        run("cut", "--report_to", "trackio")
    place = run("cut", "--report_to", "trackio", "--resume")
    assert rows("cut") == rows_of_history(place) and SQLiteStorage.get_runs("hf_px").count("cut") == 1


# what changes nothing, or only what it names


def test_workers_and_checkpoints_change_no_bit(run: Run) -> None:
    plain = run("plain", "--num_workers", 0)
    for name, flags in {"workers": ["--num_workers", 2], "often": ["--checkpoint_steps", 1]}.items():
        place = run(name, *flags)
        assert same(place, plain) and results(place)["history"] == results(plain)["history"]


def test_eval_epochs(run: Run) -> None:
    place = run("run", "--epochs", 5, "--eval_epochs", 2)
    tested = [row["epoch"] for row in results(place)["history"]["ticket"] if "test_accuracy" in row]
    assert tested == [2, 4, 5]


def test_a_finished_run_launched_again_reports_and_does_not_train(run: Run, capsys, monkeypatch) -> None:
    place = run("run", "--layout", "packed")
    first, recorded = outcome(place, ()), capsys.readouterr().out
    assert {path.name for path in place.glob("*.safetensors")} == {"ticket.safetensors"}
    monkeypatch.setattr(hf_px.training.experiment, "load", None)  # it would be called to train
    for more in ([], ["--resume"]):
        (place / "checkpoints").mkdir()  # killed after its last word, before they were removed
        run("run", "--layout", "packed", *more)
        assert not (place / "checkpoints").exists()
        again, table = capsys.readouterr().out, recorded[recorded.index("\ndigits") : recorded.index("wrote ")]
        assert again.startswith(table) and "finished before" in again and "wrote " not in again
        assert outcome(place, ()) == first
    monkeypatch.undo()
    with pytest.raises(ValueError, match="holds another run: layout was 'packed', now 'dense'"):
        run("run", "--layout", "dense")
    run("run", "--layout", "dense", "--overwrite")
    assert {path.name for path in place.glob("*.safetensors")} == {"model.safetensors"}
    assert set(results(place)["bytes"]) == {"model.safetensors", "dense"}


# pruning


@pytest.mark.parametrize("scorer", sorted(scorers))
def test_every_method(scorer: str, run: Run) -> None:
    place = run("run", "--scorer", scorer, "--epochs", 1, "--sparsity", 0.6)
    recorded = results(place)
    assert (
        recorded["mask"]["kept"] == round(0.4 * recorded["mask"]["total"]) and recorded["settings"]["scorer"] == scorer
    )
    zeros_are_kept(place)


def test_scopes_and_what_stays_whole(run: Run) -> None:
    def bits(name: str, *flags: Any) -> dict[str, torch.Tensor]:
        place = run(name, "--epochs", 1, "--sparsity", 0.5, "--scorer", "magnitude", *flags)
        zeros_are_kept(place)
        return dict(hf_px.Ticket.from_pretrained(place).mask.bits)

    head, first = "classifier.weight", "vit.embeddings.patch_embeddings.projection.weight"
    layer = bits("layer", "--scope", "layer", "--keep_head", "false")
    assert {float(b.float().mean()) for b in layer.values()} == {0.5}
    erk = bits("erk", "--scope", "erk", "--keep_head", "false")
    assert erk[head].float().mean() > erk[first].float().mean()  # the smaller a layer, the denser
    pairs = bits("2of4", "--scope", "2:4", "--exclude", first, "--keep_head", "false")
    assert all((b.reshape(-1, 4).sum(1) == 2).all() for name, b in pairs.items() if b.dim() == 2)
    assert bits("kept", "--keep_head")[head].all()  # named is on
    assert not bits("free", "--keep_head", "false")[head].all()
    assert first not in bits("out", "--exclude", first)


def test_silent_classes(run: Run) -> None:
    place = run(
        "run", "--keep_head", "false", "--scorer", "random", "--sparsity", 0.97, "--min_per_layer", 4, "--epochs", 1
    )
    head = hf_px.Ticket.from_pretrained(place).mask.bits["classifier.weight"]
    silent = [f"digit {i}" for i in range(10) if not head[i].any()]
    assert results(place)["mask"]["silent_classes"] == silent != []


# models and data from here and there


def test_models_from_disk(run: Run, tmp_path: Path) -> None:
    model = timm.create_model("test_resnet", num_classes=7)
    timm.models.save_for_hf(model, tmp_path / "timm", model_config={"num_classes": 7})
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    quick = ["--epochs", 1, "--lr", 1e-6, "--weight_decay", 0, "--repair", "false"]
    folder = run("folder", "--model", tmp_path / "timm", "--image_size", 32, *quick)
    file = run("file", "--model", tmp_path / "weights.safetensors", "--architecture", "test_resnet",
               "--image_size", 32, *quick)  # fmt: skip
    for place in (folder, file):
        bits, found = hf_px.Ticket.from_pretrained(place).mask.bits, weights(place)
        assert found["fc.weight"].shape[0] == 10 and results(place)["model"]["new_head"]
        for name in bits:
            if name != "fc.weight":  # trained by next to nothing: still the weights that were on disk
                torch.testing.assert_close(found[name], model.state_dict()[name] * bits[name], rtol=0, atol=1e-4)
    place = run("vit", *quick)
    assert results(place)["model"]["images"]["input_size"] == [3, 16, 16]  # the model's own
    assert json.loads((place / "preprocessor_config.json").read_text())["size"] == {"height": 16, "width": 16}
    with pytest.raises(ValueError, match=r"does not run on images of 3x8x8.*16"):
        run("vit8", "--image_size", 8)


def test_data_from_disk_is_the_same_data(run: Run, digits: Path, tmp_path: Path) -> None:
    rows = datasets.load_dataset(str(digits))
    rows.save_to_disk(tmp_path / "saved")
    for split in rows:
        for i, row in enumerate(rows[split]):
            place = tmp_path / "folder" / split / f"digit {row['label']}"
            place.mkdir(parents=True, exist_ok=True)
            row["image"].save(place / f"{i:04d}.png")
    parquet, saved = run("parquet"), run("saved-run", "--data", tmp_path / "saved")
    assert same(parquet, saved)
    folder = run("folder-run", "--data", tmp_path / "folder")  # sorted by class, so in another order
    assert results(folder)["results"]["pruned"].keys() == results(parquet)["results"]["pruned"].keys()
    for key in ("classes", "train", "test", "split"):
        assert results(folder)["data"][key] == results(parquet)["data"][key]


# results.json and --help


def test_results_json_has_every_setting_and_is_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Task.evaluate

    def evaluate(*args: Any) -> dict[str, float]:
        return real(*args) | {"loss": float("nan")}

    monkeypatch.setattr(Task, "evaluate", evaluate)
    place = run("run", "--epochs", 1)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    recorded = json.loads((place / "results.json").read_text(), parse_constant=refuse)
    assert recorded["results"]["ticket"]["loss"] is None
    every = set(option_names("prune_finetune"))
    assert every - hf_px.training.experiment._NO_EFFECT <= set(recorded["settings"])


def test_help_tells_each_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no line is broken
    with pytest.raises(SystemExit):
        main(["--help"])
    recorded = " ".join(capsys.readouterr().out.split())
    for kind in (ModelOptions, DataOptions, PruneConfig, TrainingOptions, OutputOptions):
        for name, field in kind.__dataclass_fields__.items():
            help = field.metadata["help"]
            valued = isinstance(field.default, (int, float, str)) and field.default is not False
            valued &= "(default" not in help
            assert (f" {help} (default: {field.default})" if valued else f" {help}") in recorded, name


def test_the_ticket_is_timed_for_its_card(run: Run) -> None:
    folder = run("timed", "--bench", "true")
    speed, card = results(folder)["speed"], (folder / "README.md").read_text()
    assert json.loads((folder / "speed.json").read_text()) == speed and min(speed["sparse_ms"], speed["dense_ms"]) > 0
    assert f"| dense, in torch | {speed['dense_ms']:.3g} |" in card and "times as fast, measured by" in card
    other = run("untimed")
    assert "speed" not in results(other) and "Not measured" in (other / "README.md").read_text()


def test_the_card_shows_test_images_unless_it_should_not(run: Run) -> None:
    place = run("run", "--epochs", 1)
    words = read_words(place / "predictions.png")
    found, card = results(place), (place / "README.md").read_text()
    assert len(words) == 9 and f"![{words[0]}](predictions.png)" in card
    assert ("dense" in words[1]) == ("dense" in found["results"] and not dense_is_broken(found))
    assert "card_images" not in found["settings"]  # it changes no number: other runs share the dense twin
    run("run", "--epochs", 1, "--card_images", 0, "--overwrite")
    assert not (place / "predictions.png").exists() and "predictions" not in (place / "README.md").read_text()
