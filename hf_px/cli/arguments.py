"""Words of the command line that become things: a command, a device, a whole number."""

from __future__ import annotations

import argparse
from typing import Any

from ..core.errors import first_line


def add_command(
    commands: Any, name: str, text: str, run: Any, *, epilog: str, description: str = ""
) -> argparse.ArgumentParser:
    """A command's parser: what `hf-px --help` says of it, what its own help says, and the function that runs it."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=description or f"{text[0].upper()}{text[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--traceback", action="store_true", help="show where an error comes from")
    command.set_defaults(run=run)
    return command


def device_of(text: str | None) -> Any:
    """The device that is meant, tried out; without a word a GPU if there is one."""
    import torch

    try:
        device = torch.device(text or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise ValueError(f"--device {text}: not usable here ({first_line(error)}); --device cpu always is") from error
    return device


def at_least(least: int) -> Any:
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
