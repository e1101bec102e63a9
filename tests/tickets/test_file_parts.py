"""Format version 2: parts joined by dtype under a compressed index. Nothing is lost, and nothing is trusted."""

import json
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from support import packed_oracle as oracle
from support.mask_streams import raw
from support.places import FIXTURES, REPO
from support.tickets import own_ticket

import hf_px
from hf_px.core.errors import TicketError
from hf_px.core.mask import Mask
from hf_px.tickets import file_parts, ticket_file
from hf_px.tickets.card import entropy_bound
from hf_px.tickets.ticket_file import Contents

SHIPPED = ["model_cards/examples/resnet20-cifar10-px-path-98", "model_cards/examples/resnet20-digits-px-path-98"]


def saved(path: Path) -> Path:
    """Tensors of four dtypes, one of them empty and one without dimensions."""
    g = torch.Generator().manual_seed(0)
    bits = {"a": torch.rand(6, 5, generator=g) < 0.3, "b": torch.rand(4, 3, generator=g) < 0.5}
    tensors = {
        "a": torch.where(bits["a"], torch.randn(6, 5, generator=g), 0),
        "steps": torch.tensor(2**40 + 1),
        "b": torch.where(bits["b"], torch.randn(4, 3, generator=g), 0).bfloat16(),
        "none": torch.empty(0, 3),
        "flags": torch.tensor([True, False, True]),
        "bias": torch.tensor([-0.0, float("nan"), float("inf")]),
    }
    made = Contents("packed", tensors, {"architecture": "x"}, {"note": "ü"}, lambda: Mask(bits))
    ticket_file.write_ticket_file(path, made)
    return path


def rewritten(path: Path, packed: bytes | None = None, **columns: torch.Tensor | None) -> None:
    """The file with another index or other tensors."""
    with ticket_file.safe_open(path, "pt") as file:
        stored: dict[str, Any] = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = file.metadata()
    if packed is not None:
        stored["index"] = torch.tensor(list(packed), dtype=torch.uint8)
    stored = {name: tensor for name, tensor in (stored | columns).items() if tensor is not None}
    path.write_bytes(b"".join(file_parts.safetensors_chunks(stored, metadata)))


def index_of(path: Path) -> dict[str, Any]:
    with ticket_file.safe_open(path, "pt") as file:
        return json.loads(zlib.decompress(raw(file.get_tensor("index"))))


def test_parts_are_those_of_version_1(tmp_path: Path) -> None:
    """Written out as version 1 again, a file holds the same, and becomes the same file of version 2."""
    new = saved(tmp_path / "new")
    (tmp_path / "old").write_bytes(b"".join(ticket_file.separate_chunks(new)))
    found, older = ticket_file.read_ticket_file(new), ticket_file.read_ticket_file(tmp_path / "old")
    assert oracle.read(new).header["weights"] == "packed" and oracle.read(tmp_path / "old").header["version"] == 1
    assert found.mask == older.mask and (found.model, found.ticket) == (older.model, older.ticket)
    assert list(found.tensors) == list(older.tensors)
    for name, tensor in found.tensors.items():
        assert raw(tensor) == raw(older.tensors[name]) == oracle.read(new).weights[name].data
        assert (tensor.dtype, tensor.shape) == (older.tensors[name].dtype, older.tensors[name].shape)
    ticket_file.write_ticket_file(tmp_path / "again", older)
    assert (tmp_path / "again").read_bytes() == new.read_bytes()
    assert ticket_file.pair_id(new) == ticket_file.pair_id(tmp_path / "old")


