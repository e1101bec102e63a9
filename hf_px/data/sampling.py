"""Examples to prune with: |D| per class, drawn once by a seed, in B = ceil(|D|·|C| / b) batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..prune_config import DEFAULT_PER_CLASS

BATCH_SIZE = 100  # images per batch of a pruning set


class LabelledImages(NamedTuple):
    images: Tensor  # N x C x H x W, float32, normalised
    labels: Tensor  # N, int64


def pruning_set(images: Tensor, labels: Tensor, per_class: int = DEFAULT_PER_CLASS, seed: int = 0) -> LabelledImages:
    """`per_class` examples of every class; classes alternate, so that each batch is balanced too."""
    chosen = balanced(labels, per_class, seed)
    return LabelledImages(images[chosen], labels[chosen])


def balanced(labels: Tensor, per_class: int, seed: int = 0, names: Sequence[str] | None = None) -> Tensor:
    """Indices of `per_class` examples of each class that occurs, or of each class in `names`."""
    if per_class < 1:
        raise ValueError(f"`per_class` is {per_class}; a pruning set needs at least 1 example per class")
    if not len(labels):
        raise ValueError("the data set is empty; there is nothing to draw a pruning set from")
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for label in range(len(names)) if names else labels.unique().tolist():
        members = (labels == label).nonzero().view(-1)
        if len(members) < per_class:
            name = f"class {label}" + (f" ({names[label]})" if names and names[label] != str(label) else "")
            hint = "lower `per_class`" if len(members) else "is it in the test split only?"
            raise ValueError(f"{name} has {len(members)} examples, `per_class` is {per_class}; {hint}")
        drawn.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
    return torch.stack(drawn, dim=1).view(-1)


def some_of(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """Indices of `count` examples, balanced over classes up to one, drawn by `seed`; in ascending order.

    A class with fewer examples gives all of them, and the others give more.
    """
    if not 1 <= count <= len(labels):
        raise ValueError(f"`count` is {count}, there are {len(labels)} examples")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    # rank of each example within its class; sorted by rank, classes alternate
    place = torch.empty_like(order)
    for label in labels.unique():
        members = order[labels[order] == label]
        place[members] = torch.arange(len(members))
    return order[place[order].sort(stable=True).indices[:count]].sort().values


def held_out(labels: Tensor, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(rest, held): indices, `share` of each class held out, drawn by `seed`; a class with one example keeps it."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().view(-1)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return (~held).nonzero().view(-1), held.nonzero().view(-1)


def batches_of(images: Tensor, labels: Tensor, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """ceil(n / batch_size) batches of equal size up to one: BatchNorm cannot normalise a last batch of one image."""
    if batch_size < 1:
        raise ValueError(f"`batch_size` is {batch_size}; it must be at least 1")
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images, but {len(labels)} labels")
    count = -(-len(images) // batch_size)
    return list(zip(images.tensor_split(count), labels.tensor_split(count))) if count else []
