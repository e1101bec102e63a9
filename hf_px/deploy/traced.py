"""A network as one graph from images to an output tensor, by torch.export; every format is made from it."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..core.errors import ExportError, first_line
from ..core.forward import output_tensor

DYNAMIC = "dynamic"


class ImagesToOutput(nn.Module):
    """y = f(x), or f((x - mean) / std), as one float32 tensor, whatever the model returns and computes in."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, scale: tuple[Tensor, Tensor] | None = None) -> None:
        """`scale` is (mean, std) if the graph is to normalise its images."""
        super().__init__()
        self.model = model
        self.normalises = scale is not None
        mean, std = scale or (torch.zeros(()), torch.ones(()))
        self.register_buffer("mean", mean, persistent=self.normalises)
        self.register_buffer("std", std, persistent=self.normalises)
        self.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)

    def forward(self, images: Tensor) -> Tensor:
        x = (images - self.mean) / self.std if self.normalises else images
        return output_tensor(self.model(x.to(self.dtype))).float()

    def undo(self, x: Tensor) -> Tensor:
        """The images that it takes, from normalised ones."""
        return x * self.std + self.mean if self.normalises else x


def trace(network: nn.Module, size: tuple[int, ...], batch: int | str = DYNAMIC) -> ExportedProgram:
    """The graph for `batch` images of this size, (channels, height, width), or for any number of them."""
    name = type(getattr(network, "model", network)).__name__
    try:
        program = _exported(network, size, batch)
    except Exception as error:  # torch.export may raise anything on code that it cannot follow
        reason = first_line(error)
        if batch == DYNAMIC and _traces(network, size):
            raise ExportError(
                f"{name}: its number of images is fixed while it is traced ({reason}); set `batch` to a number"
            ) from error
        raise ExportError(
            f"{name} cannot be traced by torch.export ({reason}): its code depends on the values of its tensors, or "
            "calls what torch.export does not know; it can run with hf_px alone"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names directories of this machine
    program.example_inputs = None  # or torch.export.save stores them, as a pickle
    return program


def _exported(network: nn.Module, size: tuple[int, ...], batch: int | str) -> ExportedProgram:
    # two images where any number may come: torch.export takes one for a special case
    x = torch.zeros(2 if batch == DYNAMIC else int(batch), *size)
    shapes = ({0: Dim("batch")},) if batch == DYNAMIC else None
    with torch.no_grad(), quiet():
        return torch.export.export(network.eval(), (x,), dynamic_shapes=shapes, strict=False)


def _traces(network: nn.Module, size: tuple[int, ...]) -> bool:
    try:
        _exported(network, size, 1)
    except Exception:  # as above
        return False
    return True


@contextmanager
def quiet() -> Iterator[None]:
    """Without what exporters print and warn of, which users can do nothing about."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
