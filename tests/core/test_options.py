"""Dataclass fields as flags: types, defaults and help come from the field; both spellings work."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

from hf_px.core.options import (
    add_options,
    at_least,
    hyphenated,
    name_flags,
    option,
    options_from,
    renamed_arguments,
    whole_number,
)


@dataclass
class Kind:
    model: str = option("resnet20", "which network")
    pretrained: bool | None = option(None, "trained weights", type=bool)
    weight_decay: float = option(0.1, "100 % decay")
    drops: list[int] = option([], "where it falls", type=int)
    mode: str = option("sgd", "which kind", choices=("sgd", "adamw"))
    seed: int = option(0, "seed of all draws")


def parse(*argv: str, command: bool = False) -> Kind:
    parser = argparse.ArgumentParser(exit_on_error=False)
    if command:
        parser.add_argument("name")
    add_options(parser, Kind, command=command)
    return options_from(Kind, parser.parse_args(hyphenated(argv)))


def test_without_flags_the_defaults_are_those_of_the_dataclass() -> None:
    assert parse() == Kind()
    assert Kind().drops is not Kind().drops


def test_flags_have_the_types_of_their_fields_in_both_spellings() -> None:
    found = parse("--pretrained", "--weight-decay", "1e-4", "--drops", "80", "120", "--mode", "adamw", "--seed", "3")
    assert found == Kind("resnet20", True, 1e-4, [80, 120], "adamw", 3)
    assert parse("--weight_decay=2", "--pretrained", "false").weight_decay == 2.0
    assert parse("--pretrained", "no").pretrained is False
    assert parse("--drops").drops == []  # a flag can empty the list of a config file


def test_in_a_command_no_flag_takes_the_positional_argument_behind_it() -> None:
    found = parse("--pretrained", "--drops", "1", "--drops", "2", "net", command=True)
    assert (found.pretrained, found.drops) == (True, [1, 2])
    assert parse("--no-pretrained", "net", command=True).pretrained is False


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--weight-decay", "fast"], "invalid float value"),
        (["--mode", "lion"], "invalid choice"),
        (["--pretrained", "maybe"], "neither true nor false"),
    ],
)
def test_a_wrong_value_is_refused(argv: list[str], error: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=error):
        parse(*argv)


def test_help_shows_defaults_that_are_values() -> None:
    parser = argparse.ArgumentParser(prog="p")
    add_options(parser, Kind, leave_out=("mode",))
    text = " ".join(parser.format_help().split())
    assert "100 % decay (default: 0.1)" in text and "seed of all draws (default: 0)" in text
    assert "(default: None)" not in text and "(default: [])" not in text
    assert "--weight-decay" in text and "--weight_decay" not in text and "--mode " not in text


def test_errors_name_arguments_in_python_and_flags_in_a_command() -> None:
    message = "`min_per_layer` 3 needs a lower `sparsity`; see `hf-px scorers` and `other`"
    flags = {"min_per_layer": "--min-per-layer", "sparsity": "--sparsities"}
    assert name_flags(message, flags) == "--min-per-layer 3 needs a lower --sparsities; see `hf-px scorers` and other"


def test_a_function_names_its_own_arguments_in_errors_of_another() -> None:
    with pytest.raises(ValueError, match=r"^set `split` or `config`$"), renamed_arguments(train_split="split"):
        raise ValueError("set `train_split` or `config`")


def test_numbers_below_the_least_are_refused() -> None:
    at_least(1, epochs=1, steps=None)
    with pytest.raises(ValueError, match="`epochs` 0 is too small; at least 1"):
        at_least(1, epochs=0)
    with pytest.raises(ValueError, match="`x` nan"):
        at_least(0, x=float("nan"))
    assert whole_number(1)("3") == 3
    for text, error in (("0", "at least 1"), ("1.5", "not a whole number")):
        with pytest.raises(argparse.ArgumentTypeError, match=error):
            whole_number(1)(text)
