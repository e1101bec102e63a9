"""Tickets of networks that shrink has cut: widths are data, strictly checked; other libraries refuse them, and read no
random weights."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path

import pytest
import timm
import torch
from support.loopback import LoopbackHub
from support.readers import REPO, outputs, strangers
from support.tickets import same_state
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

import hf_px
from hf_px.channels.widths import Widths
from hf_px.cli import main
from hf_px.core.errors import TicketError
from hf_px.models.config_marks import WIDTHS
from hf_px.models.networks import resnet20

KINDS = ("timm", "hf_px", "transformers", "vit")
SIZE = (3, 32, 32)


@cache
def pruned(kind: str) -> tuple[nn.Module, hf_px.Mask]:
    """Half the multiply-adds, as whole channels; batch norms have seen images."""
    torch.manual_seed(0)
    if kind == "timm":
        model: nn.Module = timm.create_model("test_resnet", num_classes=5, zero_init_last=False)
    elif kind == "hf_px":
        model = resnet20(generator=torch.Generator().manual_seed(0))
    elif kind == "vit":
        model = timm.create_model("test_vit", num_classes=5, img_size=32)
    else:
        config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
        model = ResNetForImageClassification(config)
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(8, *SIZE))
    mask = hf_px.prune(
        model.eval(), "magnitude", scope="channel", of="macs", sparsity=0.5, input_size=SIZE, progress=False
    )
    return mask.apply_(model), mask


@cache
def small(kind: str) -> hf_px.Ticket:
    model, mask = pruned(kind)
    args = {"img_size": 32} if kind == "vit" else None
    ticket = hf_px.Ticket(model, mask, scorer="magnitude", settings={"seed": 0}, model_args=args)
    return ticket.shrink(input_size=SIZE, progress=False)


@pytest.mark.parametrize("layout", ["both", "packed", "dense"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded(tmp_path: Path, kind: str, layout: str) -> None:
    small(kind).save_pretrained(tmp_path / "a", layout=layout)
    loaded = hf_px.from_pretrained(tmp_path / "a")
    assert same_state(loaded, small(kind).to_model()) and not loaded.training
    assert outputs(loaded) == pytest.approx(outputs(pruned(kind)[0]), abs=1e-5)
    hf_px.Ticket.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b", layout=layout)
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "ab"]
    assert files[0] == files[1]


def test_the_file_is_smaller_and_its_weights_are_dense(tmp_path: Path) -> None:
    model, mask = pruned("timm")
    small("timm").save_pretrained(tmp_path, layout="packed")
    weights = sum(4 * bits.numel() for bits in small("timm").mask.bits.values())
    assert small("timm").mask.sparsity == 0 and weights == 4 * mask.kept
    size = (tmp_path / "ticket.safetensors").stat().st_size
    assert size < 4 * mask.kept + 4 * sum(t.numel() for n, t in model.state_dict().items() if t.dim() < 2) + 12_000


def test_a_ticket_is_cut_twice(tmp_path: Path) -> None:
    """The second cut names rows of the architecture, as the first."""
    ticket = small("timm")
    model = ticket.to_model()
    mask = hf_px.prune(model, "magnitude", scope="channel", sparsity=0.3, input_size=SIZE, progress=False)
    twice = hf_px.Ticket(mask.apply_(model), mask, shrunk=ticket.provenance["shrunk"]).shrink(
        input_size=SIZE, progress=False
    )
    twice.save_pretrained(tmp_path)
    assert outputs(hf_px.from_pretrained(tmp_path)) == pytest.approx(outputs(model), abs=1e-5)
    first, second = ticket.provenance["shrunk"]["weights"], twice.provenance["shrunk"]["weights"]
    assert second[0] == first[0] and second[1] < first[1]


def test_the_card_tells_widths_and_no_sparsity_that_is_none(tmp_path: Path) -> None:
    small("timm").save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    before, after = small("timm").provenance["shrunk"]["macs"]
    assert f"| multiply-adds of one image | {before:,} | {after:,} | {after / before:.1%} |" in card
    assert "hf-px export" in card and "timm.create_model" not in card and "keep_zeros" not in card
    assert "pipeline_tag: image-classification" in card and "library_name: hf_px" in card
    assert f"{small('timm').provenance['shrunk']['weights'][1]:,} are left" in card
    for name, weight in small("timm").to_model().named_parameters():
        if name in small("timm").mask.bits:
            shape, before = ("x".join(map(str, p.shape)) for p in (weight, pruned("timm")[0].get_parameter(name)))
            assert f"| `{name}` | {shape}{f' of {before}' if shape != before else ''} |" in card
    full, left = small("timm").provenance["shrunk"]["bytes"]
    assert full == sum(t.nbytes for t in pruned("timm")[0].state_dict().values()) and left < full / 4
    assert f"| bytes of all tensors | {full:,} | {left:,} |" in card


def test_strangers_are_refused(tmp_path: Path) -> None:
    """Without hf_px no reader makes random weights of it; with it, transformers says who can load it."""
    for kind in ("timm", "transformers"):
        small(kind).save_pretrained(tmp_path / kind)
    jobs = [
        {"how": "timm", "where": f"local-dir:{tmp_path / 'timm'}"},
        {"how": "AutoModelForImageClassification", "where": str(tmp_path / "transformers")},
    ]
    for answer in strangers(jobs, hf_px=False, home=tmp_path / "home"):
        assert "error" in answer, answer
    (answer,) = strangers(jobs[1:], hf_px=True, home=tmp_path / "home")
    assert answer["kind"] == "TicketError" and "hf_px.from_pretrained loads it" in answer["error"]


def test_it_travels_over_the_hub(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    small("hf_px").push_to_hub("alice/small")
    assert outputs(hf_px.from_pretrained("alice/small")) == pytest.approx(outputs(pruned("hf_px")[0]), abs=1e-5)


def test_training_it_keeps_its_widths(tmp_path: Path) -> None:
    ticket = small("hf_px")
    model = ticket.to_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    hf_px.keep_zeros(model, ticket.mask, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, *SIZE)), torch.arange(8)).backward()
        optimizer.step()
    hf_px.Ticket(model, ticket.mask).save_pretrained(tmp_path)
    assert same_state(hf_px.from_pretrained(tmp_path), model)


# Damage


def widths() -> dict:
    return copy.deepcopy(small("vit").model_record()[WIDTHS])


def shapes() -> dict[str, tuple[int, ...]]:
    model = timm.create_model("test_vit", num_classes=5, img_size=32)
    return {name: tuple(t.shape) for name, t in (*model.named_parameters(), *model.named_buffers())}


def test_widths_survive_json() -> None:
    record = json.loads(json.dumps(widths()))
    assert Widths.from_dict(record, shapes()).to_dict() == record


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("sets", 0), [2, 1], "no rising indices"),
        (("sets", 0), [1, 1], "no rising indices"),
        (("sets", 0), [-1, 2], "no rising indices"),
        (("sets", 0), [], "no rising indices"),
        (("sets", 0), [0, True], "no rising indices"),
        (("sets", 0), [0, 10**6], "the file is damaged"),
        (("sets",), "x", "sets is 'x'"),
        (("tensors", "head.nothing"), [None, None], "no tensor of this architecture"),
        (("tensors", "blocks.0.mlp.fc1.weight"), [0], "has 2 dimensions"),
        (("tensors", "blocks.0.mlp.fc1.weight"), [99, None], "keeps 99"),
        (("attributes", "blocks.0.attn"), {"num_heads": 0}, "attributes of 'blocks.0.attn'"),
        (("attributes", "blocks.0.attn"), {"forward": 1}, "attributes of 'blocks.0.attn'"),
        (("attributes", "blocks.9.attn"), {"num_heads": 1}, "no module 'blocks.9.attn'"),
        (("attributes", "blocks.0.mlp"), {"num_heads": 1}, "has no number num_heads"),
        (("biases",), ["blocks.0.mlp.fc1.bias"], "cannot be a new bias"),
        (("biases",), [3], "cannot be a new bias"),
    ],
)
def test_damaged_widths_are_refused_by_name(place: tuple, value: object, message: str) -> None:
    record = widths()
    inner = record
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    model = timm.create_model("test_vit", num_classes=5, img_size=32)
    with pytest.raises(TicketError, match=re.escape(message)):
        Widths.from_dict(record, shapes()).cut_(model)


def test_widths_that_do_not_fit_the_weights_are_refused(tmp_path: Path) -> None:
    """Every index is possible, and the tensors have other sizes."""
    small("timm").save_pretrained(tmp_path, layout="dense")
    config = json.loads((tmp_path / "config.json").read_text())
    config[WIDTHS]["sets"][0] = config[WIDTHS]["sets"][0][:-1]
    ticket = hf_px.Ticket.from_pretrained(tmp_path)  # the header has the record, config.json is for other readers
    record = ticket.model_record() | {WIDTHS: config[WIDTHS]}
    from hf_px.models.architecture import filled

    with pytest.raises((TicketError, RuntimeError)):
        filled(record, small("timm").to_model().state_dict())


def test_mask_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TicketError, match="mask-only stores no weights, and those of the base have all channels"):
        small("timm").save_pretrained(tmp_path / "out", layout="mask-only")
    assert not (tmp_path / "out").exists()


# Commands


def test_from_prune_to_a_smaller_ticket_in_two_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, small_out = str(tmp_path / "out"), str(tmp_path / "small")
    argv = ["resnet20", "--num-classes", "10", "--scorer", "magnitude", "--sparsity", "0.5", "--output", out]
    assert main(["prune", *argv, "--scope", "channel:8", "--of", "macs"]) == 0
    assert f"hf-px shrink {out} DIR removes them" in capsys.readouterr().out
    assert main(["shrink", out, small_out]) == 0
    said = capsys.readouterr().out
    assert re.search(r"multiply-adds 40,\d+,\d+ -> \d+,\d+,\d+ \(-5\d\.\d%\)", said) and "wrote" in said
    assert main(["verify", small_out]) == 0 and main(["info", small_out]) == 0
    assert "cut " in capsys.readouterr().out
    full, cut = hf_px.from_pretrained(out), hf_px.from_pretrained(small_out)
    assert all(m.out_channels % 8 == 0 for m in cut.modules() if isinstance(m, nn.Conv2d))
    assert outputs(cut) == pytest.approx(outputs(full), abs=1e-5)
    assert main(["bench", small_out, "--seconds", "1"]) == 0
    assert "torch, full width" in capsys.readouterr().out
    assert main(["shrink", out, small_out]) == 2
    assert f"DIR {small_out}: holds other files; name another directory, or add --force" in capsys.readouterr().err
    commands = hf_px.Ticket.from_pretrained(small_out).provenance["command"].split(" && ")
    assert len(commands) == 2  # of prune, and of shrink
    assert main(["push", small_out, "alice/small", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "for any library" not in said and "widths that are left, for hf_px" in said


def test_the_example_of_single_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Few channels are superfluous at 98.2 %; the answers on real images are the same."""
    example = REPO / "model_cards" / "examples" / "resnet20-cifar10-px-path-98"
    assert main(["shrink", str(example), str(tmp_path / "small")]) == 0
    ticket, cut = (hf_px.from_pretrained(where) for where in (example, tmp_path / "small"))
    x = torch.rand(16, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(ticket(x), cut(x), atol=1e-4)
    said = capsys.readouterr().out
    before, after = (int(n.replace(",", "")) for n in re.search(r"weights ([\d,]+) -> ([\d,]+)", said).groups())
    assert before == 270_896 > after
