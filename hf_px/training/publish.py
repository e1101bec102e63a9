"""results.json → ticket, card, Hub: every number on a card comes from results.json."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from torch import nn

from ..core.errors import first_line
from ..core.files import write_atomic
from ..core.mask import Mask
from ..core.shareable import shareable, shareable_command
from ..models.image_config import PROCESSOR
from ..models.remote import hub_errors
from ..tickets.card import PREDICTIONS, SPEED
from ..tickets.directory import Layout
from ..tickets.ticket import Ticket
from .alarms import dense_is_broken
from .run_directory import RESULTS, results_bytes

_BESIDE = (RESULTS, PROCESSOR, PREDICTIONS, SPEED)
# already on the card, or without effect on the ticket
_NOT_ON_CARD = {"scorer", "sparsity", "layout", "dtype", "eval_epochs", "dense", "device", "deterministic", "compile"}


def save_run_ticket(
    directory: Path,
    model: nn.Module,
    mask: Mask,
    results: Mapping[str, Any],
    layout: Layout,
    predictions: bytes | None = None,
) -> dict[str, int]:
    """Write the ticket of a run and its card; returns the bytes of each file, and of the dense tensors."""
    if predictions is None:  # before the card, which shows the file if there is one
        (directory / PREDICTIONS).unlink(missing_ok=True)
    else:
        write_atomic(directory / PREDICTIONS, predictions)
    (directory / SPEED).unlink(missing_ok=True)
    if results.get("speed"):
        write_atomic(directory / SPEED, (json.dumps(results["speed"], indent=1) + "\n").encode())
    base, revision = results["model"]["base"], results["model"]["revision"]
    on_hub = base is not None and base.count("/") == 1  # else the address of a file, which is one of the settings
    Ticket(
        model.cpu(),
        mask,
        base=base if on_hub else None,
        base_revision=revision if on_hub else None,
        license=results["model"]["license"],
        scorer=results["settings"]["scorer"],
        settings=card_settings(results) | ({} if on_hub or base is None else {"weights_from": base}),
        results=card_results(results),
        command=results["command"],
        repair=results.get("repair"),
        shrunk=results.get("shrunk"),
    ).save_pretrained(directory, layout=layout, dtype=results["settings"].get("dtype"))
    sizes = {path.name: path.stat().st_size for path in sorted(directory.glob("*.safetensors"))}
    shrunk = results.get("shrunk")
    dense = shrunk["bytes"][0] if shrunk else sum(t.numel() * t.element_size() for t in model.state_dict().values())
    return sizes | {"dense": dense}


def push(directory: Path, repo: str, *, private: bool, layout: Layout) -> str:
    """Push the ticket of a run with the files next to it; returns the URL of the commit."""
    return Ticket.from_pretrained(directory).push_to_hub(
        repo, private=private or None, layout=layout, files=files_beside(directory)
    )


def files_beside(directory: Path) -> dict[str, bytes]:
    """Files that are pushed with a ticket: results.json, the image processor's config and the picture of predictions.

    A file that is not of the type in its name is refused: in an untrusted directory it may be a link to a secret.
    """
    found = {name: (directory / name).read_bytes() for name in _BESIDE if (directory / name).is_file()}
    for name, data in found.items():
        if name.endswith(".png"):
            good = data.startswith(b"\x89PNG\r\n\x1a\n")
        else:
            try:
                good = isinstance(json.loads(data), dict)
            except (ValueError, RecursionError):
                good = False
        if not good:
            raise ValueError(
                f"{directory / name}: damaged, or not what its name says; remove it to continue without it"
            )
    if RESULTS in found and shareable(old := json.loads(found[RESULTS])) != old:  # of a run of an older version
        found[RESULTS] = results_bytes(old)
    return found


def card_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """The settings on the card; options that are off are left out."""
    settings = results["settings"]
    off = {"lr_drop_factor"} if settings.get("lr_schedule") != "step" else set()
    off |= {"distill_temperature"} if not settings.get("distill") else set()
    off |= {"repair_images"} if "repair" not in results else set()
    off |= {"gradient_accumulation"} if settings.get("gradient_accumulation") == 1 else set()
    off |= {"per_class", "prune_batch_size"} if settings["scorer"] in ("imp", "magnitude", "random") else set()
    off |= {"head", "keep"}  # in weights_before and beside the numbers
    found = {
        key: value
        for key, value in settings.items()
        if key not in _NOT_ON_CARD | off and (value not in (None, [], "", "no", False) or key == "seed")
    }
    mask, model = results["mask"], results["model"]
    found["images"] = "x".join(map(str, model["images"]["input_size"]))
    found |= {"keep_dense": ", ".join(mask["keep_dense"])} if mask.get("keep_dense") else {}
    found |= {"classes_without_a_weight": ", ".join(mask["silent_classes"])} if mask.get("silent_classes") else {}
    found |= {"cited": model["citation"]} if model.get("citation") else {}
    found["weights_before"] = "random" if not model["trained"] else "trained"
    if model["trained"] and model["new_head"]:
        modules = dict.fromkeys(name.partition(".")[0] for name in model["new_head"])
        start = "from the ridge solution" if model.get("head") == "ridge" else "random"
        found["weights_before"] += f", but {start} in {', '.join(modules)}"
    return found | results.get("notes", {})


def card_results(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The card's numbers: each metric of the ticket and of its dense twin."""
    data, found = results["data"], results["results"]
    pruned = found.get("pruned", {})
    note = f"{data['test']:,} images, {_epoch_in_words(results)}, seed {results['settings']['seed']}"
    by_class = {"mean_iou": "iou"}  # a metric, and the values per class that it is the mean of
    dense = {} if dense_is_broken(results) else found.get("dense", {})  # no comparison that the run says is broken
    return [
        {
            "dataset": data["dataset"],
            "dataset_name": data["title"],
            "split": data["split"],
            "metric": metric,
            "value": value,
            "dense": dense.get(metric),
            "note": f"{note}; {pruned[metric]:.4f} before training" if pruned.get(metric) is not None else note,
            "task": data.get("task"),
            "by_class": found["ticket"].get(by_class.get(metric)),
            "dense_by_class": dense.get(by_class.get(metric)),
            "warning": " ".join(results.get("alarms", [])) or None,
        }
        for metric, value in found["ticket"].items()
        if isinstance(value, float) and metric != "loss"
    ]


