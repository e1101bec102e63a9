"""Loading a ticket imports few modules of hf_px, and none that only pruning, training or reports need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.places import REPO
from support.tickets import timm_ticket

import hf_px

EXAMPLE = REPO / "model_cards" / "examples" / "resnet20-digits-px-path-98"
UNNEEDED = ("scorers", "figures", "report", "training", "paths", "analysis", "data", "pruning", "cli")
MOST_MODULES = 35


def test_loading_a_ticket_imports_few_modules() -> None:
    code = f"import sys, hf_px; hf_px.from_pretrained({str(EXAMPLE)!r}); print(*sys.modules, sep='\\n')"
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    modules = [name for name in result.stdout.split() if name.split(".")[0] == "hf_px"]
    assert "hf_px.tickets.ticket" in modules
    assert not [name for name in modules if name.split(".")[1:2] and name.split(".")[1] in UNNEEDED]
    assert len(modules) <= MOST_MODULES, sorted(modules)


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["info", EXAMPLE], {"timm", "transformers", "torchvision"}),
        (["convert", EXAMPLE, "OUT", "--layout", "both"], {"timm", "transformers", "torchvision"}),
        # our own network needs no timm, and no random weights: on the meta device these make torch import its compiler
        (["verify", EXAMPLE], {"timm", "transformers", "torchvision", "torch._dynamo", "sympy"}),
        (["verify", "TIMM"], {"transformers"}),  # timm builds the architecture to compare with
        (["backbones"], {"timm", "transformers", "torchvision"}),
    ],
)
def test_commands_on_a_small_file_do_not_import_what_takes_seconds(
    words: list[object], unneeded: set[str], tmp_path: Path
) -> None:
    if "TIMM" in words:
        hf_px.Ticket(*timm_ticket()).save_pretrained(tmp_path / "timm")
    argv = [str(tmp_path / str(word).lower()) if word in ("OUT", "TIMM") else str(word) for word in words]
    code = f"import sys; from hf_px.cli import main; main({argv!r}); print('modules', *sys.modules, sep='\\n')"
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert not unneeded & set(result.stdout.rpartition("modules\n")[2].split())
