"""Ticket directories, damaged at random and on purpose, each under one law; run as a program of its own.

    PYTHONPATH=.:tests python tests/support/fuzz.py --seed 17      # one case, as a failing test prints it

A case is a ticket (its architecture and layout) and a mutation, both drawn from the seed. The law: reading it is a
TicketError that names the file, and the tensor where one is at fault, or it gives the right weights under the right
mask; in five seconds and in bounded memory, without a connection, another program or a pickle. A forged case, whose
checksums were made good again, may be another ticket than the one it was; what it gives must still be true to its mask.
"""

from __future__ import annotations

import argparse
import base64
import copy
import json
import math
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# whoever is asked by mistake is not there; read when huggingface_hub is imported
os.environ.setdefault("HF_ENDPOINT", "http://127.0.0.1:9")

import timm
import torch
import transformers

import hf_px
from hf_px.core.errors import TicketError
from hf_px.core.mask import Mask
from hf_px.models.config_marks import WIDTHS
from hf_px.models.networks import resnet20
from hf_px.tickets import mask_codec, ticket_file
from hf_px.tickets.stored_dtype import round_
from hf_px.tickets.transformers_quantizer import mask_of

PACKED, DENSE, CONFIG = "ticket.safetensors", "model.safetensors", "config.json"
BASE = "alice/base"  # of the mask-only tickets; whoever runs them puts it on the Hub
SECONDS = 5
MEMORY = 3 * 2**30  # above what the process has when it starts
ABSURD = ("memory", "allocate")  # of an allocation that the limit has stopped: as a TicketError it would pass unseen


# The tickets


def narrow_resnet(generator: torch.Generator) -> torch.nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=3, layer_type="basic"
    )
    return transformers.ResNetForImageClassification(config)


def cut(model: torch.nn.Module) -> torch.nn.Module:
    """With fewer channels in most layers, which its ticket says."""
    size = (3, 32, 32)
    mask = hf_px.prune(model, "magnitude", scope="channel", sparsity=0.4, input_size=size, progress=False)
    return hf_px.shrink(model, mask, input_size=size, progress=False)


MODELS: dict[str, Callable[[torch.Generator], torch.nn.Module]] = {
    "timm": lambda g: timm.create_model("test_resnet", num_classes=5, channels=(8, 8, 8, 8)),
    "hf_px": lambda g: resnet20(num_classes=4, generator=g),
    "transformers": narrow_resnet,
    "shrunk": lambda g: cut(MODELS["timm"](g)),
}
ARGS = {kind: {"channels": [8, 8, 8, 8]} for kind in ("timm", "shrunk")}
LAYOUTS = ("both", "packed", "dense", "mask-only")


@dataclass
class Home:
    """A ticket as it was saved."""

    kind: str
    layout: str
    files: dict[str, bytes]
    mask: Mask
    state: dict[str, torch.Tensor]


def homes(revision: str | None, base: Path | None = None) -> list[Home]:
    """Every architecture in every layout; mask-only where the Hub has the base."""
    made = []
    for kind, build in MODELS.items():
        torch.manual_seed(0)
        g = torch.Generator().manual_seed(5)
        model = build(g).eval()
        own = {n: p for n, p in model.named_parameters() if p.dim() > 1}
        # one half kept to the weight, one kept whole, one pruned whole: each has a side of its own to get wrong
        share = dict.fromkeys(own, 0.15) | dict(zip(list(own)[1:4], (0.5, 1.0, 0.0)))
        bits = {}
        for name, p in own.items():
            chosen = torch.randperm(p.numel(), generator=g)[: round(share[name] * p.numel())]
            bits[name] = torch.zeros(p.numel(), dtype=torch.bool).index_fill_(0, chosen, True).reshape(p.shape)
        mask = Mask(bits)
        if kind == "timm" and base is not None:
            write_base(model, base)
        mask.apply_(model)
        layouts = LAYOUTS if kind == "timm" and revision else LAYOUTS[:3]
        for layout, dtype in [*((layout, None) for layout in layouts), ("packed", "float16")]:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ticket = hf_px.Ticket(
                    model, mask, base=BASE, base_revision=revision, scorer="px", model_args=ARGS.get(kind)
                )
                ticket.save_pretrained(folder, layout=layout, dtype=dtype)
                files = {
                    p.name: p.read_bytes()
                    for p in Path(folder).iterdir()
                    if p.suffix == ".safetensors" or p.name == CONFIG
                }
                older = b"".join(ticket_file.separate_chunks(f"{folder}/{PACKED}")) if PACKED in files else b""
            state = copy.deepcopy(round_(copy.deepcopy(model), dtype).state_dict())
            made.append(Home(kind, layout, files, mask, state))
            if layout in ("packed", "mask-only"):  # of version 1, too
                made.append(Home(kind, layout, files | {PACKED: older}, mask, state))
    return made


def write_base(model: torch.nn.Module, folder: Path) -> None:
    """As timm saves one: what the mask-only ticket takes its weights from."""
    folder.mkdir(parents=True, exist_ok=True)
    timm.models.save_for_hf(model, folder, model_args=ARGS["timm"], safe_serialization=True)


# A safetensors file in parts


