"""load_packed(source): a FastModel from a packed ticket. Kept weights go from the file into the kernels' own format.

Pruned tensors of the module stay on the meta device, which has no memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.forward import input_shape
from ..models import architecture
from ..models.remote import Source
from ..tickets.directory import naming_file, read_ticket
from ..tickets.ticket import Ticket
from ..tickets.ticket_file import Contents
from .fast import FastModel, compile_default, fast
from .kernels import runner
from .weights import SparseWeight


def load_packed(
    repo_or_dir: str | os.PathLike[str], *, progress: bool = True, only_compiled: bool = False, **download: Any
) -> FastModel | None:
    """The sparse model of a ticket; from a dense file or a base model it is made by way of the dense one.

    With `only_compiled`, None if its plan is not on disk yet.
    """
    runner()  # says what to install
    source = Source.of(repo_or_dir, **download)
    contents = read_ticket(source, SparseWeight.from_packed)
    if contents.weights != "packed" or contents.tied or "custom" in contents.model:
        if only_compiled:
            return None
        del contents
        model = Ticket.from_pretrained(repo_or_dir, **download).to_model()
        return fast(nn.Module.float(model), progress=progress)  # transformers' float() refuses a ticket's quantizer
    with naming_file(contents):
        model = _skeleton(contents)
    weights = _sparse_part(contents)

    def read() -> Mapping[str, SparseWeight]:
        """Weights are kept in the compiled program alone; another image size reads the file again."""
        nonlocal weights
        found, weights = weights or _sparse_part(read_ticket(source, SparseWeight.from_packed)), {}
        return found

    found = FastModel(model, read, record=contents.model, progress=progress)
    if only_compiled:
        size = input_shape(model)
        path = found.plan_path(size, weights) if size else None
        if path is None or not path.is_file():
            return None
    del contents
    return compile_default(found, model)


def _sparse_part(contents: Contents) -> dict[str, SparseWeight]:
    state: dict[str, Any] = dict(contents.state_dict())
    return {name: weight for name, weight in state.items() if isinstance(weight, SparseWeight)}


def _skeleton(contents: Contents) -> nn.Module:
    """The module with all tensors but the pruned ones, which are on the meta device."""
    state: dict[str, Tensor] = {}
    for name, tensor in contents.state_dict().items():
        if isinstance(tensor, SparseWeight):
            state[name] = torch.empty(tensor.shape, device="meta")
        else:
            state[name] = tensor.float() if tensor.is_floating_point() else tensor
    architecture.new_head(contents.model, state, None)  # raises if the tensors do not fit the architecture
    return architecture.filled(contents.model, state)
