"""The command line, hf-px: one module per group of commands.

Imports every package, inside the commands, so that --help is instant.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from ..core.errors import HfPxError
from ..core.files import disk_shortage
from ..core.options import hyphenated, name_flags
from ..core.text import text_table
from . import bench, evaluate, export, predict, prune, repair, report, shrink, tickets


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. An error that the user can fix is one line and exit code 2; 1 if only a part of it was done."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without θ shows a question mark, not a traceback
    args = parser().parse_args(hyphenated(sys.argv[1:] if argv is None else argv))

    before = warnings.formatwarning
    flags = flags_of(args)
    # one line, without the line of code
    warnings.formatwarning = lambda message, *_: f"hf-px: warning: {name_flags(str(message), flags)}\n"
    code = 0
    try:
        code = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # `hf-px scorers | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(f"\nhf-px: interrupted{getattr(args, 'interrupted', '')}", file=sys.stderr)
        return 130
    except (ValueError, OSError, HfPxError) as error:
        if args.traceback:
            raise
        text = (isinstance(error, OSError) and disk_shortage(error)) or " ".join(str(error).split())
        print(f"hf-px: error: {name_flags(text, flags)}", file=sys.stderr)
        return 2
    finally:
        warnings.formatwarning = before
    return code or 0


def flags_of(args: argparse.Namespace) -> dict[str, str]:
    """{argument of the library: flag of this command}."""
    actions = args.parser._actions if "parser" in args else []
    own = {action.dest: action.option_strings[0] for action in actions if action.option_strings}
    return {"source": "--data", **getattr(args, "flags", {}), **own}


class _CommandParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"hf-px: error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    top = _CommandParser(
        prog="hf-px",
        description="Prune vision models before training, and share the sparse models that result.",
        epilog="Start with: hf-px prune --demo. Each command has examples: hf-px prune --help.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"hf-px {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")

    methods = commands.add_parser("scorers", help="list the methods: what each needs, its rounds, its paper")
    methods.set_defaults(run=scorers_command, traceback=False)

    models = commands.add_parser("backbones", help="list the short names of models: source, licence, images")
    models.set_defaults(run=backbones_command, traceback=False)

    prune.add_to(commands)
    repair.add_to(commands)
    shrink.add_to(commands)
    export.add_to(commands)
    report.add_to(commands)
    tickets.add_to(commands)
    predict.add_to(commands)
    evaluate.add_to(commands)
    bench.add_to(commands)
    return top


def scorers_command(args: argparse.Namespace) -> None:
    from ..core.registry import scorers
    from ..pruning import list_scorers

    rows = [("name", "needs", "rounds", "score", "paper")]
    rows += [(r.name, r.needs, str(r.rounds), r.summary, r.paper) for r in (scorers[name] for name in list_scorers())]
    print(text_table(rows, left=(0, 1, 3, 4)))
    print("\nneeds: the weights alone; the shape of the input too; inputs; inputs and labels")


def backbones_command(args: argparse.Namespace) -> None:
    from ..models.records import backbones

    rows = [("name", "images", "licence", "what", "source")]
    for record in (backbones[name] for name in backbones):
        height, width = record.images.input_size[1:]
        source = record.source or "random weights"
        rows.append((record.name, f"{height}x{width}", record.license or "-", record.summary, source))
    print(text_table(rows, left=(0, 2, 3, 4)))
    print("\nlicence: of the weights. Any timm name and org/name on the Hub works too, see hf-px prune --help")
