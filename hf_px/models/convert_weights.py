"""convert(checkpoint) → the backbone's tensors under the names of its architecture, and a list of what is not used.

Strict: entries that are known not to belong to the backbone (the head of a pretext task, a second network, a queue) are
listed as unused; any other unknown entry is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ..core.text import name_list

ENTRIES = ("state_dict", "model", "model_state_dict")  # entries of a checkpoint that holds more than the weights
WRAPPERS = ("module.", "_orig_mod.")  # prefixes added by DDP and torch.compile


class Converted(NamedTuple):
    tensors: dict[str, Tensor]
    unused: list[str]  # one line for each tensor that is not used, or for each group of them


def convert_state_dict(checkpoint: Mapping[str, Any]) -> Converted:
    """A state_dict, by itself or among other entries, with the architecture's own names after a wrapper's prefix."""
    entry = next((e for e in ENTRIES if isinstance(checkpoint.get(e), Mapping)), None)
    state = checkpoint[entry] if entry else checkpoint
    others = [str(name) for name in checkpoint if entry and name != entry]
    tensors = _tensors(state)
    for prefix in WRAPPERS:
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return Converted(tensors, others)


def convert_moco(checkpoint: Mapping[str, Any]) -> Converted:
    """MoCo v2 by its authors: the query encoder `module.encoder_q.`, without `fc.`, the projection."""
    query, head = "module.encoder_q.", "module.encoder_q.fc."
    training_only = ("module.encoder_k.", "module.queue")
    state = checkpoint.get("state_dict")
    if not isinstance(state, Mapping) or not any(str(name).startswith(query) for name in state):
        names = state if isinstance(state, Mapping) else checkpoint
        raise ValueError(
            f"not a checkpoint of MoCo v2: no {query} among {name_list(names, 5)}; for weights under timm's names "
            "set `architecture` to resnet50"
        )
    tensors = _tensors(state)
    body = {name: t for name, t in tensors.items() if name.startswith(query) and not name.startswith(head)}
    unused = [name for name in tensors if name not in body]
    _refuse([name for name in unused if not name.startswith((head, *training_only))], "MoCo v2")
    others = [str(name) for name in checkpoint if name != "state_dict"]
    return Converted(
        {name.removeprefix(query): tensor for name, tensor in body.items()},
        grouped(unused, (head, *training_only)) + others,
    )


def convert_dino(checkpoint: Mapping[str, Any]) -> Converted:
    """DINO by its authors: a state_dict of the backbone, or a full training checkpoint, whose `teacher` is used."""
    full = "teacher" in checkpoint
    state = checkpoint["teacher"] if full else checkpoint
    if not isinstance(state, Mapping):
        raise ValueError("not a checkpoint of DINO: its teacher holds no tensors")
    tensors = _tensors(state)
    for prefix in WRAPPERS:
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    heads = ("head.", "fc.")
    unused = [name for name in tensors if name.startswith(heads)]
    body = {name: tensor for name, tensor in tensors.items() if name not in unused}
    if any(name.startswith("backbone.") for name in body):
        _refuse([name for name in body if not name.startswith("backbone.")], "DINO")
        body = {name.removeprefix("backbone."): tensor for name, tensor in body.items()}
    others = [str(name) for name in checkpoint if name != "teacher"] if full else []
    return Converted(body, grouped(unused, heads) + others)


def stages_to_blocks(tensors: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """torchvision's names for a ResNet (conv1, bn1, layer2.0., linear or fc) → ours (conv, bn, blocks.3., fc)."""

    def renamed(name: str) -> str:
        name = re.sub(r"^(conv|bn)1\.", r"\1.", name)
        name = re.sub(r"^layer(\d+)\.(\d+)\.", lambda m: f"blocks.{depth * (int(m[1]) - 1) + int(m[2])}.", name)
        return re.sub(r"^linear\.", "fc.", name).replace(".downsample.", ".shortcut.")

    return {renamed(name): tensor for name, tensor in tensors.items()}


def grouped(names: Iterable[str], prefixes: tuple[str, ...]) -> list[str]:
    """['module.encoder_k.* (322 tensors)', 'extra']: one line for the names that share a prefix."""
    groups: dict[str, list[str]] = {}
    for name in names:
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        groups.setdefault(name if prefix is None else f"{prefix}*", []).append(name)
    return [each[0] if len(each) == 1 else f"{group} ({len(each)} tensors)" for group, each in groups.items()]


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    odd = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if odd or not state:
        raise ValueError(
            f"no state_dict: {odd[0] if odd else 'it'} holds no tensor; weights are expected at the top level or under "
            f"{', '.join(ENTRIES)}"
        )
    return {str(name): value for name, value in state.items()}


def _refuse(names: list[str], method: str) -> None:
    if names:
        raise ValueError(f"{name_list(names, 5)}: not part of a {method} checkpoint; was the file changed?")
