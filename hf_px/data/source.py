"""From a name to a data set: `digits`, a preset, a folder, a parquet file, what save_to_disk wrote, or a Hub id.

Only a Hub id, or a preset without a copy on this disk, uses the network.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .columns import find_column, find_test_split, image_column_of, number_labels, read_labels
from .digits import grey_digits, pixels
from .presets import PRESETS, Preset, preset_of
from .split import FromArray, FromColumn, Split

NOISE = "random"  # Gaussian noise with random labels, one batch: to try a command out, not to prune by


@dataclass(frozen=True)
class Data:
    name: str  # what the user asked for
    dataset: str  # for a card: the id on the Hub, or the folder's name
    title: str
    classes: tuple[str, ...]  # "0", "1", … if they have no names
    train: Split
    test: Split
    test_split: str
    preset: Preset | None


def check_source(source: str) -> None:
    """Refuse what is neither built in, nor on this disk, nor written like a Hub id; touches no network."""
    if source == NOISE or preset_of(source) or Path(source).expanduser().exists() or _is_hub_id(source):
        return
    raise ValueError(
        f"data {source!r}: no such file or folder; {_nearest(source)}Built in are {', '.join(PRESETS)} and {NOISE}; "
        "a Hub data set is written org/name, for example uoft-cs/cifar10"
    )


def open_data(
    source: str,
    *,
    config: str | None = None,
    train_split: str | None = None,
    test_split: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    need_test: bool = True,
) -> Data:
    """Labels read and checked, columns and splits found, no image decoded but the first.

    `config`, `revision` and `token` are for the Hub. `need_test=False` is for who only prunes: `test` is empty then.
    """
    check_source(source)
    if source == NOISE:
        raise ValueError(f"data {NOISE!r} is noise, to try pruning out: there is nothing to learn; try digits")
    preset = preset_of(source)
    if preset and preset.name == "digits":
        if image_column or label_column or config or revision:
            raise ValueError("data digits has no columns, configs or revisions to choose from; leave those flags out")
        return _open_digits(preset, train_split or preset.train_split, test_split or preset.test_split)
    try:
        parts, dataset, title = _load(source, preset, config, revision, token, train_split)

        train_name = train_split or (preset.train_split if preset else "train")
        if train_name not in parts:
            raise ValueError(
                f"no split {train_name!r}; it has {', '.join(parts)}: name the one to learn from (--train_split)"
            )
        images = image_column_of(parts[train_name], image_column, preset)
        labels = find_column(parts[train_name], "label", label_column, preset)
        wanted = {train_name: read_labels(parts[train_name], labels, train_name)}
        test_name = ""
        if need_test:
            test_name = find_test_split(parts, test_split, train_name, labels, preset)
            image_column_of(parts[test_name], images, None)
            wanted[test_name] = read_labels(parts[test_name], labels, test_name)
        numbers, classes = number_labels(wanted, preset)
        splits = [Split(numbers[name], FromColumn(parts[name], images)) for name in wanted]
    except ValueError as error:
        raise ValueError(f"data {source}: {error}") from error
    test = splits[1] if need_test else Split(numbers[train_name][:0], FromColumn(parts[train_name], images))
    return Data(source, dataset, title, classes, splits[0], test, test_name, preset)


def _open_digits(preset: Preset, train_split: str, test_split: str) -> Data:
    parts = dict(zip(("train", "test"), grey_digits()))
    for name in (train_split, test_split):
        if name not in parts:
            raise ValueError(f"data digits: no split {name!r}; it has {', '.join(parts)}")
    train, test = (
        Split(parts[name].labels, FromArray(pixels(parts[name]).numpy())) for name in (train_split, test_split)
    )
    classes = tuple(str(digit) for digit in range(10))
    return Data(preset.name, preset.dataset, preset.title, classes, train, test, test_split, preset)


def _load(
    source: str,
    preset: Preset | None,
    config: str | None,
    revision: str | None,
    token: str | bool | None,
    train_split: str | None,
) -> tuple[Mapping[str, Any], str, str]:
    """({split: rows}, the data set's id, its title)."""
    import datasets

    if elsewhere():
        datasets.disable_progress_bars()
    path = Path(source).expanduser()
    if preset:  # a copy has no revisions, and who writes the Hub id means the Hub
        copy = preset.local_copy() if source == preset.name and not revision else None
        dataset, title = preset.dataset, preset.title
        path = copy or Path()
        local = copy is not None
    else:
        local = path.exists()
        here = path.resolve()
        dataset = (here.stem if path.is_file() else here.name) if local else source
        title = dataset.rpartition("/")[2]
    try:
        if not local:
            return datasets.load_dataset(dataset, config, revision=revision, token=token), dataset, title
        if path.is_file():
            if path.suffix != ".parquet":
                raise ValueError("a single file must be a .parquet file; images go in folders, one per class")
            return datasets.load_dataset("parquet", data_files={train_split or "train": str(path)}), dataset, title
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():  # written by save_to_disk
            try:
                found = datasets.load_from_disk(str(path))
            except IndexError as error:  # all that datasets says of a table without rows
                raise ValueError("one of its splits is empty") from error
            parts = found if isinstance(found, datasets.DatasetDict) else {train_split or "train": found}
            return parts, dataset, title
        return datasets.load_dataset(str(path.resolve()), config), dataset, title
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        said = " ".join(str(error).split()) or type(error).__name__  # the second line often has the choices
        hint = "" if local else _nearest(source)
        if preset and not local:
            hint = f"a copy on this disk will do: HF_PX_DATA=/dir, where /dir/{preset.name} is it"
        raise ValueError(f"{said[:500]}{'; ' if hint else ''}{hint}".strip()) from error


def elsewhere() -> bool:
    """Not the main process, as torchrun and accelerate launch tell it: one progress bar is enough for all."""
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
    # a bare word or something like a path is a slip more often than a data set: it must not reach the network
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source)) and not source.endswith((".parquet", ".zip", ".csv"))
