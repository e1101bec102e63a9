"""What a format is asked to write, the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Parts = tuple[bytes, ...]  # the contents of a format's files, in their order


@dataclass(frozen=True)
class Request:
    """Names of input and output, metadata, shape of the input, whose batch may be "dynamic"."""

    names: tuple[str, str]
    metadata: Mapping[str, str]
    shape: tuple[int | str, ...]
    half: bool
