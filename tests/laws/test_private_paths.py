"""Nothing private leaves the machine: every byte that a push sends, and every file that is made to be shared.

The working directory, the home and the folders of data, weights, settings and results have odd names, and the last
part of each path an ordinary one, which may be shown.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import HfApi
from support.launching import REPO, Server, recipe_module, run_here, small_digits, small_pairs
from support.tickets import RESULT, own_ticket, pruned, timm_ticket
from transformers import ResNetConfig, ResNetForImageClassification

import hf_px
import hf_px.training.experiment
from hf_px.cli import main as command
from hf_px.tickets.ticket_file import PACKED, separate_chunks
from hf_px.training.resume import FOLDER, read_local

ODD = ("zqhost", "zqhome", "zquser", "zqproject", "zqvault", "zqclinic", "zqsecret")
REPO_ID = "alice/ticket"


@pytest.fixture
def here(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user who is logged in on the Hub."""
    from accelerate.state import AcceleratorState, GradientState

    home = tmp_path / "zqhome of zquser"
    (home / "zqproject").mkdir(parents=True)
    for name, value in {"HOME": home, "USER": "zquser", "LOGNAME": "zquser", "HF_TOKEN": "hf_alice"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("HF_PX_CACHE", str(home / "cache"))
    monkeypatch.setenv("ZQ", "zqsecret")  # nothing of the environment is shown
    for module, name in ((socket, "gethostname"), (platform, "node")):
        monkeypatch.setattr(module, name, lambda: "zqhost")
    monkeypatch.chdir(home / "zqproject")
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return home / "zqproject"


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """Outside the working directory: images, a model, a file of settings."""
    found = tmp_path / "zqvault" / "the zqclinic's"
    for name in ("scans", "net"):
        (found / name).mkdir(parents=True)
    small_digits(found / "scans", train=96, test=31)
    ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=10)
    ).save_pretrained(found / "net")
    (found / "settings.yaml").write_text("epochs: 1\nimage_size: 16\nbatch_size: 32\nlr: 0.05\nper_class: 2\n")
    return found


def leaks(files: Iterable[tuple[str, bytes]]) -> list[str]:
    """File: name for each odd name in a file's own name or bytes."""
    found = []
    for name, data in files:
        for odd in (*ODD, "pytest-of"):  # the root of all paths here
            if odd.encode() in data or odd in name:
                found.append(f"{name}: {odd}")
    return found


def pushed(hub: Any) -> Iterator[tuple[str, bytes]]:
    """All that the Hub got: files of every commit, and what the commits say."""
    commits = hub.commits(REPO_ID)
    for commit in commits:
        yield from hub.files(REPO_ID, commit.id).items()
        yield "commit", f"{commit.title}\n{commit.message}".encode()
    assert len(hub.files(REPO_ID)) > 3


def written(folder: Path) -> Iterator[tuple[str, bytes]]:
    """What a directory holds but for what a resume needs, which no upload takes."""
    paths = [path for path in folder.rglob("*") if path.is_file() and FOLDER.name not in path.parts]
    assert paths
    return ((str(path.relative_to(folder)), path.read_bytes()) for path in paths)


def recipe(name: str) -> ModuleType:
    return recipe_module(REPO / "recipes" / f"{name}.py")


@pytest.mark.parametrize("name", ["prune_finetune", "imp"])
def test_a_recipe(name: str, hub: Any, here: Path, vault: Path) -> None:
    run = vault / "run"
    more = ["--rounds", "1", *(["--scorer", "snip"] if name == "prune_finetune" else [])]
    words = ["--model", vault / "net", "--data", vault / "scans", "--config", vault / "settings.yaml", *more]
    run_here(recipe(name), here, *map(str, words), "--sparsity", "0.5", f"--output_dir={run}", "--push_to_hub", REPO_ID)
    assert leaks(pushed(hub)) == leaks(written(run)) == []
    record = json.loads((run / "results.json").read_text())
    assert (record["settings"]["data"], record["settings"]["model"], record["data"]["dataset"]) == (
        "scans",
        "net",
        "scans",
    )
    assert f"{name}.py --model net --data scans --config settings.yaml" in record["command"]
    full = read_local(run)
    assert full is not None and (full["data"], full["model"]) == (str(vault / "scans"), str(vault / "net"))
    # uploaded by hand, it tells no more
    HfApi().upload_folder(repo_id=REPO_ID, folder_path=run)
    assert leaks(pushed(hub)) == []


