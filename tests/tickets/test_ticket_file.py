"""The packed format: a reader written from the specification agrees, nothing is lost, and it is near the bound."""

import functools
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import packed_oracle as oracle
from support.mask_streams import forged, masked, raw
from support.places import REPO
from torch import Tensor

from hf_px.core.errors import TicketError
from hf_px.core.mask import Mask
from hf_px.tickets import file_parts, ticket_file
from hf_px.tickets.card import entropy_bound
from hf_px.tickets.ticket_file import Contents

WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def contents(tensors: dict[str, Tensor] | None, bits: dict[str, Tensor], weights: str = "packed", **more) -> Contents:
    mask = Mask(bits)
    record = {"architecture": "x"}
    return Contents(weights, tensors, more.pop("model", record), more.pop("ticket", {}), lambda: mask, **more)


def whole(made: Contents) -> bytes:
    return b"".join(ticket_file.ticket_file_chunks(made))


def saved(made: Contents, directory: Path) -> Path:
    path = directory / "ticket.safetensors"
    ticket_file.write_ticket_file(path, made)
    return path


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@settings(max_examples=80)
@given(st.lists(masked(), min_size=1, max_size=3), masked())
def test_what_is_written_is_read_back_by_the_oracle_and_by_us(folder: Path, several: list, other: tuple) -> None:
    tensors = {f"layer.{i}": w for i, (w, _) in enumerate(several)} | {"bias": other[0]}
    bits = {f"layer.{i}": b for i, (_, b) in enumerate(several)}
    made = contents(tensors, bits)
    path = saved(made, folder)
    expected = oracle.read(path)
    found = ticket_file.read_ticket_file(path)
    assert found.tensors is not None and list(found.tensors) == sorted(
        tensors, key=lambda name: -tensors[name].element_size()
    )
    for name, weight in tensors.items():
        assert expected.weights[name].data == raw(weight) == raw(found.tensors[name])
        assert tuple(expected.weights[name].shape) == weight.shape == found.tensors[name].shape
        assert found.tensors[name].dtype is weight.dtype
    for name, b in bits.items():
        assert expected.masks[name].bits == b.reshape(-1).int().tolist()
        assert expected.masks[name].shape == b.shape
        # the rarer side, and the smallest of the k that need the fewest bits, or the bitmap where that costs little
        packed = expected.masks[name]
        assert packed.side == (2 * packed.kept <= b.numel())
        sizes = [oracle.rice_bits(oracle.gaps(packed), k) for k in range(13)]
        cheap = sizes[0] - min(sizes) <= 0.05 * 8 * packed.kept * tensors[name].element_size()
        assert packed.k == (0 if cheap else sizes.index(min(sizes)))
    assert found.mask == made.mask and expected.digest == expected.header["digest"] == made.mask.digest()
    assert expected.crc32 == expected.header["crc32"]
    assert whole(found) == path.read_bytes()  # save, load, save: identical bytes
    assert (
        0
        <= entropy_bound(made)
        - oracle.bound(
            [(int(b.sum()), b.numel(), tensors[n].element_size()) for n, b in bits.items()], len(raw(other[0]))
        )
        < 1.001
    )  # rounded up


@pytest.mark.parametrize("weights", ["packed", "dense"])
def test_a_kept_zero_is_kept(folder: Path, weights: str) -> None:
    weight = torch.tensor([0.0, -0.0, 1.0, 0.0, float("nan"), float("-inf")])
    bits = torch.tensor([True, True, True, False, True, True])
    path = saved(contents({"w": weight}, {"w": bits}, weights), folder)
    found = ticket_file.read_ticket_file(path)
    assert found.mask.bits["w"].equal(bits)
    assert raw(found.tensors["w"]) == raw(weight) == oracle.read(path).weights["w"].data
    assert oracle.read(path).masks["w"].bits == bits.int().tolist()


