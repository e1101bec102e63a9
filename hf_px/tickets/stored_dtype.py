"""A ticket in float16 or bfloat16: tensors of two or more dimensions are rounded, vectors stay in float32.

Convolutions, linear layers, embeddings and tokens have nearly all of the bytes, and rounding moves them by at most
2^-11 (float16) or 2^-9 (bfloat16) of their value. Vectors are biases, scales and running statistics: they are few, an
error in one moves every output of its channel, and a running variance may be beyond what float16 can hold.

`ticket["dtype"]` in the file's header records it. Such a ticket loads in float32, which runs on every CPU, unless
`dtype` asks for another; one of a model that was in half precision itself loads as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from ..core.errors import TicketError
from .ticket_file import Contents

DtypeName = Literal["float32", "float16", "bfloat16"]
HALF = ("float16", "bfloat16")
_STORED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """torch.float16 of "float16" or torch.float16."""
    name = str(dtype).removeprefix("torch.")
    if name not in get_args(DtypeName):
        raise ValueError(f"`dtype` {name!r:.40}: choose one of {', '.join(get_args(DtypeName))}")
    found: torch.dtype = getattr(torch, name)
    return found


def recorded_dtype(ticket: Mapping[str, Any]) -> DtypeName | None:
    """float16 or bfloat16 if an untrusted ticket says that its weights were rounded to it; None otherwise."""
    name = ticket.get("dtype")
    return cast(DtypeName, name) if isinstance(name, str) and name in HALF else None


def stored_dtype(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype that a tensor has in a ticket of this dtype."""
    if not tensor.is_floating_point():
        return tensor.dtype
    return dtype if tensor.dim() > 1 else torch.promote_types(tensor.dtype, torch.float32)


def rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as a ticket of this dtype stores it; a number that would become infinite is an error."""
    found = tensor.detach().to(stored_dtype(tensor, dtype))
    if found.dtype is tensor.dtype:
        return found
    lost = tensor.detach()[torch.isinf(found) & torch.isfinite(tensor)]
    if len(lost):
        advice = "set `dtype` to bfloat16, which reaches further" if dtype is torch.float16 else "omit `dtype`"
        most = torch.finfo(found.dtype).max
        raise TicketError(
            f"{name}: {float(lost[0]):.6g} does not fit in {str(dtype).removeprefix('torch.')}, whose largest number "
            f"is {most:.6g}; {advice}"
        )
    return found


def round_(model: nn.Module, dtype: str | torch.dtype | None) -> nn.Module:
    """θ ← θ rounded as a ticket of this dtype stores it; None changes nothing. The model keeps its own dtype."""
    if dtype is None:
        return model
    for name, tensor in model.state_dict().items():
        tensor.copy_(rounded(name, tensor, torch_dtype(dtype)))
    return model


def rounded_contents(contents: Contents, dtype: str | torch.dtype) -> Contents:
    """The contents with their weights in this dtype; results that were measured before the rounding say so."""
    target = torch_dtype(dtype)
    name, tensors = str(target).removeprefix("torch."), contents.tensors or {}
    found = {key: rounded(key, tensor, target) for key, tensor in tensors.items()}
    # equal to the dtype's own rounding error: a second rounding changes nothing
    moved = any(not torch.equal(found[key].to(tensor.dtype), tensor) for key, tensor in tensors.items())
    ticket = {key: value for key, value in contents.ticket.items() if key != "dtype"}
    if name in HALF:
        ticket["dtype"] = name
    if moved and isinstance(results := ticket.get("results"), list):
        before = f"before the weights were rounded to {name}"
        ticket["results"] = [r | {"note": "; ".join(filter(None, [r.get("note"), before]))} for r in results]
    return replace(contents, tensors=found, ticket=ticket, model=_with_dtype(contents.model, torch.float32))


def contents_to_load(contents: Contents, dtype: str | torch.dtype | None) -> tuple[Contents, torch.dtype | None]:
    """(contents whose floating tensors are in the dtype to load, that dtype); None: every tensor as it is stored."""
    tensors = contents.tensors or {}
    if dtype is not None:
        target = torch_dtype(dtype)
    elif recorded_dtype(contents.ticket) is None:
        return contents, None
    else:  # float64 if there is any
        target = torch.float32
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.dtype not in _STORED:
                raise TicketError(f"{name}: is stored as {tensor.dtype}, which no ticket has; the file is damaged")
            target = torch.promote_types(target, tensor.dtype) if tensor.is_floating_point() else target
    found = {name: t.to(target) if t.is_floating_point() else t for name, t in tensors.items()}
    loaded = None if contents.tensors is None else found
    return replace(contents, tensors=loaded, model=_with_dtype(contents.model, target)), target


def _with_dtype(record: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A transformers config names the dtype in which the model is loaded."""
    return record | {"dtype": str(dtype).removeprefix("torch.")} if "model_type" in record else record


def check_stored(contents: Contents) -> str | None:
    """Check the dtype that the ticket records against its tensors; a line that says it, None if it records none."""
    if "dtype" not in contents.ticket or contents.tensors is None:
        return None
    name = recorded_dtype(contents.ticket)
    if name is None:
        raise TicketError(f"records the dtype {contents.ticket['dtype']!r:.40}, not one of {', '.join(HALF)}")
    for key, tensor in contents.tensors.items():
        want = stored_dtype(tensor, torch_dtype(name))
        if tensor.dtype is not want:
            raise TicketError(f"{key}: {tensor.dtype}, but a ticket in {name} stores it in {want}; is it damaged?")
    return f"weights in {name}, biases and normalisation in float32"
