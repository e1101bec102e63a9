"""hf_px: find lottery tickets inside vision models, before training.

mask = hf_px.prune(model, "px", sparsity=0.982, batches=batches)
mask.apply_(model)
print(hf_px.summary(model, mask))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import summary
    from .mask import Mask
    from .rounds import list_scorers, prune, score

__version__ = "0.1.0"
__all__ = ["Mask", "__version__", "list_scorers", "prune", "score", "summary"]

# name -> room; imported on first use, so that `import hf_px` and `hf-px --help` are quick
_ROOMS = {"Mask": "mask", "list_scorers": "rounds", "prune": "rounds", "score": "rounds", "summary": "analysis"}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'hf_px' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_ROOMS[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
