"""The packed format: a reader written from the specification agrees, nothing is lost, and it is near the bound."""

import functools
import os
import random
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import packed_oracle as oracle
import pytest
import safetensors.torch
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hf_px.core.errors import TicketError
from hf_px.core.mask import Mask
from hf_px.tickets import ticket_file
from hf_px.tickets.ticket_file import Contents

REPO = Path(__file__).resolve().parents[1]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def raw(tensor: Tensor) -> bytes:
    """Bit for bit: nan ≠ nan and 0.0 = -0.0 do not count here."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def contents(tensors: dict[str, Tensor] | None, bits: dict[str, Tensor], weights: str = "packed", **more) -> Contents:
    mask = Mask(bits)
    record = {"architecture": "x"}
    return Contents(weights, tensors, more.pop("model", record), more.pop("ticket", {}), lambda: mask, **more)


def whole(made: Contents) -> bytes:
    return b"".join(ticket_file.chunks(made))


def saved(made: Contents, directory: Path) -> Path:
    path = directory / "ticket.safetensors"
    ticket_file.write(path, made)
    return path


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@st.composite
def masked(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """(weights of any bits at all, mask): any shape, density and dtype."""
    dims = draw(st.integers(0, 5))
    most = {0: 1, 1: 700, 2: 30, 3: 9, 4: 6, 5: 4}[dims]
    shape = tuple(draw(st.integers(0, most)) for _ in range(dims))
    density = draw(st.sampled_from([0.0, 1.0, 0.5, 0.02]) | st.floats(0, 1))
    dtype = draw(st.sampled_from(DTYPES))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    bits = torch.rand(shape, generator=g) < density
    data = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=g)
    odd = torch.rand(shape, generator=g)  # exact zeros of both signs, inf and nan among the kept
    data[odd < 0.2] = 0
    data[..., -1][(odd > 0.1) & (odd < 0.2)] = 128
    data[odd > 0.9] = 255
    data[~bits] = 0
    return data.reshape(-1).view(dtype).reshape(shape), bits


@settings(max_examples=80)
@given(st.lists(masked(), min_size=1, max_size=3), masked())
def test_what_is_written_is_read_back_by_the_oracle_and_by_us(folder: Path, several: list, other: tuple) -> None:
    tensors = {f"layer.{i}": w for i, (w, _) in enumerate(several)} | {"bias": other[0]}
    bits = {f"layer.{i}": b for i, (_, b) in enumerate(several)}
    made = contents(tensors, bits)
    path = saved(made, folder)
    told = oracle.read(path)
    found = ticket_file.read(path)
    assert found.tensors is not None and list(found.tensors) == sorted(
        tensors, key=lambda name: -tensors[name].element_size()
    )
    for name, weight in tensors.items():
        assert told.weights[name].data == raw(weight) == raw(found.tensors[name])
        assert tuple(told.weights[name].shape) == weight.shape == found.tensors[name].shape
        assert found.tensors[name].dtype is weight.dtype
    for name, b in bits.items():
        assert told.masks[name].bits == b.reshape(-1).int().tolist()
        assert told.masks[name].shape == b.shape
        # the rarer side, and the smallest of the k that need the fewest bits, or the bitmap where that costs little
        packed = told.masks[name]
        assert packed.side == (2 * packed.kept <= b.numel())
        sizes = [oracle.rice_bits(oracle.gaps(packed), k) for k in range(13)]
        cheap = sizes[0] - min(sizes) <= 0.05 * 8 * packed.kept * tensors[name].element_size()
        assert packed.k == (0 if cheap else sizes.index(min(sizes)))
    assert found.mask == made.mask and told.digest == told.told["digest"] == made.mask.digest()
    assert told.crc32 == told.told["crc32"]
    assert whole(found) == path.read_bytes()  # save, load, save: identical bytes
    assert (
        0
        <= ticket_file.bound(made)
        - oracle.bound(
            [(int(b.sum()), b.numel(), tensors[n].element_size()) for n, b in bits.items()], len(raw(other[0]))
        )
        < 1.001
    )  # rounded up


def kept(weight: Tensor, bits: Tensor) -> Tensor:
    """weight[bits], which torch 2.8 does not do for all types."""
    width = weight.element_size()
    rows = weight.reshape(-1, 1).view(torch.uint8).reshape(-1, width)
    return rows[bits.reshape(-1)].reshape(-1).view(weight.dtype)


@settings(max_examples=50)
@given(masked())
def test_one_stream_alone(pair: tuple[Tensor, Tensor]) -> None:
    weight, bits = pair
    for values in (None, kept(weight, bits)):
        stream = ticket_file.encode(bits, values)
        told = oracle.stream(raw(stream), None if values is None else raw(values))
        found = ticket_file.decode(stream, values, limit=bits.numel())
        assert found.bits().equal(bits) and told.bits == bits.reshape(-1).int().tolist()
        assert raw(found.weight(kept(weight, bits))) == raw(weight)


@pytest.mark.parametrize("weights", ["packed", "dense"])
def test_a_kept_zero_is_kept(folder: Path, weights: str) -> None:
    weight = torch.tensor([0.0, -0.0, 1.0, 0.0, float("nan"), float("-inf")])
    bits = torch.tensor([True, True, True, False, True, True])
    path = saved(contents({"w": weight}, {"w": bits}, weights), folder)
    found = ticket_file.read(path)
    assert found.mask.bits["w"].equal(bits)
    assert raw(found.tensors["w"]) == raw(weight) == oracle.read(path).weights["w"].data
    assert oracle.read(path).masks["w"].bits == bits.int().tolist()


# 40 weights at 12: enough for every bit order and the split between quotients and remainders to show
GOLDEN_BITS = [0] * 40
for _i in (0, 9, 17, 39):
    GOLDEN_BITS[_i] = 1


def test_a_stream_by_hand() -> None:
    """The specification, worked by hand: gaps 0 8 7 21, with k = 3 quotients 0 1 0 2 and remainders 0 0 7 5."""
    bits = torch.tensor(GOLDEN_BITS, dtype=torch.bool)
    body = struct.pack("<QQ", 4, 40) + bytes([0b1001101, 0b11000000, 0b1011])
    # k = 3 costs 7 + 12 bits, k = 2 costs (1 + 3 + 2 + 6) + 8 = 20, k = 4 costs (1 + 1 + 1 + 2) + 16 = 21
    head = bytes([1, 1, 3, 1])
    assert raw(ticket_file.encode(bits)) == head + struct.pack("<I", zlib.crc32(head + body)) + body


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
    told, found = oracle.read(path), ticket_file.read(path)
    assert found.weights == weights == told.told["weights"]
    assert (found.model, found.ticket, found.tied, found.renamed) == (
        made.model,
        made.ticket,
        made.tied,
        made.renamed,
    )
    assert found.mask == made.mask
    own = found.own_mask().bits
    assert set(own) == {"a.weight", "own.b", "own.c"} and own["own.c"].equal(made.mask.bits["a.weight"])
    if weights == "base":
        assert found.tensors is None and found.state_dict() == {}
        assert set(plain) == {"a.weight:mask", "b.weight:mask"}
    else:
        state = found.state_dict()
        assert set(state) == {"a.weight", "a.bias", "own.b", "own.c", "count", "none"}
        assert state["own.c"] is state["a.weight"]  # two names, one tensor
        for name, tensor in made.tensors.items():
            assert raw(state[made.renamed.get(name, name)]) == raw(tensor) == told.weights[name].data
    if weights == "dense":
        assert all(raw(plain[name]) == raw(tensor) for name, tensor in made.tensors.items())
    assert whole(found) == path.read_bytes()
    assert ticket_file.read(path, weights=False).mask == made.mask
    assert ticket_file.read(path, weights=False).tensors is None


def test_layers_without_a_weight_left_keep_their_order(tmp_path: Path) -> None:
    """Their values are empty and lie at one offset: there safetensors gives names in a new order every time."""
    bits = {f"layer.{i}": torch.zeros(3, dtype=torch.bool) for i in range(12)}
    path = saved(contents({name: torch.zeros(3) for name in bits}, bits), tmp_path)
    assert list(ticket_file.read(path).tensors) == list(bits)
    assert whole(ticket_file.read(path)) == path.read_bytes()


def test_nothing_masked_and_nothing_at_all(tmp_path: Path) -> None:
    for made in (contents({"a": torch.ones(2)}, {}), contents({}, {})):
        path = saved(made, tmp_path)
        assert ticket_file.read(path).mask == Mask({}) == ticket_file.read(path, weights=False).mask
        assert whole(ticket_file.read(path)) == path.read_bytes()
        oracle.read(path)


AGAIN = """
import sys
from hf_px.tickets import ticket_file
import test_format
found = ticket_file.read(sys.argv[1])
ticket_file.write(sys.argv[2], found)
ticket_file.write(sys.argv[3], test_format.some("packed"))
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
    size = sum(len(chunk) for chunk in ticket_file.chunks(made))
    assert size <= most * bound, f"{size / bound:.4f} times the bound"
    assert abs(ticket_file.bound(made) - bound) <= 2


