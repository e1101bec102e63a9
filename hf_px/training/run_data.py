"""The images of a run, as its options name them: for training, for testing, and to choose the best epoch by.

Data without a test split are tested on a part of the training images, which is held out; the best epoch is then chosen
by the images that it is reported on, and the card says so. The images held out are the same for every seed.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ..core.options import renamed_arguments
from ..data import Data, Split, open_data, some_of
from ..data.sampling import held_out
from .config import HELD_OUT, Options
from .tasks import CLASSIFICATION, Task


class RunData(NamedTuple):
    data: Data[Any]
    validation: Any  # Split or Pairs, which may be data.test; None if the last epoch is kept


def open_run_data(options: Options, task: Task, seed: int) -> RunData:
    """Open the data; every option that they contradict is an error here, before any work."""
    asked, num_classes = options.data, options.model.num_classes
    with renamed_arguments(config="data_config", revision="data_revision"):
        data = open_data(
            asked.data,
            config=asked.data_config,
            revision=asked.data_revision,
            train_split=asked.train_split,
            test_split=asked.test_split,
            image_column=asked.image_column,
            label_column=asked.label_column,
            task=task.name,
            num_classes=None if task is CLASSIFICATION else num_classes,
            test_optional=True,
        )
    if num_classes not in (None, classes := len(data.classes)):
        raise ValueError(
            f"`num_classes` {num_classes}: {data.name} has {classes} classes; leave it out, and the head gets as many "
            "as the data has"
        )
    if asked.train_images is not None:
        data = replace(data, train=_balanced(data, "train", asked.train_images, seed))
    data, validation = _hold_out(data, asked.val_fraction)
    if asked.test_images is not None:  # the same images for every seed, so that accuracies compare
        same = validation is data.test
        data = replace(data, test=_balanced(data, "test", asked.test_images, 0))
        validation = data.test if same else validation
    _check_classes(data)
    if options.training.keep == "best" and validation is None:
        raise ValueError(
            f"`keep` best chooses by images that are held out, and {data.name} has test images of its own, which must "
            "not choose; set `val_fraction`, for example 0.1"
        )
    last = options.training.keep == "last" or options.rewind is not None  # IMP prunes what was trained to the end
    return RunData(data, None if last and validation is data.test else validation)


def _hold_out(data: Data[Any], share: float | None) -> tuple[Data[Any], Any]:
    """(the data without what is held out, what is held out): the test set too, if there is no other."""
    has_test = len(data.test) > 0
    if not has_test and share == 0:
        raise ValueError(f"data {data.name} has no test split; `val_fraction` 0 holds none of its images out")
    share = share if share is not None else 0.0 if has_test else HELD_OUT
    if not share:
        return data, None
    train = data.train
    rest, held = held_out(train.labels if isinstance(train, Split) else torch.zeros(len(train)), share)
    if not len(held):
        raise ValueError(
            f"data {data.name}: {len(train)} training images are too few to hold {share:.0%} of each class out; "
            "give it a test split"
        )
    found = replace(data, train=train.only(rest))
    validation = train.only(held)
    if has_test:
        return found, validation
    return replace(found, test=validation, test_split=f"{share:.0%} of train, held out"), validation


def _balanced(data: Data[Any], part: str, count: int, seed: int) -> Split:
    """`count` training or test images, the same number of each class."""
    split: Split = getattr(data, part)
    if not 1 <= count <= len(split):
        raise ValueError(f"`{part}_images` is {count}, there are {len(split)} examples in {data.name}")
    return split.only(some_of(split.labels, count, seed))


def _check_classes(data: Data[Any]) -> None:
    """Warn of a slice that holds some classes only, as the end of folders does that are sorted by class."""
    if "[" not in data.test_split or not isinstance(data.test, Split):
        return
    tested, known = (len(split.labels.unique()) for split in (data.test, data.train))
    if min(tested, known) < len(data.classes):
        warnings.warn(
            f"`test_split` {data.test_split} holds {tested} and the training images {known} of {len(data.classes)} "
            "classes: are the rows sorted by class? `val_fraction` 0.2 holds the same part of each class out",
            stacklevel=2,
        )