def some(weights: str, **more) -> Contents:
    g = torch.Generator().manual_seed(1)
    tensors = {
        "a.weight": torch.randn(8, 3, 3, 3, generator=g),
        "a.bias": torch.randn(8, generator=g),
        "b.weight": torch.randn(5, 8, generator=g).bfloat16(),
        "count": torch.tensor(3),
        "none": torch.empty(0, 4),
    }
    bits = {name: torch.rand(tensors[name].shape, generator=g) < 0.2 for name in ("b.weight", "a.weight")}
    for name, b in bits.items():
        tensors[name] = torch.where(b, tensors[name], torch.zeros_like(tensors[name]))
    more.setdefault("ticket", {"scorer": "px", "ärger": [1, 2.5, None]})
    return contents(None if weights == "base" else tensors, bits, weights, **more)


@pytest.mark.parametrize("weights", ["packed", "dense", "base"])
def test_every_kind_round_trips_and_is_plain_safetensors(tmp_path: Path, weights: str) -> None:
    names = {"b.weight": "own.b", "c.weight": "own.c"}
    made = some(weights, tied={"c.weight": "a.weight"}, aliases=("c.weight",), renamed=names, pair="ab")
    path = saved(made, tmp_path)
    plain = safetensors.torch.load_file(path)  # the library, which knows nothing of hf_px
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    expected, found = oracle.read(path), ticket_file.read_ticket_file(path)
    assert found.weights == weights == expected.header["weights"]
    assert (found.model, found.ticket, found.tied, found.renamed) == (
        made.model,
        made.ticket,
        made.tied,
        made.renamed,
    )
    assert found.mask == made.mask
    own = found.model_mask().bits
    assert set(own) == {"a.weight", "own.b", "own.c"} and own["own.c"].equal(made.mask.bits["a.weight"])
    if weights == "base":
        assert found.tensors is None and found.state_dict() == {}
        assert set(plain) == {"masks", "index"}
    else:
        state = found.state_dict()
        assert set(state) == {"a.weight", "a.bias", "own.b", "own.c", "count", "none"}
        assert state["own.c"] is state["a.weight"]  # two names, one tensor
        for name, tensor in made.tensors.items():
            assert raw(state[made.renamed.get(name, name)]) == raw(tensor) == expected.weights[name].data
    if weights == "dense":
        assert all(raw(plain[name]) == raw(tensor) for name, tensor in made.tensors.items())
    assert whole(found) == path.read_bytes()
    assert ticket_file.read_ticket_file(path, weights=False).mask == made.mask
    assert ticket_file.read_ticket_file(path, weights=False).tensors is None


def test_layers_without_a_weight_left_keep_their_order(tmp_path: Path) -> None:
    """Their values are empty and lie at one offset: there safetensors gives names in a new order every time."""
    bits = {f"layer.{i}": torch.zeros(3, dtype=torch.bool) for i in range(12)}
    path = saved(contents({name: torch.zeros(3) for name in bits}, bits), tmp_path)
    assert list(ticket_file.read_ticket_file(path).tensors) == list(bits)
    assert whole(ticket_file.read_ticket_file(path)) == path.read_bytes()


def test_nothing_masked_and_nothing_at_all(tmp_path: Path) -> None:
    for made in (contents({"a": torch.ones(2)}, {}), contents({}, {})):
        path = saved(made, tmp_path)
        assert (
            ticket_file.read_ticket_file(path).mask
            == Mask({})
            == ticket_file.read_ticket_file(path, weights=False).mask
        )
        assert whole(ticket_file.read_ticket_file(path)) == path.read_bytes()
        oracle.read(path)


AGAIN = """
import sys
from hf_px.tickets import ticket_file
from tickets import test_ticket_file
found = ticket_file.read_ticket_file(sys.argv[1])
ticket_file.write_ticket_file(sys.argv[2], found)
ticket_file.write_ticket_file(sys.argv[3], test_ticket_file.some("packed"))
"""


