"""Tickets in half precision: the weights are the rounding of the originals, and nothing else about a ticket changes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file
from support.tickets import RESULT, own_ticket, same_state, timm_ticket, transformers_ticket
from torch import nn

import hf_px
from hf_px.cli import main
from hf_px.core.errors import TicketError
from hf_px.core.mask import Mask
from hf_px.tickets.directory import write_ticket
from hf_px.tickets.stored_dtype import round_

HALF = ("float16", "bfloat16")
MAKERS = {"timm": timm_ticket, "hf_px": own_ticket, "transformers": transformers_ticket}
LAYOUTS = ("both", "packed", "dense")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def oracle(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The nearest number that has the dtype, ties to even, by numpy and by bits; vectors and integers unchanged."""
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return tensor.clone()
    array = tensor.detach().contiguous().numpy()
    if dtype == "float16":
        return torch.from_numpy(array.astype(np.float16).astype(np.float32))
    bits = array.view(np.uint32).astype(np.uint64)  # bfloat16 is the upper half of a float32
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return torch.from_numpy(bits.astype(np.uint32).view(np.float32))


def rounded_state(model: nn.Module, dtype: str) -> dict[str, torch.Tensor]:
    return {name: oracle(tensor, dtype) for name, tensor in model.state_dict().items()}


def equal(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return state.keys() == expected.keys() and all(
        state[name].dtype is want.dtype and torch.equal(state[name], want) for name, want in expected.items()
    )


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("maker", MAKERS)
def test_loads_as_the_rounding_of_the_original(
    tmp_path: Path, maker: str, dtype: str, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, mask = MAKERS[maker]()
    expected, before = rounded_state(model, dtype), {n: t.clone() for n, t in model.state_dict().items()}
    hf_px.Ticket(model, mask, scorer="random").save_pretrained(tmp_path / "a", layout=layout, dtype=dtype)
    assert equal(model.state_dict(), before)  # the live model is not rounded
    ticket = hf_px.Ticket.from_pretrained(tmp_path / "a")
    assert ticket.mask == mask and ticket.mask.digest() == mask.digest()
    assert ticket.config["dtype"] == dtype
    loaded = hf_px.from_pretrained(tmp_path / "a")
    assert type(loaded) is type(model) and equal(loaded.state_dict(), expected)
    assert all(p.dtype is torch.float32 for p in loaded.parameters())

    asked = getattr(torch, dtype)
    for wanted in (dtype, asked):  # loaded as asked, and the stored numbers to the bit
        half = hf_px.from_pretrained(tmp_path / "a", dtype=wanted)
        assert {t.dtype for t in half.state_dict().values() if t.is_floating_point()} == {asked}
        assert all(
            torch.equal(t, expected[n].to(asked) if t.is_floating_point() else t) for n, t in half.state_dict().items()
        )

    ticket.save_pretrained(tmp_path / "b", layout=layout)
    ticket.save_pretrained(tmp_path / "c", layout=layout, dtype=dtype)
    hf_px.Ticket(model, mask, scorer="random").save_pretrained(tmp_path / "d", layout=layout, dtype=asked)
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c") == files(tmp_path / "d")
    assert main(["verify", str(tmp_path / "a")]) == 0
    assert f"weights in {dtype}, biases and normalisation in float32" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", HALF)
def test_weights_take_half_the_bytes(tmp_path: Path, dtype: str) -> None:
    model, mask = own_ticket()
    ticket = hf_px.Ticket(model, mask)
    ticket.save_pretrained(tmp_path / "full")
    ticket.save_pretrained(tmp_path / "half", dtype=dtype)
    full, half = files(tmp_path / "full"), files(tmp_path / "half")
    saved = {name: len(full[name]) - len(half[name]) for name in full if name.endswith(".safetensors")}
    matrices = sum(t.numel() for t in model.state_dict().values() if t.dim() > 1)
    # two bytes a weight; masks are packed tighter beside shorter values, because a bitmap may add 5 % of theirs
    assert 2 * mask.kept - 200 < saved["ticket.safetensors"] < 2.2 * mask.kept
    assert len(half["ticket.safetensors"]) < 0.6 * len(full["ticket.safetensors"])
    assert saved["model.safetensors"] == pytest.approx(2 * matrices, abs=0.01 * matrices)  # and of its header
    stored = load_file(tmp_path / "half" / "model.safetensors")
    want = getattr(torch, dtype)
    assert {t.dtype for t in stored.values() if t.dim() > 1} == {want}
    assert {t.dtype for n, t in stored.items() if t.dim() == 1 and "running_" in n} == {torch.float32}


@pytest.mark.parametrize("dtype", HALF)
def test_a_kept_weight_that_rounds_to_zero_is_kept(tmp_path: Path, dtype: str) -> None:
    model, mask = timm_ticket()
    name = next(iter(mask.bits))
    weight, at = dict(model.named_parameters())[name], tuple(mask.bits[name].nonzero()[1])
    with torch.no_grad():
        weight[at] = 1e-9 if dtype == "float16" else 1e-45
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, dtype=dtype)
    ticket = hf_px.Ticket.from_pretrained(tmp_path)
    assert bool(ticket.mask.bits[name][at]) and ticket.mask == mask
    assert dict(ticket.to_model().named_parameters())[name][at] == oracle(weight, dtype)[at]
    assert dtype == "bfloat16" or oracle(weight, dtype)[at] == 0


def test_what_overflows_is_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    name = next(iter(mask.bits))
    with torch.no_grad():
        dict(model.named_parameters())[name][tuple(mask.bits[name].nonzero()[1])] = 70000.0
    ticket = hf_px.Ticket(model, mask)
    with pytest.raises(TicketError, match=rf"{name}: 70000 does not fit in float16.* 65504; set `dtype` to bfloat16"):
        ticket.save_pretrained(tmp_path / "out", dtype="float16")
    assert not (tmp_path / "out").exists()
    with pytest.raises(TicketError, match=f"{name}: 70000"):
        round_(model, "float16")
    ticket.save_pretrained(tmp_path / "out", dtype="bfloat16")
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_running_statistics_keep_their_range(tmp_path: Path) -> None:
    """In float16 a variance of 1e5 is infinite, and one of 1e-9 is zero."""
    model, mask = timm_ticket()
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    norm.running_var[:2] = torch.tensor([1e5, 1e-9])
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, dtype="float16")
    loaded = next(m for m in hf_px.from_pretrained(tmp_path).modules() if isinstance(m, nn.BatchNorm2d))
    assert torch.equal(loaded.running_var, norm.running_var)


