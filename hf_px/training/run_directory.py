"""A run's output directory: results.json, which grows as results come, checkpoints, and in the end the ticket.

One directory, one run: another one's is never written over unasked.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from .. import __version__
from ..core.errors import DisagreementError
from ..core.files import closed_above, left_over, write_atomic
from ..core.shareable import shareable
from .local_settings import FOLDER, read_local, resolved, write_local

NAME = "results.json"
TRACKED = "hf_px"  # the project, and the folder where tensorboard keeps it
T = TypeVar("T")
_HELD: dict[str, Any] = {}


class Run:
    """`results` is what results.json holds: settings, versions, and all that was measured so far.

    `settings` are those that the command asks for, with paths in full. results.json is to be shared and has them as
    `shareable` writes them; in full they stay in a file that is never pushed, for a resume to compare with.
    """

    def __init__(
        self, directory: Path, results: dict[str, Any], settings: Mapping[str, Any], writes: bool = True
    ) -> None:
        self.directory, self.results, self._settings, self._writes = directory, results, dict(settings), writes
        if results["finished"]:
            self._remove_checkpoints()  # killed just before it did so itself

    @classmethod
    def open(
        cls, directory: Path, kind: str, settings: Mapping[str, Any], *, resume: bool, overwrite: bool
    ) -> dict[str, Any]:
        """The results so far of the run that this directory is for, or fresh ones; an error if it holds another."""
        found = _read(directory, kind)
        # with nothing found yet, nothing can be lost: a run that was refused may be tried again with other settings
        begun = found is not None and (found["finished"] or found["results"] or (directory / "checkpoints").is_dir())
        if found is not None and begun and not overwrite:
            old, new = read_local(directory), resolved(settings)
            if old is None:
                old, new = shareable(found["settings"]), shareable(dict(settings))
            differing = [key for key in {**new, **old} if not _same(key, old, new)]
            if differing:
                key = differing[0]
                was, now = old.get(key), new.get(key)
                more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
                raise ValueError(
                    f"output_dir {directory} holds another run: {key} was {was!r}, now {now!r}{more}; name another "
                    "directory with --output_dir, or add --overwrite"
                )
            if not found["finished"] and not resume:
                raise ValueError(
                    f"output_dir {directory} holds this run, unfinished; --resume goes on where it was stopped, "
                    "--overwrite starts again"
                )
            return found
        return {
            "written_by": f"hf_px {kind}",
            "finished": False,
            "settings": dict(settings),
            "versions": versions(),
            "results": {},
            "history": {},
            "seconds": {},
        }

    def check_digests(self, digests: Mapping[str, str]) -> None:
        """Refuse to go on with other data or weights; settings tell them apart only where they are known in full."""
        for what, was in self.results.get("digests", {}).items():
            if digests.get(what) != was:
                raise ValueError(
                    f"output_dir {self.directory} holds a run on other {what} than these, or they have changed since; "
                    "name another directory with --output_dir, or add --overwrite"
                )

    def begin(self, overwrite: bool) -> None:
        """From here on the directory is this run's: after all that can be refused, when data and weights are here."""
        if self._writes:
            if overwrite:
                (self.directory / NAME).unlink(missing_ok=True)
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                shutil.rmtree(self.directory / TRACKED, ignore_errors=True)
            self.directory.mkdir(parents=True, exist_ok=True)
            for path in [path for path in self.directory.glob(".*") if left_over(path.name)]:
                path.unlink()  # of a run that was killed
            write_local(self.directory, self._settings)  # first: whoever reads results.json finds them
        self.write()

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def write(self) -> None:
        """Put what is known so far on disk, on the one process that writes."""
        if self._writes:
            write_atomic(self.directory / NAME, as_text(self.results))

    def finish(self) -> None:
        self.results["finished"] = True
        self.write()
        self._remove_checkpoints()

    def _remove_checkpoints(self) -> None:
        if self._writes:
            shutil.rmtree(self.checkpoints, ignore_errors=True)


