"""Loaded: a backbone and where it comes from; How: what is asked of it, and how the missing parts are drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..core.errors import TicketError, first_line

# what timm's record of an architecture says about weights that these are not
NO_WEIGHTS: dict[str, Any] = {"url": "", "hf_hub_id": None, "hf_hub_filename": None, "tag": None, "custom_load": False}
NO_WEIGHTS |= {"license": None, "origin_url": None, "paper_ids": None, "label_offset": None}


@dataclass(frozen=True)
class Loaded:
    model: nn.Module  # in eval mode; pretrained_cfg or image_config says what images it expects
    base: str | None = None  # the Hub id or address that the weights came from; None for random ones and local files
    revision: str | None = None  # the commit, if from the Hub
    license: str | None = None  # of the weights, if known
    citation: str | None = None
    trained: bool = False
    new_head: tuple[str, ...] = ()  # parameters drawn at random, since the source has another number of classes


@dataclass(frozen=True)
class How:
    num_classes: int | None
    seed: int
    revision: str | None
    token: str | bool | None

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """timm and transformers draw from torch's own generator: seeded here, and put back."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            yield

    def with_head_(self, model: Any) -> tuple[str, ...]:
        """Give a timm model the number of classes asked for; names of the parameters that are new."""
        if self.num_classes is None or self.num_classes == model.num_classes:
            return ()
        old = {id(parameter) for parameter in model.parameters()}
        with self.drawing():
            model.reset_classifier(self.num_classes)
        return tuple(name for name, parameter in model.named_parameters() if id(parameter) not in old)


def open_branches_(model: nn.Module) -> nn.Module:
    """γ ← 1 where it starts at 0: timm closes residual branches so, and every path through one would score zero."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
    norms = [module for module in model.modules() if isinstance(module, kinds) and module.weight is not None]
    closed = [module for module in norms if not module.weight.any()]
    for module in closed:
        nn.init.ones_(module.weight)
    if closed:
        say(f"{len(closed)} normalisation layers start with scale 0 in timm; set to 1, as in the paper")
    return model


@contextmanager
def plainly(name: str) -> Iterator[None]:
    """What the Hub, timm and transformers say about a repo, as one ValueError."""
    try:
        yield
    except (TicketError, OSError, ValueError, RuntimeError, KeyError) as error:
        reason = first_line(error).removeprefix(f"{name}: ")
        raise ValueError(f"{name}: not loaded as an image classifier: {reason}") from error


def say(text: str) -> None:
    print(f"hf-px: {text}", file=sys.stderr)
