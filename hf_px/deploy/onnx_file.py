"""ONNX: one file of graph and weights, by torch.onnx.export(dynamo=True), run by ONNX Runtime.

Opset 18 is the one that torch's translations are written in, so that nothing is converted a second time; ONNX Runtime
reads it from 1.14 on. Weights are dense: ONNX Runtime makes sparse initialisers dense, and OpenVINO does not read them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.errors import ExportError
from .request import Parts, Request
from .traced import quiet

OPSET = 18
_MOST_BYTES = 2**31 - 2**20  # protobuf's limit, and room for the graph


def write(program: ExportedProgram, wanted: Request) -> Parts:
    """The contents of the file."""
    size = sum(t.nbytes for t in program.state_dict.values())
    if size > _MOST_BYTES:
        raise ExportError(
            f"the weights take {size:,} bytes, and an ONNX file holds 2 GiB; set `half`, or `to` openvino"
        )
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    # attention as products and a softmax: torch's fused kernel for CPUs returns other strides than its translation
    with quiet(), sdpa_kernel(SDPBackend.MATH):
        made: Any = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=wanted.names[:1],
            output_names=wanted.names[1:],
            verbose=False,
        )
        ClearMetadataAndDocStringPass()(made.model)  # of every node: the code that it comes from
        for value in (*made.model.graph.inputs, *made.model.graph.outputs):
            _name_batch(value)
        made.model.metadata_props.update(wanted.metadata)
        buffer = io.BytesIO()
        made.save(buffer)
    return (buffer.getvalue(),)


def _name_batch(value: Any) -> None:
    """torch's symbol of a number that may vary, s77, is called batch."""
    import onnx_ir

    sides = value.shape.dims
    value.shape = onnx_ir.Shape(["batch" if isinstance(side, onnx_ir.SymbolicDim) else side for side in sides])


def run(parts: Parts, threads: int) -> Callable[[Tensor], Tensor]:
    """The file in ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(parts[0], options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])
