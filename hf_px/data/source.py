"""From the name of a data set to {split: rows}: built in, on this disk, or on the Hub."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.shareable import short_name
from .presets import PRESETS, Preset, preset_of

NOISE = "random"  # one batch of Gaussian noise with random labels, to try a command out


def check_source(source: str) -> None:
    """Refuse a name that is neither built in, nor on this disk, nor written like a Hub id; uses no network."""
    if source == NOISE or preset_of(source) or Path(source).expanduser().exists() or _is_hub_id(source):
        return
    hint = _nearest(source)
    raise ValueError(
        f"`source` {source!r}: no such file or folder; {hint}{'B' if hint else 'b'}uilt in are {', '.join(PRESETS)} "
        f"and {NOISE}; a Hub data set is written org/name, for example uoft-cs/cifar10"
    )


def on_disk(source: str, preset: Preset | None, revision: str | None) -> Path | None:
    """Path of a local file or folder; None for a data set on the Hub."""
    if preset:  # a copy has no revisions, and the Hub id always means the Hub
        return preset.local_copy() if source == preset.name and not revision else None
    path = Path(source).expanduser()
    return path if path.exists() else None


def id_and_title(source: str, preset: Preset | None, path: Path | None) -> tuple[str, str]:
    """(id, title) for a card: those on the Hub, or the folder's name."""
    if preset:
        return preset.dataset, preset.title
    if path is None:
        return source, source.rpartition("/")[2]
    name = short_name(path)
    return (Path(name).stem if path.is_file() else name,) * 2


def load_splits(
    source: str,
    preset: Preset | None,
    path: Path | None,
    config: str | None,
    revision: str | None,
    token: str | bool | None,
    train_split: str | None,
    hint: str,
) -> Mapping[str, Any]:
    """{split: rows}, from `path` or from the Hub; `hint` is added to an error."""
    import datasets

    if not_rank_zero():
        datasets.disable_progress_bars()
    try:
        if path is None:
            hub_id = preset.dataset if preset else source
            return datasets.load_dataset(hub_id, config, revision=revision, token=token)
        if path.is_file():
            if path.suffix != ".parquet":
                raise ValueError("a single file must be a .parquet file; images go in folders, one per class")
            return datasets.load_dataset("parquet", data_files={train_split or "train": str(path)})
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():  # written by save_to_disk
            try:
                found = datasets.load_from_disk(str(path))
            except IndexError as error:  # what datasets raises for a table without rows
                raise ValueError("one of its splits is empty") from error
            return found if isinstance(found, datasets.DatasetDict) else {train_split or "train": found}
        return datasets.load_dataset(str(path.resolve()), config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__  # the second line often lists the choices
        if not path:
            hint = _nearest(source)
        if preset and not path:
            hint = f"to use a local copy, set HF_PX_DATA=/dir, where /dir/{preset.name} holds it"
        raise ValueError(f"{reason[:500]}{'; ' if hint else ''}{hint}".strip()) from error


def not_rank_zero() -> bool:
    """True if RANK, set by torchrun and accelerate launch, is not 0: only rank 0 shows progress bars."""
    return int(os.environ.get("RANK", "0")) > 0


def _nearest(source: str) -> str:
    """A name or Hub id that the user may have meant."""
    names = [*PRESETS, NOISE, *(PRESETS[name].dataset for name in PRESETS if PRESETS[name].on_hub)]
    known = {name.lower(): name for name in names}
    if source in names:
        return ""
    near = difflib.get_close_matches(source.lower(), known, n=1, cutoff=0.6)
    return f"did you mean {known[near[0]]}? " if near else ""


def _is_hub_id(source: str) -> bool:
    # a bare word or a path is more often a typo than a data set, and must not reach the network
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source)) and not source.endswith((".parquet", ".zip", ".csv"))
