"""Dataclass fields as command-line flags: one set of names, defaults and help texts for Python, commands and recipes.

An error of the library names a Python argument in backticks, `min_per_layer`; a command prints --min-per-layer, by
`name_flags`.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def option(
    default: Any, help: str, *, type: type | None = None, choices: Sequence[str] = (), metavar: str | None = None
) -> Any:
    """A dataclass field that is also a flag. `type` is needed where the default is None; a list takes many values."""
    kind = type or (str if isinstance(default, (list, tuple)) else default.__class__)
    metadata = {"help": help, "type": kind, "choices": tuple(choices), "metavar": metavar}
    metadata["many"] = isinstance(default, (list, tuple))
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_options(
    parser: Any, kind: type, *, only: Collection[str] = (), leave_out: Collection[str] = (), command: bool = False
) -> None:
    """Add a flag for every field of the dataclass `kind`, or for those in `only` if it names any.

    In a command with positional arguments (`command=True`) a flag must not take the word behind it: booleans are
    --x and --no-x, and a list is given by repeating its flag. In a recipe `--x false` and `--x a b` work, so that a
    config file can use both forms.
    """
    for field in dataclasses.fields(kind):
        if (not only or field.name in only) and field.name not in leave_out:
            _add(parser, field, command)


def options_from(kind: type[T], args: argparse.Namespace, **values: Any) -> T:
    """An object of the dataclass `kind` from parsed flags; `values` replace those of the flags."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    return kind(**{**given, **values})


def hyphenated(argv: Iterable[str]) -> list[str]:
    """Flags spelled with hyphens: --batch_size is --batch-size."""
    return [re.sub(r"^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in argv]


def name_flags(message: str, flags: Mapping[str, str]) -> str:
    """The message with the flag of each Python argument in backticks, or the bare name if it has no flag."""
    return re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[1]), message)


@contextmanager
def renamed_arguments(**names: str) -> Iterator[None]:
    """Errors inside name the arguments of the caller: {argument of the callee: argument of the caller}."""
    try:
        yield
    except ValueError as error:
        message = re.sub(r"`(\w+)`", lambda match: f"`{names.get(match[1], match[1])}`", str(error))
        raise ValueError(message) from error


def at_least(least: float, **values: float | None) -> None:
    """Refuse a value below `least`; None passes."""
    for name, value in values.items():
        if value is not None and not value >= least:  # nan is refused too
            raise ValueError(f"`{name}` {value:g} is too small; at least {least:g}")


def whole_number(least: int) -> Any:
    """For argparse: a whole number from `least` up."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small; at least {least}")
        return value

    return number


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples as they are written, and flags in a column wide enough to read."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def _add(parser: Any, field: dataclasses.Field[Any], command: bool) -> None:
    how = dict(field.metadata)
    many = how["many"]
    default: Any = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    text = how["help"] + "; repeat the flag for several" * (many and command)
    settings: dict[str, Any] = {"default": default, "help": _help(text, default), "dest": field.name}
    if how["type"] is bool and command:
        settings["action"] = argparse.BooleanOptionalAction
    elif how["type"] is bool:
        settings |= {"nargs": "?", "const": True, "type": _boolean, "metavar": "BOOL"}
    else:
        metavar = how["metavar"] or {int: "N", float: "X"}.get(how["type"], "TEXT")
        settings |= {"type": how["type"], "choices": how["choices"] or None}
        settings["metavar"] = None if how["choices"] else metavar
    if many:
        settings |= {"action": "append"} if command else {"nargs": "*"}
        settings["default"] = list(default)
    parser.add_argument(flag_of(field.name), **settings)


def _help(text: str, default: Any) -> str:
    off = default is None or default is False or default in ([], ())  # 0 is a value
    text = text if off or "(default" in text else f"{text} (default: {default})"
    return text.replace("%", "%%")


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "yes", "y", "on", "1"):
        return True
    if text.lower() in ("false", "no", "n", "off", "0"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