# Bad heads: refused, quickly and in little memory


def forged(side: int, k: int, kept: int, shape: tuple[int, ...], body: bytes = b"", dims: int | None = None) -> Tensor:
    """A stream that says what it likes, under a good checksum."""
    rest = struct.pack(f"<Q{len(shape)}Q", kept, *shape) + body
    head = bytes([1, side, k, len(shape) if dims is None else dims])
    return torch.frombuffer(bytearray(head + struct.pack("<I", zlib.crc32(head + rest)) + rest), dtype=torch.uint8)


MANY = 2**40
BAD = {
    "a product past 2**64": forged(1, 0, 0, (2**33, 2**33)),
    "a product that is 0 modulo 2**64": forged(1, 0, 1, (2**32, 2**32), b"\1"),
    "sides that are 0 but for one": forged(1, 0, 0, (2**63, 0)),
    "sides that are 0 but for one of 2**64 - 1": forged(1, 0, 0, (0, 2**64 - 1)),
    "huge, nothing kept": forged(1, 0, 0, (MANY,)),
    "huge, everything kept": forged(0, 0, MANY, (MANY,)),
    "huge, all to be listed": forged(0, 0, 0, (MANY,)),
    "k past the end": forged(1, 33, 1, (8,), b"\1" + b"\0" * 5),
    "k = 255": forged(1, 255, 1, (8,), b"\1" + b"\0" * 32),
    "k = 32, a gap past the end": forged(1, 32, 1, (8,), b"\1" + b"\xff" * 4),
    "k = 32, gaps past 2**63": forged(1, 32, 2, (8,), b"\0" * 4096 + b"\x81" + b"\xff" * 8),
    "k = 0, a gap past the end": forged(1, 0, 1, (8,), b"\0\1"),
    "k = 0, a gap one past the end": forged(1, 0, 1, (7,), b"\x80"),
    "k = 1, a gap one past the end": forged(1, 1, 1, (7,), b"\x08\x01"),
    "one gap too few": forged(1, 0, 2, (8,), b"\1"),
    "one gap too many": forged(1, 0, 1, (8,), b"\3"),
    "more kept than there are": forged(1, 0, 9, (8,), b"\xff\1"),
    "as many kept as 64 bits hold": forged(1, 0, 2**64 - 1, (8,), b"\1"),
    "side 2": forged(2, 0, 0, (8,)),
    "more sides than bytes": forged(1, 0, 0, (8,), dims=16),
    "17 sides": forged(1, 0, 0, (1,) * 17),
    "a byte too many": forged(1, 0, 1, (8,), b"\1\0"),
    "a byte where none belongs": forged(1, 0, 0, (8,), b"\0"),
    "no remainders": forged(1, 8, 1, (300,), b"\1"),
    "only remainders": forged(1, 8, 1, (300,), b"\0"),
    "nothing": torch.empty(0, dtype=torch.uint8),
    "15 bytes": torch.ones(15, dtype=torch.uint8),
    "a later version": torch.tensor([2] + [0] * 15, dtype=torch.uint8),
    "two rows": forged(1, 0, 1, (8,), b"\1").reshape(5, 5),
    "not bytes": torch.zeros(16),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_stream_is_refused_in_little_memory(what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TicketError):
            ticket_file.decode(BAD[what], limit=2**20)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_good_head_is_not_refused() -> None:
    """The forger's tool makes good streams too: it is what is said that is refused, not who says it."""
    found = ticket_file.decode(forged(1, 1, 1, (8,), b"\x08\x01"), limit=8)
    assert found.there.tolist() == [7]


@pytest.mark.parametrize("side", [0, 1])
def test_values_of_another_number_are_refused(side: int) -> None:
    bits = torch.tensor([True, False, False]) if side else torch.tensor([True, True, False])
    stream = ticket_file.encode(bits)
    right = int(bits.sum())
    for values in (torch.ones(right + 1), torch.ones(right - 1), torch.ones(right, 1), torch.tensor(1.0)):
        with pytest.raises(TicketError, match="kept"):
            ticket_file.decode(stream, values, limit=3)


@settings(max_examples=50)
@given(masked(), st.data())
def test_no_flipped_bit_passes(pair: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    weight, bits = pair
    values = kept(weight, bits)
    stream = ticket_file.encode(bits, values)
    both = bytearray(raw(stream) + raw(values))
    j = data.draw(st.integers(0, 8 * len(both) - 1))
    both[j // 8] ^= 1 << (j % 8)
    stream = torch.frombuffer(both[: len(stream)], dtype=torch.uint8)
    changed = torch.frombuffer(both, dtype=torch.uint8)[len(stream) :].clone().view(values.dtype)
    with pytest.raises(TicketError):
        ticket_file.decode(stream, changed, limit=2 * bits.numel() + 8)


def test_a_small_file_stands_for_so_much_and_no_more(tmp_path: Path) -> None:
    """Many tensors, each within bounds, are not within them together."""
    each = forged(1, 0, 0, (2**24,))
    names = [f"w{i}" for i in range(40)]
    stored = {f"{name}:mask": each for name in names}
    crc = struct.unpack_from("<I", raw(each), 4)[0]
    header = ticket_file.as_json(
        {"version": 1, "weights": "base", "digest": "0" * 64, "crc32": f"{crc:08x}" * len(names), "model": {}}
    )
    path = tmp_path / "ticket.safetensors"
    path.write_bytes(b"".join(ticket_file.safetensors_chunks(stored, {"format": "pt", "hf_px": header})))
    with pytest.raises(TicketError, match=r"ticket\.safetensors: w\d+: .*more than this file can stand for"):
        ticket_file.read(path)


def test_a_dtype_without_a_place_is_refused_by_name() -> None:
    made = contents({"w": torch.ones(2, dtype=torch.complex64)}, {})
    with pytest.raises(TicketError, match=r"w: .*complex64"):
        whole(made)
