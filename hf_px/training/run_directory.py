"""Run directory: results.json, which grows as results come in, checkpoints, and in the end the ticket.

A directory holds one run. Another run overwrites it only if asked to. resume.py decides whether a run may continue.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..core.errors import DisagreementError
from ..core.files import is_temporary, try_lock, unwritable_parent, write_atomic
from ..core.processes import gather
from ..core.shareable import shareable
from ..core.text import text_table
from ..core.versions import versions
from ..tickets.directory import describe_sizes
from ..tickets.ticket_file import DENSE, PACKED
from .resume import FOLDER, check_resumable, write_local

RESULTS = "results.json"
TRACKER_PROJECT = "hf_px"  # also the folder that tensorboard writes to
T = TypeVar("T")
_HELD: dict[str, Any] = {}  # locked files, open until the process ends


class Run:
    """`results` is the content of results.json: settings, versions, and all that was measured so far.

    `settings` are those of the command, with full paths. results.json may be shared, so it holds them as `shareable`
    writes them; the full ones stay in a file that is never pushed, for a resume to compare with.
    """

    def __init__(self, directory: Path, results: dict[str, Any], settings: Mapping[str, Any], writes: bool) -> None:
        self.directory, self.results, self._settings, self._writes = directory, results, dict(settings), writes
        if results["finished"]:
            self._remove_checkpoints()  # the run was killed just before it did so itself

    @classmethod
    def open(
        cls, directory: Path, recipe: str, settings: Mapping[str, Any], *, resume: bool, overwrite: bool
    ) -> dict[str, Any]:
        """The results so far of the run in this directory, or fresh ones; an error if it holds another run."""
        found = _read(directory, recipe)
        # a run without results can be started again with other settings: nothing is lost
        begun = found is not None and (found["finished"] or found["results"] or (directory / "checkpoints").is_dir())
        if found is not None and begun and not overwrite:
            check_resumable(directory, found, settings, resume)
            return found
        return {
            "written_by": f"hf_px {recipe}",
            "finished": False,
            "settings": dict(settings),
            "versions": run_versions(),
            "results": {},
            "history": {},
            "seconds": {},
        }

    def begin(self, overwrite: bool) -> None:
        """Take over the directory, after all checks, when data and weights are loaded."""
        if self._writes:
            if overwrite:
                (self.directory / RESULTS).unlink(missing_ok=True)
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                shutil.rmtree(self.directory / TRACKER_PROJECT, ignore_errors=True)
            self.directory.mkdir(parents=True, exist_ok=True)
            for path in [path for path in self.directory.glob(".*") if is_temporary(path.name)]:
                path.unlink()  # left by a killed run
            write_local(self.directory, self._settings)  # before results.json, which a reader opens first
        self.write()

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def write(self) -> None:
        """Write results.json, on the main process only."""
        if self._writes:
            write_atomic(self.directory / RESULTS, results_bytes(self.results))

    def finish(self) -> None:
        self.results["finished"] = True
        self.write()
        self._remove_checkpoints()

    def _remove_checkpoints(self) -> None:
        if self._writes:
            shutil.rmtree(self.checkpoints, ignore_errors=True)


def check_output(directory: Path, recipe: str) -> None:
    """Refuse a directory that is not writable or holds other files, before any work."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"`output_dir` {directory} is a file; name a directory")
    held = [path.name for path in directory.iterdir() if not is_temporary(path.name)] if directory.is_dir() else []
    held = [name for name in held if name != FOLDER.parts[0]]  # may be alone, if a run was killed as it began
    if held and _read(directory, recipe) is None:
        raise ValueError(f"`output_dir` {directory} holds other files, and no run of {recipe}; name another directory")
    if (parent := unwritable_parent(directory)) is not None:
        raise ValueError(f"`output_dir` {directory}: {parent} is not writable")


