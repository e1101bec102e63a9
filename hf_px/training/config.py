"""Options of a recipe: one dataclass for each group of flags, with defaults, help texts and checks.

The options of pruning are hf_px.PruneConfig; `Options` holds all groups of a run.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ..core.options import at_least, option
from ..prune_config import COLUMN_HELP, DEFAULT_PER_CLASS, PruneConfig
from ..refit.options import RepairOptions
from ..tickets.directory import Layout
from ..tickets.stored_dtype import DtypeName
from .defaults import RATES, SETTINGS, by_kind, kind_of_weights, rates_by_kind

OptimizerName = Literal["sgd", "nesterov", "adamw"]
ScheduleName = Literal["step", "cosine", "constant"]
HELD_OUT = 0.2  # of data without a test split


@dataclass
class ModelOptions:
    model: str = option(
        "resnet20", "a short name (hf-px backbones), a timm name, org/name on the Hub, a directory, or a weights file"
    )
    backbone: str | None = option(
        None,
        "for a segmentation model: the model whose weights its encoder starts from, named like --model, for example "
        "mocov2-resnet50; '' for none",
        type=str,
    )
    architecture: str | None = option(
        None, "architecture of a weights file, which does not name it: a short name or a timm name", type=str
    )
    pretrained: bool | None = option(
        None, "load trained weights; false: draw random ones (default: as the name of the model implies)", type=bool
    )
    revision: str | None = option(None, "commit, branch or tag of a model on the Hub", type=str)
    head: Literal["ridge", "random"] | None = option(
        None,
        "how a head that the model came without starts: ridge, the linear classifier on the model's features in closed "
        "form, or random (default: ridge on trained weights)",
        type=str,
        choices=("ridge", "random"),
    )
    num_classes: int | None = option(
        None, "expected number of classes, an error if the data has another (default: that of the data)", type=int
    )

    def __post_init__(self) -> None:
        at_least(1, num_classes=self.num_classes)
        self.backbone = self.backbone or None  # --backbone "" cancels that of a config file


@dataclass
class DataOptions:
    data: str = option(
        "digits", "digits, cifar10, cifar100, tiny-imagenet, imagenet-1k, voc2012, org/name on the Hub, or a path"
    )
    data_config: str | None = option(None, "configuration of a Hub data set that has several", type=str)
    data_revision: str | None = option(None, "commit, branch or tag of a data set on the Hub", type=str)
    train_split: str | None = option(None, "split to prune and train on (default: train)", type=str)
    train_images: int | None = option(
        None, "use this many training images, the same number of each class, drawn by the seed (default: all)", type=int
    )
    test_split: str | None = option(
        None, "split to test on, or a part of one, for example 'train[80%:]' (default: test or validation)", type=str
    )
    val_fraction: float | None = option(
        None,
        "part of the training images to hold out, the same of each class, to choose the best epoch by (default: 0; "
        f"{HELD_OUT:g} for data without a test split, which is then tested on these images)",
        type=float,
    )
    test_images: int | None = option(
        None,
        "use this many test images, the same number of each class and the same ones for every seed (default: all)",
        type=int,
    )
    image_column: str | None = option(None, COLUMN_HELP["image"], type=str)
    label_column: str | None = option(None, COLUMN_HELP["label"], type=str)
    image_size: int | None = option(
        None, "height and width of the images (default: the model's own; 16 for digits on 32-pixel models)", type=int
    )
    per_class: int = option(DEFAULT_PER_CLASS, "images per class to prune by: the paper's |D|")
    prune_batch_size: int | None = option(
        None, "batch size of the pruning set (default: 100; 8 for images with label maps)", type=int
    )
    ridge_per_class: int = option(
        0, "images per class to fit a linear head to the pruned features before training (default: 0, no such head)"
    )
    num_workers: int | None = option(
        None, "processes that decode images (default: by image size and number of cores)", type=int
    )

    def __post_init__(self) -> None:
        names = ("image_size", "train_images", "test_images", "per_class", "prune_batch_size")
        at_least(1, **{name: getattr(self, name) for name in names})
        at_least(0, num_workers=self.num_workers, ridge_per_class=self.ridge_per_class)
        _fraction(val_fraction=self.val_fraction)


@dataclass
class TrainingOptions:
    """Where the default depends on the kind of weights (defaults.py), a value is None until `for_weights`."""

    epochs: int = option(None, f"passes over the training images (default: {by_kind('epochs')})", type=int)
    batch_size: int = option(
        None,
        f"images of one step, over all processes and accumulated parts (default: {by_kind('batch_size')})",
        type=int,
    )
    optimizer: OptimizerName = option(
        None,
        f"SGD with momentum, SGD with Nesterov momentum, or AdamW (default: {by_kind('optimizer')})",
        type=str,
        choices=get_args(OptimizerName),
    )
    lr: float = option(None, f"learning rate (default: {rates_by_kind()})", type=float)
    head_lr: float | None = option(
        None,
        "learning rate of a head that the model came without (default: --lr, or with trained weights "
        f"{SETTINGS['trained']['head_factor']} times the default of --lr)",
        type=float,
    )
    keep: Literal["last", "best"] | None = option(
        None,
        "keep the weights of the last epoch, or of the best by the images held out (default: best if there are any)",
        type=str,
        choices=("last", "best"),
    )
    lr_schedule: ScheduleName | None = option(
        None,
        "cosine to 0, steps at --lr-drops, or constant (default: step if there are drops, else cosine)",
        type=str,
        choices=get_args(ScheduleName),
    )
    lr_drops: list[float] = option([], "epochs at which the learning rate drops, for example 80 120", type=float)
    lr_drop_factor: float = option(0.1, "factor of each drop")
    warmup_epochs: float = option(
        None,
        f"epochs of linear warm-up from 0 (default: 0, or {SETTINGS['trained']['warmup']:.0%} for trained weights)",
        type=float,
    )
    norms: Literal["train", "hold"] | None = option(
        None,
        "batch norm in training: train normalises by each batch and averages over them; hold uses the statistics that "
        f"it has (default: {by_kind('norms')})",
        type=str,
        choices=("train", "hold"),
    )
    momentum: float = option(0.9, "momentum of SGD, first beta of AdamW")
    weight_decay: float = option(1e-4, "weight decay on every parameter, as in the paper")
    label_smoothing: float = option(0.0, "share of the target that is spread over all classes")
    grad_clip: float | None = option(
        None,
        f"largest norm of the gradient; 0: no clipping (default: {by_kind('grad_clip')})",
        type=float,
    )
    gradient_accumulation: int = option(1, "split each batch into this many parts, if it does not fit into memory")
    mixed_precision: Literal["no", "fp16", "bf16"] | None = option(
        None,
        "number format of the forward pass; weights stay float32 (default: the setting of accelerate launch)",
        type=str,
        choices=("no", "fp16", "bf16"),
    )
    ema_decay: float | None = option(
        None, "keep an exponential moving average of the weights, for example 0.999 (default: none)", type=float
    )
    distill: float = option(0.0, "share of the ticket's loss that is distillation from the dense twin")
    distill_temperature: float = option(2.0, "temperature of --distill")
    compile: bool = option(False, "torch.compile: slow to start, then faster")
    deterministic: bool = option(False, "on GPUs, use only operations that give the same bits each time")
    dense: Literal["train", "skip"] = option(
        "train", "train the dense twin too, unless it is cached; or skip it", choices=("train", "skip")
    )

    def __post_init__(self) -> None:
        at_least(1, epochs=self.epochs, batch_size=self.batch_size, gradient_accumulation=self.gradient_accumulation)
        at_least(0, weight_decay=self.weight_decay, distill=self.distill, warmup_epochs=self.warmup_epochs)
        at_least(0, grad_clip=self.grad_clip)
        _positive(lr=self.lr, head_lr=self.head_lr, lr_drop_factor=self.lr_drop_factor)
        _positive(distill_temperature=self.distill_temperature, lr_drops=min(self.lr_drops, default=None))
        _fraction(momentum=self.momentum, label_smoothing=self.label_smoothing, ema_decay=self.ema_decay)
        if self.distill > 1:
            raise ValueError(f"`distill` {self.distill} is a share of the loss, at most 1")
        if self.distill and self.dense == "skip":
            raise ValueError("`distill` needs the dense twin as its teacher; do not skip it with `dense` skip")
        self.lr_schedule = self.lr_schedule or ("step" if self.lr_drops else "cosine")
        if self.lr_schedule == "step" and not self.lr_drops:
            raise ValueError("`lr_schedule` step needs the epochs of the drops, for example `lr_drops` 80 120")
        if self.lr_schedule != "step":
            self.lr_drops = []  # those of a config file, overridden by another schedule

    def for_weights(self, trained: bool) -> TrainingOptions:
        """A copy with the defaults of this kind of weights for all that is not given."""
        kind = kind_of_weights(trained)
        usual = SETTINGS[kind]
        names = ("epochs", "batch_size", "optimizer", "grad_clip")
        found = replace(self, **{name: usual[name] for name in names if getattr(self, name) is None})
        found.grad_clip = found.grad_clip or None
        if found.norms is None and usual["norms"] == "hold":
            found.norms = "hold"
        factor = usual["head_factor"] if found.lr is None else 1
        found.lr = RATES[kind][found.optimizer] if found.lr is None else found.lr
        if found.head_lr is None and factor != 1:
            found.head_lr = factor * found.lr
        if found.warmup_epochs is None:
            found.warmup_epochs = usual["warmup"] * found.epochs
        if late := [drop for drop in found.lr_drops if drop >= found.epochs]:
            warnings.warn(f"lr_drops {late[0]:g}: never reached in {found.epochs} epochs", stacklevel=4)
        if found.warmup_epochs >= found.epochs:
            raise ValueError(f"`warmup_epochs` {found.warmup_epochs:g}: there are only {found.epochs} epochs")
        return found

    def in_words(self, trained: bool, new_head: bool, ridge: bool) -> str:
        """The settings of the training in a sentence, for the first lines of a run."""
        parts = [f"{self.optimizer}, learning rate {self.lr:g}", f"{self.lr_schedule}"]
        parts += [f"warm-up {self.warmup_epochs:g} epochs"] if self.warmup_epochs else []
        parts += ["statistics of batch norm held"] if self.norms == "hold" else []
        parts += [f"gradients clipped at {self.grad_clip:g}"] if self.grad_clip else []
        start = "the ridge solution" if ridge else "random"
        parts += [f"new head from {start}, learning rate {self.head_lr or self.lr:g}"] if trained and new_head else []
        return (
            f"training, settings for {kind_of_weights(trained)} weights unless given: {self.epochs} epochs in batches "
            f"of {self.batch_size}; {'; '.join(parts)}"
        )

    def learning_rate(self, epoch: float) -> float:
        """lr at a point in time, in epochs: lr · factor^(drops passed), or lr · (1 + cos πt)/2, after the warm-up."""
        warmup = self.warmup_epochs
        if epoch < warmup:
            return self.lr * epoch / warmup
        if self.lr_schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * (epoch - warmup) / (self.epochs - warmup))) / 2
        drops = sorted(self.lr_drops)  # none if the schedule is constant
        return self.lr * self.lr_drop_factor ** bisect.bisect_right(drops, epoch)


@dataclass
class OutputOptions:
    output_dir: str | None = option(
        None, "directory of the run (default: out/<model>-<data>-<method>-<sparsity>-s<seed>)", type=str
    )
    resume: bool = option(False, "continue the run in --output-dir")
    overwrite: bool = option(False, "start again, even if --output-dir holds a run")
    checkpoint_steps: int | None = option(None, "steps between checkpoints (default: one every epoch)", type=int)
    keep_checkpoints: int = option(2, "number of newest checkpoints to keep")
    eval_epochs: int = option(1, "test every this many epochs, and after the last")
    layout: Layout = option(
        "both", "files of the ticket, see hf_px/tickets/README.md", choices=("both", "packed", "dense", "mask-only")
    )
    dtype: DtypeName | None = option(
        None, "round the ticket's weights to it, measure and store them so", type=str, choices=get_args(DtypeName)
    )
    bench: bool = option(True, "time the ticket on this machine's CPU, dense and sparse, for the card: some seconds")
    card_images: int | None = option(
        None,
        "test images that the card shows, with predictions; 0 for none (default: 8, or 4 with label maps; 0 if "
        "--push-to-hub would make images of this machine public before you have seen the card)",
        type=int,
    )
    report_to: list[str] = option([], "trackers of accelerate: tensorboard, trackio, wandb, …")
    push_to_hub: str | None = option(None, "owner/name: publish the ticket there", type=str)
    private: bool = option(False, "make that repo private")

    def __post_init__(self) -> None:
        at_least(1, checkpoint_steps=self.checkpoint_steps, keep_checkpoints=self.keep_checkpoints)
        at_least(1, eval_epochs=self.eval_epochs)
        at_least(0, card_images=self.card_images)
        if (self.card_images or 0) > 64:
            raise ValueError(f"`card_images` {self.card_images}: a card shows 64 at most")
        if self.resume and self.overwrite:
            raise ValueError("`resume` continues a run, `overwrite` discards it; use one of the two")
        if self.layout == "mask-only":
            raise ValueError("`layout` mask-only stores no weights, and these were trained; take both, packed or dense")


@dataclass
class RewindOptions:
    """Options of iterative magnitude pruning (IMP), which trains between rounds."""

    rewind: Literal["weights", "lr"] = option(
        "weights", "after each round go back to early weights and their learning rate, or to the learning rate alone",
        choices=("weights", "lr"),
    )  # fmt: skip
    rewind_epochs: int = option(0, "epoch to rewind to; 0 is the start, before any training")

    def __post_init__(self) -> None:
        at_least(0, rewind_epochs=self.rewind_epochs)


@dataclass
class Options:
    """All options of one run. `rewind` is set for IMP only, `repair` for the other recipe."""

    model: ModelOptions
    data: DataOptions
    pruning: PruneConfig
    training: TrainingOptions
    output: OutputOptions
    rewind: RewindOptions | None = None
    repair: RepairOptions | None = None

    def __post_init__(self) -> None:
        norms = self.training.norms
        self.training = self.training.for_weights(self.trained)
        if self.rewind is None:
            return
        self.training.norms = norms  # every round of IMP starts with the statistics of the dense network
        if self.training.dense == "skip":
            raise ValueError("`dense` skip: the first round of IMP trains the dense model; leave it out")
        if self.training.keep == "best":
            raise ValueError("`keep` best: IMP prunes what was trained to the end; leave it out")
        if self.rewind.rewind_epochs >= self.training.epochs:
            raise ValueError(
                f"`rewind_epochs` {self.rewind.rewind_epochs}: there are only {self.training.epochs} epochs"
            )
        # by default every round removes 20 % of what is left, as Frankle and Carbin do
        rounds = self.pruning.rounds or max(1, round(math.log(self.pruning.density) / math.log(0.8)))
        self.pruning = replace(self.pruning, scorer="magnitude", rounds=rounds)

    @property
    def trained(self) -> bool:
        """True if the training starts from trained weights, at least in the backbone."""
        from ..models.names import loads_trained  # imports timm, which --help does without

        model = self.model
        return loads_trained(
            model.model, pretrained=model.pretrained, architecture=model.architecture, backbone=model.backbone
        )

    @property
    def method(self) -> str:
        """The scorer's name, or imp, which is not a scorer."""
        return "imp" if self.rewind else self.pruning.record.name

    def settings(self) -> dict[str, Any]:
        """All options, as results.json records them."""
        groups = (self.model, self.data, self.pruning, self.training, self.output, self.rewind, self.repair)
        values = {
            field.name: getattr(group, field.name)
            for group in groups
            if group is not None
            for field in dataclasses.fields(group)
        }
        values |= {name: list(values[name]) for name in ("keep_dense", "exclude")}
        if self.rewind:  # fixed in IMP
            values = {name: value for name, value in values.items() if name not in ("scope", "of", "schedule", "norm")}
        return values | {"scorer": self.method}


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"`{name}` {value:g} must be positive")


def _fraction(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"`{name}` {value:g} is outside [0, 1)")
