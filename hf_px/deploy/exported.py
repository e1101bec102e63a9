"""Export: the files of an exported ticket, in memory until they are written, and what is known of them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.files import write_atomic
from ..models.remote import disk_error


@dataclass(frozen=True)
class Export:
    """An exported ticket: `files` are {name beside a ticket: bytes}, as push_to_hub(files=) takes them."""

    runtime: str
    files: Mapping[str, bytes] = field(repr=False)
    metadata: Mapping[str, str] = field(repr=False)
    input: str  # its name, shape and range
    images: int  # compared on
    difference: float  # largest difference of outputs, relative to the largest output of the ticket
    tolerance: float

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.files.values()))

    def gzip_bytes(self) -> int:
        """What gzip makes of the files; it finds the zeros."""
        packers = [(zlib.compressobj(wbits=31), data) for data in self.files.values()]
        return sum(len(packer.compress(data)) + len(packer.flush()) for packer, data in packers)

    def write(self, output: str | os.PathLike[str]) -> list[Path]:
        """Write the files as `output`, or beside it with their own suffixes; each is complete or absent."""
        output = Path(output).expanduser()
        paths = {output.with_suffix(Path(name).suffix): data for name, data in self.files.items()}
        try:
            if len(paths) > 1:  # a graph of before would find new weights
                next(iter(paths)).unlink(missing_ok=True)
            for path, data in reversed(paths.items()):  # the graph last
                write_atomic(path, data)
        except OSError as error:
            raise disk_error(error, output.parent) from error
        return list(paths)

    def lines(self) -> list[str]:
        """What a command prints of it."""
        names, opset = self.metadata.get("class_names"), self.metadata.get("opset")
        about = [f"opset {opset}"] if opset else []
        about += ["digest, preprocessing and class names inside" if names else "digest and preprocessing inside"]
        return [
            f"input   {self.input}; {', '.join(about)}",
            f"checked in {self.runtime} on {self.images} images: differs from the ticket by {self.difference:.1e} of "
            f"the largest output, {self.tolerance:g} is allowed",
            f"size    {self.nbytes:,} bytes: the weights are dense, zeros too; {self.gzip_bytes():,} with gzip",
        ]