def test_results_from_before_the_rounding_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, mask = timm_ticket()
    hf_px.Ticket(model, mask, results=[RESULT | {"note": "3 images"}]).save_pretrained(tmp_path / "full")
    command = ["convert", str(tmp_path / "full"), str(tmp_path / "half"), "--layout", "both", "--dtype", "float16"]
    assert main(command) == 0
    header = hf_px.Ticket.from_pretrained(tmp_path / "half").config
    note = "3 images; before the weights were rounded to float16"
    assert header["results"] == [RESULT | {"note": note}]
    card = (tmp_path / "half" / "README.md").read_text()
    assert note in card and "Weights are stored in float16, biases and normalisation in float32." in card
    assert f"{(tmp_path / 'half' / 'ticket.safetensors').stat().st_size:,}" in card
    assert "float16" not in (tmp_path / "full" / "README.md").read_text()

    round_(model, "float16")  # as a recipe does: what is measured now is what will be stored
    hf_px.Ticket(model, mask, results=[RESULT]).save_pretrained(tmp_path / "measured", dtype="float16")
    assert hf_px.Ticket.from_pretrained(tmp_path / "measured").config["results"] == [RESULT]
    capsys.readouterr()
    assert main(["info", str(tmp_path / "measured")]) == 0
    assert "dtype     weights in float16, biases and normalisation in float32" in capsys.readouterr().out


