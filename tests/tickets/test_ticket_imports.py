"""Loading a ticket imports few modules of hf_px, and none that only pruning, training or reports need."""

from __future__ import annotations

import subprocess
import sys

from support.places import REPO

EXAMPLE = REPO / "model_cards" / "examples" / "resnet20-digits-px-path-98"
UNNEEDED = ("scorers", "figures", "report", "training", "paths", "analysis", "data", "pruning", "cli")
MOST_MODULES = 28


def test_loading_a_ticket_imports_few_modules() -> None:
    code = f"import sys, hf_px; hf_px.from_pretrained({str(EXAMPLE)!r}); print(*sys.modules, sep='\\n')"
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    modules = [name for name in result.stdout.split() if name.split(".")[0] == "hf_px"]
    assert "hf_px.tickets.ticket" in modules
    assert not [name for name in modules if name.split(".")[1:2] and name.split(".")[1] in UNNEEDED]
    assert len(modules) <= MOST_MODULES, sorted(modules)
