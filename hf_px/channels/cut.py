"""Cut a set of channel classes out of a model: the widths that stay, and the numbers that the forward pass reads."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from .classes import Channels
from .widths import HEADS, INNER, Widths


def widths_without(model: nn.Module, channels: Channels, removed: set[int], biases: tuple[str, ...] = ()) -> Widths:
    kept = channels.kept(removed)
    for name in biases:
        rows = kept.get(f"{name[:-4]}weight", [None])[0]
        if rows is not None:
            kept[name] = [rows]
    full = {name: tuple(channels.shapes.get(name) or channels.shapes[f"{name[:-4]}weight"][:1]) for name in kept}
    return Widths(kept, full, _attributes(model, channels, removed), biases)


def cut_copy(model: nn.Module, widths: Widths) -> nn.Module:
    return widths.cut_(copy.deepcopy(model))


def _attributes(model: nn.Module, channels: Channels, removed: set[int]) -> dict[str, dict[str, int]]:
    """New numbers of heads of the modules that lose any."""
    gone, found = torch.tensor(sorted(removed)), {}
    for name, classes in channels.heads.items():
        if not bool(torch.isin(classes, gone).any()):
            continue
        module = model.get_submodule(name)
        values: dict[str, int] = {}
        for attribute in HEADS:
            heads = getattr(module, attribute, None)
            if isinstance(heads, int) and len(classes) % heads == 0:
                first = classes[:heads]  # windows of an image come one after another, with the same heads
                left = int((~torch.isin(first, gone)).sum())
                values[attribute] = left
                for inner in INNER:
                    if isinstance(width := getattr(module, inner, None), int):
                        values[inner] = width * left // heads
        if values:
            found[name] = values
    return found


def families(channels: Channels, classes: set[int]) -> list[set[int]]:
    """These classes by the layer that makes them: its code takes fewer of all or of none."""
    left, found = set(classes), []
    for use in channels.linear:
        if family := left & set(use.outputs.tolist()):
            found.append(family)
            left -= family
    return found + ([left] if left else [])


def refused(parts: list[set[int]], works: Callable[[set[int]], bool]) -> set[int]:
    """The classes of the parts that cannot go, found by halving: few forward passes where most can."""
    if not parts or works(set().union(*parts)):
        return set()
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    found = refused(parts[:half], works) | refused(parts[half:], works)
    left = [part for part in parts if not part <= found]
    return found if found and works(set().union(*left)) else set().union(*parts)
