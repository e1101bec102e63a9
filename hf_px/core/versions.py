"""versions(): what the numbers in a file were made with."""

from __future__ import annotations

import platform
from importlib import metadata

from .. import __version__

PACKAGES = ("torch", "timm", "transformers")


def versions(*more: str) -> dict[str, str]:
    """{package: version} of hf-px, Python, torch, timm, transformers and `more`."""
    return {
        "hf-px": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in (*PACKAGES, *more)},
    }
