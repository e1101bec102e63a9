"""Data sets by name, images as a model expects them, and the few that a model is pruned by.

data = open_data("cifar10")
images = data_config(model)
batches = pruning_batches(data, images, per_class=10)
loader = DataLoader(TrainImages(data, images, seed=0), sampler=…)  # which yields (epoch, index)

For a model that answers for every pixel: open_data("voc2012", task="segmentation"), pair_batches, TrainPairs.
"""

from __future__ import annotations

from .datasets import TestImages, TrainImages, load_pruning_set, pruning_batches
from .digits import digits
from .labelled_split import Split
from .load import check_source
from .model_inputs import check_labels, data_config, num_classes
from .open_data import Data, open_data
from .presets import PRESETS, Preset
from .sampling import Examples, balanced, batches_of, pruning_set, some_of
from .segmentation.datasets import TestPairs, TrainPairs, pair_batches
from .segmentation.pairs import Pairs
from .transforms import takes_whole, test_transform, train_transform

__all__ = [
    "PRESETS",
    "Data",
    "Examples",
    "Pairs",
    "Preset",
    "Split",
    "TestImages",
    "TestPairs",
    "TrainImages",
    "TrainPairs",
    "balanced",
    "batches_of",
    "check_labels",
    "check_source",
    "data_config",
    "digits",
    "load_pruning_set",
    "num_classes",
    "open_data",
    "pair_batches",
    "pruning_batches",
    "pruning_set",
    "some_of",
    "takes_whole",
    "test_transform",
    "train_transform",
]
