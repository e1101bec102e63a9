"""A few test images side by side: the image, its true label map, and the predictions of each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from ..core.forward import IGNORE
from ..data import Pairs
from ..data.segmentation.overlay import colours, overlay, side_by_side
from .predict import background_class, background_legend, segment


def gallery(
    test: Pairs, images: Mapping[str, Any], classes: Sequence[str], models: Mapping[str, nn.Module], count: int = 4
) -> Image.Image:
    """`count` evenly spaced images of the test set: chosen by position, not by how good the predictions are."""
    rows, shown, background = [], set(), background_class(classes)
    for index in sorted({round(i * (len(test) - 1) / max(1, count - 1)) for i in range(min(count, len(test)))}):
        image = test.image(index)
        label_maps = [test.label_map(index), *(segment(model, image, images) for model in models.values())]
        rows.append([image, *(overlay(image, labels, background=background) for labels in label_maps)])
        shown |= {int(label) for labels in label_maps for label in np.unique(labels)} - {background, IGNORE}
    palette = [(r, g, b) for r, g, b in colours(len(classes)).tolist()]
    legend = {classes[label]: palette[label] for label in sorted(shown)}
    return side_by_side(rows, ["image", "truth", *models], legend | background_legend(classes))
