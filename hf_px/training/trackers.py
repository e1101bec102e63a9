"""Trackers of accelerate, by name: tensorboard, trackio, wandb and others. Each is a package of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from .run_directory import TRACKER_PROJECT


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker that accelerate does not know or that is not installed: accelerate would silently ignore it."""
    here = {str(kind) for kind in get_available_trackers()}
    for name in names:
        if name not in {*LOGGER_TYPE_TO_CLASS, "all"}:
            raise ValueError(f"`report_to` {name}: accelerate knows {', '.join(sorted(LOGGER_TYPE_TO_CLASS))}")
        if name != "all" and name not in here:
            raise ValueError(f"`report_to` {name}: not installed; pip install {name.replace('_', '-')}")


def start_trackers(accelerator: Any, names: Sequence[str], settings: Mapping[str, Any], run: str, resume: bool) -> None:
    """Called after all checks of the run: a refused run leaves no tracker files in its directory."""
    if not names:
        return
    plain = {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in settings.items()}
    # the tracker's run has the name of the directory, and --resume continues it
    name: dict[str, Any] = {"name": run}
    options = {"trackio": name | {"resume": "allow" if resume else "never"}, "wandb": name}
    accelerator.init_trackers(TRACKER_PROJECT, config=plain, init_kwargs=options)
