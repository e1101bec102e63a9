"""torch.export: graph and weights as torch's own archive, .pt2, for torch without timm, transformers or hf_px.

Weights are raw bytes in it and the graph is JSON. hf_px writes such files and reads back only what it has just
written: torch.export.load unpickles what a file of somebody else may hold.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import torch
from torch import Tensor
from torch.export import ExportedProgram

from .request import Parts, Request
from .traced import quiet

METADATA = "hf_px.json"


def write(program: ExportedProgram, wanted: Request) -> Parts:
    """The contents of the file."""
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer, extra_files={METADATA: json.dumps(wanted.metadata, ensure_ascii=False)})
    return (buffer.getvalue(),)


def run(parts: Parts, threads: int) -> Callable[[Tensor], Tensor]:
    """The file, which must be our own, in torch, whose threads are those of this process."""
    with quiet():
        network = torch.export.load(io.BytesIO(parts[0])).module()

    def outputs(x: Tensor) -> Tensor:
        with torch.no_grad():
            return network(x)

    return outputs
