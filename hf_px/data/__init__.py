"""Data sets by name, image transforms for a model, and the small sets that a model is pruned with.

May import core, prune_config and models.
For segmentation: open_data("voc2012", task="segmentation"), pair_batches, TrainPairs.

data = open_data("cifar10")
images = data_config(model)
batches = pruning_batches(data, images, per_class=10)
loader = DataLoader(TrainImages(data, images, seed=0), sampler=…)  # the sampler yields (epoch, index)
"""

from __future__ import annotations

from .datasets import TestImages, TrainImages
from .describe import describe_data
from .digits import digits
from .labelled_split import Split
from .model_inputs import check_labels, data_config, num_classes
from .open_data import Data, open_data
from .presets import PRESETS, Preset
from .pruning_set import load_pruning_set, pruning_batches
from .sampling import LabelledImages, balanced, batches_of, pruning_set, some_of
from .segmentation.datasets import TestPairs, TrainPairs, pair_batches
from .segmentation.pairs import Pairs
from .source import check_source
from .transforms import takes_whole, test_transform, train_transform
from .unlabelled import draw_images, load_images

__all__ = [
    "PRESETS",
    "Data",
    "LabelledImages",
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
    "describe_data",
    "digits",
    "draw_images",
    "load_images",
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
