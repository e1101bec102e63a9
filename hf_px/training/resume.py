"""--resume: may this run continue? Its settings, data and weights must be those of the run in the directory.

results.json may be shared and holds no path of this machine. So the full settings are also in `.cache/huggingface` of
the run directory, which `hf upload` and HfApi.upload_folder skip, with a .gitignore beside them. loop.py decides
where training continues: at the newest checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.files import write_atomic
from ..core.shareable import shareable

FOLDER = Path(".cache") / "huggingface"
LOCAL_SETTINGS = "hf_px.json"
_AS_BEFORE = {"of": "weights"}  # values of newer options that mean what older versions did


def check_resumable(directory: Path, found: Mapping[str, Any], settings: Mapping[str, Any], resume: bool) -> None:
    """An error if the directory holds a run with other settings, or an unfinished one that is not to be resumed."""
    old, new = read_local(directory), resolved(settings)
    if old is None:
        old, new = shareable(found["settings"]), shareable(dict(settings))
    differing = [key for key in {**new, **old} if not _same_setting(key, old, new)]
    if differing:
        key = differing[0]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise ValueError(
            f"`output_dir` {directory} holds another run: {key} was {old.get(key)!r}, now {new.get(key)!r}{more}; name "
            "another directory, or add `overwrite`"
        )
    if not found["finished"] and not resume:
        raise ValueError(
            f"`output_dir` {directory} holds this run, unfinished; `resume` continues it, `overwrite` starts again"
        )


def check_digests(directory: Path, results: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Refuse to continue with other data or weights of the same name."""
    for what, was in results.get("digests", {}).items():
        if digests.get(what) != was:
            raise ValueError(
                f"`output_dir` {directory} holds a run on other {what}, or they have changed since; name another "
                "directory, or add `overwrite`"
            )


def _same_setting(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """An option that an older version did not have is the same as one that is off."""
    if key not in old:
        return new[key] in (None, False, [], _AS_BEFORE.get(key))
    return key in new and old[key] == json.loads(json.dumps(new[key]))


def resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with absolute paths, so that two spellings of one folder are equal."""
    return {key: _resolved(value) if isinstance(value, str) else value for key, value in settings.items()}


def _resolved(value: str) -> str:
    path = os.path.expanduser(value)
    return os.path.realpath(path) if ("/" in path or path in (".", "..")) and os.path.exists(path) else value


def write_local(directory: Path, settings: Mapping[str, Any]) -> None:
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / ".gitignore", b"*\n")
    text = json.dumps({"settings": resolved(settings)}, indent=1, ensure_ascii=False)
    write_atomic(folder / LOCAL_SETTINGS, f"{text}\n".encode())


def read_local(directory: Path) -> dict[str, Any] | None:
    """None if there are none: the run is of an older version, or was copied here."""
    try:
        settings = json.loads((directory / FOLDER / LOCAL_SETTINGS).read_text(encoding="utf-8"))["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return settings if isinstance(settings, dict) else None
