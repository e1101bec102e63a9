"""compress: trained weights to a Ticket in one call. Prune and repair in rounds; no labels, no training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ..core.prunable import plain_module
from ..prune_config import PruneConfig
from ..refit.options import IMAGES
from ..refit.rounds import for_repair, prune_and_repair
from .ticket import Ticket


def compress(
    model: nn.Module,
    batches: Iterable[Any],
    sparsity: float | None = None,
    *,
    scorer: str | None = None,
    rounds: int | None = None,
    images: int = IMAGES,
    base: str | None = None,
    base_revision: str | None = None,
    license: str | None = None,
    progress: bool = True,
    **choices: Any,
) -> Ticket:
    """A ticket of the trained model: pruned in rounds, its kept weights refitted. The model is not changed.

    batches   a list or loader of inputs, with or without labels; the first `images` images are used
    sparsity  fraction of the weights to remove. Default: 0.8, or what an n:m scope implies
    scorer    the method. Default: magnitude of the refitted weights
    rounds    prune and refit this many times. Default: 5
    base      owner/name on the Hub, if the weights come from there; with its commit and licence, for the card
    choices   other fields of PruneConfig, for example exclude
    """
    model = plain_module(model)
    config = for_repair(PruneConfig(scorer, sparsity=sparsity, rounds=rounds, **choices)).resolved()
    repaired, mask, report = prune_and_repair(model, config, batches, most=images, progress=progress)
    settings = {
        "sparsity": config.sparsity, "rounds": config.rounds, "scope": str(config.scope), "seed": config.seed,
        "weights": "trained before pruning, repaired since",
    }  # fmt: skip
    return Ticket(
        repaired,
        mask,
        base=base,
        base_revision=base_revision,
        license=license,
        scorer=config.record.name,
        settings=settings,
        repair=report.to_dict(),
    )
