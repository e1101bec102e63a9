"""From a name to a ticket: load a backbone, prune it, fine-tune what is left and its dense twin, save and share it.

    accelerate launch recipes/prune_finetune.py
        no network, about two minutes on two cores: ResNet-20, handwritten digits, 98.2 % of the weights pruned
    accelerate launch recipes/prune_finetune.py --config recipes/configs/cifar10-resnet20.yaml --scorer snip
        a row of the paper's table, with another method
    accelerate launch recipes/prune_finetune.py --model timm/resnet50.tv_in1k --data me/flowers --sparsity 0.9 \\
            --epochs 30 --lr 0.01 --lr_schedule cosine --push_to_hub me/flowers-resnet50-90
        any timm or transformers model, any labelled images, and the ticket goes to the Hub
    accelerate launch recipes/prune_finetune.py --config recipes/configs/voc2012_deeplabv3plus_mocov2.yaml
        segmentation: a DeepLabV3+ on pictures with masks; the model decides which task it is
    accelerate launch recipes/prune_finetune.py ... --resume
        the same again after a crash: goes on where it was, and ends with the same bits
    ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 recipes/prune_finetune.py ...
        two processes on CPUs; `--cpu --num_processes 2` would start one, without a word

`accelerate launch --quiet` leaves accelerate's own traceback out after an error.

In the output directory: the ticket with its card, and results.json, every result and setting.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from timm.utils import ModelEmaV3
from torch import nn
from tqdm.auto import tqdm

import hf_px
from hf_px.core.default import DEFAULT
from hf_px.core.forward import output_tensor
from hf_px.tickets.directory import Layout
from hf_px.training.checkpoint import Checkpoints, load_, state_of
from hf_px.training.config import at_least, flag, fraction, knob, parse, positive, run
from hf_px.training.experiment import Job
from hf_px.training.run_directory import agreed
from hf_px.training.train import (  # fmt: skip
    EpochLoss,
    OptimizerName,
    ScheduleName,
    distilled,
    learning_rate,
    loader,
    make_optimizer,
    mixed,
    part_weights,
    set_lr_,
    sync_buffers_,
)


@dataclass
class Backbone:
    _argument_group_name = "model"
    model: str = knob(
        "resnet20", "a short name (hf-px backbones), a timm name, org/name on the Hub, a directory, a file"
    )
    backbone: str | None = knob(
        None,
        "of a segmenter: whose weights its encoder starts from, named as a model is: mocov2-resnet50, say; '' for none",
    )
    architecture: str | None = knob(
        None, "what a weights file holds, which does not say so itself: a short name or a timm name"
    )
    pretrained: bool | None = flag(None, "take trained weights, or with false random ones (default: as the name says)")
    revision: str | None = knob(None, "commit, branch or tag of a model on the Hub")
    num_classes: int | None = knob(
        None, "an error if the data has another number (default: as many as it has, or as masks show)"
    )

    def __post_init__(self) -> None:
        at_least(1, num_classes=self.num_classes)
        self.backbone = self.backbone or None  # --backbone "" takes a config's back


@dataclass
class Examples:
    _argument_group_name = "data"
    data: str = knob(
        "digits", "digits, cifar10, cifar100, tiny-imagenet, imagenet-1k, voc2012, org/name on the Hub, or a path"
    )
    data_config: str | None = knob(None, "which one, of a Hub data set that has several")
    data_revision: str | None = knob(None, "commit, branch or tag of a data set on the Hub")
    train_split: str | None = knob(None, "the split to prune and train on (default: train)")
    train_images: int | None = knob(
        None, "prune and train on so many of its images, as many of each class, drawn by the seed (default: all)"
    )
    test_split: str | None = knob(None, "the split to test on (default: test or validation)")
    test_images: int | None = knob(
        None, "test on so many of its images, as many of each class, the same for every seed (default: all)"
    )
    image_column: str | None = knob(
        None, "where the images are (default: image, img, or the only column that holds images)"
    )
    label_column: str | None = knob(
        None, "where the classes are, or masks of them (default: label, labels, mask, or the only one that could be)"
    )
    image_size: int | None = knob(
        None, "side of the images (default: the model's own; 16 for digits on 32-pixel models)"
    )
    per_class: int = knob(10, "images of each class, or with it, to prune by: the paper's |D|")
    prune_batch_size: int | None = knob(
        None, "so many of them go through the network at once (default: 100; 8 pictures with masks)"
    )
    ridge_per_class: int = knob(
        0, "images of each class to fit a linear head to the pruned features by, before training (default: 0, none)"
    )
    num_workers: int | None = knob(None, "processes that decode images (default: by the data and the cores)")

    def __post_init__(self) -> None:
        at_least(
            1,
            image_size=self.image_size,
            train_images=self.train_images,
            test_images=self.test_images,
            per_class=self.per_class,
            prune_batch_size=self.prune_batch_size,
        )
        at_least(0, num_workers=self.num_workers, ridge_per_class=self.ridge_per_class)


@dataclass
class Pruning:
    _argument_group_name = "pruning"
    scorer: str = knob(DEFAULT, "one of `hf-px scorers`")
    sparsity: float = knob(0.982, "the part of the weights to remove")
    rounds: int | None = knob(None, "score and prune so many times (default: the method's own, see `hf-px scorers`)")
    scope: str = knob(
        "global", "which weights compete: all (global), those of a layer (layer, erk), or m neighbours (n:m, as 2:4)"
    )
    schedule: str = knob("exponential", "density by round: exponential, linear or one-shot")
    norm: str | None = knob(
        None,
        "for px-path and px, whose statistics normalisation layers use: batch or running, for px also flow or released "
        "(default: batch; flow for px in segmentation, where batch would empty a branch)",
    )
    min_per_layer: int = knob(0, "leave each layer at least so many weights")
    exclude: list[str] = knob([], "names of tensors to leave whole, and out of the count: conv.weight, say")
    keep_head: bool | None = flag(
        None,
        "leave the last layer whole, and count it: path scores may leave a class without a weight. The paper prunes it "
        "(default: keep it, if that takes at most half of what stays)",
    )

    def __post_init__(self) -> None:
        at_least(0, min_per_layer=self.min_per_layer)


@dataclass
class Training:
    _argument_group_name = "training, of the ticket and of its dense twin"
    epochs: int = knob(12, "passes over the training images")
    batch_size: int = knob(128, "images of one step, over all processes and accumulated parts")
    optimizer: OptimizerName = knob("sgd", "SGD with momentum, the same with Nesterov's, or AdamW")
    lr: float = knob(0.1, "learning rate")
    lr_schedule: ScheduleName | None = knob(
        None,
        "to 0 along a cosine, by steps at lr_drops, or constant (default: step with lr_drops, else cosine)",
    )
    lr_drops: list[float] = knob([], "epochs at which the learning rate drops: 80 120, say")
    lr_drop_factor: float = knob(0.1, "what each of lr_drops multiplies the learning rate by")
    warmup_epochs: float = knob(0.0, "the learning rate grows from 0 in that time")
    momentum: float = knob(0.9, "of SGD; the first beta of AdamW")
    weight_decay: float = knob(1e-4, "on every parameter, as in the paper")
    label_smoothing: float = knob(0.0, "share of the target that is spread over all classes")
    grad_clip: float | None = knob(None, "largest norm of the gradient (default: any)")
    gradient_accumulation: int = knob(1, "cut each batch into so many parts, if it does not fit")
    mixed_precision: Literal["no", "fp16", "bf16"] | None = knob(
        None, "number format of the forward pass; weights stay float32 (default: what accelerate launch says)"
    )
    ema_decay: float | None = knob(None, "keep the average of the weights over steps, not the last ones: 0.999, say")
    distill: float = knob(0.0, "share of the ticket's loss that is the distance to the dense twin's answers")
    distill_temperature: float = knob(2.0, "divides both answers' logits, for --distill")
    compile: bool = knob(False, "torch.compile: slow to start, then quicker")
    deterministic: bool = knob(False, "on GPUs: only operations that give the same bits each time")
    dense: Literal["train", "skip"] = knob("train", "train the dense twin too, unless the cache has it; or do without")
    seed: int = knob(0, "decides random weights, the pruning set, the method's draws and the batches")

    def __post_init__(self) -> None:
        at_least(1, epochs=self.epochs, batch_size=self.batch_size, gradient_accumulation=self.gradient_accumulation)
        positive(lr=self.lr, lr_drop_factor=self.lr_drop_factor, grad_clip=self.grad_clip)
        positive(distill_temperature=self.distill_temperature)
        fraction(momentum=self.momentum, label_smoothing=self.label_smoothing, ema_decay=self.ema_decay)
        at_least(0, weight_decay=self.weight_decay, distill=self.distill, warmup_epochs=self.warmup_epochs)
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"--seed {self.seed}: it must be in [0, {2**31})")
        if self.distill > 1:
            raise ValueError(f"--distill {self.distill}: a share of the loss, at most 1")
        if self.distill and self.dense == "skip":
            raise ValueError("--distill needs the dense twin as its teacher; leave --dense skip out")
        self.lr_schedule = self.lr_schedule or ("step" if self.lr_drops else "cosine")
        if self.lr_schedule == "step" and not self.lr_drops:
            raise ValueError("--lr_schedule step: say at which epochs, with --lr_drops 80 120")
        if self.lr_schedule != "step":
            self.lr_drops = []  # a config's, which a flag has put another schedule in the place of
        positive(lr_drops=min(self.lr_drops, default=None))
        if late := [drop for drop in self.lr_drops if drop >= self.epochs]:
            warnings.warn(f"lr_drops {late[0]:g}: never reached in {self.epochs} epochs", stacklevel=2)
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"--warmup_epochs {self.warmup_epochs:g}: there are only {self.epochs} epochs")


@dataclass
class Output:
    _argument_group_name = "output"
    output_dir: str | None = knob(None, "(default: out/<model>-<data>-<method>-<sparsity>-s<seed>)")
    resume: bool = knob(False, "go on with the run that output_dir holds")
    overwrite: bool = knob(False, "start again, even if output_dir holds a run")
    checkpoint_steps: int | None = knob(None, "save all that a resume needs every so many steps (default: every epoch)")
    keep_checkpoints: int = knob(2, "how many of the newest to keep")
    eval_epochs: int = knob(1, "test every so many epochs, and after the last")
    layout: Layout = knob("both", "files of the ticket: both, packed, dense (see the README)")
    report_to: list[str] = knob([], "trackers of accelerate's: tensorboard, trackio, wandb, ...")
    push_to_hub: str | None = knob(None, "owner/name: publish the ticket there")
    private: bool = knob(False, "make that repo private")

    def __post_init__(self) -> None:
        at_least(1, checkpoint_steps=self.checkpoint_steps, keep_checkpoints=self.keep_checkpoints)
        at_least(1, eval_epochs=self.eval_epochs)
        if self.resume and self.overwrite:
            raise ValueError("--resume goes on with a run, --overwrite throws it away; leave one of the two out")
        if self.layout == "mask-only":
            raise ValueError("--layout mask-only stores no weights, and these were trained; take both, packed or dense")


def main(argv: list[str] | None = None) -> None:
    kinds = (Backbone, Examples, Pruning, Training, Output)
    backbone, examples, pruning, training, output = parse(kinds, __doc__, argv)
    job = Job("prune_finetune", backbone, examples, training, output, pruning)
    if not job.finished:
        mask = job.mask()  # hf_px.prune, with the knobs above: before `prepare`, and the same on every process
        ticket = mask.apply_(copy.deepcopy(job.model))
        job.record("pruned", ticket)
        job.record_ridge(ticket)  # what pretrained features are still good for, if --ridge_per_class asks
        dense = job.dense_twin(train)  # the same training without a mask; from the cache if it was done before
        with job.timed("ticket"):
            ticket = train(job, "ticket", ticket, mask, teacher=dense if training.distill else None)
        job.record("ticket", ticket)
        job.save_ticket(ticket, mask)
    job.publish()
    job.close()


def train(
    job: Job, name: str, model: nn.Module, mask: hf_px.Mask | None = None, teacher: nn.Module | None = None,
    start: int = 0, stop: int | None = None,
) -> nn.Module:  # fmt: skip
    """Train from step `start` to `stop`, zeros kept, from the newest checkpoint if there is one; the trained model."""
    knobs, plan, accelerator = job.training, job.plan, job.accelerator
    stop = plan.steps if stop is None else stop
    model.to(accelerator.device)
    optimizer = make_optimizer(
        model, knobs.optimizer, lr=knobs.lr, momentum=knobs.momentum, weight_decay=knobs.weight_decay
    )
    ema = ModelEmaV3(model, decay=knobs.ema_decay) if knobs.ema_decay else None
    trained = model if ema is None else ema.module
    # a wrapper, not model.compile(): what is evaluated, copied and saved is the model as it was
    wrapped, optimizer = accelerator.prepare(torch.compile(model) if knobs.compile else model, optimizer)
    if mask is not None:
        hf_px.keep(wrapped, mask, optimizer, ema=ema)
    job.load_scaler_()  # float16's loss scale starts afresh with each model

    checkpoints = Checkpoints(job.run.checkpoints, name, job.output.keep_checkpoints)
    step, history, running = start, [], EpochLoss(accelerator, plan)
    if (found := checkpoints.newest()) is not None:
        load_(found, model, optimizer, trained if ema else None)
        step, history = found.step, found.notes["history"]
        running.load_(found.tensors["train_loss"])
        job.load_scaler_(found.notes["scaler"])
        job.say(f"{name}: goes on after step {step} of {stop}")

    agreed(accelerator, f"{name}: the last step", step)
    batches = loader(plan, job.train_images, start=step, rank=accelerator.process_index, workers=job.workers)
    bar = tqdm(total=stop, initial=step, desc=f"training, {name}", unit="step", disable=not accelerator.is_main_process)
    while step < stop:
        model.train()
        lr = learning_rate(
            step / plan.steps_per_epoch, lr=knobs.lr, epochs=knobs.epochs, schedule=knobs.lr_schedule,
            drops=knobs.lr_drops, factor=knobs.lr_drop_factor, warmup=knobs.warmup_epochs,
        )  # fmt: skip
        set_lr_(optimizer, lr)
        parts = [next(batches) for _ in range(plan.accumulation)]
        weights = part_weights(accelerator, plan, step, [y for _, y in parts])
        for part, (x, y) in enumerate(parts):
            x, y = (tensor.to(accelerator.device, non_blocking=True) for tensor in (x, y))
            torch.manual_seed(mixed(knobs.seed, step, part, accelerator.process_index))  # dropout, drop path
            with accelerator.accumulate(wrapped):
                logits = output_tensor(wrapped(x))
                answers = None if teacher is None else job.answers(teacher, x)
                loss = distilled(
                    logits, y, answers,
                    weight=knobs.distill, t=knobs.distill_temperature, smooth=knobs.label_smoothing,
                )  # fmt: skip
                loss = loss * weights[part]  # so that every image, or pixel, of the step counts the same
                accelerator.backward(loss)
                if knobs.grad_clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(wrapped.parameters(), knobs.grad_clip)
                optimizer.step()  # hf_px.keep: zeros stay zero
                optimizer.zero_grad()
            running.add(loss)
        if ema is not None:
            ema.update(model)
        step += 1
        bar.update()

        epoch, rest = divmod(step, plan.steps_per_epoch)
        saving = rest == 0 or step == stop or step % (job.output.checkpoint_steps or plan.steps) == 0
        if saving:
            running.gather_()
        if rest == 0:
            sync_buffers_(model, trained)
            row = {"epoch": epoch, "lr": lr, "train_loss": running.end(f"{name}, epoch {epoch}")}
            if epoch % job.output.eval_epochs == 0 or step == plan.steps:
                found = job.evaluate(trained)
                row |= {f"test_{key}": value for key, value in found.items() if isinstance(value, float)}
            history = [*history, row]
            accelerator.log({f"{name}/{key}": value for key, value in row.items()}, step=epoch)
            bar.set_postfix(
                {key: f"{row[key]:.4g}" for key in ("train_loss", f"test_{job.task.headline}") if key in row}
            )
        if saving and accelerator.is_main_process:
            tensors, notes = state_of(model, optimizer, trained if ema else None)
            notes |= {"history": history, "scaler": job.scaler_state()}
            checkpoints.save(step, tensors | {"train_loss": running.total}, notes)
    bar.close()
    job.run.results["history"][name] = history
    job.unwrap_(wrapped)
    return trained


if __name__ == "__main__":
    run(main)
