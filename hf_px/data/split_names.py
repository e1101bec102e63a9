"""Splits that are a part of another, as in the package datasets: `train[80%:]`, `train[:500]`.

The images of a test split that is cut from the training split are not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_slices(
    parts: Mapping[str, Any], train: str, test: str | None, train_is_default: bool
) -> tuple[dict[str, Any], str]:
    """(the splits with those that `train` and `test` name, the name of the training split).

    A training split that nobody named is what the test split leaves of it; two that were named must not overlap.
    """
    found = dict(parts)
    named: dict[str, tuple[str, range]] = {}
    for name in filter(None, (train, test)):
        base, rows = _rows(parts, name)
        if "[" in name and base in parts:
            found[name] = parts[base].select(rows)
        named[name] = base, rows
    if test is None or "[" not in train + test or named[train][0] != named[test][0]:
        return found, train
    rows, held = named[train][1], named[test][1]
    common = range(max(rows.start, held.start), min(rows.stop, held.stop))
    if not common:
        return found, train
    if not train_is_default:
        raise ValueError(
            f"`train_split` {train!r} and `test_split` {test!r} have {len(common):,} rows in common: a test on images "
            "that were trained on says nothing; leave `train_split` out to train on the rest"
        )
    rest = f"{train} without {test.partition('[')[2].rstrip(']')}"
    found[rest] = parts[train].select([*range(rows.start, common.start), *range(common.stop, rows.stop)])
    return found, rest


def _rows(parts: Mapping[str, Any], name: str) -> tuple[str, range]:
    """(split, rows) of `split[from:to]`, or all rows of a plain name."""
    from datasets import ReadInstruction

    base = name.partition("[")[0]
    if base not in parts:
        return base, range(0)  # the caller names the splits that there are
    if "[" not in name:
        return base, range(len(parts[base])) if hasattr(parts[base], "select") else range(0)
    if not hasattr(parts[base], "select"):
        raise ValueError(f"split {name!r}: images and label maps in folders cannot be sliced; name a folder")
    try:
        (found,) = ReadInstruction.from_spec(name).to_absolute({base: len(parts[base])})
    except (ValueError, AssertionError) as error:
        raise ValueError(f"split {name!r}: {error}; write for example {base}[80%:] or {base}[:500]") from error
    rows = range(found.from_ or 0, len(parts[base]) if found.to is None else found.to)
    if not rows:
        raise ValueError(f"split {name!r} is empty; {base} has {len(parts[base]):,} rows")
    return base, rows
