"""hf_px: find lottery tickets inside vision models, before training, and share them.

mask = hf_px.prune(model, "px", sparsity=0.982, batches=batches)
mask.apply_(model)
hf_px.keep_zeros(model, mask, optimizer)  # then train as usual
hf_px.Ticket(model, mask, scorer="px").push_to_hub("me/my-ticket")
model = hf_px.from_pretrained("me/my-ticket")
ticket = hf_px.compress(model, batches, sparsity=0.8)  # trained weights: prune and repair, without training
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis.summary import summary
    from .channels.shrink import shrink
    from .core.mask import Mask
    from .deploy.export import export
    from .prune_config import PruneConfig
    from .pruning import list_scorers, prune, score
    from .refit.repair import repair
    from .runtime.fast import fast
    from .runtime.load import from_pretrained
    from .sparse_training import keep_zeros
    from .tickets.compression import compress
    from .tickets.ticket import Ticket
    from .tickets.trainer_callback import KeepZeros
    from .tickets.transformers_quantizer import mask_of

__version__ = "0.1.0"
__all__ = [
    "KeepZeros",
    "Mask",
    "PruneConfig",
    "Ticket",
    "__version__",
    "compress",
    "export",
    "fast",
    "from_pretrained",
    "keep_zeros",
    "list_scorers",
    "mask_of",
    "prune",
    "repair",
    "score",
    "shrink",
    "summary",
]

# name -> module, imported on first use: `import hf_px` and `hf-px --help` are quick
_MODULE_OF = {
    "KeepZeros": "tickets.trainer_callback",
    "Mask": "core.mask",
    "PruneConfig": "prune_config",
    "Ticket": "tickets.ticket",
    "compress": "tickets.compression",
    "export": "deploy.export",
    "fast": "runtime.fast",
    "from_pretrained": "runtime.load",
    "keep_zeros": "sparse_training",
    "list_scorers": "pruning",
    "mask_of": "tickets.transformers_quantizer",
    "prune": "pruning",
    "repair": "refit.repair",
    "score": "pruning",
    "shrink": "channels.shrink",
    "summary": "analysis.summary",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hf_px' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _RegisterAfter:
    """Import hook: imports `ours` right after somebody imports `module`.

    transformers loads tickets and timm builds our networks through registries of their own, where hf_px must be
    registered. Importing both for that would make `import hf_px` take five seconds. So the registration waits until
    somebody imports the module with the registry.
    """

    def __init__(self, module: str, ours: str) -> None:
        self.module, self.ours = module, ours

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.module:
            return None
        sys.meta_path.remove(self)  # or the search below would come back here
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: Any) -> None:
                load(module)
                importlib.import_module(self.ours, __name__)

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


for _module, _ours in {
    "transformers.modeling_utils": ".tickets.transformers_quantizer",
    "timm.models": ".models.timm_register",
}.items():
    if _module in sys.modules:
        importlib.import_module(_ours, __name__)
    else:
        sys.meta_path.insert(0, _RegisterAfter(_module, _ours))
