"""Iterative magnitude pruning: train, keep the largest |θ| of those left, rewind, repeat; then train the ticket.

    accelerate launch recipes/imp.py --sparsity 0.9 --epochs 4
        no network: ResNet-20 on handwritten digits, ten rounds, eleven trainings of four epochs
    accelerate launch recipes/imp.py --config recipes/configs/cifar10-resnet20.yaml --sparsity 0.8322
        the lottery ticket hypothesis: rewind to the initial weights after every round
    accelerate launch recipes/imp.py --config recipes/configs/cifar10-resnet20.yaml --rewind-epochs 2
        IMP with rewinding: weights and learning rate go back to where they were after two epochs
    accelerate launch recipes/imp.py --config recipes/configs/cifar10-resnet20.yaml --rewind lr
        learning-rate rewinding: weights stay as trained, the learning rate goes back to its start
    accelerate launch recipes/imp.py ... --resume
        continue after a crash; the result has the same bits as without one

It trains once per round, and once more. By default each round removes 20 % of what is left. It always prunes by
magnitude over all layers: the `scorer` line of a config file is for prune_finetune.py and is passed over. The output
directory holds the ticket with its card, and results.json with every result and setting, and the metrics after each
round.

Frankle & Carbin, The Lottery Ticket Hypothesis, ICLR 2019; Frankle et al., Linear Mode Connectivity and the Lottery
Ticket Hypothesis, ICML 2020; Renda et al., Comparing Rewinding and Fine-tuning, ICLR 2020.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

import hf_px
from hf_px.core.allocate import exponential
from hf_px.core.forward import output_tensor
from hf_px.core.prunable import prunable
from hf_px.tickets.stored_dtype import round_
from hf_px.training.checkpoint import Checkpoints
from hf_px.training.command_line import parse_options, run_recipe
from hf_px.training.config import Options
from hf_px.training.experiment import Experiment
from hf_px.training.loop import TrainingLoop


def main(argv: list[str] | None = None) -> None:
    options = parse_options("imp", __doc__, argv)  # the knobs: PruneConfig and hf_px/training/config.py
    experiment = Experiment("imp", options)
    if not experiment.finished:
        ticket, mask = imp(experiment)
        round_(ticket, options.output.dtype)  # with --dtype: what is measured is what will be stored
        experiment.record("ticket", ticket)
        experiment.save_ticket(ticket, mask, made_by=made_by(options))
    experiment.close()


def imp(experiment: Experiment) -> tuple[nn.Module, hf_px.Mask]:
    """The trained ticket and its mask. Every training starts without momentum; with --ema-decay, θ is the average."""
    rounds, rewind = experiment.pruning.total_rounds, experiment.options.rewind
    first = rewind.rewind_epochs * experiment.plan.steps_per_epoch  # first step of every training but the dense one
    done, mask, model = newest(experiment)
    prune_round(experiment, experiment.model, rounds, mask)  # no round is left, so this only checks the arguments

    early = early_weights(experiment, first, ahead=done == 0) if rewind.rewind == "weights" else None
    distills = bool(experiment.training.distill)
    dense = dense_twin(experiment) if done == 0 or distills else None  # the training of round 0
    teacher = dense if distills else None
    for t in range(done, rounds):
        if t == 0:
            trained = dense
        else:
            with experiment.timed(f"round-{t}"):
                trained = train(experiment, f"round-{t}", model, mask, teacher, start=first)
        record_round(experiment, t, "dense" if t == 0 else f"round-{t}", mask)
        mask = prune_round(experiment, trained, t, mask)
        model = mask.apply_(with_weights(experiment, trained.state_dict() if early is None else early))
        save(experiment, t + 1, mask, model)

    experiment.record_mask(mask)
    experiment.record("pruned", model)
    with experiment.timed("ticket"):
        ticket = train(experiment, "ticket", model, mask, teacher, start=first)
    record_round(experiment, rounds, "ticket", mask)
    return ticket, mask


def prune_round(experiment: Experiment, model: nn.Module, done: int, mask: hf_px.Mask) -> hf_px.Mask:
    """Round done + 1: the largest |θ| of those that `mask` keeps."""
    total = experiment.pruning.total_rounds
    config = replace(
        experiment.pruning, rounds=min(done + 1, total), schedule=lambda t, _, density: exponential(t, total, density)
    )
    size, accelerator = experiment.images["input_size"], experiment.accelerator
    found = hf_px.prune(
        model, config, input_size=size, accelerator=accelerator, progress=False, resume_from=(done, mask)
    )
    return found.to("cpu")


def train(
    experiment: Experiment,
    name: str,
    model: nn.Module,
    mask: hf_px.Mask | None = None,
    teacher: nn.Module | None = None,
    **steps: Any,
) -> nn.Module:
    """The training loop, from step `start` to `stop`; pruned weights stay zero."""
    loop = TrainingLoop(experiment, name, model, mask, teacher, **steps)
    for x, y in loop:
        with loop.accumulate():
            loop.backward(loop.loss(output_tensor(loop.model(x)), y))
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    return loop.finish()


def dense_twin(experiment: Experiment) -> nn.Module:
    """The training of round 0, which has no mask; or its result from the cache."""
    twin = experiment.cached_dense()
    if twin is None:
        with experiment.timed("dense"):
            twin = experiment.save_dense(train(experiment, "dense", copy.deepcopy(experiment.model)))
    return twin


def early_weights(experiment: Experiment, step: int, ahead: bool) -> dict[str, Tensor]:
    """θ after `step` steps without a mask. If the dense twin is still to be trained, it starts with the same steps."""
    if step == 0:
        return experiment.model.state_dict()
    trained = train(experiment, "rewind", copy.deepcopy(experiment.model), stop=step)
    del experiment.run.results["history"]["rewind"]
    folder = experiment.run.checkpoints
    found, dense = (Checkpoints(folder, name).newest() for name in ("rewind", "dense"))
    if ahead and found and not dense and experiment.accelerator.is_main_process:  # the twin need not repeat them
        Checkpoints(folder, "dense").save(*found)
    experiment.accelerator.wait_for_everyone()
    return {name: tensor.detach().cpu().clone() for name, tensor in trained.state_dict().items()}


def with_weights(experiment: Experiment, weights: Mapping[str, Tensor]) -> nn.Module:
    """The loaded model, never wrapped or compiled, with these weights and statistics."""
    model = copy.deepcopy(experiment.model)
    model.load_state_dict(weights)
    return model


def save(experiment: Experiment, t: int, mask: hf_px.Mask, model: nn.Module) -> None:
    """Save everything that the run needs after round t."""
    if experiment.accelerator.is_main_process:
        experiment.run.write()
        tensors = {f"mask.{name}": bits for name, bits in mask.bits.items()}
        tensors |= {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        Checkpoints(experiment.run.checkpoints, "pruned", keep=1).save(t, tensors, {})
    remove_checkpoints(experiment, t)
    experiment.accelerator.wait_for_everyone()


def remove_checkpoints(experiment: Experiment, t: int) -> None:
    """Those of the training before round t: they are no longer needed."""
    if experiment.accelerator.is_main_process:
        Checkpoints(experiment.run.checkpoints, f"round-{t - 1}" if t > 1 else "dense").remove()


def newest(experiment: Experiment) -> tuple[int, hf_px.Mask, nn.Module]:
    """(rounds done, mask, model to train next), as `save` left them."""
    weights = prunable(experiment.model, experiment.pruning.exclude)
    found = Checkpoints(experiment.run.checkpoints, "pruned").newest()
    if found is None:
        return (
            0,
            hf_px.Mask(hf_px.Mask.ones(weights).bits, tuple(experiment.pruning.exclude)),
            copy.deepcopy(experiment.model),
        )
    experiment.print(f"pruning: continues after round {found.step} of {experiment.pruning.rounds}")
    remove_checkpoints(experiment, found.step)  # the run may have been killed just before it did so
    parts: dict[str, dict[str, Tensor]] = {"mask": {}, "model": {}}
    for name, tensor in found.tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = tensor
    bits = {name: parts["mask"][name] for name in weights}  # in the model's order, which the card shows
    return found.step, hf_px.Mask(bits, tuple(experiment.pruning.exclude)), with_weights(experiment, parts["model"])


def record_round(experiment: Experiment, t: int, name: str, mask: hf_px.Mask) -> None:
    """Write the metrics of the training after t rounds to results.json."""
    last = experiment.run.results["history"][name][-1]
    metrics = {key.partition("_")[2]: last[key] for key in last if key.startswith(("test_", "val_"))}
    row = {"round": t, "sparsity": mask.sparsity, "kept": mask.kept, **metrics}
    experiment.run.results["rounds"] = [*experiment.run.results.get("rounds", [])[:t], row]
    metric = experiment.task.headline
    experiment.print(
        f"round {t} of {experiment.pruning.rounds}: sparsity {mask.sparsity:.2%}, {metric} {row[metric]:.2%}"
    )


def made_by(options: Options) -> str:
    """The method in words, for the card."""
    rewind = options.rewind
    back = f"epoch {rewind.rewind_epochs}" if rewind.rewind_epochs else "the start"
    rewound = "weights and learning rate go" if rewind.rewind == "weights" else "weights stay, the learning rate goes"
    return (
        f"magnitude with training between rounds: {options.pruning.rounds} times trained to the end, pruned by |θ| "
        f"over all layers and rewound ({rewound} back to {back}), then trained once more"
    )


if __name__ == "__main__":
    run_recipe(main)
