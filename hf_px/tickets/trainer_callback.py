"""KeepZeros: for transformers' Trainer, which makes its optimizer when training begins."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ..core.mask import Mask
from ..keep_zeros import keep
from .transformers_quantizer import mask_of


class KeepZeros(TrainerCallback):
    """For Trainer(callbacks=[…]): zeros stay zero through training, by the mask that came with the model."""

    def __init__(self, mask: Mask | None = None) -> None:
        self.mask = mask

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        mask = self.mask if self.mask is not None else mask_of(model)
        self._keeper = keep(model, mask, optimizer)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._keeper.remove()
