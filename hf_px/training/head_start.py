"""A new head starts as the ridge solution on the model's features: W, b = argmin Σ_n ‖W f(x_n) + b - y_n‖² + λ n ‖W‖².

A random head sends random gradients into a trained backbone until it has learned, and harms it. The statistics of batch
norm are measured first, on the same training images, because those of other images or of the dense network do not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..analysis.ridge_probe import linear_head, with_ridge_head
from ..core.mask import Mask
from ..data import test_transform
from ..data.sampling import batches_of, some_of
from .checkpoint import read_tensors, write_tensors
from .plan import channels_last
from .run_directory import on_main
from .tasks import CLASSIFICATION

if TYPE_CHECKING:
    from .experiment import Experiment

IMAGES = 1_000  # images to fit a head by, or 10 of each class if there are more classes
_PER_CLASS = 10


def fits_head(experiment: Experiment) -> bool:
    """Whether new heads of this run start from the ridge solution; an error if that is asked for and impossible."""
    asked, loaded = experiment.options.model.head, experiment.loaded
    if asked == "random":
        return False
    why = ""
    if experiment.task is not CLASSIFICATION:
        why = "is for one label an image, not for label maps"
    elif not loaded.trained:
        why = "needs trained weights, and these are random"
    elif not loaded.new_head:
        why = "is for a new head, and this model has its own; leave it out"
    else:
        try:
            linear_head(loaded.model, len(experiment.data.classes))
        except ValueError as error:
            why = str(error)
    if why and asked == "ridge":
        raise ValueError(f"`head` ridge {why}")
    return not why


def start_head_(experiment: Experiment, name: str, model: nn.Module, mask: Mask | None = None) -> None:
    """Fit head and statistics of the model, once: a resumed run and other processes read what was fitted."""
    path = experiment.run.checkpoints / f"head-{name}.safetensors"

    def fit() -> None:
        if path.is_file():
            return
        train, classes = experiment.data.train, len(experiment.data.classes)
        chosen = some_of(train.labels, min(len(train), max(IMAGES, _PER_CLASS * classes)), experiment.seed)
        # in the order of a draw: the fifth that is held out must not be one class of a sorted folder
        chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(experiment.seed))]
        experiment.print(f"head, {name}: ridge solution on {len(chosen):,} training images")
        transform = test_transform(experiment.data, experiment.images)
        images = torch.stack([transform(train.image(index)) for index in chosen.tolist()])
        batches = [(channels_last(x), y) for x, y in batches_of(images, train.labels[chosen], 100)]
        with experiment.accelerator.autocast():  # the features that training will see
            fitted = with_ridge_head(model.to(experiment.accelerator.device), batches, classes, as_logits=True).cpu()
        model.cpu()
        before = model.state_dict()
        changed = {key: value for key, value in fitted.state_dict().items() if not torch.equal(value, before[key])}
        write_tensors(path, changed, {})

    with experiment.timed("head"):
        on_main(experiment.accelerator, fit)
    model.load_state_dict(read_tensors(path)[0], strict=False)
    if mask is not None:
        mask.apply_(model)
