"""LoadedModel: a network and the origin of its weights; LoadOptions: arguments shared by all ways to load one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ..core.errors import TicketError, first_line
from .torchvision_models import reset_head_

# overwrites the entries of timm's pretrained_cfg that describe timm's own weights
NO_WEIGHTS: dict[str, Any] = {"url": "", "hf_hub_id": None, "hf_hub_filename": None, "tag": None, "custom_load": False}
NO_WEIGHTS |= {"license": None, "origin_url": None, "paper_ids": None, "label_offset": None}


@dataclass(frozen=True)
class LoadedModel:
    model: nn.Module  # in eval mode; its pretrained_cfg or image_config describes the images it expects
    base: str | None = None  # Hub id or URL of the weights; None for random weights and local files
    revision: str | None = None  # the commit, if from the Hub
    license: str | None = None  # licence of the weights, if known
    citation: str | None = None
    trained: bool = False
    new_head: tuple[str, ...] = ()  # parameters of a head that was initialised for another number of classes


@dataclass(frozen=True)
class LoadOptions:
    num_classes: int | None
    seed: int
    revision: str | None = None
    token: str | bool | None = None

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed torch's global generator, which timm and transformers draw from, and restore it afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            yield

    def with_head_(self, model: Any) -> tuple[str, ...]:
        """Give a timm model the requested number of classes; returns the names of the new parameters."""
        if self.num_classes is None or self.num_classes == model.num_classes:
            return ()
        old = {id(parameter) for parameter in model.parameters()}
        with self.seeded():
            getattr(model, "reset_classifier", partial(reset_head_, model))(self.num_classes)
        return tuple(name for name, parameter in model.named_parameters() if id(parameter) not in old)


def open_branches_(model: nn.Module) -> nn.Module:
    """γ ← 1 where γ = 0: timm closes residual branches this way, and every path through one would score zero."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
    norms = [module for module in model.modules() if isinstance(module, kinds) and module.weight is not None]
    closed = [module for module in norms if not module.weight.any()]
    for module in closed:
        nn.init.ones_(module.weight)
    if closed:
        note(f"{len(closed)} normalisation layers start with scale 0 in timm; set to 1, as in the paper")
    return model


@contextmanager
def loading_errors(name: str) -> Iterator[None]:
    """Errors of the Hub, timm and transformers as one ValueError that names the repo."""
    try:
        yield
    except (TicketError, OSError, ValueError, RuntimeError, KeyError) as error:
        reason = first_line(error).removeprefix(f"{name}: ")
        raise ValueError(f"{name}: not loaded as an image classifier: {reason}") from error


def note(text: str) -> None:
    print(f"hf-px: {text}", file=sys.stderr)
