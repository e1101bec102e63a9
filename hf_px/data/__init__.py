"""Data sets by name, images as a model expects them, and the few that a model is pruned by.

data = open_data("cifar10")
images = data_config(model)
batches = pruning_batches(data, images, per_class=10)
loader = DataLoader(TrainImages(data, images, seed=0), sampler=…)  # which yields (epoch, index)
"""

from __future__ import annotations

from .digits import digits
from .draw import Examples, balanced, batches_of, pruning_set
from .expects import check_labels, data_config, num_classes
from .images import TestImages, TrainImages, load_pruning_set, pruning_batches
from .presets import PRESETS, Preset
from .source import Data, check_source, open_data
from .split import Split
from .transforms import takes_whole, test_transform, train_transform

__all__ = [
    "PRESETS",
    "Data",
    "Examples",
    "Preset",
    "Split",
    "TestImages",
    "TrainImages",
    "balanced",
    "batches_of",
    "check_labels",
    "check_source",
    "data_config",
    "digits",
    "load_pruning_set",
    "num_classes",
    "open_data",
    "pruning_batches",
    "pruning_set",
    "takes_whole",
    "test_transform",
    "train_transform",
]
