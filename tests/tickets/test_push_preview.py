"""hf-px push --dry-run: the very files of the push, and nothing sent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.loopback import LoopbackHub
from support.tickets import timm_ticket

import hf_px
from hf_px.cli import main
from hf_px.core.errors import TicketError
from hf_px.tickets.push_preview import preview_push

COMMAND = "hf-px prune me/base --data scans/mine --sparsity 0.8 --output=out/a"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made"
    hf_px.Ticket(*timm_ticket(), command=COMMAND, settings={"seed": 3}).save_pretrained(path)
    (path / "results.json").write_text(json.dumps({"command": "python recipe.py --data uoft-cs/cifar10"}))
    (path / "notes.txt").write_text("mine alone")
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> str:
    assert main(list(map(str, argv))) == code
    out, err = capsys.readouterr()
    return err if code else out


@pytest.mark.parametrize("layout", ["both", "packed"])
def test_it_shows_the_files_of_the_push_and_sends_nothing(
    made: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    out = run(capsys, "push", made, "alice/new", "--layout", layout, "--branch", "small", "--dry-run")
    assert hub.requests == [] and out.startswith("dry run: nothing is sent\n")
    shown = dict(re.findall(r"^([\w.]+)  +([\d,]+)", out, re.M))
    assert "/alice/new, branch small" in out and "seen by  everyone, if the repo is new or public" in out
    assert ("deleted  model.safetensors" in out) == (layout == "packed")
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    run(capsys, "push", made, "alice/new", "--layout", layout, "--branch", "small")
    sent = {name: f"{len(data):,}" for name, data in hub.files("alice/new", revision="small").items()}
    sent.pop(".gitattributes", None)
    assert {name: size for name, size in shown.items() if name != "together"} == sent
    assert "notes.txt" not in shown and "results.json" in shown
    assert "seen by  you and whom you invite" in run(capsys, "push", made, "alice/new", "--private", "--dry-run")


def test_it_shows_commands_and_paths(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "push", made, "alice/new", "--dry-run")
    assert f"commands in them:\n  {COMMAND}\n  python recipe.py --data uoft-cs/cifar10\n" in out or (
        f"commands in them:\n  python recipe.py --data uoft-cs/cifar10\n  {COMMAND}\n" in out
    )
    (names,) = re.findall(r"paths and Hub names in these: (.*)", out)
    assert sorted(names.split(", ")) == ["me/base", "out/a", "scans/mine", "uoft-cs/cifar10"]
    assert out.endswith("paths of this machine in the files:\n  none\n")
    # tickets leave such paths out; a file of another program may hold one
    (made / "preprocessor_config.json").write_text('{"size": 64, "of": ["/home/anna/nets/mine"]}')
    leaks = run(capsys, "push", made, "alice/new", "--dry-run").partition("paths of this machine in the files:\n")[2]
    assert leaks == "  preprocessor_config.json: /home/anna/nets/mine\n"


def test_it_refuses_what_a_push_refuses(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is a local directory" in run(capsys, "push", made, made, "--dry-run", code=2)
    assert "which is owner/name" in run(capsys, "push", made, "alice", "--dry-run", code=2)
    assert "mask-only stores no weights" in run(
        capsys, "push", made, "a/b", "--layout", "mask-only", "--dry-run", code=2
    )
    (made / "results.json").write_text("hf_secret")
    assert "results.json: damaged" in run(capsys, "push", made, "a/b", "--dry-run", code=2)
    with pytest.raises(TicketError, match="owner/name"):
        preview_push(hf_px.Ticket(*timm_ticket()), "a", files={})


def test_it_shows_that_images_of_the_test_set_leave_the_machine(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "predictions.png" not in run(capsys, "push", made, "alice/new", "--dry-run")
    (made / "predictions.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    out = run(capsys, "push", made, "alice/new", "--dry-run")
    (line,) = [line for line in out.splitlines() if line.startswith("predictions.png")]
    assert "images of the test set" in line and "delete the file" in line
    (made / "predictions.png").unlink()
    assert "predictions.png" not in run(capsys, "push", made, "alice/new", "--dry-run")
