"""KeepZeros: keep_zeros as a callback of transformers' Trainer, which creates its optimizer when training begins."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ..core.mask import Mask
from ..sparse_training import keep_zeros
from .transformers_quantizer import mask_of


class KeepZeros(TrainerCallback):
    """Trainer(callbacks=[KeepZeros()]): pruned weights stay zero. Without `mask`, the mask loaded with the model."""

    def __init__(self, mask: Mask | None = None) -> None:
        self.mask = mask

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        mask = self.mask if self.mask is not None else mask_of(model)
        self._keeper = keep_zeros(model, mask, optimizer)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._keeper.remove()
