"""Settings of a run in full, with the paths of this machine: for a resume, never to be shared.

They lie in `.cache/huggingface` of the run's directory, which `hf upload` and HfApi.upload_folder leave out by
themselves, with a .gitignore beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.files import write_atomic

FOLDER = Path(".cache") / "huggingface"
NAME = "hf_px.json"


def resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """With paths as they are from anywhere: two spellings of one folder are the same setting."""
    return {key: _resolved(value) if isinstance(value, str) else value for key, value in settings.items()}


def _resolved(value: str) -> str:
    path = os.path.expanduser(value)
    return os.path.realpath(path) if ("/" in path or path in (".", "..")) and os.path.exists(path) else value


def write_local(directory: Path, settings: Mapping[str, Any]) -> None:
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / ".gitignore", b"*\n")
    text = json.dumps({"settings": resolved(settings)}, indent=1, ensure_ascii=False)
    write_atomic(folder / NAME, f"{text}\n".encode())


def read_local(directory: Path) -> dict[str, Any] | None:
    """None where there are none: a run of an older version, or one that came from elsewhere."""
    try:
        settings = json.loads((directory / FOLDER / NAME).read_text(encoding="utf-8"))["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return settings if isinstance(settings, dict) else None
