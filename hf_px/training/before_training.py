"""Before the training of trained weights: statistics of batch norm, and a new head in closed form, on training images.

    W, b = argmin Σ_n ‖W f(x_n) + b - y_n‖² + λ n ‖W‖², f the features before the head, y one-hot

A random head sends random gradients into a trained backbone until it has learned, and harms it. Statistics of other
images, of another image size or of the dense network do not fit, and `norms` hold keeps what it finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..analysis.ridge_probe import linear_head, recalibrate_, with_ridge_head
from ..core.mask import Mask
from ..data import test_transform
from ..data.sampling import batches_of, some_of
from .checkpoint import read_tensors, write_tensors
from .plan import channels_last
from .run_directory import on_main
from .tasks import CLASSIFICATION

if TYPE_CHECKING:
    from .experiment import Experiment

IMAGES = 1_000  # or 10 of each class if there are more than 100 classes
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


def fit_start_(experiment: Experiment, name: str, model: nn.Module, mask: Mask | None = None) -> None:
    """Fit statistics and head of the model, once: a resumed run and other processes read what was fitted."""
    holds = experiment.training.norms == "hold"
    if not (experiment.fits_head or (holds and _has_statistics(model))):
        return
    path = experiment.run.checkpoints / f"start-{name}.safetensors"

    def fit() -> None:
        if path.is_file():
            return
        batches = _batches(experiment)
        what = "statistics of batch norm and a ridge head" if experiment.fits_head else "statistics of batch norm"
        experiment.print(f"{name}: {what} from {sum(len(x) for x, _ in batches):,} training images")
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        model.to(experiment.accelerator.device)
        with experiment.accelerator.autocast():  # the features that training will see
            if experiment.fits_head:
                fitted = with_ridge_head(model, batches, len(experiment.data.classes), as_logits=True)
            else:
                recalibrate_(fitted := model, (x for x, _ in batches))
        after = fitted.cpu().state_dict()
        write_tensors(path, {key: after[key] for key in after if not torch.equal(after[key], before[key])}, {})

    with experiment.timed("start"):
        on_main(experiment.accelerator, fit)
    model.cpu().load_state_dict(read_tensors(path)[0], strict=False)
    if mask is not None:
        mask.apply_(model)


def _has_statistics(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats for m in model.modules())


def _batches(experiment: Experiment) -> list[tuple[Tensor, Tensor]]:
    """Training images, not augmented, the same number of each class."""
    data, images, seed = experiment.data, experiment.images, experiment.seed
    if experiment.task is not CLASSIFICATION:
        batches = experiment.task.pruning_set(data, images, _PER_CLASS, experiment.task.prune_batch_size, seed)
        return [(channels_last(x), y) for x, y in batches]
    labels, count = data.train.labels, max(IMAGES, _PER_CLASS * len(data.classes))
    chosen = some_of(labels, min(len(labels), count), seed)
    # in the order of a draw: the fifth that chooses λ must not be one class of a sorted folder
    chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))]
    transform = test_transform(data, images)
    drawn = torch.stack([transform(data.train.image(index)) for index in chosen.tolist()])
    return [(channels_last(x), y) for x, y in batches_of(drawn, labels[chosen], 100)]