@dataclass
class Parts:
    metadata: dict[str, Any]
    tensors: dict[str, list[Any]]  # name → [dtype, shape, bytes]
    joined: bool = False  # in the file: of version 2. Here the tensors are those of version 1 all the same

    @classmethod
    def of(cls, data: bytes) -> Parts:
        parts = cls.stored(data)
        if parts.header["version"] == 2:
            parts.separate()
        return parts

    @classmethod
    def stored(cls, data: bytes) -> Parts:
        """As they lie in the file."""
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__")
        metadata["hf_px"] = json.loads(metadata["hf_px"])
        body = data[8 + length :]
        return cls(metadata, {n: [e["dtype"], e["shape"], body[slice(*e["data_offsets"])]] for n, e in header.items()})

    @property
    def header(self) -> dict[str, Any]:
        return self.metadata["hf_px"]

    def separate(self) -> None:
        header = json.loads(zlib.decompress(self.tensors["index"][2]))
        crc, at, tensors = header["crc32"], dict.fromkeys(self.tensors, 0), {}
        rows = header.pop("parts")
        names = sorted(row[0] for row in rows)

        def take(column: str, count: int) -> bytes:
            (side,), data = self.tensors[column][1:]
            width, start = len(data) // max(side, 1), at[column]
            at[column] += width * count
            return data[start : at[column]]

        for name, dtype, shape, *numbers in rows:
            if not numbers:
                tensors[name] = [dtype, shape, take(dtype, math.prod(shape))]
                continue
            side, k, kept, length = numbers
            if dtype:
                tensors[f"{name}:values"] = [dtype, [kept], take(dtype, kept)]
            own = int(crc[8 * names.index(name) :][:8], 16)
            stream = struct.pack(f"<BBBBIQ{len(shape)}Q", 1, side, k, len(shape), own, kept, *shape)
            stream += take("masks", length)
            tensors[f"{name}:mask"] = ["U8", [len(stream)], stream]
        self.metadata["hf_px"], self.tensors, self.joined = header, tensors, True

    def join(self, hf_px: str | None) -> Parts:
        """As version 2 stores them; a stream without a complete head is an entry of another length."""
        rows: list[Any] = []
        columns: dict[str, list[Any]] = {}
        masks = b""

        def put(dtype: str, count: int, data: bytes) -> None:
            column = columns.setdefault(dtype, [dtype, [0], b""])
            column[1:] = [[column[1][0] + count], column[2] + data]

        for part, (dtype, shape, data) in self.tensors.items():
            name = part.removesuffix(":mask")
            values = self.tensors.get(f"{name}:values")
            if part != name:
                dims = data[3] if len(data) > 3 else 0
                start = 16 + 8 * dims
                row = [name, values and values[0], data.hex()]
                if len(data) >= start:
                    (kept,), sides = struct.unpack_from("<Q", data, 8), struct.unpack_from(f"<{dims}Q", data, 16)
                    row[2:] = [list(sides), data[1], data[2], kept, len(data) - start]
                rows.append(row)
                masks += data[start:]
                if values:
                    put(values[0], math.prod(values[1]), values[2])
            elif f"{name.removesuffix(':values')}:mask" not in self.tensors:
                rows.append([name, dtype, shape])
                put(dtype, math.prod(shape), data)
        text = json.dumps(self.header | {"parts": rows}) if hf_px is None else hf_px
        index = zlib.compress(text.encode("utf-8", "surrogatepass"))
        columns |= {"masks": ["U8", [len(masks)], masks], "index": ["U8", [len(index)], index]}
        return Parts(self.metadata | {"hf_px": {"version": 2}}, columns)

    def file(self, text: Callable[[str], str] = lambda text: text, hf_px: str | None = None) -> bytes:
        """The file; `text` has the last word on its header."""
        if self.joined:
            return self.join(hf_px).file(text)
        record = json.dumps(self.header) if hf_px is None else hf_px
        header: dict[str, Any] = {"__metadata__": {**self.metadata, "hf_px": record}}
        end = 0
        for name, (dtype, shape, data) in self.tensors.items():
            start, end = end, end + len(data)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        head = text(json.dumps(header)).encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(head)) + head + b"".join(data for _, _, data in self.tensors.values())

    def masked(self) -> list[str]:
        if self.header.get("weights") == "dense":
            return sorted(self.header.get("masks", {}))
        return sorted(name.removesuffix(":mask") for name in self.tensors if name.endswith(":mask"))

    def stream(self, name: str) -> bytes:
        if self.header["weights"] == "dense":
            return base64.b64decode(self.header["masks"][name])
        return self.tensors[f"{name}:mask"][2]

    def put(self, name: str, stream: bytes) -> None:
        """A stream in place of another, its checksum made good."""
        if len(stream) >= 8:
            values = self.tensors[f"{name}:values"][2] if f"{name}:values" in self.tensors else b""
            crc = struct.pack("<I", zlib.crc32(stream[:4] + stream[8:] + values))
            stream = stream[:4] + crc + stream[8:]
        if self.header["weights"] == "dense":
            self.header["masks"][name] = base64.b64encode(stream).decode()
        else:
            self.tensors[f"{name}:mask"] = ["U8", [len(stream)], stream]

    def make_good(self) -> None:
        """All checksums, of what there is now; the digest too if the masks can be read."""
        crc, bits = {}, {}
        for name, (_, _, data) in self.tensors.items():
            if name.endswith(":mask") and len(data) >= 8:
                crc[name.removesuffix(":mask")] = struct.unpack_from("<I", data, 4)[0]
            elif not name.endswith((":values", ":mask")):
                crc[name] = zlib.crc32(data)
        self.header["crc32"] = "".join(f"{crc[name]:08x}" for name in sorted(crc))
        try:
            for name in self.masked():
                stream = torch.frombuffer(bytearray(self.stream(name)), dtype=torch.uint8)
                bits[name] = mask_codec.decode(stream, limit=2**24, check=False).bits()
            self.header["digest"] = Mask(bits).digest()
        except (TicketError, RuntimeError, ValueError):
            pass


