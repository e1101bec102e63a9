"""hf-px: prune a model from the command line, say what is left of it, and handle its ticket.

Strings become things here, all of them before a model is loaded. torch, timm and transformers are imported
inside the commands, so that --help is instant.
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
from .prune import add_to as add_prune_to
from .report import add_to as add_report_to
from .tickets import add_to


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 2 for what the user can mend, said in one line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without θ gets a question mark, not a traceback
    args = parser().parse_args(argv)

    before, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # `hf-px scorers | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(f"\nhf-px: interrupted{getattr(args, 'interrupted', '')}", file=sys.stderr)
        return 130
    except (ValueError, OSError, HfPxError) as error:
        if args.traceback:
            raise
        print(f"hf-px: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    finally:
        warnings.formatwarning = before
    return 0


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """What concerns the user in one line, without the line of code that says it."""
    return f"hf-px: warning: {message}\n"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"hf-px: error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="hf-px",
        description="Prune vision models before training, and share what is left of them.",
        epilog="Start with: hf-px prune --demo. Each command explains itself: hf-px prune --help.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"hf-px {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")

    listing = commands.add_parser("scorers", help="list the methods: what each needs, its rounds, its paper")
    listing.set_defaults(run=scorers_command, traceback=False)

    known = commands.add_parser("backbones", help="list the short names of models: source, licence, images")
    known.set_defaults(run=backbones_command, traceback=False)

    add_prune_to(commands)
    add_report_to(commands)
    add_to(commands)
    return top


def scorers_command(args: argparse.Namespace) -> None:
    from ..core.registry import scorers
    from ..pruning import list_scorers as names  # importing the rounds registers every method

    rows = [("name", "needs", "rounds", "score", "paper")]
    rows += [(r.name, r.needs, str(r.rounds), r.summary, r.paper) for r in (scorers[name] for name in names())]
    _show(rows, right=2)
    print("\nneeds: weights only; the shape of the input too; inputs; inputs and labels")


def backbones_command(args: argparse.Namespace) -> None:
    from ..core.registry import backbones
    from ..models import records as _records  # noqa: F401  # importing them registers every name

    rows = [("name", "images", "licence", "what", "source")]
    for record in (backbones[name] for name in backbones):
        height, width = record.images.input_size[1:]
        source = record.source or "random weights"
        rows.append((record.name, f"{height}x{width}", record.license or "-", record.summary, source))
    _show(rows, right=1)
    print("\nlicence: of the weights; any timm name and org/name on the Hub will do too, see hf-px prune --help")


def _show(rows: Sequence[tuple[str, ...]], right: int) -> None:
    """A table; the numbers of one column flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(w) if i == right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
