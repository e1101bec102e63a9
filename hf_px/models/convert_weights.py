"""convert(checkpoint) → the backbone's tensors by the names that its architecture has, and what was left over.

Strict: a checkpoint has the entries that its authors gave it. What is known not to belong to the backbone (the head of
a pretext task, a second network, a queue) is left over and named; anything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

# where the weights lie in a checkpoint that holds more than them
ENTRIES = ("state_dict", "model", "model_state_dict")
# put before every name by wrappers
WRAPPERS = ("module.", "_orig_mod.")


class Weights(NamedTuple):
    tensors: dict[str, Tensor]
    left: list[str]  # one line for each tensor left over, or for each group of them


def plain(checkpoint: Mapping[str, Any]) -> Weights:
    """A state_dict, by itself or among other entries; the names are the architecture's, but for a wrapper's prefix."""
    entry = next((e for e in ENTRIES if isinstance(checkpoint.get(e), Mapping)), None)
    state = checkpoint[entry] if entry else checkpoint
    beside = [str(name) for name in checkpoint if entry and name != entry]
    tensors = _tensors(state)
    for prefix in WRAPPERS:
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return Weights(tensors, beside)


def moco(checkpoint: Mapping[str, Any]) -> Weights:
    """MoCo v2 by its authors: the query encoder `module.encoder_q.`, without `fc.`, the projection."""
    query, head = "module.encoder_q.", "module.encoder_q.fc."
    others = ("module.encoder_k.", "module.queue")  # the key encoder and its queue serve the training alone
    state = checkpoint.get("state_dict")
    if not isinstance(state, Mapping) or not any(str(name).startswith(query) for name in state):
        found = state if isinstance(state, Mapping) else checkpoint
        raise ValueError(
            f"not a checkpoint of MoCo v2: no {query} among {_some(found)}; for weights in timm's own "
            "names, name the architecture resnet50"
        )
    tensors = _tensors(state)
    body = {name: t for name, t in tensors.items() if name.startswith(query) and not name.startswith(head)}
    left = [name for name in tensors if name not in body]
    _refuse([name for name in left if not name.startswith((head, *others))], "MoCo v2")
    beside = [str(name) for name in checkpoint if name != "state_dict"]
    return Weights(
        {name.removeprefix(query): tensor for name, tensor in body.items()}, grouped(left, (head, *others)) + beside
    )


def dino(checkpoint: Mapping[str, Any]) -> Weights:
    """DINO by its authors: a state_dict of the backbone, or the whole run, of which `teacher` is what they evaluate."""
    whole = "teacher" in checkpoint
    state = checkpoint["teacher"] if whole else checkpoint
    if not isinstance(state, Mapping):
        raise ValueError("not a checkpoint of DINO: its teacher holds no tensors")
    tensors = _tensors(state)
    for prefix in WRAPPERS:
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    heads = ("head.", "fc.")
    left = [name for name in tensors if name.startswith(heads)]
    body = {name: tensor for name, tensor in tensors.items() if name not in left}
    if any(name.startswith("backbone.") for name in body):
        _refuse([name for name in body if not name.startswith("backbone.")], "DINO")
        body = {name.removeprefix("backbone."): tensor for name, tensor in body.items()}
    beside = [str(name) for name in checkpoint if name != "teacher"] if whole else []
    return Weights(body, grouped(left, heads) + beside)


def by_blocks(tensors: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """torchvision's names for a ResNet (conv1, bn1, layer2.0., linear or fc) → ours (conv, bn, blocks.3., fc)."""

    def renamed(name: str) -> str:
        name = re.sub(r"^(conv|bn)1\.", r"\1.", name)
        name = re.sub(r"^layer(\d+)\.(\d+)\.", lambda m: f"blocks.{depth * (int(m[1]) - 1) + int(m[2])}.", name)
        return re.sub(r"^linear\.", "fc.", name).replace(".downsample.", ".shortcut.")

    return {renamed(name): tensor for name, tensor in tensors.items()}


def grouped(names: Iterable[str], prefixes: tuple[str, ...] = ()) -> list[str]:
    """['module.encoder_k.* (322 tensors)', 'extra']: names that share one of the prefixes, in one line."""
    found: dict[str, list[str]] = {}
    for name in names:
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        found.setdefault(name if prefix is None else f"{prefix}*", []).append(name)
    return [each[0] if len(each) == 1 else f"{group} ({len(each)} tensors)" for group, each in found.items()]


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    odd = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if odd or not state:
        raise ValueError(
            f"no state_dict: {odd[0] if odd else 'it'} holds no tensor; weights are looked for at the top and under "
            f"{', '.join(ENTRIES)}"
        )
    return {str(name): value for name, value in state.items()}


def _refuse(names: list[str], whose: str) -> None:
    if names:
        raise ValueError(f"{_some(names)}: no part of a {whose} checkpoint; was the file changed?")


def _some(names: Iterable[Any]) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
