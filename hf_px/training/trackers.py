"""Trackers of accelerate's, by name: tensorboard, trackio, wandb and others; each is a package of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from .run_directory import TRACKED


def check_trackers(names: Sequence[str]) -> None:
    """Refuse one that accelerate does not know, or that is not installed: it would be passed over without a word."""
    here = {str(getattr(kind, "value", kind)) for kind in get_available_trackers()}
    for name in names:
        if name not in {*LOGGER_TYPE_TO_CLASS, "all"}:
            raise ValueError(f"--report_to {name}: accelerate knows {', '.join(sorted(LOGGER_TYPE_TO_CLASS))}")
        if name != "all" and name not in here:
            raise ValueError(f"--report_to {name}: not installed; pip install {name.replace('_', '-')}")


def start_trackers(accelerator: Any, names: Sequence[str], settings: Mapping[str, Any], run: str, resume: bool) -> None:
    """After the run has begun: what it refuses leaves no files of theirs in its directory."""
    if not names:
        return
    plain = {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in settings.items()}
    # a run goes by the name of its directory, and --resume goes on with it
    named: dict[str, Any] = {"name": run}
    how = {"trackio": named | {"resume": "allow" if resume else "never"}, "wandb": named}
    accelerator.init_trackers(TRACKED, config=plain, init_kwargs=how)
