"""info, predict, verify, push, convert and diff, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from support.loopback import LoopbackHub
from support.tickets import RESULT, deeplab_ticket, own_ticket, same_state, segformer_ticket, timm_ticket

import hf_px
from hf_px.cli import main
from hf_px.core.mask import Mask
from hf_px.tickets import ticket_file
from hf_px.tickets.mask_file import load_mask


@pytest.fixture
def ticket(tmp_path: Path) -> Path:
    model, mask = timm_ticket()
    info = {"scorer": "random", "settings": {"seed": 3}, "results": [RESULT], "base": "org/base", "license": "mit"}
    hf_px.Ticket(model, mask, **info, base_revision="0" * 40).save_pretrained(tmp_path / "ticket")
    return tmp_path / "ticket"


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(a) for a in argv]) == 0
    return capsys.readouterr().out


def fails(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(a) for a in argv]) == 2
    out = capsys.readouterr()
    assert out.err.startswith("hf-px: error: ") and len(out.err.splitlines()) == 1
    return out.err


def test_info(ticket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = hf_px.Ticket.from_pretrained(ticket).mask
    out = run(capsys, "info", ticket)
    for fact in ("test_resnet", "org/base at 000", "mit", "random: seed 3", mask.digest(), "accuracy 0.9 (dense 0.93)"):
        assert fact in out, fact
    info = json.loads(run(capsys, "info", ticket, "--json"))
    assert info["digest"] == mask.digest() and info["results"] == [RESULT]
    assert sum(layer["kept"] for layer in info["layers"].values()) == mask.kept


@pytest.mark.parametrize("layout", ["both", "packed", "dense", "mask-only"])
def test_convert_and_verify(ticket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str) -> None:
    model = hf_px.from_pretrained(ticket)
    out = run(capsys, "convert", ticket, tmp_path / "to", "--layout", layout)
    files = [path for path in (tmp_path / "to").glob("*.safetensors")]
    assert all(f"{path.name} {path.stat().st_size:,} bytes, downloaded" in out for path in files)
    assert (f"together {sum(path.stat().st_size for path in files):,}" in out) == (layout == "both")
    out = run(capsys, "verify", tmp_path / "to")
    assert all(line.startswith("ok  ") for line in out.splitlines())
    assert ("bit for bit" in out) == (layout == "both")
    if layout != "mask-only":
        assert same_state(hf_px.from_pretrained(tmp_path / "to"), model)
        run(capsys, "convert", tmp_path / "to", tmp_path / "to", "--layout", "both")  # in place
        assert same_state(hf_px.from_pretrained(tmp_path / "to"), model)


def test_verify_finds_what_is_wrong(ticket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = ticket_file.read_ticket_file(ticket / ticket_file.PACKED)
    assert contents.tensors is not None

    def write(name: str, **changes: object) -> None:
        changed = dict(vars(contents)) | changes
        changed.pop("mask", None)
        ticket_file.write_ticket_file(ticket / name, ticket_file.Contents(**changed))

    good = (ticket / ticket_file.PACKED).read_bytes()
    bad = {n: t.clone() for n, t in contents.tensors.items()}
    bad["bn1.weight"][2] = float("nan")
    write(ticket_file.PACKED, tensors=bad)
    assert "bn1.weight: holds inf or nan" in fails(capsys, "verify", ticket)

    write(ticket_file.PACKED, ticket=contents.ticket | {"sparsity": {"kept": 1, "total": 2}})
    assert "records 1 of 2 kept" in fails(capsys, "verify", ticket)

    (ticket / ticket_file.PACKED).write_bytes(good)
    dense = {n: t.clone() for n, t in contents.tensors.items()}
    dense["fc.bias"] += 1
    pair = ticket_file.pair_id(ticket / ticket_file.PACKED)
    write(ticket_file.DENSE, weights="dense", tensors=dense, pair=pair)
    assert "fc.bias: differs between" in fails(capsys, "verify", ticket)
    dense = {n: t.clone() for n, t in contents.tensors.items()}
    dense["fc.weight"] += 1
    write(ticket_file.DENSE, weights="dense", tensors=dense, pair=pair)
    assert "fc.weight" in fails(capsys, "verify", ticket) and "not zero" in fails(capsys, "verify", ticket)
    write(ticket_file.DENSE, weights="dense", pair="")
    assert "remove the one that is out of date" in fails(capsys, "verify", ticket)

    (ticket / ticket_file.DENSE).unlink()
    config = json.loads((ticket / "config.json").read_text())
    (ticket / "config.json").write_text(json.dumps(config | {"num_classes": 6}))
    assert "config.json: differs from the model record" in fails(capsys, "verify", ticket)
    (ticket / "config.json").unlink()
    assert "has no config.json" in fails(capsys, "verify", ticket)

    data = bytearray(good)
    data[len(data) // 2] ^= 4
    (ticket / ticket_file.PACKED).write_bytes(data)
    assert "damaged" in fails(capsys, "verify", ticket)


def test_diff(ticket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, mask = timm_ticket()
    name = next(iter(mask.bits))
    fewer = mask.bits[name].clone()
    fewer[tuple(fewer.nonzero()[0])] = False
    other = Mask({**mask.bits, name: fewer})
    hf_px.Ticket(other.apply_(model), other).save_pretrained(tmp_path / "other")
    rows = {row["layer"]: row for row in json.loads(run(capsys, "diff", ticket, tmp_path / "other", "--json"))}
    kept = int(mask.bits[name].sum())
    assert rows[name] == {"layer": name, "first": kept, "second": kept - 1, "shared": kept - 1, "jaccard": 1 - 1 / kept}
    assert rows["all"]["jaccard"] == pytest.approx(1 - 1 / mask.kept)
    assert all(row["jaccard"] == 1 for layer, row in rows.items() if layer not in (name, "all"))
    assert "Jaccard" in run(capsys, "diff", ticket, tmp_path / "other")
    own, own_mask = own_ticket()
    hf_px.Ticket(own, own_mask).save_pretrained(tmp_path / "own")
    assert "masks of different tensors" in fails(capsys, "diff", ticket, tmp_path / "own")


def test_all_of_it_on_the_hub(
    ticket: Path, tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    out = run(capsys, "push", ticket, "alice/first", "--private", "--message", "hello")
    assert 'hf_px.from_pretrained("alice/first")' in out
    for name in ("ticket.safetensors", "model.safetensors"):
        assert f"{name} {len(hub.files('alice/first')[name]):,} bytes" in out
    assert hub.commits("alice/first")[0].title == "hello"
    assert b'hf_px.from_pretrained("alice/first")' in hub.files("alice/first")["README.md"]
    assert "test_resnet" in run(capsys, "info", "alice/first")
    assert "bit for bit" in run(capsys, "verify", "alice/first")
    assert "1.0000" in run(capsys, "diff", "alice/first", ticket).splitlines()[-1]
    run(capsys, "convert", "alice/first", tmp_path / "back", "--layout", "packed", "--revision", "main")
    assert same_state(hf_px.from_pretrained(tmp_path / "back"), hf_px.from_pretrained(ticket))
    out = run(capsys, "push", "alice/first", "alice/second", "--layout", "packed", "--branch", "small")
    assert 'hf_px.from_pretrained("alice/second", revision="small")' in out
    assert "ticket.safetensors" in hub.files("alice/second", revision="small")
    assert "public" in fails(capsys, "push", ticket, "alice/second", "--private")
    assert "no such repo" in fails(capsys, "info", "alice/third")
    assert "no revision 'v9'" in fails(capsys, "info", "alice/first", "--revision", "v9")


def test_push_of_a_module_of_ones_own_says_how_it_is_loaded(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    mask = hf_px.prune(module, "magnitude", sparsity=0.5, progress=False)
    hf_px.Ticket(mask.apply_(module), mask).save_pretrained(tmp_path / "own")
    out = run(capsys, "push", tmp_path / "own", "alice/own")
    assert 'load it with: hf_px.Ticket.from_pretrained("alice/own").to_model(into=module)' in out


def test_prune_without_an_output_says_that_nothing_was_saved(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing was saved: add --output DIR" in run(capsys, "prune", "--demo", "--scorer", "magnitude")


def test_the_headline_counts_excluded_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = [f"blocks.{i}.conv{j}.weight" for i in (7, 8) for j in (1, 2)]  # 147,456 of 270,896 weights
    flags = [word for name in left for word in ("--exclude", name)]
    out = run(capsys, "prune", "resnet20", "--scorer", "magnitude", "--sparsity", 0.9, *flags, "--output", tmp_path)
    assert "sparsity 41.0106% nominal, 41.0106% effective" in out and "sparsity of the others 90.0000%" in out
    info = run(capsys, "info", tmp_path)
    assert "41.0106% nominal" in info and "159,800 of 270,896 kept" in info and "90.0000% in it" in info
    card = (tmp_path / "README.md").read_text()
    assert "# resnet20_cifar, 41.01% sparse" in card and "159,800 of 270,896 prunable weights are kept" in card
    assert "41.0106% of all prunable weights are pruned: 90.0000% of those in the layers below" in card
    assert "not in the mask, so dense: blocks.7.conv1.weight" in run(capsys, "verify", tmp_path)
    assert hf_px.Ticket.from_pretrained(tmp_path).mask.excluded == tuple(left)
    assert load_mask(tmp_path / "mask.safetensors")[0].excluded == tuple(left)


def test_verify_finds_a_mask_of_a_smaller_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "prune", "resnet20", "--scorer", "magnitude", "--output", tmp_path, "--quiet")
    contents = ticket_file.read_ticket_file(tmp_path / ticket_file.PACKED)
    fewer = Mask({name: bits for name, bits in contents.mask.bits.items() if name != "blocks.8.conv2.weight"})
    changed = dict(vars(contents)) | {"make_mask": lambda: fewer, "ticket": {}}
    changed.pop("mask")
    ticket_file.write_ticket_file(tmp_path / ticket_file.PACKED, ticket_file.Contents(**changed))
    assert "blocks.8.conv2.weight: 1 prunable tensor of this SmallResNet is not in" in fails(capsys, "verify", tmp_path)


def test_prune_writes_a_ticket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "prune", "resnet20", "--scorer", "magnitude", "--sparsity", "0.5", "--output", tmp_path, "--quiet")
    info = json.loads(run(capsys, "info", tmp_path, "--json"))
    record = json.loads((tmp_path / "prune.json").read_text())
    assert info["digest"] == record["digest"] and info["scorer"] == "magnitude" and "base" not in info
    assert info["settings"]["sparsity"] == 0.5 and info["settings"]["seed"] == 0
    assert info["settings"]["weights"] == "random, not trained"
    assert not {"data", "per_class"} & info["settings"].keys()  # magnitude looks at no data
    run(capsys, "verify", tmp_path)
    model = hf_px.from_pretrained(tmp_path)
    from hf_px.models.networks import resnet20

    dense = resnet20(generator=torch.Generator().manual_seed(0))
    mask = hf_px.Ticket.from_pretrained(tmp_path).mask
    assert same_state(model, mask.apply_(dense))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    Image.fromarray(pixels).resize((70, 50), Image.Resampling.BICUBIC).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


def test_predict_with_a_classifier(ticket: Path, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "predict", ticket, photo).splitlines()
    assert len(lines) == 7 and lines[0].split() == ["class", "probability"]
    info = json.loads(run(capsys, "predict", ticket, photo, "--json", "--top", 3))
    assert info["task"] == "image-classification" and info["ticket"] == str(ticket) and len(info["classes"]) == 3
    best = info["classes"][0]
    assert lines[2].split() == [*best["class"].split(), f"{best['probability']:.2%}"]
    assert list(photo.parent.glob("*.png")) == []
    out = fails(capsys, "predict", ticket, photo, "--output", photo.parent / "x.png")
    assert "is a classifier, which makes no image" in out
    assert "--top 0" in fails(capsys, "predict", ticket, photo, "--top", 0)


def test_predict_says_first_that_a_ticket_was_never_trained(
    tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--scorer", "magnitude", "--sparsity", "0.5", "--quiet"]
    run(capsys, "prune", "resnet20", *how, "--output", tmp_path / "random")
    assert main(["predict", str(tmp_path / "random"), str(photo)]) == 0
    assert capsys.readouterr().err.startswith(
        f"hf-px: warning: the weights of {tmp_path / 'random'} were never trained"
    )
    model = timm.create_model("test_resnet", num_classes=3, zero_init_last=False)
    timm.models.save_for_hf(model, tmp_path / "trained")
    run(capsys, "prune", tmp_path / "trained", "--num-classes", "2", *how, "--output", tmp_path / "head")
    assert main(["predict", str(tmp_path / "head"), str(photo)]) == 0
    assert "were never trained (those of its head, at least)" in capsys.readouterr().err
    run(capsys, "prune", tmp_path / "trained", *how, "--output", tmp_path / "whole")
    assert main(["predict", str(tmp_path / "whole"), str(photo)]) == 0
    assert "never trained" not in capsys.readouterr().err


def test_predict_with_a_segmenter(
    tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("background", "cat\x1b[2J", "dog", "cow", "car")
    hf_px.Ticket(*deeplab_ticket(names=names)).save_pretrained(tmp_path / "seg", layout="packed")
    monkeypatch.chdir(tmp_path)
    out = run(capsys, "predict", "seg", photo)
    assert out.splitlines()[0].split() == ["class", "share"] and out.endswith("\nwrote photo-segmented.png\n")
    assert "\x1b" not in out
    drawn = Path("photo-segmented.png").read_bytes()
    assert Image.open("photo-segmented.png").width > 2 * 480  # two pictures beside each other

    assert "photo-segmented.png: exists" in fails(capsys, "predict", "seg", photo)
    info = json.loads(run(capsys, "predict", "seg", photo, "--force", "--json"))
    assert info["task"] == "image-segmentation" and info["output"] == "photo-segmented.png"
    assert {one["class"] for one in info["classes"]} <= {"background", "cat[2J", "dog", "cow", "car"}
    assert sum(one["share"] for one in info["classes"]) == pytest.approx(1)
    assert Path("photo-segmented.png").read_bytes() == drawn  # the same again
    one = json.loads(run(capsys, "predict", "seg", photo, "--output", "other.png", "--json", "--top", 1))
    assert Path("other.png").read_bytes() == drawn and one["classes"] == info["classes"][:1]
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["other.png", "photo-segmented.png"]


def test_predict_refuses_before_it_fetches(
    tmp_path: Path, photo: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = "alice/nowhere"
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "there.png").touch()
    Image.open(photo).save(tmp_path / "photo.png")
    for argv, complaint in (
        ((tmp_path / "gone.jpg",), "gone.jpg: no such file"),
        ((tmp_path / "text.jpg",), "text.jpg: not an image"),
        ((photo, "--output", tmp_path / "x.jpg"), "x.jpg: a PNG is written; name it x.png"),
        ((photo, "--output", tmp_path / "no" / "x.png"), "no directory"),
        ((photo, "--output", tmp_path / "there.png"), "there.png: exists"),
        ((tmp_path / "photo.png", "--output", tmp_path / "photo.png", "--force"), "is the input image"),
        ((photo, "--top", "-1"), "--top -1: at least 1"),
    ):
        assert complaint in fails(capsys, "predict", nowhere, *argv), argv
    assert not [entry for entry in hub.requests if "/resolve/" in entry.path]
    assert "no such repo" in fails(capsys, "predict", nowhere, photo)
    assert (tmp_path / "there.png").read_bytes() == b""


def test_predict_with_what_cannot_be_built(tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 5))
    mask = hf_px.prune(model, "random", sparsity=0.5, progress=False)
    hf_px.Ticket(mask.apply_(model), mask).save_pretrained(tmp_path / "own")
    assert "call Ticket.from_pretrained(…).to_model(into=module)" in fails(capsys, "predict", tmp_path / "own", photo)
    assert "holds no ticket" in fails(capsys, "predict", tmp_path, photo)
    (tmp_path / "config.json").write_text("{")
    assert "config.json is damaged" in fails(capsys, "predict", tmp_path, photo)


def test_what_lies_beside_a_ticket_goes_with_it(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    made, png = tmp_path / "made", b"\x89PNG\r\n\x1a\n and so on"
    hf_px.Ticket(*segformer_ticket()).save_pretrained(made)
    (made / "predictions.png").write_bytes(png)
    (made / "results.json").write_text("{}")
    (made / "preprocessor_config.json").write_text('{"size": 64}')
    (made / "notes.txt").write_text("mine alone")
    run(capsys, "push", made, "alice/seg")
    files = hub.files("alice/seg")
    assert files["predictions.png"] == png and files["results.json"] == b"{}" and "notes.txt" not in files
    assert files["preprocessor_config.json"] == b'{"size": 64}'
    assert b"](predictions.png)" in files["README.md"]
    run(capsys, "convert", made, tmp_path / "to", "--layout", "packed")
    assert (tmp_path / "to" / "predictions.png").read_bytes() == png
    assert "](predictions.png)" in (tmp_path / "to" / "README.md").read_text()
    assert not (tmp_path / "to" / "notes.txt").exists()
    for name in ("predictions.png", "results.json"):
        (tmp_path / "secret").write_text("hf_secret")
        (made / name).unlink()
        (made / name).symlink_to(tmp_path / "secret")
        assert f"{name}: damaged, or not what its name says" in fails(capsys, "push", made, "alice/other")
        (made / name).unlink()


@pytest.mark.parametrize("command", ["info", "predict", "eval", "verify", "push", "convert", "diff"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_wrong_input(ticket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such directory" in fails(capsys, "info", tmp_path / "nowhere")
    assert "holds no ticket" in fails(capsys, "verify", tmp_path)
    assert "is a local directory" in fails(capsys, "push", ticket, ticket)
    with pytest.raises(SystemExit) as done:
        main(["convert", str(ticket), str(tmp_path / "x"), "--layout", "zip"])
    assert done.value.code == 2 and "invalid choice" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert "is a file" in fails(capsys, "convert", ticket, tmp_path / "file", "--layout", "packed")


def test_convert_writes_over_a_ticket_but_not_between_other_files(
    ticket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (thesis := tmp_path / "full" / "thesis.tex").parent.mkdir()
    thesis.touch()
    command = ["convert", ticket, thesis.parent, "--layout", "packed"]
    assert "holds files, but no ticket; name another directory, or add --force" in fails(capsys, *command)
    assert list(thesis.parent.iterdir()) == [thesis]
    run(capsys, *command, "--force")
    run(capsys, *command)  # a ticket now
    assert thesis.exists()
