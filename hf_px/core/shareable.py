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
# an absolute path of two parts or more inside a sentence, up to the last slash before a mark: folders may hold blanks
_IN_TEXT = re.compile(
    r"(?<![\w.~/\\)\]}>-])(?:/(?!/)|~[\w.-]*/|\.\.[\\/]|[A-Za-z]:[\\/])[^\"`,;:()<>|\n]+[\\/][^\s'\"`,;:()<>|]*"
)
# anna@server:/data, as scp takes it; from the start of a word, so that a long word is read once and not once a letter
_HOST = re.compile(r"(?<![\w.-])[\w.-]+@[\w.-]+:(?=[~/])")
_HOMES = (Path("/home"), Path("/Users"))


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
    if called.parts[-3:] == ("hf_px", "cli", "__main__.py"):  # python -m hf_px.cli
        program = ["hf-px"]
    return shareable_command([*program, *sys.argv[1:]])


def _command(text: Any) -> Any:
    """Word by word, since a path may hold a blank; as it was typed where no word needs a change."""
    try:
        words = shlex.split(text)
    except (ValueError, AttributeError):  # a quote that is never closed, so its words are unknown; or no text
        return text if shareable(text) == text else f"{text.split()[0]} …"
    return text if all(_word(word) == word for word in words) else shareable_command(words)


def _word(word: str) -> str:
    flag, equals, value = word.partition("=")
    return f"{flag}={_text(value)}" if equals and (flag.startswith("-") or _is_path(value)) else _text(word)


def _text(text: str) -> str:
    if _URL.match(text):
        return _address(text)
    text = _HOST.sub("", text)
    if _is_path(text) or (not _may_be_named(Path.cwd()) and "/" in text and os.path.exists(text)):
        return _path(text)
    # these two are known to be paths, whatever is in them
    text = text.replace(f"{Path.cwd()}{os.sep}", "").replace(_home() + os.sep, "~/")
    return _IN_TEXT.sub(lambda found: _path(found.group()), text)


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~")) or bool(_WINDOWS.match(text)) or ".." in re.split(r"[\\/]", text)


def _home() -> str:
    return os.path.expanduser("~")


def _may_be_named(folder: Path) -> bool:
    """True if paths may be given relative to it. Below / or /home the rest is the full path, or the user's name."""
    return folder != Path(folder.anchor) and folder not in (*_HOMES, *Path(_home()).parents)


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
    if here.is_relative_to(path) or (path.is_relative_to(here) and _may_be_named(here)):
        return Path(os.path.relpath(path, here)).as_posix()  # `..` for one above, whose name may be the user's
    if path == Path(_home()) or path.parent in _HOMES:
        return "~"
    return path.name
