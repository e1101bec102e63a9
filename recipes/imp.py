"""Iterative magnitude pruning: train, keep the largest |θ| of those left, rewind, and again; then train the ticket.

    accelerate launch recipes/imp.py --sparsity 0.9 --epochs 4
        no network: ResNet-20 on handwritten digits, ten rounds, eleven trainings of four epochs
    accelerate launch recipes/imp.py --config recipes/configs/cifar10-resnet20.yaml --sparsity 0.8322
        the lottery ticket hypothesis: back to the weights of the start after every round
    accelerate launch recipes/imp.py --config recipes/configs/cifar10-resnet20.yaml --rewind_epochs 2
        IMP with rewinding: weights and learning rate go back to where they were after two epochs
    accelerate launch recipes/imp.py --config recipes/configs/cifar10-resnet20.yaml --rewind lr
        learning-rate rewinding: weights stay as trained, the learning rate goes back to its start
    accelerate launch recipes/imp.py ... --resume
        the same again after a crash: goes on where it was, and ends with the same bits

It costs as many trainings as it has rounds, and one more. In the output directory: the ticket with its card, and
results.json, every result and setting, with the metrics after each round.

Frankle & Carbin, The Lottery Ticket Hypothesis, ICLR 2019; Frankle et al., Linear Mode Connectivity and the Lottery
Ticket Hypothesis, ICML 2020; Renda et al., Comparing Rewinding and Fine-tuning, ICLR 2020.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from prune_finetune import Backbone, Examples, Output, Training, train
from torch import Tensor, nn

import hf_px
from hf_px.core.allocate import Global, exponential
from hf_px.core.prunable import prunable
from hf_px.pruning import checked_sparsity
from hf_px.training.checkpoint import Checkpoints
from hf_px.training.config import at_least, knob, parse, run
from hf_px.training.experiment import Job


@dataclass
class Pruning:
    _argument_group_name = "pruning"
    sparsity: float = knob(0.982, "the part of the weights to remove")
    rounds: int | None = knob(
        None, "train, prune and rewind so often (default: so that 20 %% of what is left goes in each)"
    )
    rewind: Literal["weights", "lr"] = knob(
        "weights", "go back to earlier weights and their learning rate, or to the learning rate alone"
    )
    rewind_epochs: int = knob(0, "back to the end of this epoch; 0 is the start, before any training")
    min_per_layer: int = knob(0, "leave each layer so many weights")
    exclude: list[str] = knob([], "tensors to leave whole, and out of the count")
    keep_head: bool | None = knob(
        None, "leave the last layer whole, and count it (default: if that takes at most half of what stays)"
    )
    scorer: str = knob("imp", "what a config file of prune_finetune says here is passed over")
    scope: ClassVar[str] = "global"
    schedule: ClassVar[str] = "exponential"
    norm: ClassVar[None] = None

    def __post_init__(self) -> None:
        self.scorer = "imp"
        density = 1 - checked_sparsity(self.sparsity, Global())
        if self.rounds is None:
            self.rounds = max(1, round(math.log(density) / math.log(0.8)))
        at_least(1, rounds=self.rounds)
        at_least(0, rewind_epochs=self.rewind_epochs)


def main() -> None:
    backbone, examples, pruning, training, output = parse((Backbone, Examples, Pruning, Training, Output), __doc__)
    check(pruning, training)
    job = Job("imp", backbone, examples, training, output, pruning)
    if not job.finished:
        ticket, mask = imp(job)
        job.record("ticket", ticket)
        job.save_ticket(ticket, mask, made_by=made_by(pruning))
    job.publish()
    job.close()


def imp(job: Job) -> tuple[nn.Module, hf_px.Mask]:
    """The trained ticket and its mask. Every training starts without momentum; with --ema_decay, θ is the average."""
    knobs, rounds, head = job.pruning, job.pruning.rounds, job.whole_head()
    first = knobs.rewind_epochs * job.plan.steps_per_epoch  # the step at which all trainings but the dense one start
    prune = partial(
        hf_px.prune, scorer="magnitude", sparsity=knobs.sparsity, schedule=lambda t, _, d: exponential(t, rounds, d),
        min_per_layer=knobs.min_per_layer, exclude=knobs.exclude, whole=head, input_size=job.images["input_size"],
        accelerator=job.accelerator, progress=False,
    )  # fmt: skip
    done, mask, model = newest(job)
    prune(job.model, rounds=rounds, done=(rounds, mask))  # nothing left to do, so it only refuses what it must

    early = early_weights(job, first, ahead=done == 0) if knobs.rewind == "weights" else None
    dense = job.dense_twin(train) if done == 0 or job.training.distill else None  # the training of round 0
    teacher = dense if job.training.distill else None
    for t in range(done, rounds):
        if t == 0:
            trained = dense
        else:
            with job.timed(f"round-{t}"):
                trained = train(job, f"round-{t}", model, mask, teacher, start=first)
        note(job, t, "dense" if t == 0 else f"round-{t}", mask)
        mask = prune(trained, rounds=t + 1, done=(t, mask))  # of those left; what is gone stays gone
        mask = hf_px.Mask({name: bits.cpu() for name, bits in mask.bits.items()})
        model = mask.apply_(with_weights(job, trained.state_dict() if early is None else early))
        save(job, t + 1, mask, model)

    job.note_mask(mask, head)
    job.record("pruned", model)
    with job.timed("ticket"):
        ticket = train(job, "ticket", model, mask, teacher, start=first)
    note(job, rounds, "ticket", mask)
    return ticket, mask


def early_weights(job: Job, step: int, ahead: bool) -> dict[str, Tensor]:
    """θ after so many steps without a mask, which are the first of the dense twin too, if that is still ahead."""
    if step == 0:
        return job.model.state_dict()
    trained = train(job, "rewind", copy.deepcopy(job.model), stop=step)
    del job.run.results["history"]["rewind"]
    found, dense = (Checkpoints(job.run.checkpoints, name).newest() for name in ("rewind", "dense"))
    if ahead and found and not dense and job.accelerator.is_main_process:  # so that the twin need not do them again
        Checkpoints(job.run.checkpoints, "dense").save(*found)
    job.accelerator.wait_for_everyone()
    return {name: tensor.detach().cpu().clone() for name, tensor in trained.state_dict().items()}


def with_weights(job: Job, weights: Mapping[str, Tensor]) -> nn.Module:
    """A model as it was loaded, never wrapped or compiled, with these weights and statistics."""
    model = copy.deepcopy(job.model)
    model.load_state_dict(weights)
    return model


def save(job: Job, t: int, mask: hf_px.Mask, model: nn.Module) -> None:
    """All that comes after the t-th pruning needs."""
    if job.accelerator.is_main_process:
        job.run.write()
        tensors = {f"mask.{name}": bits for name, bits in mask.bits.items()}
        tensors |= {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        Checkpoints(job.run.checkpoints, "pruned", keep=1).save(t, tensors, {})
    clear(job, t)
    job.accelerator.wait_for_everyone()


def clear(job: Job, t: int) -> None:
    """The checkpoints of the training before the t-th pruning have done their work."""
    if job.accelerator.is_main_process:
        Checkpoints(job.run.checkpoints, f"round-{t - 1}" if t > 1 else "dense").remove()


def newest(job: Job) -> tuple[int, hf_px.Mask, nn.Module]:
    """(prunings done, mask, model to train next), as `save` left them."""
    weights = prunable(job.model, job.pruning.exclude)
    found = Checkpoints(job.run.checkpoints, "pruned").newest()
    if found is None:
        return 0, hf_px.Mask.ones(weights), copy.deepcopy(job.model)
    job.say(f"pruning: goes on after round {found.step} of {job.pruning.rounds}")
    clear(job, found.step)  # it may have been killed just before
    parts: dict[str, dict[str, Tensor]] = {"mask": {}, "model": {}}
    for name, tensor in found.tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = tensor
    bits = {name: parts["mask"][name] for name in weights}  # in the model's order, which the card shows
    return found.step, hf_px.Mask(bits), with_weights(job, parts["model"])


def note(job: Job, t: int, name: str, mask: hf_px.Mask) -> None:
    """What training has made of the weights that t prunings have left, in results.json."""
    last = job.run.results["history"][name][-1]
    found = {key.removeprefix("test_"): value for key, value in last.items() if key.startswith("test_")}
    row = {"round": t, "sparsity": mask.sparsity, "kept": mask.kept, **found}
    job.run.results["rounds"] = [*job.run.results.get("rounds", [])[:t], row]
    what = job.task.headline
    job.say(f"round {t} of {job.pruning.rounds}: sparsity {mask.sparsity:.2%}, {what} {row[what]:.2%}")


def check(pruning: Pruning, training: Training) -> None:
    if training.dense == "skip":
        raise ValueError("--dense skip: the first round trains the dense model; leave it out")
    if pruning.rewind_epochs >= training.epochs:
        raise ValueError(f"--rewind_epochs {pruning.rewind_epochs}: there are only {training.epochs} epochs")


def made_by(pruning: Pruning) -> str:
    """For the card."""
    back = f"epoch {pruning.rewind_epochs}" if pruning.rewind_epochs else "the start"
    rewound = "weights and learning rate go" if pruning.rewind == "weights" else "weights stay, the learning rate goes"
    return (
        f"magnitude with training between rounds: {pruning.rounds} times trained to the end, pruned by |θ| over all "
        f"layers and rewound ({rewound} back to {back}), then trained once more"
    )


if __name__ == "__main__":
    run(main)
