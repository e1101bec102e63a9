"""preview_push(…): what a push would make public, without the network: files, and the commands and paths in them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import constants

from ..core.shareable import COMMAND, shareable
from ..core.text import plain
from ..models.config_marks import WIDTHS
from ..models.image_config import PROCESSOR
from .card import CARD, CHART, PREDICTIONS, SPEED
from .directory import CONFIG
from .exported_files import EXPORTED
from .image_processor import processor_file
from .save import check_repo_id, checked_contents, deleted_files, staged
from .ticket_file import DENSE, PACKED, read_header

if TYPE_CHECKING:
    from .ticket import Ticket

_LONGEST = 200  # characters of a line that is shown
_NOTES = {
    CARD: "the card; left out if the repo has one that was edited by hand",
    CHART: "the card's chart",
    CONFIG: "the architecture, for any library",
    DENSE: "weights with their zeros, for any library",
    PACKED: "weights, for hf_px",
    PROCESSOR: "how images are prepared, for transformers",
    PREDICTIONS: "the card's picture: images of the test set; delete the file to keep them to yourself",
    SPEED: "the card's times",
    **dict(zip(EXPORTED["onnx"], ["for ONNX Runtime and others"])),
    **dict(zip(EXPORTED["openvino"], ["for OpenVINO: the graph", "for OpenVINO: the weights"])),
    **dict(zip(EXPORTED["torch"], ["for torch alone"])),
}

_NOTES_OF_CUT = {CONFIG: "the architecture and the widths that are left, for hf_px", DENSE: "weights, for hf_px"}


@dataclass(frozen=True)
class PushPreview:
    address: str
    sizes: dict[str, int]  # {file: bytes}
    deleted: tuple[str, ...]  # files that the push removes from the repo
    commands: tuple[str, ...]  # command lines in the files
    names: tuple[str, ...]  # paths and Hub names in the commands
    leaks: tuple[str, ...]  # "file: text" for every path of this machine
    notes: Mapping[str, str] = field(default_factory=lambda: _NOTES)


def preview_push(ticket: Ticket, repo_id: str, *, layout: str = "both", files: Mapping[str, bytes]) -> PushPreview:
    """What push_to_hub with these arguments would upload; refuses what it would refuse. Needs no login."""
    contents = checked_contents(ticket, layout)
    check_repo_id(repo_id)
    commands: dict[str, None] = {}  # an ordered set
    leaks: dict[str, None] = {}
    with staged(contents, layout, repo_id, processor_file(ticket) | dict(files)) as folder:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        sizes = {path.name: path.stat().st_size for path in paths}
        for path in paths:
            for key, text in _texts(path):
                shown = plain(text, _LONGEST)
                if key == COMMAND:
                    commands[plain(text, 10 * _LONGEST)] = None
                if shareable({key: text}) != {key: text}:
                    leaks[f"{path.name}: {shown}"] = None
    names = dict.fromkeys(name for command in commands for name in _names(command))
    address = f"{constants.ENDPOINT}/{repo_id}"
    notes = _NOTES | (_NOTES_OF_CUT if WIDTHS in contents.model else {})
    deleted = tuple(deleted_files(layout, files))
    return PushPreview(address, sizes, deleted, tuple(commands), tuple(names), tuple(leaks), notes)


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """(key, text) of every string in a JSON file or in a ticket's header; ("", line) of every line of a card."""
    if path.suffix == ".safetensors":
        header = read_header(path) or {}
        yield from _strings({key: header.get(key) for key in ("ticket", "model")})
    elif path.suffix == ".json":
        yield from _strings(json.loads(path.read_text(encoding="utf-8")))
    elif path.suffix == ".md":
        yield from (("", line) for line in path.read_text(encoding="utf-8").splitlines())


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _strings(part, str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part, key)


def _names(command: str) -> Iterator[str]:
    """Words of a command line with a slash, and what follows the = of a flag."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is never closed
        words = command.split()
    for word in words[1:]:
        value = word.partition("=")[2] if word.startswith("-") else word
        if "/" in value or "\\" in value or value.startswith("~"):
            yield value
