"""Experiment: what every recipe sets up and tears down. Processes, run directory, data and model; results and ticket.

Set-up refuses first what needs no network, then what needs no weights.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from ..analysis.ridge_probe import with_ridge_head
from ..core.head import head_of, silent_classes
from ..core.mask import Mask
from ..core.processes import gather
from ..core.prunable import prunable
from ..core.shareable import shareable, short_name
from ..core.text import name_list
from ..data import Data, check_source, pruning_batches
from ..models.load import check_name, load
from ..refit.options import IMAGES
from ..refit.rounds import for_repair, for_trained
from ..runtime.bench import measure_speed
from .alarms import Rates, find_alarms
from .before_training import fit_start_, fits_head
from .card_picture import card_picture
from .command_line import RecipeName
from .config import Options
from .dense_cache import dense_path, digest_of_data, digest_of_weights, load_dense, save_dense
from .loop import scaler_state
from .match_data import check_runs, images_of_, name_classes_, worker_count
from .plan import Plan, channels_last
from .publish import check_login, check_repo, command, push, save_run_ticket
from .resume import check_digests
from .run_data import open_run_data
from .run_directory import RESULTS, Run, check_output, hold, on_main, results_table
from .tasks import CLASSIFICATION, task_of
from .trackers import check_trackers, start_trackers

# these options do not change the results
_NO_EFFECT = {
    "output_dir", "resume", "overwrite", "checkpoint_steps", "keep_checkpoints", "report_to", "push_to_hub", "private",
    "num_workers", "bench", "card_images",
}  # fmt: skip
# these change the ticket, not its dense twin
_TICKET_ONLY = {
    "scorer", "sparsity", "rounds", "scope", "of", "schedule", "norm", "keep_head", "keep_dense", "exclude",
    "min_per_layer", "rewind", "rewind_epochs", "dense", "distill", "distill_temperature", "per_class",
    "prune_batch_size", "layout", "ridge_per_class", "repair", "repair_images", "dtype",
}  # fmt: skip


class Experiment:
    """The options of a recipe, checked, and the data and model that they name, loaded; the same on every process."""

    def __init__(self, recipe: RecipeName, options: Options) -> None:
        self.recipe, self.options = recipe, options
        self.training, self.output, self.seed = options.training, options.output, options.pruning.seed
        self.task = task_of(options.model.model)
        check_name(options.model.model, **self._weights)
        self._decide_repair()
        self.pruning = options.pruning.resolved(segmentation=self.task is not CLASSIFICATION)
        options.pruning = self.pruning
        self._check()
        self.directory = Path(self.output.output_dir or self._default_directory()).expanduser()
        check_output(self.directory, recipe)
        self.accelerator = self._start_accelerator()
        self.settings = {key: value for key, value in options.settings().items() if key not in _NO_EFFECT}
        self.settings |= {"processes": self.accelerator.num_processes, "device": self.accelerator.device.type}
        self.settings["mixed_precision"] = self.accelerator.mixed_precision
        results = on_main(self.accelerator, self._open_run)
        self.run = Run(self.directory, results, self.settings, writes=self.accelerator.is_main_process)
        self.run.results.setdefault("command", command(self.accelerator.num_processes))
        if repo := self.output.push_to_hub:  # asked now, not after hours of training
            on_main(self.accelerator, lambda: check_login(repo))
        self.fresh_scaler = scaler_state(self.accelerator)
        self._found_finished = self.finished
        if not self.finished:
            self._load_data()
            self._load_model()
            self._begin()
            fit_start_(self, "dense", self.model)

    # Set-up

    def _check(self) -> None:
        data = self.options.data
        check_source(data.data)
        data.prune_batch_size = data.prune_batch_size or self.task.prune_batch_size
        for name in ("ridge_per_class", "train_images", "test_images"):
            if self.task is not CLASSIFICATION and getattr(data, name):
                raise ValueError(f"`{name}` is for images with one label each, not for label maps; leave it out")
        check_trackers(self.output.report_to)
        check_repo(self.output.push_to_hub)

    def _decide_repair(self) -> None:
        """Trained weights are repaired unless the user says no; they have defaults of their own."""
        options = self.options
        trained = options.rewind is None and options.trained
        if options.repair is not None and options.repair.repair is None:
            options.repair.repair = trained
        self.repairs = options.repair is not None and bool(options.repair.repair)
        if self.repairs:
            assert options.repair is not None
            options.repair.repair_images = options.repair.repair_images or IMAGES
            options.pruning = for_repair(options.pruning, new_head=True)
            return
        if options.repair is not None:
            options.repair.repair_images = None  # so that a run of before there was a repair has the same settings
        if trained:
            options.pruning = for_trained(options.pruning)

    def _start_accelerator(self) -> Accelerator:
        accelerator = Accelerator(
            mixed_precision=self.training.mixed_precision,
            gradient_accumulation_steps=self.training.gradient_accumulation,
            log_with=list(self.output.report_to) or None,
            project_dir=str(self.directory),
        )
        if not accelerator.is_main_process:
            warnings.simplefilter("ignore")  # the main process shows them
        if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
            raise ValueError("`mixed_precision` fp16: accelerate ignores it on a CPU; take bf16 there, or no")
        if self.training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        return accelerator

    def _open_run(self) -> dict[str, Any]:
        hold(self.directory)
        output = self.output
        if output.resume and not (self.directory / RESULTS).is_file():
            print(f"{self.directory} holds no run to resume: starting a new one", flush=True)
        return Run.open(self.directory, self.recipe, self.settings, resume=output.resume, overwrite=output.overwrite)

    @property
    def finished(self) -> bool:
        return bool(self.run.results["finished"])

    @property
    def _weights(self) -> dict[str, Any]:
        model = self.options.model
        return {"pretrained": model.pretrained, "architecture": model.architecture, "backbone": model.backbone}

    def _default_directory(self) -> str:
        options = self.options
        words = [options.model.model, options.data.data, options.method, f"{self.pruning.sparsity:g}"]
        short = (short_name(word) if Path(word).expanduser().exists() else Path(word).name for word in words)
        return os.path.join("out", "-".join([*short, f"s{self.seed}"]))

    def _load_data(self) -> None:
        with self.accelerator.main_process_first():  # one download, not one per process
            self.data, self.validation = open_run_data(self.options, self.task, self.seed)
        self.keeps_best = self.validation is not None and self.training.keep != "last" and not self.options.rewind
        self.plan = Plan(
            len(self.data.train),
            min(self.training.batch_size, len(self.data.train)),
            self.training.epochs,
            seed=self.seed,
            processes=self.accelerator.num_processes,
            accumulation=self.training.gradient_accumulation,
        )

    def _load_model(self) -> None:
        name, accelerator = self.options.model.model, self.accelerator
        with accelerator.main_process_first():
            self.loaded = load(
                name,
                num_classes=len(self.data.classes),
                seed=self.seed,
                revision=self.options.model.revision,
                **self._weights,
            )
        self.model = self.loaded.model
        self.fits_head = fits_head(self)
        name_classes_(self.model, self.data.classes)
        self.images = images_of_(self.model, self.data, self.task, self.options.data.image_size)
        check_runs(name, self.model, self.data, self.task, self.images, self.plan)
        self.train_images = self.task.train_set(self.data, self.images, self.seed)
        self._tests = self._loader(self.data)
        apart = self.validation is not None and self.validation is not self.data.test
        self._validation = self._loader(replace(self.data, test=self.validation)) if apart else None
        self._metric = self.task.metric(self.data.classes)

    def _loader(self, data: Data[Any]) -> Any:
        """Batches of the test images, split over processes."""
        batch = self.task.test_batch(*self.images["input_size"][1:])
        tests = DataLoader(
            self.task.test_set(data, self.images),
            batch_size=max(1, batch // self.accelerator.num_processes),
            num_workers=self.workers,
        )
        return self.accelerator.prepare_data_loader(tests)

    def _begin(self) -> None:
        """Record what the run works on; from here on the directory belongs to it."""
        data, loaded, accelerator = self.data, self.loaded, self.accelerator
        digests = {"data": digest_of_data(data.train), "weights": digest_of_weights(self.model)}
        check_digests(self.directory, self.run.results, digests)
        self.run.results |= {
            "digests": digests,
            "data": {
                "dataset": data.dataset, "title": data.title, "classes": len(data.classes), "train": len(data.train),
                "test": len(data.test), "split": data.test_split, "task": self.task.pipeline,
                **({"validation": len(self.validation)} if self.validation is not None else {}),
            },
            **({"keep": "best"} if self.keeps_best else {}),
            "model": {
                "base": loaded.base, "revision": loaded.revision, "license": loaded.license, "trained": loaded.trained,
                "citation": loaded.citation, "new_head": list(loaded.new_head),
                **({"head": "ridge"} if self.fits_head else {}),
                "images": {key: self.images[key] for key in ("input_size", "mean", "std")},
            },
        }  # fmt: skip
        self.run.begin(self.output.overwrite)
        size, processes = "x".join(map(str, self.images["input_size"][1:])), accelerator.num_processes
        self.print(
            f"{self.recipe}: {self.options.model.model} on {data.title} ({len(data.train):,} training images, "
            f"{len(data.test):,} test images, {size}); {self.options.method}, sparsity {self.pruning.sparsity:g}; "
            f"{processes} process{'es' * (processes > 1)} on {accelerator.device.type}; output in {self.directory}"
        )
        self.print(self.training.in_words(self.options.trained, bool(loaded.new_head), self.fits_head))
        shared = shareable(self.settings)  # a tracker may be a server
        start_trackers(accelerator, self.output.report_to, shared, self.directory.name, self.output.resume)

    @property
    def rates(self) -> Rates:
        return Rates.of(self.settings, self.loaded.trained)

    @property
    def workers(self) -> int:
        """Processes that decode images."""
        workers = self.options.data.num_workers
        if workers is not None:
            return workers
        return worker_count(self.images["input_size"][-1], self.accelerator.num_processes)

    # Work

    def record_mask(self, mask: Mask) -> None:
        """Record what the ticket keeps; warn if a class has no weight left."""
        silent = [self.data.classes[i] for i in silent_classes(self.model, mask)]
        dense = self.pruning.kept_dense(self.model, prunable(self.model, self.pruning.exclude))
        outside = sum(weight.numel() for weight in mask.left_out(self.model).values())
        self.run.results["mask"] = {
            "digest": mask.digest(),
            "kept": mask.kept,
            "total": mask.total,
            "sparsity": (mask.total - mask.kept) / (mask.total + outside),  # of all prunable weights
            **({"outside": outside, "masked_sparsity": mask.sparsity} if outside else {}),
            "keep_dense": list(dense),
            "emptied": [name for name, bits in mask.bits.items() if not bits.any()],
            "silent_classes": silent,
        }
        if silent:
            self.print(
                f"warning: {', '.join(head_of(self.model))} has no weight left for {len(silent)} of "
                f"{len(self.data.classes)} classes ({name_list(silent, 10)}): their outputs are constants; "
                "--keep-head keeps all weights of the head"
            )

    def cached_dense(self) -> nn.Module | None:
        """The dense twin: the unpruned model after the same training, if any run has trained it before."""
        path = self._dense_path()
        found = load_dense(path)
        everywhere = all(gather(found is not None))  # every machine has its own cache: all train, or none
        if found is None or not everywhere:
            return None
        weights, cached = found
        twin = copy.deepcopy(self.model)
        twin.load_state_dict(weights)
        self.run.results["history"]["dense"] = cached["history"]
        self.run.results["results"]["dense"] = cached["results"]
        self.run.write()
        self.print(f"dense twin: cached in {path}")
        return twin.to(self.accelerator.device).eval()

    def save_dense(self, twin: nn.Module) -> nn.Module:
        """Measure the trained dense twin and keep it in the cache."""
        self.record("dense", twin)
        if self.accelerator.is_main_process:
            results = self.run.results
            cached = {"history": results["history"]["dense"], "results": results["results"]["dense"]}
            save_dense(self._dense_path(), twin, cached)
        self.run.write()
        return twin.to(self.accelerator.device).eval()

    def _dense_path(self) -> Path:
        same = {key: value for key, value in self.settings.items() if key not in _TICKET_ONLY}
        return dense_path(same, self.model, self.data.train)

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """The metrics on the test set."""
        model.to(self.accelerator.device)
        return self.task.evaluate(self.accelerator, model, self._tests, self._metric)

    def evaluate_epoch(self, model: nn.Module) -> dict[str, Any]:
        """{val_metric: value} on images held out apart from the test set; {test_metric: value} if there are none."""
        model.to(self.accelerator.device)
        part, images = ("test", self._tests) if self._validation is None else ("val", self._validation)
        metrics = self.task.evaluate(self.accelerator, model, images, self._metric)
        return {f"{part}_{key}": value for key, value in metrics.items() if isinstance(value, float)}

    def record(self, name: str, model: nn.Module) -> None:
        """Measure on the test set and record it, unless a run before the resume did."""
        results = self.run.results["results"]
        if name not in results:
            results[name] = self.evaluate(model)
            self.run.write()

    def record_ridge(self, ticket: nn.Module) -> None:
        """Accuracy with a ridge head before training: of the pruned network, and of the dense one if it is trained."""
        per_class = self.options.data.ridge_per_class
        if not per_class:
            if self.fits_head and self.training.dense == "train":
                self.record("ridge_dense", self.model)
            return
        batches = pruning_batches(self.data, self.images, per_class, 100, self.seed)
        models = {"ridge": ticket} | ({"ridge_dense": self.model} if self.training.dense == "train" else {})
        for name, model in models.items():
            if name not in self.run.results["results"]:
                self.print(f"{name}: fitting a head on {per_class} images of each class")
                with self.accelerator.autocast():  # the features that the test will see
                    fitted = with_ridge_head(model, [(channels_last(x), y) for x, y in batches], len(self.data.classes))
                metrics = self.evaluate(fitted)
                # outputs fitted to 0 and 1 are not logits: their cross-entropy means nothing
                self.run.results["results"][name] = {key: value for key, value in metrics.items() if key != "loss"}
                self.run.write()

    # Output

    def save_ticket(self, model: nn.Module, mask: Mask, **notes: str) -> None:
        """Write results.json, then the ticket with a card made from it and from `notes`, then mark the run finished."""
        results = self.run.results
        results |= {"notes": notes} if notes else {}
        self.record_alarms(find_alarms(results))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            if self.output.bench:
                full = self.model.cpu() if "shrunk" in results else None
                results["speed"] = measure_speed(model.cpu(), mask, self.images["input_size"], full)
            picture = card_picture(self.options, self.data, self.images, results, model, self._dense_twin)
            results["bytes"] = save_run_ticket(self.directory, model, mask, results, self.output.layout, picture)
        self.run.finish()

    def _dense_twin(self) -> nn.Module | None:
        if (found := load_dense(self._dense_path())) is None:
            return None
        twin = copy.deepcopy(self.model).cpu()
        twin.load_state_dict(found[0])
        return twin

    def record_alarms(self, alarms: list[str]) -> None:
        self.run.results.pop("alarms", None)  # of a run that stopped, and was resumed
        self.run.results |= {"alarms": alarms} if alarms else {}
        self.run.write()

    def close(self) -> None:
        """Push the ticket with `push_to_hub`, print the results, and end the other processes."""
        output = self.output
        if self.accelerator.is_main_process:
            if output.push_to_hub:
                address = push(self.directory, output.push_to_hub, private=output.private, layout=output.layout)
                print(f"pushed: {address}", flush=True)
            print(results_table(self.run.results, self.directory, output.push_to_hub, self._found_finished), flush=True)
        self.accelerator.end_training()

    def print(self, text: str) -> None:
        if self.accelerator.is_main_process:
            print(text, flush=True)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add up the seconds of a part of the work, over all tries that reached its end."""
        start = time.perf_counter()
        yield
        seconds = self.run.results["seconds"]
        seconds[name] = round(seconds.get(name, 0) + time.perf_counter() - start, 2)
