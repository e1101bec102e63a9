"""TrainingLoop: everything around the loop of a recipe, which itself stays in the recipe.

    for x, y in loop:                                   # learning rate, bar, checkpoints and tests happen in here
        with loop.accumulate():
            loop.backward(loop.loss(output_tensor(loop.model(x)), y))
            loop.optimizer.step()
            loop.optimizer.zero_grad()

It continues from the newest checkpoint, keeps pruned weights at zero, tests at the end of an epoch and saves what a
resume needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm.auto import tqdm

from ..core.forward import output_tensor
from ..core.mask import Mask
from ..core.processes import initialized
from ..sparse_training import keep_zeros
from .alarms import DivergedError, check_growth, check_loss
from .checkpoint import Checkpoints, load_, state_of
from .config import TrainingOptions
from .losses import EpochLoss, distillation_loss, part_weights
from .plan import loader, step_seed
from .run_directory import check_agreed

if TYPE_CHECKING:
    from .experiment import Experiment


class TrainingLoop:
    """Train from step `start` to `stop`, or from the newest checkpoint; with a mask, pruned weights stay zero.

    `model` is the model to call, wrapped by accelerate; `trained` is the bare one to evaluate and save: the model
    itself, or the moving average of its weights.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        model: nn.Module,
        mask: Mask | None = None,
        teacher: nn.Module | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._experiment, self._name, self._bare, self._teacher = experiment, name, model, teacher
        self._options, self._plan, self._accelerator = experiment.training, experiment.plan, experiment.accelerator
        self._stop = self._plan.steps if stop is None else stop
        accelerator, options = self._accelerator, self._options
        model.to(accelerator.device)
        optimizer = make_optimizer(model, options, experiment.loaded.new_head)
        self._ema = ModelEmaV3(model, decay=options.ema_decay) if options.ema_decay else None
        self.trained: nn.Module = model if self._ema is None else self._ema.module
        # a wrapper and not model.compile(): the model that is evaluated, copied and saved stays as it was
        self.model, self.optimizer = accelerator.prepare(torch.compile(model) if options.compile else model, optimizer)
        if mask is not None:
            keep_zeros(self.model, mask, self.optimizer, ema=self._ema)
        _load_scaler_(accelerator, experiment.fresh_scaler)  # every model starts with a fresh loss scale
        folder = experiment.run.checkpoints
        self._checkpoints = Checkpoints(folder, name, experiment.output.keep_checkpoints)
        self._best = Checkpoints(folder, f"{name}-best", keep=1) if experiment.keeps_best else None
        self._step, self._epoch_loss = start, EpochLoss(accelerator, self._plan)
        self._history: list[dict[str, Any]] = []
        self._weight = 1.0  # weight of the part that is being trained on
        self._x: Tensor | None = None
        self._load_newest()
        if self._best is not None and self._step == 0 and experiment.loaded.trained:
            self._test_before_training()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(images, targets) of every part of every step, on the device."""
        plan, accelerator, seed = self._plan, self._accelerator, self._experiment.seed
        rank, workers = accelerator.process_index, self._experiment.workers
        batches = loader(plan, self._experiment.train_images, start=self._step, rank=rank, workers=workers)
        hidden = not accelerator.is_main_process
        with tqdm(
            total=self._stop, initial=self._step, desc=f"training, {self._name}", unit="step", disable=hidden
        ) as bar:
            while self._step < self._stop:
                train_mode_(self._bare, hold_norms=self._options.norms == "hold")
                self._lr = self._options.learning_rate(self._step / plan.steps_per_epoch)
                for group in self.optimizer.param_groups:
                    group["lr"] = self._lr * group.get("factor", 1.0)  # none in a checkpoint of an older version
                parts = [next(batches) for _ in range(plan.accumulation)]
                weights = part_weights(accelerator, plan, self._step, [y for _, y in parts])
                for part, (x, y) in enumerate(parts):
                    x, y = (tensor.to(accelerator.device, non_blocking=True) for tensor in (x, y))
                    torch.manual_seed(step_seed(seed, self._step, part, rank))  # for dropout and drop path
                    self._weight, self._x = weights[part], x
                    yield x, y
                if self._ema is not None:
                    self._ema.update(self._bare)
                self._step += 1
                bar.update()
                self._end_step(bar)

    def accumulate(self) -> AbstractContextManager[Any]:
        return self._accelerator.accumulate(self.model)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy, mixed with distillation if there is a teacher; weighted so that every example counts alike."""
        options = self._options
        loss = distillation_loss(
            logits, targets, self._teacher_logits(),
            weight=options.distill, temperature=options.distill_temperature, smoothing=options.label_smoothing,
        )  # fmt: skip
        loss = loss * self._weight
        self._epoch_loss.add(loss)
        return loss

    @torch.no_grad()
    def _teacher_logits(self) -> Tensor | None:
        if self._teacher is None:
            return None
        with self._accelerator.autocast():
            return output_tensor(self._teacher(self._x))

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, and clip them with `grad_clip`."""
        self._accelerator.backward(loss)
        if self._options.grad_clip and self._accelerator.sync_gradients:
            self._accelerator.clip_grad_norm_(self.model.parameters(), self._options.grad_clip)

    def finish(self) -> nn.Module:
        """The trained model, without what accelerate wrapped around it; of the best epoch if that is kept."""
        self._accelerator.wait_for_everyone()
        if self._best is not None and (best := self._best.newest()) is not None:
            self.trained.load_state_dict(best.tensors)
            self._experiment.run.results.setdefault("kept_epoch", {})[self._name] = best.step
            epochs = self._history[-1]["epoch"]
            kept = f"epoch {best.step} of {epochs} is the best" if best.step else f"none of {epochs} epochs improves it"
            self._experiment.print(f"{self._name}: {kept}")
        self._experiment.run.results["history"][self._name] = self._history
        inner = self._accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        inner = getattr(inner, "_orig_mod", inner)
        # accelerate leaves these attributes behind: `forward` hides the method of the class, and a model marked as
        # prepared would not be prepared again, so that a second training would run in full precision
        for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
            vars(inner).pop(name, None)
        self._accelerator.free_memory()
        return self.trained

    def _test_before_training(self) -> None:
        """Epoch 0: a ridge head on repaired features may be better than what few images and a wrong rate make of it."""
        self._history = [{"epoch": 0, **self._experiment.evaluate_epoch(self.trained)}]
        self._save_best(0)

    def _save_best(self, epoch: int) -> None:
        if self._best is not None and self._accelerator.is_main_process:
            self._best.save(epoch, self.trained.state_dict(), {})

    def _load_newest(self) -> None:
        if (found := self._checkpoints.newest()) is not None:
            load_(found, self._bare, self.optimizer, self.trained if self._ema else None)
            self._step, self._history = found.step, found.notes["history"]
            self._epoch_loss.load_(found.tensors["train_loss"])
            _load_scaler_(self._accelerator, found.notes["scaler"])
            self._experiment.print(f"{self._name}: continues after step {self._step} of {self._stop}")
        check_agreed(f"{self._name}: the last step", self._step)

    def _end_step(self, bar: Any) -> None:
        try:
            self._test_and_save(bar)
        except DivergedError as error:
            self._experiment.record_alarms([str(error)])
            raise

    def _test_and_save(self, bar: Any) -> None:
        """At the end of an epoch: test and write down. At a checkpoint: save all that a resume needs."""
        output, plan, step = self._experiment.output, self._plan, self._step
        epoch, rest = divmod(step, plan.steps_per_epoch)
        saving = rest == 0 or step == self._stop or step % (output.checkpoint_steps or plan.steps) == 0
        if saving:
            self._epoch_loss.gather_()
        if rest == 0:
            sync_buffers_(self._bare, self.trained)
            row = {"epoch": epoch, "lr": self._lr, "train_loss": self._epoch_loss.end()}
            check_loss(self._name, row, self._experiment.rates)
            if epoch % output.eval_epochs == 0 or step == plan.steps:
                row |= self._experiment.evaluate_epoch(self.trained)
            self._history = [*self._history, row]
            if self._best is not None and best_epoch(self._history, self._experiment.task.headline) == epoch:
                self._save_best(epoch)
            check_growth(self._name, self._history, len(self._experiment.data.classes), self._experiment.rates)
            self._accelerator.log({f"{self._name}/{key}": value for key, value in row.items()}, step=epoch)
            shown = ("train_loss", *(f"{part}_{self._experiment.task.headline}" for part in ("val", "test")))
            bar.set_postfix({key: f"{row[key]:.4g}" for key in shown if key in row})
        if saving and self._accelerator.is_main_process:
            tensors, notes = state_of(self._bare, self.optimizer, self.trained if self._ema else None)
            notes |= {"history": self._history, "scaler": scaler_state(self._accelerator)}
            self._checkpoints.save(step, tensors | {"train_loss": self._epoch_loss.total}, notes)


def train_mode_(model: nn.Module, *, hold_norms: bool) -> None:
    """model.train(); with `hold_norms` batch norm stays in evaluation and keeps its statistics.

    Those of a small batch of small images are noise: 2 x 2 positions in the last layers of a ResNet at 64 pixels.
    """
    model.train()
    for module in model.modules():
        if hold_norms and isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def best_epoch(history: Sequence[Mapping[str, Any]], metric: str) -> int | None:
    """The epoch with the highest metric, among equals the one with the smallest loss; None before any test."""
    tested = [row for row in history if f"val_{metric}" in row or f"test_{metric}" in row]
    part = "val" if tested and f"val_{metric}" in tested[0] else "test"
    return max(tested, key=lambda row: (row[f"{part}_{metric}"], -row[f"{part}_loss"]), default={}).get("epoch")


def make_optimizer(model: nn.Module, options: TrainingOptions, new_head: Collection[str] = ()) -> Optimizer:
    """SGD with or without Nesterov momentum, or AdamW; weight decay on every parameter, as in the paper.

    Each group has its `factor` on the learning rate: that of a new head may be another.
    """
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            factor = (options.head_lr or options.lr) / options.lr if name in new_head else 1.0
            by_factor.setdefault(factor, []).append(weight)
    groups = [{"params": weights, "factor": factor} for factor, weights in by_factor.items()]
    lr, momentum, decay = options.lr, options.momentum, options.weight_decay
    if options.optimizer == "adamw":
        # torch's other kernels take roots of the zeros of pruned weights, each ten times as slow as that of a number
        fused = all(weight.device.type in ("cpu", "cuda") for weight in model.parameters())
        return torch.optim.AdamW(groups, lr, betas=(momentum, 0.999), weight_decay=decay, fused=fused)
    nesterov = options.optimizer == "nesterov"
    return torch.optim.SGD(groups, lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)


def sync_buffers_(*models: nn.Module) -> None:
    """Copy rank 0's buffers to every process: BatchNorm statistics differ between them, and rank 0's are saved."""
    if initialized():
        for model in models:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)


def scaler_state(accelerator: Any) -> dict[str, Any]:
    """State of float16's loss scale; empty without one."""
    return dict(accelerator.scaler.state_dict()) if accelerator.scaler is not None else {}


def _load_scaler_(accelerator: Any, state: dict[str, Any]) -> None:
    if accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(dict(state))
