"""The documentation names files, configs and flags that exist, and the README's Python runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.launching import recipe_module
from support.places import REPO

from hf_px.cli import main

PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *(REPO / "model_cards").glob("*.md")]
PAGES += [*(REPO / "hf_px").rglob("README.md"), *(REPO / "recipes").rglob("README.md")]
PAGES = [page for page in PAGES if page.name != "template.md"]
TO_BE_WRITTEN = {"model_cards/results/NAME", "hf_px/scorers/mine.py"}
MOST_LINES = {"README.md": 170, "CONTRIBUTING.md": 80}


def blocks(page: Path, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def commands(page: Path) -> list[str]:
    """Every command of the page, with continued lines joined and comments removed."""
    lines = "".join(blocks(page)).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    configs = re.findall(r"recipes/configs/[\w.-]+\.yaml", text)
    files = re.findall(r"`((?:hf_px|recipes|tests|model_cards)/[\w/.-]+)`", text)
    missing += [path for path in (*configs, *files) if not (REPO / path).exists()]
    assert set(missing) <= TO_BE_WRITTEN


def test_the_front_pages_are_short() -> None:
    for name, most in MOST_LINES.items():
        assert len((REPO / name).read_text().splitlines()) <= most, name


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, repairing = blocks(REPO / "README.md", "python")
    names: dict[str, Any] = {}
    exec(first.replace("rounds=10", "rounds=2"), names)  # ten take half a minute
    assert (tmp_path / "out" / "ticket" / "ticket.safetensors").is_file()
    for weight in names["model"].parameters():
        torch.nn.init.normal_(weight, std=0.05)  # dense again: the second example stands alone
    exec(repairing, names)
    assert names["ticket"].mask.sparsity == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_the_flags_of_commands_exist(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def help_of(program: str, argument: str) -> str:
        with pytest.raises(SystemExit):
            if program == "hf-px":
                main([argument, "--help"])
            else:
                monkeypatch.setattr(sys, "argv", [program, argument, "--help"] if argument else [program, "--help"])
                recipe_module(REPO / program).main()
        return capsys.readouterr().out

    for command in commands(page):
        found = re.search(r"\bhf-px (\w+)|(recipes/\w+\.py)(?: (rounds|data|measure|draw)\b)?", command)
        if found:
            program, argument = ("hf-px", found[1]) if found[1] else (found[2], found[3] or "")
            text = help_of(program, argument)
            own = command[found.end() :].split(" -- ")[0]  # flags behind -- go to the recipe of each cell
            assert not [flag for flag in re.findall(r"(?<=\s)--[\w-]+", own) if flag not in text], command
