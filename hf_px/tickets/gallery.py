"""A few pictures of the test set, each as it is, as it is labelled, and as each model sees it: side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from ..core.forward import IGNORE
from ..data import Pairs
from ..data.segmentation.overlay import colours, overlay, side_by_side
from .predict import background_of, segment, uncoloured


def gallery(
    test: Pairs, images: Mapping[str, Any], classes: Sequence[str], models: Mapping[str, nn.Module], count: int = 4
) -> Image.Image:
    """`count` pictures at equal distances in the test set: chosen by their place, not by how well they came out."""
    rows, shown, background = [], set(), background_of(classes)
    for index in sorted({round(i * (len(test) - 1) / max(1, count - 1)) for i in range(min(count, len(test)))}):
        image = test.image(index)
        labels = [test.mask(index), *(segment(model, image, images) for model in models.values())]
        rows.append([image, *(overlay(image, each, background=background) for each in labels)])
        shown |= {int(label) for each in labels for label in np.unique(each)} - {background, IGNORE}
    paint = [(r, g, b) for r, g, b in colours(len(classes)).tolist()]
    legend = {classes[label]: paint[label] for label in sorted(shown)}
    return side_by_side(rows, ["image", "truth", *models], legend | uncoloured(classes))
