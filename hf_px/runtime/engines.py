"""Other runtimes on the dense model, to compare with: ONNX Runtime and OpenVINO, where they are installed."""

from __future__ import annotations

import importlib.util
import io
import logging
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from ..core.forward import output_tensor


class Engine(nn.Module):
    """A function of images as a module, so that it can be timed beside others."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x)


def other_engines(model: nn.Module, x: Tensor) -> dict[str, Engine]:
    """{name: the dense model in another runtime} for those installed, in float32, with torch's number of threads."""
    makers = {"ONNX Runtime": ("onnxruntime", _onnx_runtime), "OpenVINO": ("openvino", _openvino)}
    wanted = {name: make for name, (package, make) in makers.items() if importlib.util.find_spec(package)}
    if not wanted or not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        return {}
    data = _onnx_bytes(model, x)
    return {name: Engine(make(data)) for name, make in wanted.items()}


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return output_tensor(self.model(x))


def _onnx_bytes(model: nn.Module, x: Tensor) -> bytes:
    buffer, logger = io.BytesIO(), logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(_Logits(model).eval(), (x,), dynamo=True, optimize=True)
            program.save(buffer)
    finally:
        logger.setLevel(level)
    return buffer.getvalue()


def _onnx_runtime(data: bytes) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def _openvino(data: bytes) -> Callable[[Tensor], Tensor]:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(data, b""), "CPU", {**settings, "PERFORMANCE_HINT": "LATENCY"})
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])
