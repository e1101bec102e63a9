"""The formats by name: what each needs, how it is written, and how it is run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor
from torch.export import ExportedProgram

from ..core.errors import ExportError
from ..tickets.exported_files import EXPORTED
from . import onnx_file, openvino_files, torch_file
from .request import Parts, Request


@dataclass(frozen=True)
class Format:
    title: str  # of the runtime
    files: tuple[str, ...]  # beside a ticket; the first is the one that a runtime is given
    packages: tuple[str, ...]
    write: Callable[[ExportedProgram, Request], Parts]
    run: Callable[[Parts, int], Callable[[Tensor], Tensor]]  # on so many threads, 0: as many as the runtime likes
    metadata: Mapping[str, str] = field(default_factory=dict)
    halves_network: bool = True  # False: its writer rounds the weights, and its runtime chooses the arithmetic

    @property
    def suffix(self) -> str:
        return Path(self.files[0]).suffix

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]

    def check_installed(self) -> None:
        if missing := self.missing():
            raise ExportError(f"{self.title} needs {', '.join(missing)}: pip install 'hf-px[export]'")


FORMATS = {
    "onnx": Format(
        "ONNX Runtime",
        EXPORTED["onnx"],
        ("onnx", "onnxscript", "onnxruntime"),
        onnx_file.write,
        onnx_file.run,
        metadata={"opset": str(onnx_file.OPSET)},
    ),
    "openvino": Format(
        "OpenVINO",
        EXPORTED["openvino"],
        ("openvino",),
        openvino_files.write,
        openvino_files.run,
        halves_network=False,
    ),
    "torch": Format("torch.export", EXPORTED["torch"], (), torch_file.write, torch_file.run),
}
