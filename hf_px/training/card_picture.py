"""The card's picture: a few test images with the predictions of the ticket and of its dense twin.

A run that sends images of this machine to the Hub shows none unless it is asked to: nobody has seen the card by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..core.head import segments
from ..data import Data
from ..data.segmentation.overlay import png
from ..tickets.classified_picture import classified_picture
from ..tickets.predict import gallery
from .alarms import dense_is_broken
from .config import Options

_IMAGES, _ROWS = 8, 4  # by default: of a classifier, of a segmentation model


def card_picture(
    options: Options,
    data: Data,
    images: Mapping[str, Any],
    results: Mapping[str, Any],
    ticket: nn.Module,
    dense_twin: Callable[[], nn.Module | None],
) -> bytes | None:
    """PNG of test images and predictions, or None for no picture; `dense_twin` loads the dense twin."""
    count = images_on_card(options, data, _ROWS if segments(ticket) else _IMAGES)
    if not count:
        return None
    models = {"ticket": ticket.cpu()}
    if options.training.dense == "train" and not dense_is_broken(results) and (twin := dense_twin()) is not None:
        models = {"dense": twin, **models}
    try:
        if segments(ticket):
            return png(gallery(data.test, images, data.classes, models, count))
        return classified_picture(data, images, models, count)
    except ValueError as error:  # the training is done: a ticket without a picture is better than none
        print(f"warning: the card gets no picture of test images: {error}", flush=True)
        return None


def images_on_card(options: Options, data: Data, usual: int) -> int:
    """`card_images`, or the usual number; but none by default of images that this run would make public unseen."""
    if options.output.card_images is not None:
        return options.output.card_images
    own = data.preset is None and Path(options.data.data).expanduser().exists()
    return 0 if own and options.output.push_to_hub else usual
