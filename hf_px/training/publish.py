"""results.json → ticket, card, Hub: every number on a card is one that the run wrote down."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
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
from ..models.image_config import PROCESSOR, processor_config
from ..models.remote import explained
from ..tickets.card import PREDICTIONS
from ..tickets.directory import Layout
from ..tickets.ticket import Ticket
from .run_directory import NAME, as_text

_BESIDE = (NAME, PROCESSOR, PREDICTIONS)
# beside what the card says already, and what matters to a machine only
_NOT_ON_CARD = {"scorer", "sparsity", "layout", "eval_epochs", "dense", "device", "deterministic", "compile"}


def save_ticket(
    directory: Path, model: nn.Module, mask: Mask, told: Mapping[str, Any], images: Mapping[str, Any], layout: Layout,
    predictions: bytes | None = None,
) -> dict[str, int]:  # fmt: skip
    """Write the ticket of a run that found `told`, and its card; the bytes of each file, and of the dense tensors."""
    if predictions is None:  # before the card, which shows what is there
        (directory / PREDICTIONS).unlink(missing_ok=True)
    else:
        write_atomic(directory / PREDICTIONS, predictions)
    base, revision = told["model"]["base"], told["model"]["revision"]
    on_hub = base is not None and base.count("/") == 1  # else the address of a file, which stands among the settings
    Ticket(
        model.cpu(),
        mask,
        base=base if on_hub else None,
        base_revision=revision if on_hub else None,
        license=told["model"]["license"],
        scorer=told["settings"]["scorer"],
        settings=card_settings(told) | ({} if on_hub or base is None else {"weights_from": base}),
        results=card_results(told),
        command=told["command"],
    ).save_pretrained(directory, layout=layout)
    if hasattr(model, "config"):  # a transformers model does not say what images it takes; timm's records do
        write_atomic(directory / PROCESSOR, (json.dumps(processor_config(images), indent=2) + "\n").encode())
    sizes = {path.name: path.stat().st_size for path in sorted(directory.glob("*.safetensors"))}
    return sizes | {"dense": sum(t.numel() * t.element_size() for t in model.state_dict().values())}


def push(directory: Path, repo: str, *, private: bool, layout: Layout) -> str:
    """The ticket of a directory to the Hub, with what lies beside it; the commit's address."""
    return Ticket.from_pretrained(directory).push_to_hub(
        repo, private=private or None, layout=layout, files=beside(directory)
    )


def beside(directory: Path) -> dict[str, bytes]:
    """Files of a run that belong to its ticket and go where it goes: numbers, what images it takes, what it sees.

    Each is what its name says, or it is refused: in a directory of somebody else's it may be a link to a secret.
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
            raise ValueError(f"{directory / name}: damaged, or not what its name says; remove it to go on without it")
    if NAME in found and shareable(told := json.loads(found[NAME])) != told:  # of a run of an older version
        found[NAME] = as_text(told)
    return found


def card_settings(told: Mapping[str, Any]) -> dict[str, Any]:
    """What made the ticket what it is: knobs that are off say nothing."""
    knobs = told["settings"]
    off = {"lr_drop_factor"} if knobs.get("lr_schedule") != "step" else set()
    off |= {"distill_temperature"} if not knobs.get("distill") else set()
    off |= {"gradient_accumulation"} if knobs.get("gradient_accumulation") == 1 else set()
    off |= {"per_class", "prune_batch_size"} if knobs["scorer"] in ("imp", "magnitude", "random") else set()
    found = {
        key: value
        for key, value in knobs.items()
        if key not in _NOT_ON_CARD | off and (value not in (None, [], "", "no", False) or key == "seed")
    }
    mask, cited = told["mask"], told["model"].get("citation")
    found["images"] = "x".join(map(str, told["model"]["images"]["input_size"]))
    found |= {"kept_whole": ", ".join(mask["whole"])} if mask.get("whole") else {}
    found |= {"classes_without_a_weight": ", ".join(mask["silent_classes"])} if mask.get("silent_classes") else {}
    found |= {"cited": cited} if cited else {}
    new = told["model"]["new_head"]
    found["weights_before"] = "random" if not told["model"]["trained"] else "trained"
    found["weights_before"] += f", but random in {_few(new)}" if told["model"]["trained"] and new else ""
    return found | told.get("notes", {})


def _few(names: Sequence[str]) -> str:
    """By their modules: aspp, low, decoder, classifier."""
    return ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))


def card_results(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The card's numbers: each metric of the ticket, and of its dense twin."""
    data, found = told["data"], told["results"]
    pruned = found.get("pruned", {})
    note = f"{data['test']:,} images, last epoch, seed {told['settings']['seed']}"
    by_class = {"mean_iou": "iou"}  # what a metric is the mean of
    return [
        {
            "dataset": data["dataset"],
            "dataset_name": data["title"],
            "split": data["split"],
            "metric": metric,
            "value": value,
            "dense": found.get("dense", {}).get(metric),
            "note": f"{note}; {pruned[metric]:.4f} before training" if pruned.get(metric) is not None else note,
            "task": data.get("task"),
            "by_class": found["ticket"].get(by_class.get(metric)),
            "dense_by_class": found.get("dense", {}).get(by_class.get(metric)),
        }
        for metric, value in found["ticket"].items()
        if isinstance(value, float) and metric != "loss"
    ]


def check_repo(repo: str | None) -> None:
    """Refuse what cannot be the name of a repo; without the network."""
    if repo is None:
        return
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ValueError(f"--push_to_hub {repo}: not owner/name ({first_line(error)})") from error
    if repo.count("/") != 1:
        raise ValueError(f"--push_to_hub {repo}: the name of a repo is owner/name")


def check_login(repo: str) -> None:
    """Ask the Hub who we are now, not after hours of training."""
    if get_token() is None:
        raise ValueError(f"--push_to_hub {repo}: nobody is logged in; run hf auth login, or set HF_TOKEN")
    with explained(repo, None):
        HfApi().whoami()


def command(processes: int) -> str:
    """The command that is running, without what a second try adds to it."""
    argv = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ
    by = (
        ["accelerate", "launch", *(["--num_processes", str(processes)] if processes > 1 else [])]
        if launched
        else ["python"]
    )
    return shareable_command([*by, sys.argv[0], *argv])
