"""Names of exported files beside a ticket. optimum looks for others, and may not prepare images as hf_px does."""

from __future__ import annotations

from pathlib import Path

# {format: its files, the one that a runtime is given first}
EXPORTED = {"onnx": ("ticket.onnx",), "openvino": ("ticket.xml", "ticket.bin"), "torch": ("ticket.pt2",)}


def exported_sizes(directory: Path) -> dict[str, int]:
    """{file: bytes} of the exported files in a directory."""
    names = [name for files in EXPORTED.values() for name in files]
    return {name: path.stat().st_size for name in names if (path := directory / name).is_file()}
