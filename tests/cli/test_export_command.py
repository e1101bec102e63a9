"""hf-px export: what it prints, the file it names itself, wrong input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.tickets import own_ticket

import hf_px
from hf_px.cli import main


@pytest.fixture
def ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    hf_px.Ticket(*own_ticket()).save_pretrained(tmp_path / "out" / "digits")
    return tmp_path


def test_it_names_the_file_and_says_what_is_in_it(ticket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "out/digits", "--to", "onnx", "--batch", "dynamic"]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(
        r"wrote   digits\.onnx\n"
        r"input   pixel_values: batch x 3 x 32 x 32, float32, RGB from 0 to 1, normalised by mean [\d., ]+ and std "
        r"[\d., ]+; opset 18, digest and preprocessing inside\n"
        r"checked in ONNX Runtime on 6 images: differs from the ticket by \d\.\de-\d\d of the largest output, "
        r"0\.001 is allowed\n"
        r"size    [\d,]+ bytes: the weights are dense, zeros too; [\d,]+ with gzip\n",
        out,
    )
    assert f"{(ticket / 'digits.onnx').stat().st_size:,} bytes" in out
    before = (ticket / "digits.onnx").read_bytes()
    assert main(["export", "out/digits", "--to", "onnx"]) == 2
    assert capsys.readouterr().err == (
        "hf-px: error: --output digits.onnx: exists; name another file, or set --force to replace it\n"
    )
    assert main(["export", "out/digits", "--to", "onnx", "--force", "--normalise", "--batch", "2"]) == 0
    assert "input   pixels: 2 x 3 x 32 x 32, float32, RGB from 0 to 1; opset 18" in capsys.readouterr().out
    assert (ticket / "digits.onnx").read_bytes() != before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to", "coreml"], "--to: invalid choice: 'coreml'"),
        ([], "--to"),
        (["--to", "torch", "--output", "net.onnx"], "--output net.onnx: name a file that ends in .pt2"),
        (["--to", "torch", "--batch", "0"], "--batch: 0 is too small"),
        (["--to", "torch", "--batch", "all"], "--batch: 'all' is not a whole number"),
        (["--to", "torch", "--data", "no/such/folder"], "no/such/folder"),
    ],
)
def test_wrong_input(ticket: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    try:
        code = main(["export", "out/digits", *flags])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2 and message in capsys.readouterr().err
    assert [path.name for path in ticket.iterdir()] == ["out"]