def _epoch_in_words(results: Mapping[str, Any]) -> str:
    if results.get("keep") != "best":
        return "last epoch"
    history = results["history"]["ticket"]
    part = "val" if any("val_loss" in row for row in history) else "test"
    images = f"{results['data']['validation']:,} other images held out" if part == "val" else "these same images"
    if results.get("kept_epoch", {}).get("ticket") == 0:
        return f"as before training, which none of {history[-1]['epoch']} epochs improves, by {images}"
    return f"the best of {history[-1]['epoch']} epochs by {images}"


def check_repo(repo: str | None) -> None:
    """Refuse an impossible repo name, without the network."""
    if repo is None:
        return
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ValueError(f"`push_to_hub` {repo}: not owner/name ({first_line(error)})") from error
    if repo.count("/") != 1:
        raise ValueError(f"`push_to_hub` {repo}: the name of a repo is owner/name")


def check_login(repo: str) -> None:
    """Check the login now, not after hours of training."""
    if get_token() is None:
        raise ValueError(f"`push_to_hub` {repo}: nobody is logged in; run hf auth login, or set HF_TOKEN")
    with hub_errors(repo, None):
        HfApi().whoami()


def command(processes: int) -> str:
    """The running command, without --resume and --overwrite."""
    argv = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    program = ["python"]
    if "ACCELERATE_MIXED_PRECISION" in os.environ:  # set by accelerate launch
        program = ["accelerate", "launch", *(["--num_processes", str(processes)] if processes > 1 else [])]
    return shareable_command([*program, sys.argv[0], *argv])
