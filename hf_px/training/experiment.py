"""What every recipe sets up and tears down: processes, output directory, data, model; results, ticket, card.

What can be refused without the network is refused first, then what can be refused without the weights.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..analysis.ridge_probe import with_ridge_head
from ..core.allocate import Global, budget
from ..core.allocate import scope as named_scope
from ..core.forward import output_tensor
from ..core.head import head_of, segments, silent_classes
from ..core.mask import Mask
from ..core.prunable import prunable
from ..core.registry import norm_option, scorers
from ..core.shareable import shareable, short_name
from ..data import Split, check_source, open_data, pruning_batches, some_of
from ..data.segmentation.overlay import png
from ..models.load import check_name, load
from ..pruning import checked_schedule, checked_sparsity, prune
from ..tickets.gallery import gallery
from ..tickets.mask_file import load_mask, save_mask
from .config import settings_of
from .dense_cache import dense_path, digest_of_data, digest_of_weights, load_dense, save_dense
from .match_data import check_runs, images_of_, name_classes_
from .publish import check_login, check_repo, command, push, save_ticket
from .run_directory import NAME, Run, agreed, check_output, claim, on_main, report
from .tasks import CLASSIFICATION, task_of
from .trackers import check_trackers, start_trackers
from .train import Plan, channels_last, evaluate

# they do not change what comes out
_FREE = {
    "output_dir", "resume", "overwrite", "checkpoint_steps", "keep_checkpoints", "report_to", "push_to_hub", "private",
    "num_workers",
}  # fmt: skip
# they change the ticket, not its dense twin
_TICKET_ONLY = {
    "dense", "distill", "distill_temperature", "per_class", "prune_batch_size", "layout", "ridge_per_class",
}  # fmt: skip


class Job:
    """The knobs of a recipe, checked, and what they ask for, loaded; the same on every process."""

    def __init__(self, kind: str, backbone: Any, examples: Any, training: Any, output: Any, pruning: Any) -> None:
        self.kind, self.training, self.output, self.pruning = kind, training, output, pruning
        self._examples, self._backbone = examples, backbone
        self._weights = {"pretrained": backbone.pretrained, "architecture": backbone.architecture}
        self._weights |= {"backbone": backbone.backbone}
        check_name(backbone.model, **self._weights)
        self.task = task_of(backbone.model)
        check_source(examples.data)
        examples.prune_batch_size = examples.prune_batch_size or self.task.prune_batch_size
        for name in ("ridge_per_class", "train_images", "test_images"):
            if self.task is not CLASSIFICATION and getattr(examples, name):
                raise ValueError(f"--{name}: for images with one label each, not for pictures with masks; leave it out")
        self._check_pruning()
        check_trackers(output.report_to)
        check_repo(output.push_to_hub)
        self.directory = Path(output.output_dir or self._usual_directory()).expanduser()
        check_output(self.directory, kind)

        self.accelerator = Accelerator(
            mixed_precision=training.mixed_precision,
            gradient_accumulation_steps=training.gradient_accumulation,
            log_with=list(output.report_to) or None,
            project_dir=str(self.directory),
        )
        if not self.accelerator.is_main_process:
            warnings.simplefilter("ignore")  # once is enough
        if self.accelerator.mixed_precision == "fp16" and self.accelerator.device.type == "cpu":
            raise ValueError("--mixed_precision fp16: accelerate passes over it on a CPU; take bf16 there, or no")
        settings = settings_of(backbone, examples, pruning, training, output)
        self.settings = {key: value for key, value in settings.items() if key not in _FREE}
        self.settings |= {"processes": self.accelerator.num_processes, "device": self.accelerator.device.type}
        self.settings["mixed_precision"] = self.accelerator.mixed_precision
        results = on_main(self.accelerator, self._open)
        self.run = Run(self.directory, results, self.settings, writes=self.accelerator.is_main_process)
        self.run.results.setdefault("command", command(self.accelerator.num_processes))
        if output.push_to_hub:  # asked now, not after hours of training
            on_main(self.accelerator, lambda: check_login(output.push_to_hub))
        if not self.finished:
            self._load()

    def _open(self) -> dict[str, Any]:
        claim(self.directory)
        knobs = self.output
        if knobs.resume and not (self.directory / NAME).is_file():
            print(f"output_dir {self.directory} holds nothing to resume: starting", flush=True)
        return Run.open(self.directory, self.kind, self.settings, resume=knobs.resume, overwrite=knobs.overwrite)

    @property
    def finished(self) -> bool:
        return bool(self.run.results["finished"])

    def _check_pruning(self) -> None:
        # IMP is no scorer: it is magnitude with training between the rounds
        record = scorers["magnitude" if self.kind == "imp" else self.pruning.scorer]
        scope = named_scope(self.pruning.scope)
        checked_sparsity(self.pruning.sparsity, scope)
        scope.check({}, 1 - self.pruning.sparsity)
        _, self.pruning.rounds = checked_schedule(self.pruning.schedule, self.pruning.rounds, record)
        norm = self.pruning.norm or self.task.norms.get(record.name)
        self.pruning.norm = norm_option(record, norm).get("norm")

    def _usual_directory(self) -> str:
        words = [self._backbone.model, self._examples.data, self.pruning.scorer, f"{self.pruning.sparsity:g}"]
        short = (short_name(word) if Path(word).expanduser().exists() else Path(word).name for word in words)
        name = "-".join([*short, f"s{self.training.seed}"])
        return os.path.join("out", name)

    def _load(self) -> None:
        backbone, examples, accelerator = self._backbone, self._examples, self.accelerator
        if self.training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        self._fresh_scaler = self.scaler_state()

        with accelerator.main_process_first():  # one download, not one a process
            self.data = open_data(
                examples.data,
                config=examples.data_config,
                revision=examples.data_revision,
                train_split=examples.train_split,
                test_split=examples.test_split,
                image_column=examples.image_column,
                label_column=examples.label_column,
                task=self.task.name,
                num_classes=None if self.task is CLASSIFICATION else backbone.num_classes,
            )
        if examples.train_images is not None:
            self.data = replace(self.data, train=self._some("train", examples.train_images, self.training.seed))
        if examples.test_images is not None:  # the same ones for every seed, or their accuracies would not compare
            self.data = replace(self.data, test=self._some("test", examples.test_images, 0))
        classes = len(self.data.classes)
        if backbone.num_classes not in (None, classes):
            raise ValueError(
                f"--num_classes {backbone.num_classes}: {self.data.name} has {classes} classes; leave it out, and the "
                "head is made to fit"
            )
        self.plan = Plan(
            len(self.data.train),
            min(self.training.batch_size, len(self.data.train)),
            self.training.epochs,
            seed=self.training.seed,
            processes=accelerator.num_processes,
            accumulation=self.training.gradient_accumulation,
        )
        with accelerator.main_process_first():
            self.loaded = load(
                backbone.model,
                num_classes=classes,
                seed=self.training.seed,
                revision=backbone.revision,
                **self._weights,
            )
        self.model = self.loaded.model
        name_classes_(self.model, self.data.classes)
        self.images = images_of_(self.model, self.data, self.task, examples.image_size)
        check_runs(backbone.model, self.model, self.data, self.task, self.images, self.plan)
        self.train_images = self.task.train_set(self.data, self.images, self.training.seed)
        tests = DataLoader(
            self.task.test_set(self.data, self.images),
            batch_size=max(1, self.task.test_batch(*self.images["input_size"][1:]) // accelerator.num_processes),
            num_workers=self.workers,
        )
        self._tests = accelerator.prepare_data_loader(tests)
        self._metric = self.task.metric(self.data.classes)
        digests = {"data": digest_of_data(self.data.train), "weights": digest_of_weights(self.model)}
        self.run.check_digests(digests)
        self.run.results |= {
            "digests": digests,
            "data": {
                "dataset": self.data.dataset, "title": self.data.title, "classes": classes,
                "train": len(self.data.train), "test": len(self.data.test), "split": self.data.test_split,
                "task": self.task.pipeline,
            },
            "model": {
                "base": self.loaded.base, "revision": self.loaded.revision, "license": self.loaded.license,
                "trained": self.loaded.trained, "citation": self.loaded.citation,
                "new_head": list(self.loaded.new_head),
                "images": {key: self.images[key] for key in ("input_size", "mean", "std")},
            },
        }  # fmt: skip
        self.run.begin(self.output.overwrite)
        size, many = "x".join(map(str, self.images["input_size"][1:])), accelerator.num_processes
        self.say(
            f"{self.kind}: {backbone.model} on {self.data.title} ({len(self.data.train):,} images to train on, "
            f"{len(self.data.test):,} to test on, {size}); {self.pruning.scorer}, sparsity {self.pruning.sparsity:g}; "
            f"{many} process{'es' * (many > 1)} on {accelerator.device.type}; writes {self.directory}"
        )
        settings = shareable(self.settings)  # a tracker may be a server
        start_trackers(accelerator, self.output.report_to, settings, self.directory.name, self.output.resume)

    def _some(self, part: str, count: int, seed: int) -> Split:
        """Of the training or test images so many, as many of each class."""
        split: Split = getattr(self.data, part)
        try:
            return split.only(some_of(split.labels, count, seed))
        except ValueError as error:
            raise ValueError(f"--{part}_images: {error} in {self.data.name}") from error

    @property
    def workers(self) -> int:
        """Processes that decode images; none for images so small that handing them over costs more."""
        asked = self._examples.num_workers
        if asked is not None:
            return asked
        small = self.images["input_size"][-1] <= 64
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return 0 if small else min(8, cores // self.accelerator.num_processes)

    # the work

    def mask(self) -> Mask:
        """The mask, from the last round that a killed run has done."""
        knobs = self.pruning
        record = scorers[knobs.scorer]
        path = self.run.checkpoints / "mask.safetensors"
        done = None
        if path.is_file():
            found, notes = load_mask(path)
            done = int(notes["round"]), found
        agreed(self.accelerator, "the last round", done and done[0])
        if done is not None:
            self.say(f"pruning: goes on after round {done[0]} of {knobs.rounds}")

        def save(t: int, mask: Mask) -> None:
            if self.accelerator.is_main_process:
                path.parent.mkdir(parents=True, exist_ok=True)
                save_mask(mask, path, {"round": str(t)})

        examples = self._examples
        batches = None
        if record.needs != "weights":
            batches = self.task.pruning_set(
                self.data, self.images, examples.per_class, examples.prune_batch_size, self.training.seed
            )
        head = self.whole_head()
        # other scopes give each layer a share of its own, and the head has none
        together = isinstance(named_scope(knobs.scope), Global)
        with self.timed("pruning"):
            mask = prune(
                self.model,
                knobs.scorer,
                sparsity=knobs.sparsity,
                batches=batches,
                rounds=knobs.rounds,
                scope=knobs.scope,
                schedule=knobs.schedule,
                seed=self.training.seed,
                min_per_layer=knobs.min_per_layer,
                exclude=[*knobs.exclude, *([] if together else head)],
                whole=head if together else [],
                input_size=self.images["input_size"],
                accelerator=self.accelerator,
                done=done,
                on_round=save,
                **norm_option(record, knobs.norm),
            )
        self.note_mask(mask, head)
        return Mask({name: bits.cpu() for name, bits in mask.bits.items()})

    def note_mask(self, mask: Mask, head: list[str]) -> None:
        """Write down what the ticket keeps; a warning where that is nothing for some class."""
        self.run.results["mask"] = {
            "digest": mask.digest(),
            "kept": mask.kept,
            "total": mask.total,
            "sparsity": mask.sparsity,
            "whole": head,
            "emptied": [name for name, bits in mask.bits.items() if not bits.any()],
            "silent_classes": (silent := [self.data.classes[i] for i in silent_classes(self.model, mask)]),
        }
        if silent:
            self.say(
                f"warning: {', '.join(head_of(self.model))} has no weight left for {len(silent)} of "
                f"{len(self.data.classes)} classes ({', '.join(silent[:10])}): their outputs are constants; "
                "--keep_head leaves the head whole"
            )

    def whole_head(self) -> list[str]:
        """Tensors of the head, if they are to stay whole."""
        weights = prunable(self.model, self.pruning.exclude)
        head = [name for name in head_of(self.model) if name in weights]
        stay = budget(sum(w.numel() for w in weights.values()), 1 - self.pruning.sparsity)
        asked = self.pruning.keep_head
        if asked is None:
            asked = sum(weights[name].numel() for name in head) <= stay / 2
        if asked and not head:
            raise ValueError(f"--keep_head: {self._backbone.model} has no linear layer for a head; use --exclude")
        return head if asked else []

    def dense_twin(self, train: Callable[..., nn.Module]) -> nn.Module | None:
        """The unpruned model after the same training; the cache has it if any run has trained it before."""
        if self.training.dense == "skip":
            return None
        path = self._dense_path()
        twin = copy.deepcopy(self.model)
        found = load_dense(path)
        # each machine has a cache of its own: either all processes train, or none
        if all(gather_object([found is not None])) and found is not None:
            weights, told = found
            twin.load_state_dict(weights)
            self.run.results["history"]["dense"] = told["history"]
            self.run.results["results"]["dense"] = told["results"]
            self.say(f"dense twin: from the cache, {path}")
        else:
            with self.timed("dense"):
                twin = train(self, "dense", twin)
            self.record("dense", twin)
            if self.accelerator.is_main_process:
                told = {
                    "history": self.run.results["history"]["dense"],
                    "results": self.run.results["results"]["dense"],
                }
                save_dense(path, twin, told)
        self.run.write()
        return twin.to(self.accelerator.device).eval()

    def _dense_path(self) -> Path:
        same = {key: value for key, value in self.settings.items() if key not in _TICKET_ONLY}
        same = {key: value for key, value in same.items() if key not in settings_of(self.pruning)}
        return dense_path(same, self.model, self.data.train)

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        model.to(self.accelerator.device)
        return evaluate(self.accelerator, model, self._tests, self.task, self._metric)

    def record(self, name: str, model: nn.Module) -> None:
        """Measure on the test set, unless a run before this one did, and write it down."""
        results = self.run.results["results"]
        if name not in results:
            results[name] = self.evaluate(model)
            self.run.write()

    def record_ridge(self, ticket: nn.Module) -> None:
        """Accuracy with a ridge head, before training: of the pruned network, and with a dense twin of that one too."""
        per_class = self._examples.ridge_per_class
        if not per_class:
            return
        batches = pruning_batches(self.data, self.images, per_class, 100, self.training.seed)
        models = {"ridge": ticket} | ({"ridge_dense": self.model} if self.training.dense == "train" else {})
        for name, model in models.items():
            if name not in self.run.results["results"]:
                self.say(f"{name}: fitting a head on {per_class} images of each class")
                with self.accelerator.autocast():  # to features as the test will see them
                    fitted = with_ridge_head(model, [(channels_last(x), y) for x, y in batches], len(self.data.classes))
                found = self.evaluate(fitted)
                # a map to 0 and 1 has no loss to speak of
                self.run.results["results"][name] = {key: value for key, value in found.items() if key != "loss"}
                self.run.write()

    @torch.no_grad()
    def answers(self, teacher: nn.Module, x: Tensor) -> Tensor:
        with self.accelerator.autocast():
            return output_tensor(teacher(x))

    def unwrap_(self, wrapped: nn.Module) -> None:
        """Take off what `prepare` put on the model, and let go of it."""
        model = self.accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
        inner = getattr(model, "_orig_mod", model)
        # accelerate puts the method back as an attribute, which hides the class's; and would not prepare it again, so
        # that it would be trained in full precision the second time
        for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
            vars(inner).pop(name, None)
        self.accelerator.free_memory()

    def scaler_state(self) -> dict[str, Any]:
        """Of float16's loss scale; empty without one."""
        return dict(self.accelerator.scaler.state_dict()) if self.accelerator.scaler is not None else {}

    def load_scaler_(self, state: Mapping[str, Any] | None = None) -> None:
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(dict(self._fresh_scaler if state is None else state))

    # what comes out

    def save_ticket(self, model: nn.Module, mask: Mask, **notes: str) -> None:
        """results.json first, the card from it and from `notes`, then the mark that all is done."""
        told = self.run.results
        told |= {"notes": notes} if notes else {}
        self.run.write()
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            told["bytes"] = save_ticket(
                self.directory, model, mask, told, self.images, self.output.layout, self._predictions(model)
            )
        self.run.finish()

    def _predictions(self, model: nn.Module) -> bytes | None:
        """The card's picture, where there is something to see."""
        if not segments(model):
            return None
        models = {"ticket": model.cpu()}
        if self.training.dense == "train" and (found := load_dense(self._dense_path())) is not None:
            twin = copy.deepcopy(self.model).cpu()
            twin.load_state_dict(found[0])
            models = {"dense": twin, **models}
        return png(gallery(self.data.test, self.images, self.data.classes, models))

    def publish(self) -> None:
        if self.output.push_to_hub and self.accelerator.is_main_process:
            knobs = self.output
            self.say(f"pushed: {push(self.directory, knobs.push_to_hub, private=knobs.private, layout=knobs.layout)}")

    def close(self) -> None:
        """Tell what was found, and let the other processes go."""
        if self.accelerator.is_main_process:
            print(report(self.run.results, self.directory, self.output.push_to_hub), flush=True)
        self.accelerator.end_training()

    def say(self, text: str) -> None:
        if self.accelerator.is_main_process:
            print(text, flush=True)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Seconds of a part of the work, over all tries that came to its end."""
        start = time.perf_counter()
        yield
        seconds = self.run.results["seconds"]
        seconds[name] = round(seconds.get(name, 0) + time.perf_counter() - start, 2)