# Mutations


@dataclass
class Case:
    home: Home
    files: dict[str, bytes]
    what: str = ""
    forged: bool = False
    tensor: str = ""  # the one at fault, where there is one: the error must name it
    refused: bool = False  # must be: it cannot be read in a harmless way
    notes: dict[str, Any] = field(default_factory=dict)


Mutation = Callable[[random.Random, Case], None]
BYTES: list[Mutation] = []
SHAPED: list[Mutation] = []


def of_bytes(mutation: Mutation) -> Mutation:
    BYTES.append(mutation)
    return mutation


def shaped(mutation: Mutation) -> Mutation:
    SHAPED.append(mutation)
    return mutation


def target(rng: random.Random, case: Case) -> str:
    """The file that hf_px reads, most of the time."""
    first = PACKED if PACKED in case.files else DENSE
    return first if rng.random() < 0.85 else rng.choice(sorted(case.files))


def main_file(case: Case) -> str:
    return PACKED if PACKED in case.files else DENSE


@of_bytes
def truncated(rng: random.Random, case: Case) -> None:
    name = target(rng, case)
    data = case.files[name]
    size = rng.choice([0, 1, 7, 8, 9, len(data) - 1, rng.randrange(len(data)), rng.randrange(len(data))])
    case.files[name] = data[:size]
    case.what = f"{name} cut to {size} bytes"


