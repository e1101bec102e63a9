"""Settings of a training by the kind of weights that it starts from, in one place; every flag overrides its own.

Random weights train as in the paper's table. Trained weights take small steps, or what they know is lost: AdamW, a rate
that rises over the first epochs and then falls, clipped gradients, and larger steps for a new head. Measured on three
data sets and two backbones by recipes/fine_tuning.py: model_cards/RESULTS.md, "Fine-tuning".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["random", "trained"]

SETTINGS: Mapping[Kind, Mapping[str, Any]] = {
    "random": {
        "epochs": 12, "batch_size": 128, "optimizer": "sgd", "warmup": 0.0, "grad_clip": 0.0, "head_factor": 1,
        "norms": "train",
    },
    "trained": {
        "epochs": 10, "batch_size": 32, "optimizer": "adamw", "warmup": 0.1, "grad_clip": 1.0, "head_factor": 10,
        "norms": "hold",
    },
}  # fmt: skip
RATES: Mapping[Kind, Mapping[str, float]] = {
    "random": {"sgd": 0.1, "nesterov": 0.1, "adamw": 1e-3},
    "trained": {"sgd": 0.01, "nesterov": 0.01, "adamw": 1e-4},
}


def kind_of_weights(trained: bool) -> Kind:
    return "trained" if trained else "random"


def by_kind(name: str) -> str:
    """The default of a setting, for a help text."""
    return f"{SETTINGS['random'][name]}; {SETTINGS['trained'][name]} for trained weights"


def rates_by_kind() -> str:
    """The default learning rates, for a help text."""
    random, trained = (
        ", ".join(f"{RATES[kind][name]:g} for {title}" for name, title in (("sgd", "SGD"), ("adamw", "AdamW")))
        for kind in ("random", "trained")
    )
    return f"{random}; with trained weights {trained}"