def test_equal_contents_equal_bytes_in_any_process(tmp_path: Path) -> None:
    path = saved(some("packed"), tmp_path)
    assert whole(some("packed")) == path.read_bytes()
    env = {**os.environ, "PYTHONHASHSEED": "123", "PYTHONPATH": f"{REPO}:{REPO / 'tests'}"}
    copies = [str(tmp_path / name) for name in ("again", "anew")]
    subprocess.run([sys.executable, "-c", AGAIN, str(path), *copies], env=env, check=True, timeout=120)
    assert [Path(copy).read_bytes() for copy in copies] == [path.read_bytes()] * 2


# The size


@functools.cache
def resnet50() -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in timm.create_model("resnet50").state_dict().items()}


def pruned_resnet50(sparsity: float, dtype: torch.dtype) -> Contents:
    """Its shapes, random masks whose densities differ from layer to layer, as after global pruning."""
    shapes = resnet50()
    rng = random.Random(7)
    masks = [name for name, shape in shapes.items() if len(shape) > 1]
    taste = {name: rng.uniform(0.2, 2.0) for name in masks}
    sizes = {name: torch.Size(shapes[name]).numel() for name in masks}

    def kept(scale: float) -> float:
        return sum(min(1.0, scale * taste[name]) * sizes[name] for name in masks)

    low, high, target = 0.0, 10.0, (1 - sparsity) * sum(sizes.values())
    for _ in range(60):
        low, high = ((low + high) / 2, high) if kept((low + high) / 2) < target else (low, (low + high) / 2)
    g = torch.Generator().manual_seed(3)
    bits, tensors = {}, {}
    for name, shape in shapes.items():
        if name in sizes:
            bits[name] = torch.rand(shape, generator=g) < high * taste[name]
            tensors[name] = bits[name].to(dtype)  # what the values are makes no difference to the size
        else:
            tensors[name] = torch.ones(shape, dtype=torch.int64 if name.endswith("tracked") else dtype)
    return contents(tensors, bits)


@pytest.mark.parametrize(
    "sparsity, most, dtype",
    [
        (0.36, 1.10, torch.float32),
        (0.738, 1.10, torch.float32),
        (0.893, 1.10, torch.float32),
        (0.956, 1.10, torch.float32),
        (0.982, 1.05, torch.float32),
        (0.982, 1.10, torch.bfloat16),
    ],
)
def test_size_is_near_the_entropy(sparsity: float, most: float, dtype: torch.dtype) -> None:
    made = pruned_resnet50(sparsity, dtype)
    assert made.mask.sparsity == pytest.approx(sparsity, abs=1e-3)
    parts = [(int(b.sum()), b.numel(), dtype.itemsize) for b in made.mask.bits.values()]
    plain = sum(t.numel() * t.element_size() for name, t in made.tensors.items() if name not in made.mask.bits)
    bound = oracle.bound(parts, plain)
    size = sum(len(chunk) for chunk in ticket_file.ticket_file_chunks(made))
    assert size <= most * bound, f"{size / bound:.4f} times the bound"
    assert abs(entropy_bound(made) - bound) <= 2


def test_a_small_file_stands_for_so_much_and_no_more(tmp_path: Path) -> None:
    """Many tensors, each within bounds, are not within them together."""
    each = forged(1, 0, 0, (2**24,))
    names = [f"w{i}" for i in range(40)]
    stored = {f"{name}:mask": each for name in names}
    crc = struct.unpack_from("<I", raw(each), 4)[0]
    header = file_parts.canonical_json(
        {"version": 1, "weights": "base", "digest": "0" * 64, "crc32": f"{crc:08x}" * len(names), "model": {}}
    )
    path = tmp_path / "ticket.safetensors"
    path.write_bytes(b"".join(file_parts.safetensors_chunks(stored, {"format": "pt", "hf_px": header})))
    with pytest.raises(TicketError, match=r"ticket\.safetensors: w\d+: .*more than a file of this size may have"):
        ticket_file.read_ticket_file(path)


def test_a_dtype_without_a_place_is_refused_by_name() -> None:
    made = contents({"w": torch.ones(2, dtype=torch.complex64)}, {})
    with pytest.raises(TicketError, match=r"w: .*complex64"):
        whole(made)
