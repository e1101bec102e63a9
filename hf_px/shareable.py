"""shareable(value): what may leave the machine.

A path inside the working directory is written relative to it, any other path by its last part; Hub ids, short names and
all other text stay as they are. Cards, results.json, prune.json, headers of safetensors files and reports go through
here before they are written.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

COMMAND = "command"  # the key of a record whose text is a command line
T = TypeVar("T")

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# an absolute path of two parts or more inside a sentence; what stands before it is no part of a word, path or URL
_IN_TEXT = re.compile(
    r"(?<![\w.~/:\\)\]}>-])(?:/|~[\w.-]*/|\.\.[\\/]|[A-Za-z]:[\\/])[^\s'\"`,;:()<>|]+[\\/][^\s'\"`,;:()<>|]*"
)


def shareable(value: T) -> T:
    """A copy of a string, or of lists and dicts of them, without the paths of this machine. Keys are left alone."""
    if isinstance(value, os.PathLike):
        value = cast(T, os.fspath(value))
    if isinstance(value, str):
        return cast(T, _text(value))
    if isinstance(value, Mapping):
        return cast(T, {key: _command(part) if key == COMMAND else shareable(part) for key, part in value.items()})
    if isinstance(value, (list, tuple)):
        return cast(T, [shareable(part) for part in value])
    return value


def short_name(path: str | os.PathLike[str]) -> str:
    """What a card calls a file or folder: its last part, or "local" for the working directory and those above it."""
    name = Path(_path(os.fspath(path))).name
    return name if name not in ("", "..", "~") else "local"


def shareable_command(words: Sequence[str]) -> str:
    """A command line as a shell takes it; `--flag=/a/path` counts as a path too."""
    return shlex.join(_word(word) for word in words)


def command_line() -> str:
    """The command that is running."""
    called = Path(sys.argv[0])
    program = ["python", sys.argv[0]] if called.suffix == ".py" else [called.name]
    if called.parts[-2:] == ("hf_px", "cli.py"):  # python -m hf_px.cli
        program = ["hf-px"]
    return shareable_command([*program, *sys.argv[1:]])


def _command(text: Any) -> Any:
    """Word by word, since a path may hold a blank; as it was typed where no word needs a change."""
    try:
        words = shlex.split(text)
    except (ValueError, AttributeError):  # a quote that is never closed: its words cannot be told apart; or no text
        return text if shareable(text) == text else f"{text.split()[0]} …"
    return text if all(_word(word) == word for word in words) else shareable_command(words)


def _word(word: str) -> str:
    flag, equals, value = word.partition("=")
    return f"{flag}={_text(value)}" if equals and flag.startswith("-") else _text(word)


def _text(text: str) -> str:
    if _URL.match(text):
        return _address(text)
    if text.startswith(("/", "~")) or _WINDOWS.match(text) or ".." in re.split(r"[\\/]", text):
        return _path(text)
    # these two are known to be paths where blanks hide it from the pattern
    text = text.replace(f"{Path.cwd()}{os.sep}", "").replace(os.path.expanduser("~") + os.sep, "~/")
    return _IN_TEXT.sub(lambda found: _path(found.group()), text)


def _address(url: str) -> str:
    """Without a password, and without a query, which may be a signature. A file: URL is a path."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _path(parts.path)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _path(text: str) -> str:
    if _WINDOWS.match(text) and os.name != "nt":
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1]
    path, here = Path(os.path.abspath(os.path.expanduser(text))), Path.cwd()
    if path.is_relative_to(here) or here.is_relative_to(path):
        return Path(os.path.relpath(path, here)).as_posix()  # `..` for one above, whose name may be the user's
    if path == Path(os.path.expanduser("~")):
        return "~"
    return path.name
