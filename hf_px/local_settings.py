"""Settings of a run in full, with the paths of this machine: for a resume, never to be shared.

They lie in `.cache/huggingface` of the run's directory, which `hf upload` and HfApi.upload_folder leave out by
themselves, with a .gitignore beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .store import write_atomic

FOLDER = Path(".cache") / "huggingface"
NAME = "hf_px.json"


def write_local(directory: Path, settings: Mapping[str, Any]) -> None:
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / ".gitignore", b"*\n")
    write_atomic(folder / NAME, (json.dumps({"settings": settings}, indent=1, ensure_ascii=False) + "\n").encode())


def read_local(directory: Path) -> dict[str, Any] | None:
    """None where there are none: a run of an older version, or one that came from elsewhere."""
    try:
        settings = json.loads((directory / FOLDER / NAME).read_text(encoding="utf-8"))["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return settings if isinstance(settings, dict) else None
