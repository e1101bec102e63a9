"""Knobs from a file and from flags: the flag wins, numbers are numbers, what is misspelt is said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from hf_px.training.config import at_least, flag, fraction, knob, parse, positive, run, settings_of


@dataclass
class Net:
    _argument_group_name = "the network"
    model: str = knob("resnet20", "which")
    pretrained: bool | None = flag(None, "trained weights")


@dataclass
class Train:
    _argument_group_name = "the training"
    lr: float = knob(0.1, "the rate")
    lr_drops: list[int] = knob([], "where it falls")
    compile: bool = knob(False, "faster")
    kind: Literal["sgd", "adamw"] = knob("sgd", "which kind")
    seed: int = knob(0, "of all that is random")


def read(*argv: str) -> tuple[Net, Train]:
    return parse((Net, Train), "A recipe.\n  as it stands", list(argv))


def file(tmp_path: Path, text: str) -> str:
    (tmp_path / "c.yaml").write_text(text)
    return str(tmp_path / "c.yaml")


def test_a_file_then_flags(tmp_path: Path) -> None:
    config = file(
        tmp_path, "lr: 1e-4\nlr_drops: [80, 120]\ncompile: true\npretrained: false\nmodel: null\nkind: adamw\n"
    )
    net, train = read("--config", config)
    assert (net, train) == (Net("resnet20", False), Train(1e-4, [80, 120], True, "adamw", 0))
    net, train = read("--lr-drops", "3", f"--config={config}", "--lr", "2", "--compile", "false", "--pretrained")
    assert (net, train) == (Net("resnet20", True), Train(2.0, [3], False, "adamw", 0))
    assert read() == (Net(), Train())
    assert Train().lr_drops is not Train().lr_drops
    assert settings_of(net, train) == {
        "model": "resnet20", "pretrained": True, "lr": 2.0, "lr_drops": [3], "compile": False, "kind": "adamw",
        "seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("lrr: 3", "'lrr' is no option; did you mean lr?"),
        ("- a\n- b", "expected lines such as `epochs: 160`, found a list"),
        ("lr: {a: 1}", "lr holds names of its own"),
        ("lr: [", "not yaml"),
    ],
)
def test_a_file_that_is_wrong(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        read("--config", file(tmp_path, text))


def test_no_file() -> None:
    with pytest.raises(ValueError, match=r"--config nowhere\.yaml: No such file"):
        read("--config", "nowhere.yaml")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--lrs", "1"], "unrecognized arguments: --lrs 1; did you mean --lr?"),
        (["--comp"], "did you mean --compile?"),  # no abbreviations: tomorrow's knob would change what they mean
        (["--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
        (["--kind", "lion"], "argument --kind: invalid choice: 'lion' (choose from"),
        (["--config"], "expected one argument"),
    ],
)
def test_a_flag_that_is_wrong(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read(*argv)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and line.endswith("see --help")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    text = capsys.readouterr().out
    assert "A recipe.\n  as it stands" in text and "the network:" in text
    assert "the rate (default: 0.1)" in text and "of all that is random (default: 0)" in text
    assert "(default: None)" not in text and "--lr-drops" not in text


def test_numbers_out_of_range() -> None:
    at_least(1, epochs=1, steps=None)
    positive(lr=0.1, clip=None)
    fraction(momentum=0, ema=None)
    for check, flaw in (
        (lambda: at_least(1, epochs=0), "--epochs 0 is too small; at least 1"),
        (lambda: at_least(0, x=float("nan")), "--x nan"),
        (lambda: positive(lr=0.0), "--lr 0: it must be positive"),
        (lambda: positive(lr=float("inf")), "--lr inf"),
        (lambda: fraction(momentum=1.0), r"--momentum 1: it must be in \[0, 1\)"),
    ):
        with pytest.raises(ValueError, match=flaw):
            check()


def test_what_the_user_can_mend_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    def broken() -> None:
        raise ValueError("the flag is\n  wrong")

    with pytest.raises(SystemExit) as end:
        run(broken)
    assert end.value.code == 2 and "error: the flag is wrong\n" in capsys.readouterr().err
    monkeypatch.setenv("HF_PX_TRACEBACK", "1")
    with pytest.raises(ValueError, match="the flag"):
        run(broken)