def test_without_the_settings_in_full_other_data_of_the_same_name_are_noticed(
    here: Path, vault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "scans"
    other.mkdir(parents=True)
    small_digits(other, train=80, test=31)
    words = ["--model", "test_resnet", "--config", str(vault / "settings.yaml"), "--scorer", "magnitude"]
    words += ["--sparsity", "0.5", "--dense", "skip", "--output_dir", "run", "--data"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hf_px.training.experiment, "save_run_ticket", interrupt)
        run_here(recipe("prune_finetune"), here, *words, str(vault / "scans"))
    shutil.rmtree(here / "run" / FOLDER)
    with pytest.raises(ValueError, match="`output_dir` run holds a run on other data"):
        run_here(recipe("prune_finetune"), here, *words, str(other), "--resume")
    run_here(recipe("prune_finetune"), here, *words, str(vault / "scans"), "--resume")
    assert json.loads((here / "run" / "results.json").read_text())["finished"]


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow  # the writers of test_a_recipe, and one picture more
def test_a_segmentation_recipe(hub: Any, here: Path, vault: Path) -> None:
    run = vault / "run"
    words = ["--model", "deeplabv3plus_test_resnet", "--data", str(small_pairs(vault / "pairs")), "--image_size", "33"]
    words += ["--epochs", "1", "--batch_size", "8", "--rounds", "2", "--sparsity", "0.8", "--output_dir", str(run)]
    words += ["--card_images", "4"]  # pictures of this machine are pushed only if they are asked for
    run_here(recipe("prune_finetune"), here, *words, "--push_to_hub", REPO_ID)
    assert "predictions.png" in hub.files(REPO_ID)
    assert leaks(pushed(hub)) == leaks(written(run)) == []


def test_a_sweep(server: Server, here: Path, vault: Path) -> None:
    out = vault / "sweep"
    words = ["--methods", "magnitude", "--sparsities", "0.5", "--output_dir", str(out), "--config"]
    words += [str(vault / "settings.yaml"), "--", "--data", str(vault / "scans"), "--model", str(vault / "net")]
    sweep = REPO / "recipes" / "sweep.py"
    server.run(here, *words, recipe=sweep)
    shared = [path for path in out.iterdir() if path.is_file()]  # logs are the user's own
    assert {path.suffix for path in shared} >= {".csv", ".md", ".svg"}
    assert leaks((path.name, path.read_bytes()) for path in shared) == leaks(written(out / "cells")) == []
    # other data of the same last name are other data
    other = vault.parent / "scans"
    (vault / "scans").rename(other)
    words[words.index(str(vault / "scans"))] = str(other)
    assert "was run with other settings: data was" in server.run(here, *words, recipe=sweep, code=1)


def test_the_commands(hub: Any, here: Path, vault: Path) -> None:
    out, where = vault / "out", ["--data", str(vault / "scans")]
    assert not command(
        ["prune", str(vault / "net"), "--scorer", "snip", "--sparsity", "0.5", "--per-class", "2", *where,
         "--output", str(out), "--quiet"]
    )  # fmt: skip
    assert not command(["push", str(out), REPO_ID])
    assert not command(["convert", str(out), str(vault / "dense"), "--layout", "dense"])
    assert leaks(pushed(hub)) == leaks(written(out)) == leaks(written(vault / "dense")) == []
    assert json.loads((out / "prune.json").read_text())["settings"]["data"] == "scans"
    # a report of the ticket finds its data where they are, by the settings that stay here
    few = ["--sparsity", "0.5", "--per-class", "2", "--images", "2", "--draws", "0", "--skip", "latency", "--quiet"]
    few.append("--output")
    assert not command(["report", str(out), str(vault / "dense"), *few, str(vault / "report")])
    assert not command(["report", str(vault / "net"), "--scorers", "snip", *where, *few, str(vault / "compared")])
    assert leaks(written(vault / "report")) == leaks(written(vault / "compared")) == []
    page = (vault / "report" / "report.md").read_text()
    assert "Scores by layer: out" in page
    assert "dense (2): snip needs data" in page  # a copy does not know where they are, nor may it have that name


def test_tickets_of_one_name_in_two_places_have_two_names_on_a_page(here: Path, vault: Path) -> None:
    places = [vault / "a" / "ticket", vault / "b" / "ticket"]
    for seed, place in enumerate(places):
        hf_px.Ticket(*timm_ticket(seed=seed), scorer="random").save_pretrained(place)
    skip = ["--skip", "spectrum", "latency", "--quiet", "--output"]
    assert not command(["report", *map(str, places), *skip, str(vault / "report")])
    assert leaks(written(vault / "report")) == []
    page = (vault / "report" / "report.md").read_text()
    assert "ticket (1)" in page and "ticket (2)" in page


def test_tickets_by_hand(hub: Any, here: Path, vault: Path) -> None:
    record: dict[str, Any] = {
        "scorer": "random",
        "settings": {
            "data": str(vault / "scans"),
            "weights": str(Path.home() / "zqsecret" / "w.pth"),
            "notes": [f"images of {Path.home() / 'scans'}, {here / 'x'} and {vault.parent / 'scans'}"],
        },
        "results": [RESULT | {"dataset": str(vault / "scans"), "note": "from ~/zqsecret/scans"}],
        "command": shlex.join(["python", "train.py", f"--data={vault / 'scans'}"]),
    }
    torch.save(timm.create_model("test_resnet").state_dict(), vault / "w.pth")
    by_file = timm.create_model("test_resnet", pretrained=True, pretrained_cfg_overlay={"file": str(vault / "w.pth")})
    by_directory = ResNetForImageClassification.from_pretrained(vault / "net")
    for i, (model, mask) in enumerate([own_ticket(), pruned(by_file), pruned(by_directory)]):
        ticket = hf_px.Ticket(model, mask, **record)
        ticket.save_pretrained(vault / f"ticket{i}")
        ticket.push_to_hub(REPO_ID)
        assert leaks(written(vault / f"ticket{i}")) == leaks(pushed(hub)) == [], i
        header = hf_px.Ticket.from_pretrained(vault / f"ticket{i}").config
        assert header["settings"]["data"] == "scans" and header["command"] == "python train.py --data=scans"
    hf_px.from_pretrained(vault / "ticket2").save_pretrained(vault / "by transformers")
    assert leaks(written(vault / "by transformers")) == []


def test_a_ticket_and_a_run_of_an_older_version_are_cleaned_as_they_are_pushed(
    hub: Any, here: Path, vault: Path
) -> None:
    old = vault / "old"
    hf_px.Ticket(*timm_ticket(), scorer="random", settings={"data": "DATA"}).save_pretrained(old)
    (old / PACKED).write_bytes(b"".join(separate_chunks(old / PACKED)))  # the older format, whose header is plain text
    for path in old.glob("*.safetensors"):
        _in_header(path, "DATA", str(vault / "scans"))
    (old / "results.json").write_text(json.dumps({"settings": {"data": str(vault / "scans")}, "results": {}}))
    assert leaks(written(old))
    assert not command(["push", str(old), REPO_ID])
    assert leaks(pushed(hub)) == []


def _in_header(path: Path, old: str, new: str) -> None:
    """Replace a word of a safetensors file's header, which says its own length."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length].replace(old.encode(), new.encode())
    assert len(header) > length
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])


def test_the_search_sees_a_leak(tmp_path: Path) -> None:
    assert leaks([("README.md", b"in /x/zqclinic"), ("zqvault.txt", b"")]) == [
        "README.md: zqclinic",
        "zqvault.txt: zqvault",
    ]
    assert os.environ.get("ZQ") is None
