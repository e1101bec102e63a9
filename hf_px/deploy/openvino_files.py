"""OpenVINO: a graph, .xml, and its weights, .bin, by OpenVINO's own converter."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from .request import Parts, Request
from .traced import quiet

SECTION = "hf_px"  # of the graph's rt_info


def write(program: ExportedProgram, wanted: Request) -> Parts:
    """The contents of both files. In half precision the weights are stored in float16."""
    import openvino

    with quiet(), _no_telemetry():
        model = openvino.convert_model(program)
        # the converter leaves height and width open
        model.reshape([-1 if isinstance(side, str) else side for side in wanted.shape])
        model.input().set_names({wanted.names[0]})
        model.output().set_names({wanted.names[1]})
        _name_by_position(model)
        for key, text in wanted.metadata.items():
            model.set_rt_info(text, [SECTION, key])
        with tempfile.TemporaryDirectory(prefix="hf-px-export-") as folder:
            path = Path(folder) / "ticket.xml"
            openvino.save_model(model, path, compress_to_fp16=wanted.half)
            return path.read_bytes(), path.with_suffix(".bin").read_bytes()


def run(parts: Parts, threads: int) -> Callable[[Tensor], Tensor]:
    """The files on the CPU, computed in float32."""
    import numpy as np
    import openvino

    xml, weights = parts
    core: Any = openvino.Core()
    # by default OpenVINO computes in bfloat16 or float16 where the processor can
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    model = core.read_model(xml, openvino.Tensor(np.frombuffer(weights, np.uint8)))
    compiled = core.compile_model(model, "CPU", settings)
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])


def _name_by_position(model: Any) -> None:
    """Equal networks get equal files; OpenVINO's own names count what this process has made before."""
    model.set_friendly_name("ticket")
    for i, op in enumerate(model.get_ordered_ops()):
        op.set_friendly_name(f"{op.get_type_name()}_{i}")


@contextmanager
def _no_telemetry() -> Iterator[None]:
    """The converter reports each conversion to Intel, unless it runs in a CI job."""
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before