def check_output(directory: Path, kind: str) -> None:
    """Refuse a directory that cannot be written to, or holds things that are not ours, before any work."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"output_dir {directory} is a file; name a directory")
    held = [path.name for path in directory.iterdir() if not left_over(path.name)] if directory.is_dir() else []
    held = [name for name in held if name != FOLDER.parts[0]]  # all that is there, if a run was killed as it began
    if held and _read(directory, kind) is None:
        raise ValueError(f"output_dir {directory} holds other files, and no run of {kind}; name another directory")
    if (closed := closed_above(directory)) is not None:
        raise ValueError(f"output_dir {directory}: {closed} cannot be written to")


def claim(directory: Path, patience: float = 10.0) -> None:
    """Hold the directory while this process lives; an error if another one does.

    A launcher that is killed may leave its processes at work, and --resume would start a second run beside them. What
    is held is a file in the machine's own folder for such: not all shared file systems know locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return
    name = hashlib.sha256(str(directory.expanduser().resolve()).encode()).hexdigest()[:16]
    path = os.path.join(tempfile.gettempdir(), f"hf_px-{os.getuid()}-{name}.lock")
    if path in _HELD:
        return
    file = open(path, "ab")  # noqa: SIM115  held until the process ends
    deadline = time.monotonic() + patience  # decoders of images outlive the one that they work for by a moment
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _HELD[path] = file
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise ValueError(
                    f"output_dir {directory}: another process is at work on it; wait for it, or stop it"
                ) from None
            time.sleep(0.2)


def on_main(accelerator: Any, work: Callable[[], T]) -> T:
    """What `work` gives or raises on the main process, on every process: none waits for one that has stopped."""
    from accelerate.utils import broadcast_object_list

    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = error
    if accelerator.num_processes > 1:
        broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def agreed(accelerator: Any, what: str, value: T) -> T:
    """The value, if it is the same on every process: they must have read the same checkpoint."""
    from accelerate.utils import gather_object

    everyone = gather_object([value]) if accelerator.num_processes > 1 else [value]
    if any(other != everyone[0] for other in everyone):
        raise DisagreementError(
            f"{what} differs between processes: {everyone}; do all machines see the same output_dir and cache?"
        )
    return value


def versions() -> dict[str, str]:
    named = ("torch", "torchvision", "timm", "transformers", "datasets", "accelerate")
    return {
        "hf-px": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in named},
    }


def _read(directory: Path, kind: str) -> dict[str, Any] | None:
    try:
        found = json.loads((directory / NAME).read_text(encoding="utf-8"))
        return found if found["written_by"] == f"hf_px {kind}" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def as_text(results: Mapping[str, Any]) -> bytes:
    """What results.json holds: no path of this machine."""
    text = json.dumps(_plain(shareable(results)), indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def _plain(value: Any) -> Any:
    """JSON has no nan and no inf, which the loss of a pruned and untrained network may be: null."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _same(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return key in old and key in new and old[key] == json.loads(json.dumps(new[key]))


def report(results: Mapping[str, Any], directory: Path, repo: str | None = None) -> str:
    """What the run found, as a table, and the line that loads its ticket."""
    found, mask, sizes = results["results"], results["mask"], results["bytes"]
    metrics = [name for name, value in found["ticket"].items() if isinstance(value, float) and name != "loss"]
    weights = {name: mask["total"] if "dense" in name else mask["kept"] for name in found}
    stored = {"dense": sizes["dense"], "ticket": sizes.get("ticket.safetensors", sizes.get("model.safetensors"))}
    titles = {
        "dense": "dense", "ridge_dense": "dense, before training, ridge head", "pruned": "pruned, before training",
        "ridge": "pruned, before training, ridge head", "ticket": "ticket",
    }  # fmt: skip
    rows = [["", *metrics, "weights", "bytes"]]
    for name, title in titles.items():
        if name in found:
            bytes_ = f"{stored[name]:,}" if name in stored else ""
            rows.append([title, *(f"{found[name][metric]:.2%}" for metric in metrics), f"{weights[name]:,}", bytes_])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
        for row in rows
    )
    return (
        f"\n{results['data']['title']}, {results['data']['test']:,} test images; "
        f"sparsity {mask['sparsity']:.2%} by {results['settings'].get('scorer', results['written_by'])}\n\n{table}\n\n"
        f"wrote {directory}: the ticket, its card (README.md) and {NAME}; load it with\n"
        f'    import hf_px; model = hf_px.from_pretrained("{repo or directory}")'
    )
