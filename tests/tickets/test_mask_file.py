import json
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hf_px.core.files import write_atomic
from hf_px.core.mask import Mask
from hf_px.tickets.mask_file import load_mask, save_mask


def _mask(seed: int = 0) -> Mask:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv.weight": (4, 3, 3, 3), "fc.weight": (5, 7)}
    return Mask({name: torch.rand(shape, generator=generator) < 0.3 for name, shape in shapes.items()})


@given(
    bits=st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
        st.lists(st.booleans(), max_size=30),
        max_size=4,
    ),
    notes=st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=20), max_size=3),
)
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, bits: dict, notes: dict) -> None:
    path = tmp_path_factory.mktemp("mask") / "mask.safetensors"
    mask = Mask({name: torch.tensor(b, dtype=torch.bool) for name, b in bits.items()})
    notes = {key: value for key, value in notes.items() if key not in ("digest", "hf_px_mask")}
    save_mask(mask, path, notes)
    assert load_mask(path) == (mask, notes)


def test_shapes_and_odd_memory_layouts_survive(tmp_path: Path) -> None:
    bits = torch.rand(6, 4) < 0.5
    mask = Mask({"transposed": bits.t(), "strided": bits[::2], "same": bits, "scalar": torch.tensor(True)})
    save_mask(mask, tmp_path / "m.safetensors")
    loaded, notes = load_mask(tmp_path / "m.safetensors")
    assert loaded == mask
    assert loaded.digest() == mask.digest()
    assert notes == {}


def test_a_new_mask_replaces_the_old_and_leaves_no_scraps(tmp_path: Path) -> None:
    path = tmp_path / "mask.safetensors"
    save_mask(_mask(0), path)
    save_mask(_mask(1), path, {"seed": "1"})
    assert load_mask(path) == (_mask(1), {"seed": "1"})
    assert os.listdir(tmp_path) == ["mask.safetensors"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "mask.safetensors"
    save_mask(_mask(0), path)
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert load_mask(path)[0] == _mask(0)
    assert os.listdir(tmp_path) == ["mask.safetensors"]


def test_metadata_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'rounds' is a int"):
        save_mask(_mask(), tmp_path / "m", {"rounds": 100})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="'digest' is written by save_mask"):
        save_mask(_mask(), tmp_path / "m", {"digest": "0"})
    assert not os.listdir(tmp_path)


def _edit(path: Path, tensors: dict | None = None, **notes: str) -> None:
    """Rewrite a saved mask with other tensors or metadata, as a careless tool might."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    old = json.loads(raw[8 : 8 + size])["__metadata__"]
    save_file({**load_file(path), **(tensors or {})}, path, {**old, **notes})


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "truncated"),
        (lambda p: p.write_bytes(b""), "truncated"),
        (lambda p: p.write_text("hello"), "not a safetensors file"),
        (lambda p: p.unlink(), "no such file"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1] + bytes([p.read_bytes()[-1] ^ 1])), "digest"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1] + b"\x07"), "holds 7"),
        (lambda p: _edit(p, {"fc.weight": torch.zeros(5, 7)}), "fc.weight is torch.float32"),
        (lambda p: _edit(p, {"extra": torch.zeros(1, dtype=torch.uint8)}), "digest"),
        (lambda p: _edit(p, digest="0"), "digest"),
        (lambda p: _edit(p, hf_px_mask="2"), "format 2, this hf_px reads 1"),
        (lambda p: save_file({"w": torch.zeros(2)}, p), "not a mask of hf_px"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, damage, complaint: str) -> None:
    path = tmp_path / "mask.safetensors"
    save_mask(_mask(), path)
    damage(path)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{re.escape(complaint)}"):
        load_mask(path)