@pytest.mark.parametrize("folder", SHIPPED)
def test_a_small_ticket_is_near_the_bound(tmp_path: Path, folder: str) -> None:
    """A ResNet-20 at 98.2 %, with its records and checksums: at most 1.15 times the bound."""
    contents = ticket_file.read_ticket_file(REPO / folder / ticket_file.PACKED)
    ticket_file.write_ticket_file(tmp_path / "new", contents)
    assert (tmp_path / "new").stat().st_size <= 1.15 * entropy_bound(contents)
    found = ticket_file.read_ticket_file(tmp_path / "new")
    assert all(raw(tensor) == raw(contents.tensors[name]) for name, tensor in found.tensors.items())
    assert sum(name.endswith("num_batches_tracked") for name in found.tensors) == 21


@pytest.mark.parametrize("folder", [FIXTURES / "version-0" / "pruned", FIXTURES / "old-ticket"])
def test_files_of_version_1_are_read_and_written_as_version_2(tmp_path: Path, folder: Path) -> None:
    assert ticket_file.read_header(folder / ticket_file.PACKED)["version"] == 1
    ticket = hf_px.Ticket.from_pretrained(folder)
    ticket.save_pretrained(tmp_path, layout="packed")
    assert ticket_file.read_header(tmp_path / ticket_file.PACKED)["version"] == 2
    found = hf_px.Ticket.from_pretrained(tmp_path)
    assert found.mask == ticket.mask
    for (name, a), (_, b) in zip(found.to_model().state_dict().items(), ticket.to_model().state_dict().items()):
        assert raw(a) == raw(b), name


def test_plain_tensors_own_their_memory(tmp_path: Path) -> None:
    """Or saving one of them would save all."""
    found = ticket_file.read_ticket_file(saved(tmp_path / "file"))
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in found.tensors.values())


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = saved(tmp_path / "file")
    squeeze = zlib.compressobj(9)
    bomb = b"".join(squeeze.compress(b" " * 2**20) for _ in range(256)) + squeeze.flush()
    rewritten(path, bomb)
    assert path.stat().st_size < 2**19
    tracemalloc.start()
    with pytest.raises(TicketError, match=r"file: its index has more than 16,777,216 bytes"):
        ticket_file.read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 3 * file_parts.INDEX_LIMIT
    tracemalloc.stop()
    fits = zlib.compress(json.dumps(index_of(saved(path))).encode().ljust(file_parts.INDEX_LIMIT))
    rewritten(path, fits)
    assert ticket_file.read_header(path)["version"] == 2  # to the byte


def test_an_index_too_large_to_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_parts, "INDEX_LIMIT", 200)
    with pytest.raises(TicketError, match="a ticket has room for 200"):
        saved(tmp_path / "file")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x:mask", "x:values"])
def test_a_tensor_named_like_a_part_is_not_written(name: str) -> None:
    made = Contents("packed", {name: torch.ones(2)}, {"architecture": "x"}, {}, lambda: Mask({}))
    with pytest.raises(TicketError, match=f"{name}: .*rename it"):
        b"".join(ticket_file.ticket_file_chunks(made))


A = ["a", "F32", [6, 5]]
ENTRIES = {
    "no list": ({"a": 1}, "has no list of parts"),
    "not an entry": ([3], "3 in its index is not an entry"),
    "another length": ([[*A, 1, 0]], "is not an entry"),
    "twice": ([A, A], "a: listed twice"),
    "like a part": ([["a:mask", "U8", [1]]], "a:mask: listed twice, or named like a part"),
    "no such dtype": ([["a", "F128", [6, 5]]], "a: dtype F128 .*invalid"),
    "dtype of another type": ([["a", ["F32"], [6, 5]]], r"a: dtype \['F32'\] .*invalid"),
    "values missing": ([["a", None, [6, 5], 1, 0, 9, 2]], "a: dtype None .*invalid"),
    "negative side": ([["a", "F32", [-6, 5]]], r"a: shape \[-6, 5\] .*invalid"),
    "bool side": ([["a", "F32", [True]]], r"a: shape \[True\] .*invalid"),
    "overflow": ([["a", "F32", [2**62, 2**62, 0]]], "a: shape .*invalid"),
    "many sides": ([["a", "F32", [1] * 65]], "a: shape .*invalid"),
    "k": ([["a", "F32", [6, 5], 1, 256, 9, 2]], "a: .*256.* invalid"),
    "kept": ([["a", "F32", [6, 5], 1, 0, 2**64, 2]], "a: .* invalid"),
    "past the end": ([["a", "F32", [2**40]]], "a: F32 ends before its 1,099,511,627,776 elements"),
    "no such column": ([["a", "F16", [1]]], "a: F16 ends before its 1 elements"),
    "left over": ([["a", "F32", [1]]], r"has [\d,]+ elements, its index lists"),
}


