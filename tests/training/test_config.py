"""Options of a recipe are checked when they are made; an error names the argument."""

from __future__ import annotations

from typing import Any

import pytest

from hf_px.prune_config import PruneConfig
from hf_px.training.config import (  # fmt: skip
    DataOptions,
    ModelOptions,
    Options,
    OutputOptions,
    RewindOptions,
    TrainingOptions,
)


@pytest.mark.parametrize(
    ("kind", "values", "error"),
    [
        (TrainingOptions, {"epochs": 0}, "`epochs` 0 is too small; at least 1"),
        (TrainingOptions, {"lr": 0.0}, "`lr` 0 must be positive"),
        (TrainingOptions, {"lr": float("inf")}, "`lr` inf must be positive"),
        (TrainingOptions, {"momentum": 1.0}, r"`momentum` 1 is outside \[0, 1\)"),
        (TrainingOptions, {"distill": 2.0}, "`distill` 2.0 is a share of the loss"),
        (TrainingOptions, {"distill": 0.5, "dense": "skip"}, "`distill` needs the dense twin"),
        (TrainingOptions, {"lr_schedule": "step"}, "`lr_schedule` step needs the epochs"),
        (DataOptions, {"per_class": 0}, "`per_class` 0 is too small"),
        (ModelOptions, {"num_classes": 0}, "`num_classes` 0 is too small"),
        (OutputOptions, {"resume": True, "overwrite": True}, "`resume` continues a run"),
        (OutputOptions, {"layout": "mask-only"}, "`layout` mask-only stores no weights"),
        (RewindOptions, {"rewind_epochs": -1}, "`rewind_epochs` -1 is too small"),
    ],
)
def test_a_wrong_value_is_refused_by_name(kind: type, values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        kind(**values)


def options(rewind: RewindOptions | None = None, training: TrainingOptions | None = None, **pruning: Any) -> Options:
    training = training or TrainingOptions()
    return Options(ModelOptions(), DataOptions(), PruneConfig(**pruning), training, OutputOptions(), rewind)


def test_imp_trains_the_dense_model_and_rewinds_into_the_training() -> None:
    with pytest.raises(ValueError, match="`dense` skip: the first round of IMP trains the dense model"):
        options(RewindOptions(), TrainingOptions(dense="skip"))
    with pytest.raises(ValueError, match="`rewind_epochs` 12: there are only 12 epochs"):
        options(RewindOptions(rewind_epochs=12))
    # by default a fifth of what is left goes in each round: 0.8^10 = 0.107
    assert options(RewindOptions(), sparsity=0.9).pruning.rounds == 10
    assert options(RewindOptions(), sparsity=0.9, rounds=3).pruning.rounds == 3


def test_the_warm_up_is_shorter_than_the_training() -> None:
    with pytest.raises(ValueError, match="`warmup_epochs` 12: there are only 12 epochs"):
        options(training=TrainingOptions(warmup_epochs=12))


def test_settings_are_all_options_by_name() -> None:
    found = options(sparsity=0.9, exclude=["a"]).settings()
    assert (found["sparsity"], found["exclude"], found["epochs"], found["scorer"]) == (0.9, ["a"], 12, "px-path")
    assert "rewind" not in found and "rewind" in options(RewindOptions()).settings()
