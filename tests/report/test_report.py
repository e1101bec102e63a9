"""hf-px report on the command line: numbers against independent counts, resumed work, wrong input."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from support.tickets import RESULT, deeplab_ticket, own_ticket, pruned, timm_ticket, transformers_ticket

import hf_px
from hf_px.analysis.ntk import distance, lost_ranks, spectrum
from hf_px.cli import main
from hf_px.core.prunable import prunable
from hf_px.data import load_pruning_set
from hf_px.models.load import load
from hf_px.models.networks import resnet20
from hf_px.pruning import prune
from hf_px.report import measure, prune_models
from hf_px.tickets.mask_file import load_mask

QUICK = ["--skip", "latency", "--images", "4", "--draws", "1", "--per-class", "1", "--quiet"]


def run(*argv: object) -> None:
    words = ["report", *map(str, argv)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["/usr/bin/hf-px", *words])  # shown on the page
        assert main(words) == 0


def fails(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    try:
        code = main(["report", *map(str, argv)])
    except SystemExit as stop:  # argparse's own
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2 and err.startswith("hf-px: error: ") and len(err.splitlines()) == 1
    assert not re.search(r"`\w+`", err)  # flags, not Python arguments
    return err


def table(directory: Path, name: str) -> list[dict[str, str]]:
    with open(directory / "tables" / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def facts(directory: Path) -> dict[str, dict[str, str]]:
    """{network: {fact: text}}"""
    rows = table(directory, "facts")
    return {name: {row[""]: row[name] for row in rows} for name in rows[0] if name}


@pytest.fixture(scope="module")
def ticket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet-20 that was made with digits."""
    model, mask = own_ticket()
    path = tmp_path_factory.mktemp("tickets") / "mine"
    config = {"scorer": "random", "settings": {"data": "digits", "seed": 0}, "results": [RESULT]}
    hf_px.Ticket(model, mask, **config).save_pretrained(path, layout="packed")
    return path


