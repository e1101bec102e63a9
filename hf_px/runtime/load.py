"""from_pretrained(…, runtime=): the model of a ticket, dense, or sparse straight from the packed file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from ..tickets.stored_dtype import DtypeName, torch_dtype
from ..tickets.ticket import Ticket

Runtime = Literal["dense", "sparse"]


def from_pretrained(
    repo_or_dir: str | os.PathLike[str],
    *,
    runtime: Runtime = "dense",
    num_classes: int | None = None,
    dtype: DtypeName | torch.dtype | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> nn.Module:
    """The model of a ticket with its zeros: a timm, transformers or hf_px module, in eval mode.

    Another `num_classes` than the ticket's gives it a newly initialised head, and warns. With `runtime="sparse"` it is
    a model for inference on the CPU that skips its zeros (see `fast`); dense tensors are never made from a packed file.
    `dtype` is that of the model. By default a ticket that was saved with `dtype` is float32, which runs on any CPU, and
    any other has the dtype of the model that was saved. The sparse runtime always computes in float32.
    """
    if runtime not in get_args(Runtime):
        raise ValueError(f"`runtime` is {runtime!r}; expected {' or '.join(get_args(Runtime))}")
    if runtime == "sparse" and dtype is not None and torch_dtype(dtype) is not torch.float32:
        raise ValueError(f"`dtype` {dtype}: the sparse runtime computes in float32; omit it, or take `runtime` dense")
    download: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
    if runtime == "sparse" and num_classes is None:
        from .packed import load_packed  # here: loading a dense model does not need it

        found = load_packed(repo_or_dir, revision=revision, **download)
        assert found is not None  # None is for `only_compiled`
        return found
    ticket = Ticket.from_pretrained(repo_or_dir, revision=revision, **download)
    model = ticket.to_model(num_classes=num_classes, dtype=dtype)
    if runtime == "dense":
        return model
    from .fast import fast

    return fast(nn.Module.float(model))  # transformers' own float() refuses models with a quantizer, as tickets have
