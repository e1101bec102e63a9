"""Options of a recipe from a file and from flags: the flag wins, numbers are numbers, misspelt names are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_px.training.command_line import option_names, parse_options, run_recipe
from hf_px.training.config import Options


def read(*argv: str) -> Options:
    return parse_options("prune_finetune", "A recipe.\n  as it is written", list(argv))


def file(tmp_path: Path, text: str) -> str:
    (tmp_path / "c.yaml").write_text(text)
    return str(tmp_path / "c.yaml")


def test_a_file_then_flags(tmp_path: Path) -> None:
    lines = ["lr: 1e-4", "lr-drops: [80, 120]", "epochs: 160", "compile: true", "pretrained: false", "model: null"]
    config = file(tmp_path, "\n".join([*lines, "optimizer: adamw"]))
    options = read("--config", config)
    training = options.training
    assert (training.lr, training.lr_drops, training.compile, training.optimizer) == (1e-4, [80, 120], True, "adamw")
    assert (options.model.model, options.model.pretrained) == ("resnet20", False)
    flags = ("--lr_drops", "3", f"--config={config}", "--lr", "2", "--compile", "false", "--pretrained")
    options = read(*flags)
    assert (options.training.lr, options.training.lr_drops, options.training.compile) == (2.0, [3], False)
    assert options.model.pretrained is True and options.training.optimizer == "adamw"
    assert options.settings()["lr_drops"] == [3] and options.settings()["scorer"] == "px-path"
    assert read("--config", file(tmp_path, "weight_decay: 3")).training.weight_decay == 3  # the older spelling


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("lrr: 3", "'lrr' is not an option; did you mean lr?"),
        ("- a\n- b", "expected lines such as `epochs: 160`, found a list"),
        ("lr: {a: 1}", "lr has keys of its own"),
        ("lr: [", "not yaml"),
    ],
)
def test_a_wrong_file_is_refused(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        read("--config", file(tmp_path, text))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--config nowhere\.yaml: No such file"):
        read("--config", "nowhere.yaml")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--lrs", "1"], "unrecognized arguments: --lrs 1; did you mean --lr?"),
        (["--compil"], "did you mean --compile?"),  # no abbreviations: a new option would change what they mean
        (["--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
        (["--optimizer", "lion"], "argument --optimizer: invalid choice: 'lion' (choose from"),
        (["--config"], "expected one argument"),
        (["--rewind", "lr"], "unrecognized arguments: --rewind"),  # an option of imp.py
    ],
)
def test_a_wrong_flag_is_refused(argv: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read(*argv)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line and line.endswith("see --help")


def test_help_shows_the_recipe_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    text = capsys.readouterr().out
    assert "A recipe.\n  as it is written" in text and "pruning:" in text
    assert "learning rate (default: 0.1 for SGD" in " ".join(text.split())
    assert "(default: None)" not in text and "_drops" not in text
    assert all(f"--{name.replace('_', '-')}" in text for name in option_names("prune_finetune"))


def test_imp_takes_the_config_of_the_other_recipe_and_sets_its_method(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("scorer: px\n")
    options = parse_options("imp", "", ["--config", str(config), "--sparsity", "0.9", "--rewind", "lr"])
    assert options.method == options.settings()["scorer"] == "imp" and options.pruning.rounds == 10
    assert options.rewind is not None and options.rewind.rewind == "lr"
    assert "scope" not in options.settings()


@pytest.mark.parametrize("flag", ["--scorer", "--scope", "--of", "--schedule", "--norm"])
def test_imp_refuses_the_flags_that_it_does_not_have(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([flag, "px"], [f"{flag}=px"]):
        with pytest.raises(SystemExit) as end:
            parse_options("imp", "", argv)
        assert end.value.code == 2 and f"error: {flag} is not an option of IMP" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_options("imp", "", ["--help"])
    assert f"{flag} " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "way"), [("prune_finetune", "with --resume continues"), ("results", "starts again")]
)
def test_ctrl_c_is_one_line_that_names_the_way_on(program: str, way: str, capsys, monkeypatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", [f"recipes/{program}.py"])
    with pytest.raises(SystemExit) as end:
        run_recipe(interrupted)
    assert end.value.code == 130
    assert capsys.readouterr().err == f"\n{program}: interrupted; the same command {way}\n"


def test_a_full_disk_names_the_file_and_the_way_on(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "out/run/checkpoints/ticket.safetensors")

    monkeypatch.setattr("sys.argv", ["recipes/prune_finetune.py"])
    with pytest.raises(SystemExit):
        run_recipe(full)
    line = "no space left on the disk at out/run/checkpoints/ticket.safetensors; free some and continue with --resume"
    assert line in capsys.readouterr().err


def test_an_error_of_the_user_is_one_line_that_names_the_flag(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    def broken() -> None:
        raise ValueError("`min_per_layer` is\n  wrong")

    with pytest.raises(SystemExit) as end:
        run_recipe(broken)
    assert end.value.code == 2 and "error: --min-per-layer is wrong\n" in capsys.readouterr().err
    monkeypatch.setenv("HF_PX_TRACEBACK", "1")
    with pytest.raises(ValueError, match="`min_per_layer`"):
        run_recipe(broken)
