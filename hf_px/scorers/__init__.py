"""One method per file; importing the package registers them all.

Imports core and paths. Scorers never import each other.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