@of_bytes
def flipped(rng: random.Random, case: Case) -> None:
    name = target(rng, case)
    data = bytearray(case.files[name])
    head = 8 + struct.unpack_from("<Q", data)[0] if name != CONFIG else 0
    low, high = rng.choice([(0, 8), (8, head), (head, len(data)), (0, len(data))]) if head else (0, len(data))
    where = sorted(rng.randrange(8 * low, 8 * high) for _ in range(rng.choice([1, 1, 1, 2, 8])))
    for j in where:
        data[j // 8] ^= 1 << (j % 8)
    case.files[name] = bytes(data)
    case.what = f"{name} with bits {where} flipped"


@of_bytes
def spliced(rng: random.Random, case: Case) -> None:
    """Bytes put in, taken out, or written over."""
    name = target(rng, case)
    data = case.files[name]
    at, length = rng.randrange(len(data)), rng.choice([1, 2, 8, 100])
    new = rng.choice([b"", rng.randbytes(length), b"\0" * length, b"\xff" * length])
    gone = rng.choice([0, length])
    case.files[name] = data[:at] + new + data[at + gone :]
    case.what = f"{name}: {gone} bytes at {at} replaced by {len(new)}"


@of_bytes
def lengthened(rng: random.Random, case: Case) -> None:
    """The header's length, or what follows the data."""
    name = main_file(case)
    data = case.files[name]
    length = rng.choice([0, 1, 2**63, 2**64 - 1, 10**8, 10**8 + 1, len(data), struct.unpack_from("<Q", data)[0] + 1])
    case.files[name] = rng.choice([struct.pack("<Q", length) + data[8:], data + rng.randbytes(rng.choice([1, 1000]))])
    case.what = f"{name}: a header of {length} bytes, or bytes at the end"


@of_bytes
def exchanged(rng: random.Random, case: Case) -> None:
    """Another file in its place, or none."""
    name = main_file(case)
    new = rng.choice([b"", b"{}", b"PK\3\4", b"\x80\2.", struct.pack("<Q", 2) + b"{}", case.files[CONFIG]])
    if rng.random() < 0.2:
        del case.files[name]
    else:
        case.files[name] = new
    case.what = f"{name} replaced by {new[:10]!r}, or removed"


def parts_of(case: Case) -> Parts:
    return Parts.of(case.files[main_file(case)])


@shaped
def forged_stream(rng: random.Random, case: Case) -> None:
    """A head that says otherwise, or gaps elsewhere, under good checksums."""
    parts = parts_of(case)
    name = rng.choice(parts.masked())
    stream = bytearray(parts.stream(name))
    dims = stream[3]
    kept = struct.unpack_from("<Q", stream, 8)[0]
    start = 16 + 8 * dims
    how = rng.randrange(9)
    if how == 0:
        struct.pack_into("<Q", stream, 8, rng.choice([kept + 1, max(kept - 1, 0), 2**64 - 1, 2**63, 0]))
    elif how == 1:
        stream[2] = rng.choice([0, 1, stream[2] + 1, 31, 32, 33, 255])
    elif how == 2:
        stream[1] = rng.choice([1 - stream[1], 2, 255])
    elif how == 3:
        stream[3] = rng.choice([0, dims - 1, dims + 1, 16, 17, 255])
    elif how == 4:
        stream[0] = rng.choice([0, 2, 255])
    elif how == 5:
        at = 16 + 8 * rng.randrange(dims)
        struct.pack_into("<Q", stream, at, rng.choice([0, 1, 2**31, 2**62, 2**64 - 1]))
    elif how == 6 and len(stream) > start:
        for _ in range(rng.choice([1, 3])):
            stream[rng.randrange(start, len(stream))] ^= 1 << rng.randrange(8)
    elif how == 7:
        stream = stream[: rng.randrange(len(stream))]
    else:
        stream[start:start] = b"\0" * rng.choice([1, 100, 10**5])  # the first gap runs far past the end
    parts.put(name, bytes(stream))
    parts.make_good()
    case.files[main_file(case)] = parts.file()
    case.forged, case.what = True, f"the stream of {name} forged ({how})"


@shaped
def huge(rng: random.Random, case: Case) -> None:
    """A small stream that stands for very much."""
    parts = parts_of(case)
    name = rng.choice(parts.masked())
    shape = rng.choice(
        [
            (2**33, 2**33),
            (2**32, 2**32),
            (2**63, 2),
            (2**40,),
            (2**20,) * 16,
            (2**36, 2**28, 0),
            (0, 2**64 - 1),
            (2**30,),
        ]
    )
    side, kept = rng.choice([(1, 0), (0, 0), (0, 2**63)])
    stream = struct.pack(f"<BBBBIQ{len(shape)}Q", 1, side, rng.choice([0, 32]), len(shape), 0, kept, *shape)
    if f"{name}:values" in parts.tensors:
        parts.tensors[f"{name}:values"][1:] = [[0], b""]
    parts.put(name, stream)
    parts.make_good()
    case.files[main_file(case)] = parts.file()
    case.forged, case.refused, case.tensor, case.what = True, True, name, f"{name} declared to be {shape}"


@shaped
def misfit(rng: random.Random, case: Case) -> None:
    """A tensor of another dtype, shape or number, its checksums good."""
    parts = parts_of(case)
    name = rng.choice(sorted(parts.tensors))
    _, shape, data = parts.tensors[name]
    how = rng.randrange(4)
    if how == 0:
        new = rng.choice(
            ["I32", "U32", "F16", "BF16", "C64", "F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "U64", "BOOL", "XX"]
        )
        width = {"I32": 4, "U32": 4, "F16": 2, "BF16": 2, "C64": 8, "F4": 0.5, "U64": 8, "F6_E2M3": 0.75}.get(new, 1)
        parts.tensors[name] = [new, [int(len(data) / width)], data]
    elif how == 1:
        parts.tensors[name][1] = rng.choice([[1, *shape], [*shape, 1], shape[::-1], [*shape, 2**63], [-1], [2**64], []])
    elif how == 2:
        parts.tensors[name][1:] = [[2 * side for side in shape[:1]] + shape[1:], data + data]
    else:
        parts.tensors[name][1:] = [[0, *shape[1:]], b""]
    for masked in parts.masked():
        if name == f"{masked}:values":
            parts.put(masked, parts.stream(masked))
    parts.make_good()
    case.files[main_file(case)] = parts.file()
    case.forged, case.what = True, f"{name} made to misfit ({how}, {parts.tensors[name][:2]})"


@shaped
def renamed(rng: random.Random, case: Case) -> None:
    """Tensors missing, extra, under another's name, in another's place."""
    parts = parts_of(case)
    names = sorted(parts.tensors)
    name, other = rng.sample(names, 2) if len(names) > 1 else (names[0], names[0])
    how = rng.randrange(6)
    if how == 0:
        del parts.tensors[name]
    elif how == 1:
        parts.tensors[rng.choice(["extra", "fc.weight:values", "fc.weight", "x:values", "x:mask", ":mask", ""])] = list(
            parts.tensors[name]
        )
    elif how == 2:
        parts.tensors[name + rng.choice([":values", ":mask", "é", "\n", "\0", " "])] = parts.tensors.pop(name)
    elif how == 3:
        parts.tensors[name], parts.tensors[other] = parts.tensors[other], parts.tensors[name]
    elif how == 4:
        parts.tensors = {f"../{n}": t for n, t in parts.tensors.items()}
    else:
        twice = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        key = rng.choice([name, "__metadata__"])
        case.files[main_file(case)] = parts.file(lambda text: f'{{"{key}": {json.dumps(twice)}, ' + text[1:])
        case.what = f"{key} twice in the header"
        return
    good = rng.random() < 0.6
    if good:
        parts.make_good()
    case.files[main_file(case)] = parts.file()
    case.forged = good
    case.what = f"{name} renamed, removed or doubled ({how}), checksums {'good' if good else 'as they were'}"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


ODD: list[Any] = [None, [], {}, "", 0, -1, 1.5, True, 2**31, 2**70, -(2**63), "../../x", "\0", "\ud800", "x" * 10**5]
ODD += [float("nan"), float("inf"), [None], [[[]]], {"": {"": None}}, deep(300), [0] * 1000, "cpu", "torch.float32"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += places(inner, (*path, key))
    return found


def change(rng: random.Random, tree: Any) -> str:
    """One place of a JSON tree: another value, another key, or gone."""
    path = rng.choice(places(tree))
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    how = rng.randrange(6)
    if how == 0:
        del inner[path[-1]]
    elif how == 1 and isinstance(inner, dict):
        inner[rng.choice(["", "x", "model_type", "architecture"])] = inner.pop(path[-1])
    elif how == 2 and isinstance(inner[path[-1]], (int, float)):
        inner[path[-1]] = rng.choice([-1, 0, 1, 2, 7, 10**6, 10**9, 10**12, 2**64, 1e30]) * rng.choice([1, -1])
    else:
        inner[path[-1]] = copy.deepcopy(rng.choice(ODD))
    return f"{path} ({how})"


@shaped
def damaged_record(rng: random.Random, case: Case) -> None:
    """Wrong types at every place of the hf_px object."""
    parts = parts_of(case)
    # each part as often as another: most places are labels of a config
    key = rng.choice(sorted(parts.header))
    if rng.random() < 0.5 and isinstance(parts.header[key], dict) and parts.header[key]:
        where = f"{key}: {change(rng, parts.header[key])}"
    else:
        where = f"{key}"
        parts.header[key] = copy.deepcopy(rng.choice(ODD))
    case.files[main_file(case)] = parts.file()
    case.what = f"hf_px {where} changed"


@shaped
def damaged_text(rng: random.Random, case: Case) -> None:
    """The hf_px object is not JSON, or JSON of another kind."""
    parts = parts_of(case)
    text = json.dumps(parts.header)
    options = ["", "null", "[]", "1", '"x"', text[:-1], text + "x", "[" * 10**5, '{"a":' * 10**5, "9" * 5000, "\ud800"]
    options += [
        text.replace('"version": 1', f'"version": {v}') for v in ("2", "0", "-1", '"1"', "null", "[1]", "1e400")
    ]
    options += [text[:-1] + ', "weights": "dense"}', text[:-1] + ', "model": null}', text[:-1] + ', "tied": {"x": 3}}']
    options += [text[:-1] + f', "ticket": {"[" * n}{"]" * n}}}' for n in (900, 5000)]
    chosen = rng.choice(options)
    case.files[main_file(case)] = parts.file(hf_px=chosen)
    case.what = f"the hf_px object is {chosen[:30]}…{chosen[-30:]}"


def bomb(rng: random.Random) -> bytes:
    """A little that inflates to very much."""
    squeeze = zlib.compressobj(9)
    piece = rng.choice([b" ", b"[", b"[],", b"0"]) * 2**20
    start = rng.choice([b"", b'{"parts":['])
    return squeeze.compress(start) + b"".join(squeeze.compress(piece) for _ in range(64)) + squeeze.flush()


@shaped
def damaged_index(rng: random.Random, case: Case) -> None:
    """The index of version 2: its entries, its zlib stream, the tensors that it lists."""
    parts = Parts.stored(case.files[main_file(case)])
    if parts.header["version"] != 2:
        return damaged_record(rng, case)
    how, index = rng.randrange(8), parts.tensors["index"][2]
    if how < 4:
        tree = json.loads(zlib.decompress(index))
        if how == 0:
            rows = tree["parts"]
            rows.insert(rng.randrange(len(rows)), copy.deepcopy(rng.choice(rows)))
            where = "an entry twice"
        else:
            where = change(rng, tree["parts"])
        index = zlib.compress(json.dumps(tree).encode("utf-8", "surrogatepass"))
    elif how == 4:
        where, index = "a bomb", bomb(rng)
        case.refused = True
    elif how == 5:
        at = rng.randrange(len(index))
        where, index = "not a zlib stream", rng.choice([b"", index[:at], index + b"x", index[:at] + b"\0" + index[at:]])
    elif how == 6:
        column = rng.choice(sorted(parts.tensors))
        parts.tensors[rng.choice(["F32", "F16", "I64", "x", ""])] = parts.tensors.pop(column)
        where = f"{column} renamed"
    else:
        column = rng.choice(sorted(parts.tensors))
        data = parts.tensors[column][2] + rng.choice([b"\0" * 8, b""])
        parts.tensors[column] = [rng.choice(["U8", "F32", "F16", "I64"]), [len(data)], data]
        where = f"{column} with another dtype or size"
    if how < 6:
        parts.tensors["index"] = ["U8", [len(index)], index]
    case.files[main_file(case)] = parts.file()
    case.forged, case.what = True, f"the index: {where} ({how})"


@shaped
def retied(rng: random.Random, case: Case) -> None:
    """Ties and names that contradict the file."""
    parts = parts_of(case)
    names = sorted({name.partition(":")[0] for name in parts.tensors})
    a, b = rng.choice(names), rng.choice(names)
    key = rng.choice(["tied", "renamed"])
    value = rng.choice(
        [{a: b}, {"x": b}, {a: "x"}, {b: a, a: b}, {"": ""}, {f"x{i}": a for i in range(2000)}, {"x": "y"}]
    )
    parts.header[key] = value
    case.files[main_file(case)] = parts.file()
    # two tensors of one shape that change places are another ticket, not a damaged one
    case.forged, case.what = True, f"{key} = {str(value)[:80]}"


HOSTILE: list[dict[str, Any]] = [
    *(
        {"architecture": name, "num_classes": 5}
        for name in ("../../x", "hf-hub:evil/x", "hf_hub:evil/x", "local-dir:/etc")
    ),
    *(
        {"architecture": name, "num_classes": 5}
        for name in ("timm/resnet50", "os.system", "resnet18.a1_in1k", "__class__")
    ),
    *({"model_args": {key: "/etc/passwd"}} for key in ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")),
    *({"model_args": {key: True}} for key in ("pretrained", "features_only", "scriptable", "exportable", "no_jit")),
    *({"model_args": {"channels": c}} for c in ([10**9] * 4, [-1] * 4, "8888", [8] * 10**5, None, [2**24] * 4)),
    *({"model_args": {"layers": c}} for c in ([10**9, 1, 1, 1], [10**6, 1, 1, 1], [-1, 1, 1, 1], [1] * 10**5)),
    {"model_args": {"kwargs_filter": ["channels"], "cache_dir": "/etc"}},
    {"model_args": {"act_layer": "os.system"}},
    {"model_args": {"in_chans": 10**7, "drop_path_rate": 1e300, "output_stride": 10**12}},
    {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": {"depth": 10**9}},
    {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": {"depth": 10**5, "drop_path_rate": 0.1}},
    {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 5,
        "model_args": {"img_size": 10**7, "embed_dim": 3 * 10**7},
    },
    {
        "architecture": "swin_tiny_patch4_window7_224",
        "num_classes": 5,
        "model_args": {"img_size": 10**6, "window_size": 10**6},
    },
    {"architecture": "vit_giant_patch14_224", "num_classes": 5},
    *({"num_classes": n} for n in (10**15, 10**9, 2**24, -1, "5", None, 1.5, True)),
    {"pretrained_cfg": {"url": "http://evil/x", "hf_hub_id": "evil/x", "file": "/etc/passwd", "source": "hf-hub"}},
    {"pretrained_cfg": {"custom_load": "hf", "state_dict": {"a": 1}, "num_classes": 10**12}},
    {"pretrained_cfg": {"nonsense": 1}},
    {"auto_map": {"AutoConfig": "evil/x--a.B", "AutoModelForImageClassification": "evil/x--a.B"}},
    {"architectures": ["os.system"]},
    *(
        {"architectures": x}
        for x in (["os"], ["__builtins__"], ["PreTrainedModel"], ["AutoModel"], [], None, "x", [["x"]])
    ),
    *(
        {"architectures": [x]}
        for x in ("ViTForImageClassification", "BertModel", "TimmBackbone", "EncoderDecoderModel")
    ),
    *({"hidden_sizes": x} for x in ([10**9, 10**9], [2**24, 2**24], [-4, 8], [0, 0], [4] * 10**5, "48", [4])),
    *({"depths": x} for x in ([10**9, 1], [10**5, 1], [-1, 1], [0, 0], [1], [1] * 10**4, None)),
    *({"hidden_act": x} for x in ("os.system", None, 3, ["relu"])),
    {"num_labels": 10**9},
    {"id2label": {str(i): "x" for i in range(50)}},
    *({"model_type": x} for x in ("os", "../../x", None, [], "bert", "auto", "timm_wrapper", "encoder-decoder")),
    *({"_attn_implementation": "evil/kernel", "attn_implementation": "evil/kernel"} for _ in range(2)),
    {"attn_implementation": "flash_attention_2", "model_type": "vit", "architectures": ["ViTForImageClassification"]},
    {"attn_implementation": "kernels-community/x", "model_type": "vit", "architectures": ["ViTForImageClassification"]},
    *(
        {"model_type": "timm_backbone", "architectures": ["TimmBackbone"], "backbone": b, "use_pretrained_backbone": p}
        for b in ("hf-hub:evil/x", "local-dir:/etc", "resnet18")
        for p in (False, True)
    ),
    *(
        {
            "model_type": "detr",
            "architectures": ["DetrForObjectDetection"],
            "backbone_config": {"model_type": "timm_backbone", "backbone": b, "use_pretrained_backbone": True},
        }
        for b in ("hf-hub:evil/x", "resnet18")
    ),
    {
        "model_type": "detr",
        "architectures": ["DetrForObjectDetection"],
        "backbone": "evil/x",
        "use_timm_backbone": False,
    },
    {"model_type": "detr", "architectures": ["DetrForObjectDetection"], "backbone": "hf-hub:evil/x"},
    {"model_type": "upernet", "architectures": ["UperNetForSemanticSegmentation"], "backbone": "evil/x"},
    *(
        {
            "model_type": "timm_wrapper",
            "architectures": ["TimmWrapperForImageClassification"],
            "architecture": a,
            "model_args": m,
        }
        for a, m in (("hf-hub:evil/x", {}), ("resnet18", {"checkpoint_path": "/etc/passwd"}), ("local-dir:/etc", None))
    ),
    {"custom": "os.system"},
    {"custom": None},
    {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
    {"dtype": "int8"},
    {"dtype": ["float16"]},
    {"dtype": "os.system"},
    {"torch_dtype": "complex64"},
]


@shaped
def hostile(rng: random.Random, case: Case) -> None:
    """A record that asks for other files, the network, or more than there is."""
    new = copy.deepcopy(rng.choice(HOSTILE))
    for name in sorted(case.files):
        if name == CONFIG:
            case.files[name] = json.dumps(json.loads(case.files[name]) | new).encode()
        else:
            parts = Parts.of(case.files[name])
            record = parts.header["model"]
            if "model_type" in new and "architecture" not in new:
                record.pop("architecture", None)
            elif "architecture" in new and "model_type" not in new:
                record.pop("model_type", None)
            if isinstance(new.get("model_args"), dict) and isinstance(record.get("model_args"), dict):
                new = new | {"model_args": record["model_args"] | new["model_args"]}
            record.update(new)
            case.files[name] = parts.file()
    case.what = f"the model's record with {str(new)[:150]}"


@shaped
def damaged_widths(rng: random.Random, case: Case) -> None:
    """Of networks with fewer channels: which rows stay, and numbers of heads."""
    if case.home.kind != "shrunk":
        return damaged_record(rng, case)
    parts = parts_of(case)
    widths = parts.header["model"][WIDTHS]
    widths[rng.choice(["attributes", "biases"])] = copy.deepcopy(rng.choice(ODD)) if rng.random() < 0.1 else {}
    where = change(rng, widths)
    case.files[main_file(case)] = parts.file()
    case.what = f"widths {where} changed"


@shaped
def hostile_base(rng: random.Random, case: Case) -> None:
    """Of mask-only tickets: weights from elsewhere."""
    key = rng.choice(["base", "base_revision"])
    value = rng.choice(
        ["../../x", "/etc", "hf-hub:alice/base", "local-dir:/etc", ".", "a/b/c", "", None, 3, ["x"], "x" * 500]
    )
    value = rng.choice(["../..", "nowhere", "", None, 3, "a/../b", "x?y#z", "\0"]) if key == "base_revision" else value
    parts = parts_of(case)
    parts.header["ticket"][key] = value
    case.files[main_file(case)] = parts.file()
    case.what = f"{key} = {value!r}"
    case.forged = True  # another base is another ticket


@shaped
def damaged_config(rng: random.Random, case: Case) -> None:
    """config.json, which other readers read."""
    config = json.loads(case.files[CONFIG])
    where = change(rng, config)
    options = [json.dumps(config).encode()] * 6 + [b"", b"null", b"[]", b"[" * 10**5, b"\xff\xfe"]
    case.files[CONFIG] = rng.choice(options)
    case.what = f"config.json: {where}, or not JSON"


# The law


class TooLong(BaseException):
    """Not an Exception: nobody may catch it on the way."""


class Broken(AssertionError):
    """The law is."""


def alarm(*_: object) -> None:
    raise TooLong


EVENTS: list[str] = []


def watch(event: str, args: tuple[Any, ...]) -> None:
    """No connection but to the Hub of the tests, no program, no pickle, no file of the system's."""
    if event == "socket.connect":
        EVENTS.append(f"connect {args[1]}")
    elif event in (
        "os.system",
        "subprocess.Popen",
        "os.exec",
        "os.posix_spawn",
        "pickle.find_class",
        "socket.getaddrinfo",
    ):
        EVENTS.append(f"{event} {str(args)[:100]}")
    elif event == "open" and isinstance(args[0], str) and args[0].startswith("/etc/passwd"):
        EVENTS.append(f"open {args[0]}")


def allowed(case: Case, event: str) -> bool:
    """A mask-only ticket asks the Hub for its base, and for nothing else."""
    if case.home.layout != "mask-only":
        return False
    return "evil" not in event and event.startswith(
        ("connect ('127.0.0.1'", "socket.getaddrinfo ('127.0.0.1'", "socket.getaddrinfo (b'127.0.0.1'")
    )


def hold_law(case: Case, directory: Path) -> str:
    """How it ended; Broken if it may not end so."""
    try:
        ticket = hf_px.Ticket.from_pretrained(directory)
        mask = ticket.mask
        assert isinstance(ticket.config, dict) and repr(ticket)
        model = ticket.to_model()
    except TicketError as error:
        return refused(case, directory, error)
    # of two copies that are no longer a pair the dense one is read, which nobody touched here
    if case.refused and case.home.layout != "both":
        raise Broken("was read, and must not be")
    right(case, mask, dict(model.state_dict()))
    own = dict(model.named_parameters(remove_duplicate=False))
    if any(name not in own or own[name].shape != b.shape for name, b in mask.bits.items()):
        raise Broken("the mask does not fit the model")
    return "read"


def refused(case: Case, directory: Path, error: TicketError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or any(word in str(cause).lower() for word in ABSURD):
            raise Broken(f"an absurd allocation: {cause}")
        cause = cause.__cause__ or cause.__context__
    text = str(error)
    here = [*(str(directory / name) for name in (PACKED, DENSE)), f"{directory}: holds no ticket"]
    if not any(path in text for path in [*here, f"{directory}: {DENSE}"]):
        raise Broken(f"the error does not name the file: {text[:300]}")
    if case.tensor and case.tensor not in text:
        raise Broken(f"the error does not name {case.tensor}: {text[:300]}")
    text.encode("utf-8", "surrogatepass")
    if len(text) > 2000:
        raise Broken(f"an error of {len(text)} characters")
    return "refused"


def right(case: Case, mask: Mask, state: dict[str, torch.Tensor]) -> None:
    expected = case.home.state
    if state.keys() != expected.keys():
        raise Broken(f"other tensors: {sorted(state.keys() ^ expected.keys())[:3]}")
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape:
            raise Broken(f"{name} is {tuple(tensor.shape)}")
        if tensor.is_floating_point() != expected[name].is_floating_point() or tensor.is_complex():
            raise Broken(f"{name} is {tensor.dtype}")
        if name in mask.bits and bool((tensor.float()[~mask.bits[name]] != 0).any()):
            raise Broken(f"{name}: not zero where the mask says so")
        if not case.forged and not same(tensor, expected[name]):
            raise Broken(f"{name}: other weights, without an error")
    if not case.forged and mask != case.home.mask:
        raise Broken("another mask, without an error")


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and bool(
        (a.detach().reshape(-1).view(torch.uint8) == b.detach().reshape(-1).view(torch.uint8)).all()
    )


def hold_law_of_transformers(case: Case, directory: Path) -> str:
    """transformers' own path: any exception, or the right weights, and the right mask if there is one."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model = transformers.AutoModelForImageClassification.from_pretrained(directory, local_files_only=True)
    except Exception:
        return "refused"
    if any("newly initialised" in str(warning.message) for warning in said):
        return "new head"  # labels went missing from the config: the user is warned
    try:
        mask = mask_of(model)
    except ValueError:
        mask = Mask({})  # a config that no longer says it is a ticket's: plain weights, as any reader has them
        case.forged or right(case, case.home.mask, dict(model.state_dict()))
        return "plain"
    right(case, mask, dict(model.state_dict()))
    return "read"


def drawn(seed: int, tickets: list[Home], native: bool) -> Case:
    rng = random.Random(seed)
    chosen = [home for home in tickets if home.kind == "transformers"] if native else tickets
    home = rng.choice(chosen)
    case = Case(home, dict(home.files))
    mutation = rng.choice(BYTES if rng.random() < 0.3 else SHAPED)
    if native and rng.random() < 0.3:
        mutation = damaged_config
    if mutation is hostile_base and home.layout != "mask-only":
        mutation = hostile
    mutation(rng, case)
    case.what = f"{home.kind} {home.layout}: {mutation.__name__}: {case.what}"
    return case


def run(seed: int, tickets: list[Home], native: bool, scratch: Path) -> tuple[str, str, Case]:
    """(how it ended, what broke, the case)."""
    case = drawn(seed, tickets, native)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name, data in case.files.items():
        (scratch / name).write_bytes(data)
    EVENTS.clear()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        end = (hold_law_of_transformers if native else hold_law)(case, scratch)
    except Broken as broken:
        return "broken", str(broken), case
    except TooLong:
        if native and ("hostile" in case.what or "damaged_config" in case.what):
            return "given up", "", case  # transformers makes its config of config.json before it asks hf_px
        return "broken", f"took more than {SECONDS} s: {''.join(traceback.format_exc().splitlines()[-8:])}", case
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-3:]
        lines = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in where)
        return "broken", f"{type(error).__name__}: {str(error)[:200]} at {lines}", case
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    odd = [event for event in EVENTS if not allowed(case, event)]
    if odd and not native:
        return "broken", f"reached out: {odd[:3]}", case
    return end, "", case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--native", action="store_true", help="through transformers' own from_pretrained")
    parser.add_argument("--revision", help=f"commit of {BASE} on the Hub, for mask-only tickets")
    args = parser.parse_args()
    transformers.logging.set_verbosity(50)
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    tickets = homes(args.revision)
    signal.signal(signal.SIGALRM, alarm)
    sys.addaudithook(watch)
    with tempfile.TemporaryDirectory(prefix="hf-px-fuzz-") as folder:
        scratch = Path(folder) / "ticket"
        for home in tickets:  # as they are they can be read, and what is imported late is there
            scratch.mkdir(exist_ok=True)
            for file in scratch.iterdir():
                file.unlink()
            for name, data in home.files.items():
                (scratch / name).write_bytes(data)
            assert hold_law(Case(home, home.files, forged=home.layout == "mask-only"), scratch) == "read"
            if home.kind == "transformers":
                assert hold_law_of_transformers(Case(home, home.files), scratch) == "read"
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        ends: dict[str, int] = {}
        for seed in range(args.seed, args.seed + args.count):
            print(json.dumps({"running": seed}), flush=True)  # what it was doing if it crashes
            end, fault, case = run(seed, tickets, args.native, scratch)
            ends[end] = ends.get(end, 0) + 1
            if fault:
                native = " --native" if args.native else ""
                repro = f"PYTHONPATH=.:tests python tests/support/fuzz.py --seed {seed}{native}"
                if args.revision:
                    repro += f" --revision {args.revision}"
                print(json.dumps({"broken": seed, "what": case.what, "fault": fault, "repro": repro}), flush=True)
            elif args.count == 1:
                print(json.dumps({"ended": end, "what": case.what}))
        print(json.dumps({"ends": ends}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
