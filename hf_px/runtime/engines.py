"""Other runtimes on the dense model, to compare with: ONNX Runtime and OpenVINO, where they are installed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..deploy.formats import FORMATS
from ..deploy.request import Request
from ..deploy.traced import ImagesToOutput, trace


class Engine(nn.Module):
    """A function of images as a module, so that it can be timed beside others."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x)


def other_engines(model: nn.Module, x: Tensor) -> dict[str, Engine]:
    """{name: the dense model in another runtime} for those installed, in float32, with torch's number of threads."""
    wanted = [FORMATS[name] for name in ("onnx", "openvino") if not FORMATS[name].missing()]
    if not wanted:
        return {}
    program = trace(ImagesToOutput(model), tuple(x.shape[1:]), len(x))
    request = Request(("images", "output"), {}, tuple(x.shape), half=False)
    return {each.title: Engine(each.run(each.write(program, request), torch.get_num_threads())) for each in wanted}
