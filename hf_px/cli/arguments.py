"""Parts that several commands share: the parser of a command, groups of flags, the device."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..core.errors import first_line
from ..core.options import HelpFormatter, whole_number
from ..prune_config import COLUMN_HELP, DEFAULT_PER_CLASS

RUNTIMES = ("auto", "dense", "sparse")
DTYPES = ("float16", "bfloat16", "float32")


def add_command(
    commands: Any, name: str, summary: str, run: Any, *, examples: str, description: str = ""
) -> argparse.ArgumentParser:
    """Add a command: `summary` is its line in `hf-px --help`, `run` the function that runs it."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description or f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--traceback", action="store_true", help="show the traceback of an error")
    command.set_defaults(run=run, parser=command)
    return command


def add_model_flags(group: Any) -> None:
    """Flags that say how a named model is loaded."""
    group.add_argument(
        "--pretrained",
        action=argparse.BooleanOptionalAction,
        help="load trained weights (default: yes if the name says which, as resnet50.tv_in1k, org/name and directories "
        "do; no for a bare architecture)",
    )
    group.add_argument(
        "--architecture",
        metavar="NAME",
        help="architecture of a weights file: a timm name, torchvision/NAME, or one of `hf-px backbones`, whose files "
        "are converted",
    )
    group.add_argument("--revision", metavar="REV", help="commit, tag or branch of a model on the Hub")
    group.add_argument(
        "--num-classes", type=whole_number(1), metavar="N", help="give the model a new head of N classes"
    )
    group.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda if there is one)")


def add_data_flags(group: Any, data: str) -> None:
    """Flags that name the pruning set; `data` is the help of --data."""
    group.add_argument("--data", metavar="SOURCE", help=data)
    group.add_argument(
        "--per-class",
        type=whole_number(1),
        default=DEFAULT_PER_CLASS,
        metavar="N",
        help=f"examples per class to prune by (default: {DEFAULT_PER_CLASS})",
    )
    group.add_argument(
        "--batch-size",
        type=whole_number(1),
        metavar="N",
        help="batch size of the pruning set (default: 100; 8 for images with label maps)",
    )
    group.add_argument("--split", default="train", help="split of the data set (default: train)")
    group.add_argument("--image-column", metavar="NAME", help=COLUMN_HELP["image"])
    group.add_argument("--label-column", metavar="NAME", help=COLUMN_HELP["label"])


def add_dtype_flag(group: Any) -> None:
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        help="round the ticket's weights to it, which halves their bytes; biases and normalisation stay float32, and "
        "it loads in float32 (default: as they are)",
    )


def usable_device(text: str | None) -> Any:
    """The torch device of that name, tried out; by default a GPU if there is one."""
    import torch

    try:
        device = torch.device(text or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise ValueError(f"--device {text}: not usable here ({first_line(error)}); --device cpu always is") from error
    return device


def add_runtime_flag(command: Any) -> None:
    command.add_argument(
        "--runtime",
        choices=RUNTIMES,
        default="auto",
        help="dense: torch; sparse: skip zeros, after some seconds of compiling; auto: sparse if the ticket was "
        "compiled here before (default: auto)",
    )


def runnable_model(ticket: str, revision: str | None, runtime: str) -> Any:
    """The ticket's model, dense or in the sparse runtime."""
    from ..tickets.ticket import Ticket

    if runtime != "dense":
        from ..runtime.kernels import RuntimeUnavailableError
        from ..runtime.packed import load_packed

        try:
            found = load_packed(ticket, revision=revision, only_compiled=runtime == "auto")
        except RuntimeUnavailableError:
            if runtime == "sparse":
                raise
            found = None
        if found is not None:
            return found
    return Ticket.from_pretrained(ticket, revision=revision).to_model()


def warn_untrained(source: Any) -> None:
    """Say that a ticket's predictions are chance, if its record says so."""
    from ..tickets.predict import is_untrained

    if is_untrained(source):
        print(
            f"hf-px: warning: the weights of {source.name} were never trained (those of its head, at least): what "
            "follows is chance; train it first",
            file=sys.stderr,
        )


def check_file(flag: str, path: Path, suffix: str) -> None:
    """Refuse a file that cannot be written, before the work. The suffix guards what follows a flag by accident."""
    if path.suffix.lower() != suffix:
        raise ValueError(f"{flag} {path}: name a file that ends in {suffix}, so that no other is overwritten")
    if path.is_dir():
        raise ValueError(f"{flag} {path}: is a directory; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"{flag} {path}: no directory {path.parent}; make it first")