def hold(directory: Path, patience: float = 10.0) -> None:
    """Lock the directory while this process lives; an error if another process holds it.

    A killed launcher may leave its processes running, and --resume would start a second run beside them. The lock is a
    file in the machine's temporary folder, since not all shared file systems have locks.
    """
    name = hashlib.sha256(str(directory.expanduser().resolve()).encode()).hexdigest()[:16]
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = os.path.join(tempfile.gettempdir(), f"hf_px-{user}-{name}.lock")
    if path in _HELD:
        return
    file = open(path, "ab")  # noqa: SIM115  held until the process ends
    deadline = time.monotonic() + patience  # image decoders outlive their parent by a moment
    while not try_lock(file):
        if time.monotonic() > deadline:
            file.close()
            raise ValueError(f"`output_dir` {directory}: is in use by another process; wait for it, or stop it")
        time.sleep(0.2)
    _HELD[path] = file


def run_versions() -> dict[str, str]:
    """Versions of what a run depends on."""
    return versions("torchvision", "datasets", "accelerate")


def on_main(accelerator: Any, work: Callable[[], T]) -> T:
    """Run `work` on the main process; every process gets its result, or its error."""
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


def check_agreed(what: str, value: Any) -> None:
    """Refuse a value that differs between processes: all must have read the same checkpoint."""
    everyone = gather(value)
    if any(other != everyone[0] for other in everyone):
        raise DisagreementError(
            f"{what} differs between processes: {everyone}; do all machines see the same output_dir and cache?"
        )


def _read(directory: Path, recipe: str) -> dict[str, Any] | None:
    try:
        found = json.loads((directory / RESULTS).read_text(encoding="utf-8"))
        return found if found["written_by"] == f"hf_px {recipe}" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def results_bytes(results: Mapping[str, Any]) -> bytes:
    """The bytes of results.json, without paths of this machine."""
    text = json.dumps(_finite(shareable(results)), indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def _finite(value: Any) -> Any:
    """JSON has no nan and no inf, which the loss of an untrained network may be: they become null."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def results_table(results: Mapping[str, Any], directory: Path, repo: str | None, before: bool = False) -> str:
    """The results as a table, and the line that loads the ticket; `before`: an earlier command finished the run."""
    found, mask, sizes = results["results"], results["mask"], results["bytes"]
    metrics = [name for name, value in found["ticket"].items() if isinstance(value, float) and name != "loss"]
    outside = mask.get("outside", 0)  # weights of layers that were left out on purpose
    weights = {name: outside + (mask["total"] if "dense" in name else mask["kept"]) for name in found}
    but = f" ({mask['masked_sparsity']:.2%} of the layers not excluded)" if outside else ""
    stored = {"dense": sizes["dense"], "ticket": sizes.get("ticket.safetensors", sizes.get("model.safetensors"))}
    titles = {
        "dense": "dense", "ridge_dense": "dense, before training, ridge head", "pruned": "pruned, before training",
        "ridge": "pruned, before training, ridge head", "ticket": "ticket",
    }  # fmt: skip
    rows = [["", *metrics, "weights", "bytes to download"]]
    for name, title in titles.items():
        if name in found:
            size = f"{stored[name]:,}" if name in stored else ""
            rows.append([title, *(f"{found[name][metric]:.2%}" for metric in metrics), f"{weights[name]:,}", size])
    method = results["settings"].get("scorer", results["written_by"])
    speed = ""
    if times := results.get("speed"):
        ratio = times["dense_ms"] / times["sparse_ms"]
        speed = (
            f"one image on one thread: dense {times['dense_ms']:.3g} ms, ticket {times['sparse_ms']:.3g} ms, "
            f"{ratio:.2g} times as fast\n\n"
        )
    held = f"the ticket, its card (README.md) and {RESULTS}"
    done = f"wrote {directory}: {held}"
    if before:
        done = f"{directory} holds this run, finished before: {held}; nothing was written (--overwrite runs it again)"
    warnings = "".join(f"WARNING: {alarm}\n" for alarm in results.get("alarms", []))
    files = {name: size for name, size in sizes.items() if name in (PACKED, DENSE)}
    done += f"\n{describe_sizes(files, 'shrunk' in results)}" if files else ""
    return (
        f"\n{results['data']['title']}, {results['data']['test']:,} test images; "
        f"sparsity {mask['sparsity']:.2%}{but} by {method}\n\n{text_table(rows)}\n\n{warnings}{speed}"
        f"{done}\nload it with\n"
        f'    import hf_px; model = hf_px.from_pretrained("{repo or directory}")'
    )
