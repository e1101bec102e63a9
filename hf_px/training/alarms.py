"""Alarms: what a run's own numbers say is broken, each in a sentence for the screen, results.json and the card.

An accuracy p on n images has the standard error √(p (1 - p) / n). Chance allows a difference of three of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

ERRORS = 3.0  # standard errors that chance allows
LOST = 10.0  # a loss of so many times that of guessing, ln(classes), that still grows is lost
_ADVICE = "lower --lr, add --warmup-epochs 1 and --grad-clip 1, or take --optimizer adamw --lr 3e-4"


def find_alarms(results: Mapping[str, Any]) -> list[str]:
    """Sentences about a finished run; none about label maps, whose mean IoU has no such error."""
    found = {name: metrics["accuracy"] for name, metrics in results["results"].items() if "accuracy" in metrics}
    count, chance = results["data"]["test"], 1 / results["data"]["classes"]
    alarms = []
    for name, title in (("dense", "dense twin"), ("ticket", "ticket")):
        if name in found and found[name] <= chance + ERRORS * _error(count, chance):
            alarms.append(
                f"The {title} is at chance level: {found[name]:.1%} of {count:,} images are right, and guessing gets "
                f"{chance:.1%}. It has learned nothing: {_ADVICE}, or train for more epochs."
            )
    if _above(found, "ridge_dense", "dense", count):
        alarms.append(
            f"The dense twin ({found['dense']:.1%}) is worse than a linear head on its features before any training "
            f"({found['ridge_dense']:.1%}): the training has harmed it. {_ADVICE[0].upper()}{_ADVICE[1:]}."
        )
    if _above(found, "ticket", "dense", count):
        alarms.append(
            f"The ticket ({found['ticket']:.1%}) is above its dense twin ({found['dense']:.1%}) by more than chance "
            "allows: the dense twin is not trained well, so the two do not show what pruning costs. "
            f"{_ADVICE[0].upper()}{_ADVICE[1:]}."
        )
    return alarms


def dense_is_broken(results: Mapping[str, Any]) -> bool:
    """True if an alarm is about the dense twin, which then is no baseline."""
    return any("dense twin" in alarm for alarm in results.get("alarms", []))


def check_growth(name: str, history: Sequence[Mapping[str, Any]], classes: int) -> None:
    """Stop a training whose loss is far above that of guessing and has grown twice in a row."""
    losses = [row["train_loss"] for row in history[-3:]]
    if len(losses) == 3 and losses[0] < losses[1] < losses[2] and losses[2] > LOST * max(1.0, math.log(classes)):
        grown = ", ".join(f"{loss:.3g}" for loss in losses)
        raise ValueError(
            f"{name}, epoch {history[-1]['epoch']}: the loss grows without end, {grown} in the last epochs (guessing: "
            f"{math.log(classes):.2g}); lower `lr`, warm up with `warmup_epochs`, clip gradients with `grad_clip`, or "
            "take `optimizer` adamw (and `overwrite` this run)"
        )


def _error(count: int, *shares: float) -> float:
    """Standard error of the sum or difference of shares that were measured on `count` images each."""
    return math.sqrt(sum(share * (1 - share) for share in shares) / count)


def _above(found: Mapping[str, float], high: str, low: str, count: int) -> bool:
    if high not in found or low not in found:
        return False
    return found[high] - found[low] > ERRORS * _error(count, found[high], found[low])
