"""Which examples to prune by: |D| per class, balanced, seeded, drawn once; B = ceil(|D|·|C| / b) batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Examples(NamedTuple):
    images: Tensor  # N x C x H x W, float32, normalised
    labels: Tensor  # N, int64


def pruning_set(images: Tensor, labels: Tensor, per_class: int = 10, seed: int = 0) -> Examples:
    """`per_class` examples of every class, class by class in turn, so that any stretch of them is balanced too."""
    chosen = balanced(labels, per_class, seed)
    return Examples(images[chosen], labels[chosen])


def balanced(labels: Tensor, per_class: int, seed: int = 0, names: Sequence[str] | None = None) -> Tensor:
    """Indices of `per_class` examples of each class: of each that occurs, or of each that `names` lists."""
    if per_class < 1:
        raise ValueError(f"per_class is {per_class}; a pruning set needs at least 1 example per class")
    if not len(labels):
        raise ValueError("the data set is empty; there is nothing to draw a pruning set from")
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for label in range(len(names)) if names else labels.unique().tolist():
        members = (labels == label).nonzero().view(-1)
        if len(members) < per_class:
            name = f"class {label}" + (f" ({names[label]})" if names and names[label] != str(label) else "")
            way = "ask for fewer" if len(members) else "is it in the test split only?"
            raise ValueError(f"{name} has {len(members)} examples, {per_class} per class asked; {way}")
        drawn.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
    return torch.stack(drawn, dim=1).view(-1)


def some_of(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """Indices of `count` examples, as many of each class up to one, drawn by `seed`; in their old order.

    A class that has fewer gives all, and the others make up for it.
    """
    if not 1 <= count <= len(labels):
        raise ValueError(f"{count} examples asked, there are {len(labels)}")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    # the place of each example among those of its class, in that order: first all firsts, then all seconds, …
    place = torch.empty_like(order)
    for label in labels.unique():
        members = order[labels[order] == label]
        place[members] = torch.arange(len(members))
    return order[place[order].sort(stable=True).indices[:count]].sort().values


def batches_of(images: Tensor, labels: Tensor, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """ceil(n / batch_size) batches, sizes equal up to one: a last batch of one image would have no statistics."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images, but {len(labels)} labels")
    count = -(-len(images) // batch_size)
    return list(zip(images.tensor_split(count), labels.tensor_split(count))) if count else []