@pytest.mark.parametrize("what", ENTRIES)
def test_entries_are_checked(tmp_path: Path, what: str) -> None:
    path = saved(tmp_path / "file")
    rows, message = ENTRIES[what]
    crc32 = "0" * 8 * len(rows)
    rewritten(path, zlib.compress(json.dumps(index_of(path) | {"parts": rows, "crc32": crc32}).encode()))
    with pytest.raises(TicketError, match=f"{path}: .*{message}"):
        ticket_file.read_ticket_file(path)


def test_what_is_not_an_index_is_refused(tmp_path: Path) -> None:
    good = zlib.compress(json.dumps(index_of(saved(tmp_path / "file"))).encode())
    cases = {
        b"": "truncated",
        good[:-9]: "truncated",
        good + b"x": "followed by other bytes",
        good[:9] + bytes([good[9] ^ 255]) + good[10:]: "inflated|truncated|not JSON",
        good[:-1] + bytes([good[-1] ^ 1]): "cannot be inflated",
        zlib.compress(b"{"): "not JSON",
        zlib.compress(b"\xff{}"): "not JSON",
        zlib.compress(b"[" * 10**5): "not JSON",
        zlib.compress(b"[]"): "not that of a packed ticket",
        zlib.compress(json.dumps({"weights": "dense"}).encode()): "not that of a packed ticket",
    }
    for index, message in cases.items():
        path = saved(tmp_path / "file")
        rewritten(path, index)
        with pytest.raises(TicketError, match=f"{path}: .*({message})"):
            ticket_file.read_header(path)


def test_columns_are_checked(tmp_path: Path) -> None:
    extra = torch.zeros(3, dtype=torch.int16)
    cases: list[tuple[dict[str, torch.Tensor | None], str]] = [
        ({"index": None}, "without its index"),
        ({"index": torch.zeros(3)}, "index: F32 with 1 dimensions"),
        ({"masks": torch.zeros(2, 2, dtype=torch.uint8)}, "masks: U8 with 2 dimensions"),
        ({"F32": torch.zeros(3, dtype=torch.int32)}, "F32: I32"),
        ({"other": extra}, "other: I16"),
        ({"I16": extra}, "I16 has 3 elements, its index lists 0"),
        ({"masks": None}, "a: masks ends before"),
    ]
    for columns, message in cases:
        path = saved(tmp_path / "file")
        rewritten(path, **columns)
        with pytest.raises(TicketError, match=message):
            ticket_file.read_ticket_file(path)


def test_every_byte_of_the_data_is_under_a_checksum(tmp_path: Path) -> None:
    path = saved(tmp_path / "file")
    data = path.read_bytes()
    for at in range(8 + struct.unpack_from("<Q", data)[0], data.rindex(b"\x78\xda")):  # up to the index
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(TicketError):
            ticket_file.read_ticket_file(path).mask  # noqa: B018  its digest


def test_info_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, mask = own_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="packed")
    opened: list[str] = []
    column = file_parts._column
    monkeypatch.setattr(file_parts, "_column", lambda path, file, name: opened.append(name) or column(path, file, name))
    assert ticket_file.read_header(tmp_path / ticket_file.PACKED)["ticket"]["sparsity"]["kept"] == mask.kept
    assert opened == ["index"]
