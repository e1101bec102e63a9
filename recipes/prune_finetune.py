"""From a name to a ticket: load a model, prune it, train what is left and its dense twin, save and share the ticket.

    accelerate launch recipes/prune_finetune.py
        no network, about two minutes on two cores: ResNet-20, handwritten digits, 98.2 % of the weights pruned
    accelerate launch recipes/prune_finetune.py --config recipes/configs/cifar10-resnet20.yaml --scorer snip
        a row of the paper's table, with another method
    accelerate launch recipes/prune_finetune.py --model timm/resnet50.tv_in1k --data ~/photos --push-to-hub me/photos-80
        any timm or transformers model, any labelled images, here a folder for each class; trained weights are repaired
        before training (--repair false: not) and have settings of their own; the ticket is pushed to the Hub
    accelerate launch recipes/prune_finetune.py --config recipes/configs/voc2012-deeplabv3plus-mocov2.yaml
        segmentation: a DeepLabV3+ on images with label maps; the model decides the task
    accelerate launch recipes/prune_finetune.py ... --resume
        continue after a crash; the result has the same bits as without one
    ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 recipes/prune_finetune.py ...
        two processes on CPUs; `--cpu --num_processes 2` silently starts only one

The output directory holds the ticket with its card, and results.json with every result and setting.
`accelerate launch --quiet` hides accelerate's own traceback after an error.
"""

from __future__ import annotations

import copy

from torch import nn

import hf_px
from hf_px.core.forward import output_tensor
from hf_px.tickets.stored_dtype import round_
from hf_px.training.command_line import parse_options, run_recipe
from hf_px.training.experiment import Experiment
from hf_px.training.find_ticket import find_ticket
from hf_px.training.loop import TrainingLoop


def main(argv: list[str] | None = None) -> None:
    options = parse_options("prune_finetune", __doc__, argv)  # the knobs: PruneConfig and hf_px/training/config.py
    experiment = Experiment("prune_finetune", options)
    if not experiment.finished:
        ticket, mask = find_ticket(experiment)  # hf_px.prune, and hf_px.repair if the weights are trained
        experiment.record("pruned", ticket)
        experiment.record_ridge(ticket)  # how far a linear head gets on the pruned features, with --ridge-per-class
        dense = dense_twin(experiment) if options.training.dense == "train" else None
        with experiment.timed("ticket"):
            ticket = train(experiment, "ticket", ticket, mask, teacher=dense if options.training.distill else None)
        round_(ticket, options.output.dtype)  # with --dtype: what is measured is what will be stored
        experiment.record("ticket", ticket)
        experiment.save_ticket(ticket, mask)
    experiment.close()


def dense_twin(experiment: Experiment) -> nn.Module:
    """The same training without a mask, or its result from the cache."""
    if (twin := experiment.cached_dense()) is not None:
        return twin
    with experiment.timed("dense"):
        twin = train(experiment, "dense", copy.deepcopy(experiment.model))
    return experiment.save_dense(twin)


def train(
    experiment: Experiment,
    name: str,
    model: nn.Module,
    mask: hf_px.Mask | None = None,
    teacher: nn.Module | None = None,
) -> nn.Module:
    """The training loop; pruned weights stay zero. Continues from the newest checkpoint, and returns the model."""
    loop = TrainingLoop(experiment, name, model, mask, teacher)
    for x, y in loop:  # sets the learning rate; tests and saves a checkpoint at the end of each epoch
        with loop.accumulate():
            logits = output_tensor(loop.model(x))
            loss = loop.loss(logits, y)  # cross-entropy, and distillation from the teacher
            loop.backward(loss)
            loop.optimizer.step()  # hf_px.keep_zeros masks weights, gradients and momentum
            loop.optimizer.zero_grad()
    return loop.finish()


if __name__ == "__main__":
    run_recipe(main)
