"""hf-px prune and hf-px repair on trained weights: what a user with a folder of photos sees, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import hf_px
from hf_px.cli import main
from hf_px.data import load_images
from hf_px.models.load import load
from hf_px.refit.repair import Repair


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images and nothing else: no classes, no labels."""
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for i in range(24):
        coarse = draw.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((40, 40)).save(folder / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small timm model as a directory, with batch norm statistics as training on such images leaves them."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=7).train()
    x = torch.cat(load_images(str(photos), model, 24))
    with torch.no_grad():
        for _ in range(50):
            model(x)
    path = tmp_path_factory.mktemp("models") / "trained"
    timm.models.save_for_hf(model.eval(), path, model_config={"num_classes": 7})
    return path


@pytest.fixture(scope="module")
def pruned(trained: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the README's command writes."""
    out = tmp_path_factory.mktemp("pruned") / "out"
    assert main(["prune", str(trained), "--data", str(photos), "--output", str(out)]) == 0
    return out


def test_whole_channels_of_trained_weights_are_half_by_default_and_repaired(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert (
        main(["prune", str(trained), "--data", str(photos), "--scope", "channel", "--of", "macs", "--output", str(out)])
        == 0
    )
    assert "repaired by" in capsys.readouterr().out
    ticket = hf_px.Ticket.from_pretrained(out)
    assert ticket.provenance["settings"]["sparsity"] == 0.5
    smaller = ticket.shrink(progress=False)
    before, after = smaller.provenance["shrunk"]["macs"]
    assert 0.4 < after / before <= 0.5 and smaller.mask.sparsity == 0


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([str(word) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_trained_weights_and_images_are_repaired_by_default(
    trained: Path, photos: Path, pruned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(pruned)]) == 0
    errors = json.loads((pruned / "prune.json").read_text())["repair"]["errors"].values()
    before, after = (sum(column) / len(errors) for column in zip(*errors))
    assert f"by 24 images; error of a layer's output, mean: {before:.2%} before, {after:.2%} after" in (
        capsys.readouterr().out
    )
    ticket = hf_px.Ticket.from_pretrained(pruned)
    assert ticket.mask.sparsity == pytest.approx(0.8, abs=1e-3)
    record = json.loads((pruned / "prune.json").read_text())
    assert (record["settings"]["scorer"], record["settings"]["rounds"]) == ("magnitude", 5)
    assert record["repair"]["images"] == ticket.provenance["repair"]["images"] == 24
    assert "refitted by least squares on 24 images" in (pruned / "README.md").read_text()
    # nearer to the dense model than the same mask without a repair
    dense = load(str(trained)).model.eval()
    x = torch.cat(load_images(str(photos), dense, 24))
    bare = ticket.mask.apply_(load(str(trained)).model.eval())
    with torch.no_grad():
        off = [float((model(x) - dense(x)).norm()) for model in (ticket.to_model().eval(), bare)]
    assert off[0] < 0.8 * off[1]


def test_the_python_call_gives_the_same_ticket(trained: Path, photos: Path, pruned: Path) -> None:
    model = load(str(trained)).model
    ticket = hf_px.compress(model, load_images(str(photos), model, 512), progress=False)
    assert ticket.mask == hf_px.Ticket.from_pretrained(pruned).mask
    other = hf_px.from_pretrained(pruned).state_dict()
    for name, value in ticket.to_model().state_dict().items():
        torch.testing.assert_close(other[name], value)


def test_no_repair_leaves_the_kept_weights_alone(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prune", str(trained), "--data", str(photos), "--output", str(tmp_path / "out"), "--no-repair"]
    assert main([*words, "--sparsity", "0.5"]) == 0
    assert "not repaired" in capsys.readouterr().out
    ticket, dense = hf_px.Ticket.from_pretrained(tmp_path / "out"), load(str(trained)).model
    assert not ticket.provenance.get("repair")
    for name, bits in ticket.mask.bits.items():
        assert torch.equal(ticket.to_model().get_parameter(name)[bits], dense.get_parameter(name)[bits])


def test_a_ticket_is_repaired_later(trained: Path, photos: Path, tmp_path: Path) -> None:
    """hf-px prune --no-repair, then hf-px repair: the weights that Repair finds for that mask."""
    plain, out = tmp_path / "plain", tmp_path / "repaired"
    assert main(["prune", str(trained), "--sparsity", "0.6", "--output", str(plain), "--quiet"]) == 0
    words = ["repair", str(plain), "--base", str(trained), "--data", str(photos), "--output", str(out), "--quiet"]
    assert main(words) == 0
    before, after = (hf_px.Ticket.from_pretrained(place) for place in (plain, out))
    assert before.mask == after.mask
    dense = load(str(trained)).model.eval()
    wanted, report = Repair(dense, load_images(str(photos), dense, 512), progress=False).repaired(before.mask)
    assert after.provenance["repair"] == report.to_dict()
    found = after.to_model().state_dict()
    for name, value in wanted.state_dict().items():
        torch.testing.assert_close(found[name], value)


def test_a_ticket_in_bfloat16_is_repaired_to_one_in_bfloat16(trained: Path, photos: Path, tmp_path: Path) -> None:
    """Rounded weights are not those of the base, but they were not trained."""
    plain, out = tmp_path / "plain", tmp_path / "repaired"
    prune = ["prune", str(trained), "--sparsity", "0.6", "--dtype", "bfloat16", "--output", str(plain), "--quiet"]
    assert main(prune) == 0
    words = ["repair", str(plain), "--base", str(trained), "--data", str(photos), "--output", str(out), "--quiet"]
    assert main(words) == 0
    ticket, dense = hf_px.Ticket.from_pretrained(out), load(str(trained)).model.eval()
    wanted, _ = Repair(dense, load_images(str(photos), dense, 512), progress=False).repaired(ticket.mask)
    assert ticket.config["dtype"] == "bfloat16"
    found = ticket.to_model().state_dict()
    for name in ticket.mask.bits:
        torch.testing.assert_close(found[name], wanted.get_parameter(name).bfloat16().float(), rtol=1e-2, atol=1e-6)
        assert torch.equal(found[name], found[name].bfloat16().float())


def test_what_is_refused_before_work(
    trained: Path, photos: Path, pruned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    empty, out = tmp_path / "empty", tmp_path / "out"
    empty.mkdir()
    assert "--repair needs images" in fails(capsys, "prune", trained, "--repair", "--output", out)
    assert "--repair-images" in fails(capsys, "prune", trained, "--data", photos, "--repair-images", "0")
    assert str(empty) in fails(capsys, "prune", trained, "--data", empty, "--output", out)
    repair = ("repair", "--output", out, "--data")
    assert "no such file" in fails(capsys, *repair, tmp_path / "none", pruned)
    assert "names no base" in fails(capsys, *repair, photos, pruned)
    # a second repair would undo the first: it starts from the dense weights, which these no longer are
    assert "trained or repaired" in fails(capsys, *repair, photos, pruned, "--base", trained)
    assert "not in resnet20" in fails(capsys, *repair, photos, pruned, "--base", "resnet20")
    assert "holds" in fails(capsys, "repair", pruned, "--data", photos, "--base", trained, "--output", pruned)
    assert not out.exists()


def test_repair_of_random_weights_needs_to_be_asked_for(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["prune", "resnet20", "--scorer", "magnitude", "--sparsity", "0.5", "--data", str(photos), "--quiet"]
    assert main([*words, "--output", str(out)]) == 0
    assert "repair" not in json.loads((out / "prune.json").read_text())