@pytest.fixture(scope="module")
def side_by_side(ticket: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ticket, and a model pruned by two methods; seed 3 gives it other weights than the ticket has."""
    where = tmp_path_factory.mktemp("report") / "here"
    run(ticket, "resnet20", "--scorers", "snip", "synflow", "--rounds", 2, "--seeds", 3, *QUICK, "--output", where)
    return where


NAMES = ["mine", "resnet20, dense", "resnet20, snip", "resnet20, synflow"]


def masks_of(ticket: Path) -> dict[str, Any]:
    """The masks that the report should show, computed independently."""
    model = load("resnet20", seed=3).model
    batches = load_pruning_set("digits", model, 1, 100, 0)
    found = {"mine": hf_px.Ticket.from_pretrained(ticket).mask}
    for name in ("snip", "synflow"):
        found[f"resnet20, {name}"] = hf_px.prune(
            model, name, sparsity=0.982, batches=batches, rounds=2, seed=3, progress=False
        )
    return found


def test_the_page_and_its_other_forms(side_by_side: Path) -> None:
    names = {
        p.relative_to(side_by_side).as_posix()
        for p in side_by_side.rglob("*")
        if p.is_file() and ".parts" not in p.parts
    }
    assert {"index.html", "report.md", "report.json", "figures/spectrum-own.svg", "tables/spectrum-own.csv"} <= names
    record = json.loads((side_by_side / "report.json").read_text())
    assert [section["name"] for section in record["sections"]] == ["spectrum", "layers", "cost", "scores", "overlap"]
    assert list(facts(side_by_side)) == NAMES
    page, text = ((side_by_side / name).read_text() for name in ("index.html", "report.md"))
    for figure in side_by_side.glob("figures/*.svg"):
        assert figure.read_text().strip() in page and f"figures/{figure.name}" in text
    assert "hf-px report " in page and "--scorers snip synflow" in text  # the command


def test_counts_are_those_of_the_masks(side_by_side: Path, ticket: Path) -> None:
    masks = masks_of(ticket)
    widths = table(side_by_side, "width-by-layer")
    densities = table(side_by_side, "density-by-layer")
    for name, mask in masks.items():
        assert facts(side_by_side)[name]["weights kept"] == f"{mask.kept:,} of {mask.total:,}"
        for wide, dense in zip(widths, densities):
            bits = mask.bits[wide["layer"]]
            assert int(wide[f"{name}: with a weight"]) == sum(bool(unit.any()) for unit in bits)
            assert int(dense[f"{name}: kept"]) == int(bits.sum())
    assert facts(side_by_side)["resnet20, dense"]["weights kept"] == "270,896 of 270,896"
    assert facts(side_by_side)["mine"]["test result, as it says"] == "accuracy 0.9000 (dense 0.9300) on uoft-cs/cifar10"


def test_overlaps_are_those_of_sets(side_by_side: Path, ticket: Path) -> None:
    kept = {
        name: {(n, i) for n, b in mask.bits.items() for i in b.flatten().nonzero().flatten().tolist()}
        for name, mask in masks_of(ticket).items()
    }
    for row in table(side_by_side, "overlap-of-masks"):
        for other, value in list(row.items())[1:]:
            a, b = kept[row[""]], kept[other]
            assert float(value) == pytest.approx(len(a & b) / len(a | b))


def test_spectra_are_of_the_right_networks_on_the_same_images(side_by_side: Path, ticket: Path) -> None:
    model = load("resnet20", seed=3).model
    ((x, _),) = load_pruning_set("digits", model, 1, 100, 0)
    x = x[torch.linspace(0, 9, 4).round().long()]
    masks = masks_of(ticket)
    mine = hf_px.from_pretrained(ticket)
    own = {
        "mine": spectrum(mine, [x], masks["mine"], progress=False),
        "resnet20, dense": (dense := spectrum(model, [x], progress=False)),
        "resnet20, snip": spectrum(model, [x], masks["resnet20, snip"], progress=False),
    }
    for name, expected in own.items():
        found = [float(row[name]) for row in table(side_by_side, "spectrum-own")]
        assert found == pytest.approx(expected.values, rel=1e-4)
    snip = next(row for row in table(side_by_side, "spectrum") if row["network"] == "resnet20, snip")
    assert float(snip["distance, own weights"]) == pytest.approx(distance(dense, own["resnet20, snip"]), abs=1e-4)
    # the mean of draws does not see weights: a ticket's is measured against a dense network that nobody has
    mean = spectrum(resnet20(), [x], masks["mine"], draws=1, progress=False)
    whole = spectrum(resnet20(), [x], draws=1, progress=False)
    mine = next(row for row in table(side_by_side, "spectrum") if row["network"] == "mine")
    assert float(mine["distance, mean of draws"]) == pytest.approx(distance(whole, mean), abs=1e-4)


def test_bytes_are_those_of_the_file_and_of_the_tensors(side_by_side: Path, ticket: Path) -> None:
    row = next(row for row in table(side_by_side, "cost") if row["network"] == "mine")
    assert int(row["bytes, packed"]) == (ticket / "ticket.safetensors").stat().st_size
    state = hf_px.from_pretrained(ticket).state_dict()
    assert int(row["bytes, dense"]) == sum(t.numel() * t.element_size() for t in state.values())
    assert int(row["multiply-adds, dense"]) > int(row["multiply-adds, live"]) > 0


def test_a_network_has_one_colour_on_the_page(side_by_side: Path) -> None:
    """By the CSS classes of its markers in all figures."""
    seen: dict[str, set[str]] = {}
    for path in side_by_side.glob("figures/*.svg"):
        root = ElementTree.parse(path).getroot()
        for mark in root.iter("{http://www.w3.org/2000/svg}path"):
            title = mark.find("{http://www.w3.org/2000/svg}title")
            if title is None or not mark.get("class", "").startswith("m "):
                continue
            name = next((n for n in sorted(NAMES, key=len, reverse=True) if str(title.text).startswith(n)), None)
            if name:
                seen.setdefault(name, set()).add(mark.get("class", ""))
    assert set(seen) == set(NAMES) and all(len(classes) == 1 for classes in seen.values()), seen
    assert len(set.union(*seen.values())) == len(NAMES)


def test_scores_are_those_of_the_last_round(side_by_side: Path) -> None:
    rows = table(side_by_side, "scores-2")  # snip: the ticket's are the first
    kept, scored = sum(int(row["kept"]) for row in rows), sum(int(row["scored"]) for row in rows)
    assert kept == 4876 and scored == round(270_896 * 0.018**0.5)
    first = table(side_by_side, "scores-1")  # of a ticket nothing goes
    assert all(row["scored"] == row["kept"] for row in first)


class Stop:
    """Calls the function, and after `after` calls raises KeyboardInterrupt."""

    def __init__(self, function: Any, after: int | None = None) -> None:
        self.function, self.after, self.calls = function, after, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.calls == self.after:
            raise KeyboardInterrupt
        self.calls += 1
        return self.function(*args, **kwargs)


def test_interrupted_it_goes_on_where_it_was(side_by_side: Path, ticket: Path, tmp_path: Path, monkeypatch) -> None:
    words = [
        ticket,
        "resnet20",
        "--scorers",
        "snip",
        "synflow",
        "--rounds",
        2,
        "--seeds",
        3,
        *QUICK,
        "--output",
        tmp_path,
    ]
    monkeypatch.setattr(measure, "spectrum", first := Stop(spectrum, after=3))
    assert main(["report", *map(str, words)]) == 130
    assert first.calls == 3 and not (tmp_path / "index.html").exists()
    monkeypatch.setattr(measure, "spectrum", second := Stop(spectrum))
    monkeypatch.setattr(prune_models, "prune", pruning := Stop(prune))
    run(*words)
    # two spectra of each of four networks and the dense one's mean, which the dense network shares: 8 in all, 3 known
    assert second.calls == 8 - 3 and pruning.calls == 0
    for kind in ("figures/*.svg", "tables/*.csv"):  # the same numbers give the same figures
        there = {path.name: path.read_bytes() for path in side_by_side.glob(kind)}
        assert there and {path.name: path.read_bytes() for path in tmp_path.glob(kind)} == there
    assert not list((tmp_path / ".parts").glob("*.memo"))
    run(*words)  # nothing is left to do
    assert second.calls == 5


def test_pruning_is_resumed_by_rounds(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(prune_models, "_SAVE_EVERY", 0.0)
    words = [
        "resnet20",
        "--scorers",
        "px",
        "--rounds",
        4,
        *QUICK,
        "--skip",
        "latency",
        "spectrum",
        "--output",
        tmp_path,
    ]

    def impatient(*args: Any, on_round: Any, **kwargs: Any) -> Any:
        def stop(t: int, mask: Any) -> None:
            on_round(t, mask)
            if t == 2:
                raise KeyboardInterrupt

        return prune(*args, on_round=stop, **kwargs)

    monkeypatch.setattr(prune_models, "prune", impatient)
    assert main(["report", *map(str, words)]) == 130
    rounds = []

    def counted(*args: Any, on_round: Any, **kwargs: Any) -> Any:
        return prune(*args, on_round=lambda t, mask: (rounds.append(t), on_round(t, mask)), **kwargs)

    monkeypatch.setattr(prune_models, "prune", counted)
    run(*words)
    assert rounds == [3, 4]
    (path,) = (tmp_path / ".parts").glob("mask-*.safetensors")
    model = load("resnet20", seed=0).model
    batches = load_pruning_set("digits", model, 1, 100, 0)
    assert load_mask(path)[0] == hf_px.prune(model, "px", sparsity=0.982, batches=batches, rounds=4, progress=False)


def test_seeds_and_draws_of_data_are_networks_of_their_own(tmp_path: Path) -> None:
    words = ["--scorers", "snip", "magnitude", "--seeds", 0, 1, "--data-seeds", 0, 1, "--rounds", 1]
    run("resnet20", *words, *QUICK, "--skip", "latency", "spectrum", "--output", tmp_path)
    assert list(facts(tmp_path)) == [
        "resnet20, dense", "snip, seed 0, data 0", "snip, seed 0, data 1", "magnitude, seed 0",
        "resnet20, dense, seed 1", "snip, seed 1, data 0", "snip, seed 1, data 1", "magnitude, seed 1",
    ]  # fmt: skip
    rows = {row[""]: row for row in table(tmp_path, "overlap-of-masks")}
    same_weights = float(rows["snip, seed 0, data 0"]["snip, seed 0, data 1"])
    assert float(rows["snip, seed 0, data 0"]["snip, seed 1, data 0"]) < same_weights < 1


def test_networks_of_two_kinds_have_pictures_of_their_own(ticket: Path, tmp_path: Path) -> None:
    for name, made in {
        "timm": timm_ticket(),
        "transformers": transformers_ticket(),
        "segments": deeplab_ticket(),
    }.items():
        hf_px.Ticket(*made).save_pretrained(tmp_path / name)
    tickets = [tmp_path / name for name in ("timm", "transformers", "segments")]
    run(ticket, *tickets, *QUICK, "--output", tmp_path / "report")
    assert {p.stem for p in (tmp_path / "report" / "figures").glob("width*")} == {
        f"width-by-layer-{i}" for i in (1, 2, 3, 4)
    }
    record = json.loads((tmp_path / "report" / "report.json").read_text())
    words = " ".join(record["sections"][0]["words"])
    assert "No spectrum of timm: it does not name its data; name images with --data." in words
    assert facts(tmp_path / "report")["segments"]["layers that carry nothing"].startswith("0 of")


def test_a_ticket_whose_data_are_elsewhere_has_no_spectrum_and_says_why(tmp_path: Path, capsys) -> None:
    hf_px.Ticket(*own_ticket(), settings={"data": "uoft-cs/cifar10"}).save_pretrained(tmp_path / "far")
    run(tmp_path / "far", "--quiet", "--skip", "latency", "--output", tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "it was made with uoft-cs/cifar10, which is not on this disk; name images with --data" in text


def test_a_collapsed_ticket_says_so(tmp_path: Path) -> None:
    model = resnet20(generator=torch.Generator().manual_seed(0))
    _, mask = pruned(model)
    bits = dict(mask.bits)
    bits["blocks.4.conv1.weight"] = torch.zeros_like(bits["blocks.4.conv1.weight"])
    gone = hf_px.Mask(bits)
    hf_px.Ticket(gone.apply_(model), gone).save_pretrained(tmp_path / "gone")
    run(tmp_path / "gone", *QUICK, "--data", "random", "--output", tmp_path / "report")
    assert facts(tmp_path / "report")["gone"]["layers that carry nothing"] == "2 of 22"  # conv2 of that block too
    page = (tmp_path / "report/index.html").read_text()
    assert "nothing is left of blocks.4.conv1.weight; no weight on a path is left in blocks.4.conv2.weight" in page


def test_classes_without_a_weight_are_named_and_do_not_pass_for_a_far_spectrum(tmp_path: Path) -> None:
    """Two of ten classes have no weight in the head: a fifth of the eigenvalues is lost, the others do not change."""
    model = resnet20(generator=torch.Generator().manual_seed(0))
    mask = hf_px.Mask({name: torch.ones_like(w, dtype=torch.bool) for name, w in prunable(model).items()})
    bits = dict(mask.bits)
    bits["fc.weight"] = bits["fc.weight"].clone()
    bits["fc.weight"][[0, 9]] = False
    del model.fc.bias  # which alone would teach them something
    model.fc.register_parameter("bias", None)
    mute = hf_px.Mask(bits)
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    dense, part = (spectrum(model, [x], each, progress=False) for each in (mask, mute))
    found = lost_ranks(dense, part)
    assert found.ranks == 8 and found.share > 0.9
    assert distance(dense, part) > 5 * found.rest

    model = resnet20(generator=torch.Generator().manual_seed(0))
    hf_px.Ticket(mute.apply_(model), mute, scorer="magnitude").save_pretrained(tmp_path / "mute")
    run(tmp_path / "mute", *QUICK, "--data", "random", "--output", tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    assert "Classes that the head keeps no weight for: in mute." in page
    assert "mute: the head keeps no weight for 2 classes (0, 9)" in page
    # of each class lost, all directions but one: its bias still learns, alike for all four images
    assert "mute, mean of draws: 6 of 40 eigenvalues are lost" in page
    assert facts(tmp_path / "report")["mute"]["classes without a weight"] == "2"


def test_scores_need_no_more_than_their_method_does(tmp_path: Path) -> None:
    for name in ("magnitude", "snip", "mine"):
        hf_px.Ticket(*own_ticket(), scorer=name).save_pretrained(tmp_path / name)
    tickets = [tmp_path / name for name in ("magnitude", "snip", "mine")]
    run(*tickets, "--skip", "latency", "spectrum", "--quiet", "--output", tmp_path / "report")
    assert len(table(tmp_path / "report", "scores-1")) == 22  # of magnitude, which needs no data
    text = (tmp_path / "report/report.md").read_text()
    assert "No scores of snip: snip needs data, and the ticket's are not on this disk; name some with --data." in text
    assert "No scores of mine: its method 'mine' is not listed by hf-px scorers." in text


def test_a_ticket_beside_a_dense_network_says_whose_weights_it_has(ticket: Path, tmp_path: Path) -> None:
    model = load("resnet20", num_classes=10, seed=5).model
    mask = hf_px.prune(model, "magnitude", sparsity=0.5, progress=False)
    hf_px.Ticket(mask.apply_(model), mask, scorer="magnitude").save_pretrained(tmp_path / "cut")
    words = {}
    for seed in (5, 6):
        run(tmp_path / "cut", "resnet20", *QUICK, "--data", "random", "--seeds", seed, "--output", tmp_path / str(seed))
        words[seed] = (tmp_path / str(seed) / "report.md").read_text()
    assert "cut: own weights are compared with resnet20, dense, whose weights it has." in words[5]
    assert "cut: own weights are compared with resnet20, dense, which has other weights" in words[6]
    assert {row["architecture"] for row in facts(tmp_path / "5").values()} == {"resnet20_cifar"}


def test_networks_of_one_architecture_that_do_not_compare_are_told_apart(ticket: Path, tmp_path: Path) -> None:
    model = resnet20(num_classes=7, generator=torch.Generator().manual_seed(0))
    hf_px.Ticket(*pruned(model)).save_pretrained(tmp_path / "seven")
    run(ticket, tmp_path / "seven", "--skip", "latency", "spectrum", "--quiet", "--output", tmp_path / "report")
    record = json.loads((tmp_path / "report/report.json").read_text())
    titles = [figure["title"] for section in record["sections"] for figure in section["figures"]]
    assert len(set(titles)) == len(titles) and "Density by layer: resnet20_cifar, seven" in titles
    assert "with different layers or image sizes do not compare" in " ".join(record["sections"][-1]["words"])


@pytest.mark.parametrize("runtime", ["dense", "sparse"])
def test_latency_is_measured_beside_the_same_network_without_zeros(
    ticket: Path, tmp_path: Path, monkeypatch, runtime: str
) -> None:
    monkeypatch.setattr(measure, "latency", partial(measure.latency, seconds=0.2))
    run(ticket, "--skip", "spectrum", "--runtime", runtime, "--quiet", "--output", tmp_path / "report")
    (row,) = table(tmp_path / "report", "cost")
    for low, middle, high in (
        ("ms, lower quartile", "ms", "ms, upper quartile"),
        ("without zeros, lower quartile", "ms without zeros", "without zeros, upper quartile"),
    ):
        assert 0 < float(row[low]) <= float(row[middle]) <= float(row[high])
    page = (tmp_path / "report/index.html").read_text()
    assert ("times as fast, in the sparse runtime of hf_px" in page) == (runtime == "sparse")
    assert runtime == "sparse" or "unstructured zeros do not" in page or "faster here" in page


def test_wrong_input_is_refused_before_any_work(ticket: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(prune_models, "load_networks", None)  # calling it would fail
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "empty").mkdir()
    wrong = {
        (ticket, "--output", "file"): "file is a file",
        (ticket, "--output", "full"): "holds thesis.tex",
        ("resnet20", "--scorers", "pxx"): "unknown scorer 'pxx'; did you mean",
        ("resnet20", "--scorers", "px", "--sparsity", "98.2"): "did you mean 0.982?",
        ("resnet20", "--scorers", "snip", "--norm", "flow"): "--norm flow: no method of --scorers has that option",
        ("resnet20", "--scorers", "px", "--norm", "no"): "--norm no must be one of",
        ("resnet2000",): "resnet2000",
        ("empty",): "empty",
        (ticket, "--data", "no/such/folder"): "no such file or folder",
        (ticket, "--memory", "0"): "--memory 0: at least",
        (ticket, "--images", "0"): "0 is too small",
        (ticket, "--skip", "width"): "invalid choice",
        (ticket, "--device", "tpu9"): "--device tpu9",
        (ticket, ticket): "is named twice",
        ("t-pxx",): "nor is there a ticket in a directory t-pxx",
        (): "required",
    }  # fmt: skip
    for words, expected in wrong.items():
        assert expected in fails(capsys, *words), words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "full"]


def test_advice_that_another_command_can_follow_names_that_command(tmp_path: Path, capsys) -> None:
    flags = ["--scorers", "synflow", "--rounds", "1", "--sparsity", "0.999", "--output", tmp_path]
    advice = "use hf-px prune --min-per-layer, more --rounds, hf-px prune --scope erk, or a lower --sparsity"
    assert advice in fails(capsys, "resnet20", *flags)


def test_a_damaged_ticket_is_named(ticket: Path, tmp_path: Path, capsys) -> None:
    for path in ticket.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = bytearray((tmp_path / "ticket.safetensors").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "ticket.safetensors").write_bytes(data)
    assert "ticket.safetensors" in fails(capsys, tmp_path, "--output", tmp_path / "report")
    assert not (tmp_path / "report" / "index.html").exists()


def test_an_excluded_tensor_is_redrawn_neither_in_the_ticket_nor_in_the_dense_network(tmp_path: Path) -> None:
    model = resnet20(generator=torch.Generator().manual_seed(1))
    mask = hf_px.prune(model, "random", sparsity=0.9, exclude=["conv.weight", "fc.weight"], progress=False)
    hf_px.Ticket(mask.apply_(model), mask).save_pretrained(tmp_path / "part")
    run(tmp_path / "part", *QUICK, "--data", "digits", "--output", tmp_path / "report")
    ((x, _),) = load_pruning_set("digits", model, 1, 100, 0)
    x = x[torch.linspace(0, 9, 4).round().long()]
    whole = spectrum(model, [x], hf_px.Mask.ones(mask.tensors_of(model)), draws=1, progress=False)
    (row,) = table(tmp_path / "report", "spectrum")
    expected = distance(whole, spectrum(model, [x], mask, draws=1, progress=False))
    assert float(row["distance, mean of draws"]) == pytest.approx(expected, abs=1e-4)


def test_what_is_asked_of_tickets_in_vain_is_refused(ticket: Path, tmp_path: Path, capsys) -> None:
    assert "only tickets are named" in fails(capsys, ticket, "--scorers", "px", "--output", tmp_path / "report")


def test_twice_the_same_is_once(tmp_path: Path) -> None:
    words = ["--scorers", "random", "random", "--seeds", 0, 0, "--skip", "latency", "spectrum", "--quiet"]
    run("resnet20", *words, "--output", tmp_path)
    assert list(facts(tmp_path)) == ["resnet20, dense", "random"]


def test_the_first_eigenvalues_are_said_to_be_that(ticket: Path, tmp_path: Path) -> None:
    run(ticket, *QUICK, "--draws", 0, "--top", 3, "--output", tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "the first 3 of 40 eigenvalues, by Lanczos" in text and "Mean of draws" not in text
    assert "its dense network is not on this page" in text


def test_help_teaches(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    text = capsys.readouterr().out
    assert "examples:" in text and "cifar10" in text and "--scorers" in text


def test_a_ticket_of_fewer_classes_than_the_data_is_told_what_helps(tmp_path: Path, capsys) -> None:
    model = resnet20(num_classes=7, generator=torch.Generator().manual_seed(0))
    hf_px.Ticket(*pruned(model)).save_pretrained(tmp_path / "seven")
    error = fails(capsys, tmp_path / "seven", *QUICK, "--data", "digits", "--output", tmp_path / "report")
    assert "is a ticket with 7 classes, and digits has more; name its own data with --data" in error


def test_an_output_that_cannot_be_made(ticket: Path, capsys) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc, where nobody can make a directory, root neither")
    assert "--output /proc/report: cannot be created" in fails(capsys, ticket, *QUICK, "--output", "/proc/report")


def test_an_interrupted_report_says_that_it_goes_on(ticket: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "_measure", stop)
    assert main(["report", str(ticket), *QUICK, "--output", str(tmp_path / "report")]) == 130
    assert capsys.readouterr().err.strip() == "hf-px: interrupted; the same command continues"


@pytest.mark.slow
def test_a_warning_is_one_line_of_words(ticket: Path, tmp_path: Path) -> None:
    """It shows no file name or line number. Run in a subprocess, because pytest catches warnings."""
    words = [sys.executable, "-m", "hf_px.cli", "report", str(ticket), *QUICK, "--data", "digits", "--images", "5000"]
    done = subprocess.run([*words, "--output", str(tmp_path / "report")], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "hf-px: warning: --images 5000: there are only 10 examples to prune with; see --per-class"
    ]
