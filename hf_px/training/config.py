"""Knobs of a recipe: dataclasses, from `--config file.yaml` first and from flags after it, so that a flag wins."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers.hf_argparser import HfArgumentParser, string_to_bool

from ..core.errors import HfPxError


def knob(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field with its reason on one line; a list is a default too."""
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata={"help": help, **more})
    return dataclasses.field(default=default, metadata={"help": help, **more})


def flag(default: bool | None, help: str) -> Any:
    """A knob that is on where it is named, as `--keep_head`; `--keep_head false` is off, None is up to the recipe."""
    return knob(default, help, nargs="?", const=True)


def at_least(least: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value >= least:  # nan is not
            raise ValueError(f"--{name} {value:g} is too small; at least {least:g}")


def positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"--{name} {value:g}: it must be positive")


def fraction(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"--{name} {value:g}: it must be in [0, 1)")


def parse(kinds: Sequence[Any], description: str, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """One object of each kind. What a file says is read as if it had been typed before the flags."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = _Parser(
        kinds,
        description=description,
        allow_abbrev=False,
        formatter_class=_Help,
        prog=Path(sys.argv[0]).name,
        usage="%(prog)s [--config FILE] [any of the options below]",
    )
    parser.add_argument("--config", metavar="FILE", help="a yaml file of these options; flags override it")
    for action in parser._actions:
        if action.nargs == "+":
            action.nargs = "*"  # a list in a config can be emptied by a flag
        if not action.choices:
            action.metavar = action.metavar or ("BOOL" if action.type is string_to_bool else "X")
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--config")
    try:
        config = first.parse_known_args(argv)[0].config
    except argparse.ArgumentError as error:
        parser.error(str(error))
    known = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    from_file = _flags_of(Path(config), known) if config else []
    *found, _, rest = parser.parse_args_into_dataclasses(  # the one before the last holds --config
        [*from_file, *argv], return_remaining_strings=True, look_for_args_file=False
    )
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return tuple(found)


def settings_of(*knobs: Any) -> dict[str, Any]:
    """{name: value} of all of them."""
    return {name: value for each in knobs for name, value in dataclasses.asdict(each).items()}


def run(main: Callable[[], Any]) -> None:
    """Run a recipe; what the user can mend is said in a line and ends it with 2, also without a traceback."""
    try:
        main()
    except (ValueError, OSError, HfPxError) as error:
        if os.environ.get("HF_PX_TRACEBACK"):
            raise
        name = Path(sys.argv[0]).stem
        print(f"\n{name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        print("(HF_PX_TRACEBACK=1 shows where it comes from)", file=sys.stderr)
        sys.exit(2)


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    def _format_action_invocation(self, action: argparse.Action) -> str:
        # one spelling is enough to learn: --batch-size works too
        whole = super()._format_action_invocation(action)
        return whole if len(action.option_strings) < 2 or "-h" in action.option_strings else whole.split(", --")[0]

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # "(default: None)" teaches nothing: such a knob says in its own words what happens without it
        silent = action.default is None or action.default is False or action.default == []  # 0 is not: it is a value
        return action.help if silent else super()._get_help_string(action)


class _Parser(HfArgumentParser):
    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ").split()
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = difflib.get_close_matches(words[0], flags, n=1) if message.startswith("unrecognized") else []
        hint = f"; did you mean {near[0]}?" if near else ""
        self.exit(2, f"{self.prog}: error: {message}{hint}; see --help\n")


def _flags_of(path: Path, known: Sequence[str]) -> list[str]:
    """A file's `name: value` lines as flags: argparse then reads 1e-4 as a number, which yaml does not."""
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path}: not yaml: {error}") from error
    if not isinstance(told or {}, dict):
        raise ValueError(f"--config {path}: expected lines such as `epochs: 160`, found a {type(told).__name__}")
    flags: list[str] = []
    for name, value in (told or {}).items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise ValueError(f"--config {path}: {name!r} is no option{f'; did you mean {near[0]}?' if near else ''}")
        if isinstance(value, dict):
            raise ValueError(f"--config {path}: {name} holds names of its own; it takes a value or a list")
        if value is None or value == []:
            continue
        flags += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return flags