def test_back_to_float32_and_to_a_mask_alone(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    origin = {"base": "org/base", "base_revision": COMMIT}
    hf_px.Ticket(model, mask, **origin).save_pretrained(tmp_path / "half", dtype="bfloat16")
    half = hf_px.Ticket.from_pretrained(tmp_path / "half")
    half.save_pretrained(tmp_path / "full", dtype="float32")
    full = hf_px.Ticket.from_pretrained(tmp_path / "full")
    assert "dtype" not in full.config and equal(full.to_model().state_dict(), rounded_state(model, "bfloat16"))
    with pytest.warns(UserWarning, match="weights are not saved"):
        half.save_pretrained(tmp_path / "mask", layout="mask-only")
    assert "dtype" not in hf_px.Ticket.from_pretrained(tmp_path / "mask").config
    with pytest.raises(ValueError, match="`dtype` is that of stored weights, and `layout` mask-only stores none"):
        half.save_pretrained(tmp_path / "no", layout="mask-only", dtype="float16")


def test_unknown_dtypes_and_places_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, mask = timm_ticket()
    ticket = hf_px.Ticket(model, mask)
    for wrong in ("int8", torch.int8, "float8_e4m3fn"):
        with pytest.raises(ValueError, match=r"`dtype` '.*8.*': choose one of float32, float16, bfloat16"):
            ticket.save_pretrained(tmp_path, dtype=wrong)
    ticket.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="`dtype` 'half': choose one of"):
        hf_px.from_pretrained(tmp_path, dtype="half")
    with pytest.raises(ValueError, match="the sparse runtime computes in float32"):
        hf_px.from_pretrained(tmp_path, dtype="float16", runtime="sparse")
    with pytest.raises(ValueError, match="`into` keeps the dtype"):
        hf_px.Ticket.from_pretrained(tmp_path).to_model(into=model, dtype="float16")
    assert main(["prune", "resnet20", "--scorer", "magnitude", "--dtype", "float16"]) == 2
    assert "--dtype float16 is that of the ticket on disk; name its directory with --output" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["float16", "bfloat16", "float32"])
def test_any_ticket_loads_as_asked(tmp_path: Path, to: str) -> None:
    """Also one that was never rounded, and tensors that the constructor computes."""
    model, mask = transformers_ticket(dtype=torch.bfloat16)
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    assert same_state(hf_px.from_pretrained(tmp_path), model)
    found = hf_px.from_pretrained(tmp_path, dtype=to)
    assert found.dtype is getattr(torch, to) and str(found.config.dtype).endswith(to)
    assert same_state(found, nn.Module.to(model, getattr(torch, to)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_libraries_load_float32(tmp_path: Path, layout: str) -> None:
    model, mask = transformers_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path / "t", layout=layout, dtype="float16")
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "t")
    assert equal(loaded.state_dict(), rounded_state(model, "float16")) and hf_px.mask_of(loaded) == mask
    loaded.save_pretrained(tmp_path / "again")  # in float32, and no longer called float16
    assert "dtype" not in hf_px.Ticket.from_pretrained(tmp_path / "again").config
    assert main(["verify", str(tmp_path / "again")]) == 0
    if layout != "packed":
        model, mask = timm_ticket()
        hf_px.Ticket(model, mask).save_pretrained(tmp_path / "timm", layout=layout, dtype="float16")
        loaded = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
        assert equal(loaded.state_dict(), rounded_state(model, "float16"))


@pytest.mark.parametrize("wrong", ["bfloat16", "float8", 3])
def test_verify_refuses_another_dtype_than_the_recorded(tmp_path: Path, wrong: object) -> None:
    model, mask = timm_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, dtype="float16", layout="packed")
    contents = hf_px.Ticket.from_pretrained(tmp_path).contents
    contents.ticket["dtype"] = wrong
    write_ticket(tmp_path, contents, "packed")
    expected = "torch.float16, but a ticket in bfloat16" if wrong == "bfloat16" else "records the dtype"
    from hf_px.models.remote import Source
    from hf_px.tickets.verify import verify

    with pytest.raises(TicketError, match=expected):
        list(verify(Source.of(tmp_path)))
    assert isinstance(hf_px.from_pretrained(tmp_path), nn.Module) or wrong != "bfloat16"


def test_prune_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    flags = ["resnet20", "--scorer", "magnitude", "--sparsity", "0.9", "--quiet", "--device", "cpu"]
    assert main(["prune", *flags, "--output", str(tmp_path / "full")]) == 0
    assert main(["prune", *flags, "--dtype", "float16", "--output", str(out)]) == 0
    full, half = hf_px.from_pretrained(tmp_path / "full"), hf_px.from_pretrained(out)
    assert equal(half.state_dict(), rounded_state(full, "float16"))
    record = json.loads((out / "prune.json").read_text())
    assert record["settings"]["dtype"] == "float16"
    assert record["digest"] == hf_px.Ticket.from_pretrained(tmp_path / "full").mask.digest()


def test_a_push_is_rounded_too(hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    model, mask = timm_ticket()
    hf_px.Ticket(model, mask).push_to_hub("alice/half", dtype="float16")
    assert equal(hf_px.from_pretrained("alice/half").state_dict(), rounded_state(model, "float16"))


def test_nan_is_not_an_overflow(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    round_(model, "float16")
    assert bool(model[0].weight[0, 0].isnan())
    assert Mask.ones({"0.weight": model[0].weight}).total == 6
