"""The command line of a recipe: `--config file.yaml` is read first and the flags after it, so that a flag wins."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import yaml

from ..core.errors import HfPxError
from ..core.files import disk_shortage
from ..core.options import HelpFormatter, add_options, flag_of, hyphenated, name_flags, options_from
from ..prune_config import PruneConfig
from ..refit.options import RepairOptions
from .config import DataOptions, ModelOptions, Options, OutputOptions, RewindOptions, TrainingOptions

RecipeName = Literal["prune_finetune", "imp"]
_GROUPS: dict[str, type] = {
    "model": ModelOptions,
    "data": DataOptions,
    "pruning": PruneConfig,
    "repair of trained weights": RepairOptions,
    "rewinding": RewindOptions,
    "training, of the ticket and of its dense twin": TrainingOptions,
    "output": OutputOptions,
}
_FIXED_IN_IMP = ("scorer", "scope", "of", "schedule", "norm")


def parse_options(recipe: RecipeName, description: str = "", argv: Sequence[str] | None = None) -> Options:
    """The options of a run from a config file and flags. `recipe` decides which flags there are."""
    argv = hyphenated(sys.argv[1:] if argv is None else argv)
    parser = _RecipeParser(
        description=description,
        allow_abbrev=False,
        formatter_class=HelpFormatter,
        prog=Path(sys.argv[0]).name,
        usage="%(prog)s [--config FILE] [any of the options below]",
    )
    parser.add_argument("--config", metavar="FILE", help="a yaml file of these options; flags override it")
    for title, kind in _groups(recipe).items():
        add_options(parser.add_argument_group(title), kind, leave_out=_left_out(recipe))
    flags = {word.partition("=")[0] for word in argv}
    if fixed := [flag for flag in map(flag_of, _left_out(recipe)) if flag in flags]:
        parser.error(f"{fixed[0]} is not an option of IMP, which prunes by magnitude over all layers; leave it out")
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--config")
    try:
        config = first.parse_known_args(argv)[0].config
    except argparse.ArgumentError as error:
        parser.error(str(error))
    # IMP is not a scorer: a config file may name one for the other recipe
    passed_over = ("scorer",) if recipe == "imp" else ()
    args = parser.parse_args([*(_flags_of(Path(config), option_names(recipe), passed_over) if config else []), *argv])
    return Options(
        options_from(ModelOptions, args),
        options_from(DataOptions, args),
        options_from(PruneConfig, args, **({"scorer": "magnitude"} if recipe == "imp" else {})),
        options_from(TrainingOptions, args),
        options_from(OutputOptions, args),
        options_from(RewindOptions, args) if recipe == "imp" else None,
        options_from(RepairOptions, args) if recipe != "imp" else None,
    )


def option_names(recipe: RecipeName) -> list[str]:
    """Names of all options of a recipe."""
    names = [field.name for kind in _groups(recipe).values() for field in dataclasses.fields(kind)]
    return [name for name in names if name not in _left_out(recipe)]


def run_recipe(main: Callable[[], Any]) -> None:
    """Run a recipe. An error that the user can fix is one line and exit code 2, without a traceback."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {name_flags(str(message), _all_flags())}\n"
    try:
        main()
    except KeyboardInterrupt:
        if os.environ.get("HF_PX_TRACEBACK"):
            raise
        if os.environ.get("RANK", "0") == "0":
            again = "the same command with --resume continues" if _resumes() else "the same command starts again"
            print(f"\n{Path(sys.argv[0]).stem}: interrupted; {again}", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, HfPxError) as error:
        if os.environ.get("HF_PX_TRACEBACK"):
            raise
        name = Path(sys.argv[0]).stem
        print(f"\n{name}: error: {error_message(error)}", file=sys.stderr)
        print("(HF_PX_TRACEBACK=1 shows the traceback)", file=sys.stderr)
        sys.exit(2)


def error_message(error: BaseException) -> str:
    """The error in one line, with flags in place of Python arguments."""
    again = "continue with --resume" if _resumes() else "try again"
    if isinstance(error, OSError) and (shortage := disk_shortage(error, then=again)) is not None:
        return shortage
    return name_flags(" ".join(str(error).split()), _all_flags())


def _resumes() -> bool:
    """True for the recipes that have --resume."""
    return Path(sys.argv[0]).stem in get_args(RecipeName)


def _groups(recipe: RecipeName) -> dict[str, type]:
    other = RepairOptions if recipe == "imp" else RewindOptions
    return {title: kind for title, kind in _GROUPS.items() if kind is not other}


def _left_out(recipe: RecipeName) -> Sequence[str]:
    return _FIXED_IN_IMP if recipe == "imp" else ()


def _all_flags() -> dict[str, str]:
    """{argument: flag} of all recipes, sweeps included."""
    of_sweeps = ("methods", "sparsities", "seeds", "values", "processes")
    names = (*option_names("prune_finetune"), *option_names("imp"), *of_sweeps)
    return {"source": "--data"} | {name: flag_of(name) for name in names}


class _RecipeParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ").split()
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = difflib.get_close_matches(words[0], flags, n=1) if message.startswith("unrecognized") else []
        hint = f"; did you mean {near[0]}?" if near else ""
        self.exit(2, f"{self.prog}: error: {message}{hint}; see --help\n")


def _flags_of(path: Path, known: Sequence[str], passed_over: Sequence[str] = ()) -> list[str]:
    """The `name: value` lines of a file as flags: argparse reads 1e-4 as a number, yaml does not."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path}: not yaml: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"--config {path}: expected lines such as `epochs: 160`, found a {type(settings).__name__}")
    flags: list[str] = []
    for name, value in settings.items():
        plain = str(name).replace("-", "_")
        if plain in passed_over:
            continue
        if plain not in known:
            near = difflib.get_close_matches(plain, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"--config {path}: {name!r} is not an option{hint}")
        if isinstance(value, dict):
            raise ValueError(f"--config {path}: {name} has keys of its own; it takes a value or a list")
        if value is None or value == []:
            continue
        flags += hyphenated([f"--{name}"] if isinstance(value, list) else [f"--{name}={value}"])
        flags += map(str, value) if isinstance(value, list) else []
    return flags
