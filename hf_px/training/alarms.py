"""Alarms: what a run's own numbers say is broken, each in a sentence for the screen, results.json and the card.

An accuracy p on n images has the standard error √(p (1 - p) / n). Chance allows a difference of three of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .defaults import RATES, kind_of_weights

ERRORS = 3.0  # standard errors that chance allows
LOST = 10.0  # a loss of so many times that of guessing, ln(classes), that still grows is lost
FAR = 3.0  # a rate of so many times the default, or a default of so many times the rate


class DivergedError(ValueError):
    """The loss is not finite or grows without end."""


@dataclass(frozen=True)
class Rates:
    """The learning rate of a run and the default for its weights and optimizer."""

    own: float
    default: float

    @classmethod
    def of(cls, settings: Mapping[str, Any], trained: bool) -> Rates:
        return cls(settings["lr"], RATES[kind_of_weights(trained)][settings["optimizer"]])

    def advice(self) -> str:
        """What to change."""
        if self.own > FAR * self.default:
            return f"lower --lr {self.own:g} (default here: {self.default:g})"
        if self.own < self.default / FAR:
            return f"raise --lr {self.own:g} (default here: {self.default:g})"
        return f"check the labels and the images, try another --lr than {self.own:g}, or train for more epochs"


def find_alarms(results: Mapping[str, Any]) -> list[str]:
    """Sentences about a finished run; none about label maps, whose mean IoU has no such error."""
    advice = Rates.of(results["settings"], results["model"]["trained"]).advice()
    found = {name: metrics["accuracy"] for name, metrics in results["results"].items() if "accuracy" in metrics}
    count, chance = results["data"]["test"], 1 / results["data"]["classes"]
    alarms = []
    for name, title in (("dense", "dense twin"), ("ticket", "ticket")):
        if name in found and found[name] <= chance + ERRORS * _error(count, chance):
            alarms.append(
                f"The {title} is at chance level: {found[name]:.1%} of {count:,} images are right, and guessing gets "
                f"{chance:.1%}. It has learned nothing: {advice}."
            )
    if _above(found, "ridge_dense", "dense", count):
        alarms.append(
            f"The dense twin ({found['dense']:.1%}) is worse than a linear head on its features before any training "
            f"({found['ridge_dense']:.1%}): the training has harmed it. {_sentence(advice)}"
        )
    if _above(found, "ticket", "dense", count):
        alarms.append(
            f"The ticket ({found['ticket']:.1%}) is above its dense twin ({found['dense']:.1%}) by more than chance "
            "allows: the dense twin is not trained well, so the two do not show what pruning costs. "
            f"{_sentence(advice)}"
        )
    return alarms


def dense_is_broken(results: Mapping[str, Any]) -> bool:
    """True if an alarm is about the dense twin, which then is no baseline."""
    return any("dense twin" in alarm for alarm in results.get("alarms", []))


def check_loss(name: str, row: Mapping[str, Any], rates: Rates) -> None:
    """Stop a training whose loss is not a number."""
    if not math.isfinite(row["train_loss"]):
        raise DivergedError(f"{name}, epoch {row['epoch']}: the loss is {row['train_loss']}; {_to_stop(rates)}")


def check_growth(name: str, history: Sequence[Mapping[str, Any]], classes: int, rates: Rates) -> None:
    """Stop a training whose loss is far above that of guessing and has grown twice in a row."""
    losses = [row["train_loss"] for row in history[-3:] if "train_loss" in row]
    if len(losses) == 3 and losses[0] < losses[1] < losses[2] and losses[2] > LOST * max(1.0, math.log(classes)):
        grown = ", ".join(f"{loss:.3g}" for loss in losses)
        raise DivergedError(
            f"{name}, epoch {history[-1]['epoch']}: the loss grows without end, {grown} in the last epochs (guessing: "
            f"{math.log(classes):.2g}); {_to_stop(rates)}"
        )


def _to_stop(rates: Rates) -> str:
    return (
        f"lower `lr` {rates.own:g} (default here: {rates.default:g}), warm up with `warmup_epochs`, or clip gradients "
        "with `grad_clip` (and `overwrite` this run)"
    )


def _sentence(advice: str) -> str:
    return f"{advice[0].upper()}{advice[1:]}."


def _error(count: int, *shares: float) -> float:
    """Standard error of the sum or difference of shares that were measured on `count` images each."""
    return math.sqrt(sum(share * (1 - share) for share in shares) / count)


def _above(found: Mapping[str, float], high: str, low: str, count: int) -> bool:
    if high not in found or low not in found:
        return False
    return found[high] - found[low] > ERRORS * _error(count, found[high], found[low])
