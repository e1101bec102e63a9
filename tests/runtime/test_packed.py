"""from_pretrained(…, runtime="sparse"): every layout, from a folder and the Hub; small in memory; damaged files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import timm
import torch
from support.makers import pruned, push_base, ticket
from support.places import REPO
from support.sparse import always_sparse, difference, exact
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

import hf_px
from hf_px.core.errors import TicketError
from hf_px.core.prunable import prunable
from hf_px.data import TestImages, data_config, open_data
from hf_px.runtime.fast import FastModel
from hf_px.runtime.weights import SparseWeight

EXAMPLES = REPO / "model_cards" / "examples"
EXAMPLE = EXAMPLES / "resnet20-cifar10-px-path-98"
KINDS = ("test_resnet", "transformers", "resnet20")
X = "alice/x"
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def alice(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_alice")


def sparse(where, **options):
    found = hf_px.from_pretrained(where, runtime="sparse", **options)
    assert isinstance(found, FastModel) and not found.training
    return always_sparse(found)


def check(found, kind):
    output, expected = found(IMAGES), exact(pruned(kind)[0], IMAGES)
    if kind == "transformers":
        assert isinstance(output, ImageClassifierOutputWithNoAttention)
        output, expected = output.logits, expected.logits
    assert difference(output, expected) < 1e-5


def has_no_dense_tensor(found, kind):
    """Pruned tensors are on the meta device."""
    model, state = found._models[0], pruned(kind)[1].bits
    return all(dict(model.named_parameters())[name].is_meta for name in state)


@pytest.mark.parametrize("layout", ["packed", "both", "dense"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_from_a_folder(kind, layout, tmp_path):
    ticket(kind).save_pretrained(tmp_path, layout=layout)
    found = sparse(tmp_path)
    check(found, kind)
    assert has_no_dense_tensor(found, kind) is (layout != "dense")


@pytest.mark.parametrize("layout", ["both", "packed", "mask-only"])
def test_from_the_hub(hub, alice, tmp_path, layout):
    revision = push_base(hub, "test_resnet", tmp_path / "base")
    made = hf_px.Ticket(*pruned("test_resnet"), base="alice/base", base_revision=revision)
    made.push_to_hub(X, layout=layout)
    before = len(hub.requests)
    found = sparse(X)
    check(found, "test_resnet")
    asked = {entry.path.rpartition("/")[2] for entry in hub.requests[before:] if entry.method == "GET"}
    if layout != "mask-only":
        assert has_no_dense_tensor(found, "test_resnet") and "model.safetensors" not in asked
    requests = len(hub.requests)
    assert found(torch.zeros(1, 3, 48, 48)).shape == (1, 10)  # another size reads the file again, from the cache
    check(sparse(X, local_files_only=True), "test_resnet")
    assert not [r for r in hub.requests[requests:] if r.method == "GET" and "safetensors" in r.path]


def test_another_head_and_another_runtime(tmp_path):
    ticket("test_resnet").save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="newly initialised for 7 classes"):
        assert sparse(tmp_path, num_classes=7)(IMAGES).shape == (3, 7)
    assert not isinstance(hf_px.from_pretrained(tmp_path), FastModel)
    with pytest.raises(ValueError, match="`runtime` is 'onnx'; expected dense or sparse"):
        hf_px.from_pretrained(tmp_path, runtime="onnx")
    with pytest.raises(TicketError, match="nothing: no such directory"):
        hf_px.from_pretrained(tmp_path / "nothing", runtime="sparse")


def test_a_ticket_in_bfloat16_runs_in_float32(tmp_path):
    from support.tickets import transformers_ticket

    model, mask = transformers_ticket(dtype=torch.bfloat16)
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="packed")
    expected = exact(model.float(), IMAGES).logits
    assert difference(sparse(tmp_path)(IMAGES).logits, expected) < 1e-5


@pytest.mark.parametrize("layout", ["both", "packed", "dense"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rounded_ticket_runs_as_its_dense_model(tmp_path, dtype, layout):
    ticket("test_resnet").save_pretrained(tmp_path, layout=layout, dtype=dtype)
    expected = exact(hf_px.from_pretrained(tmp_path), IMAGES)
    found = sparse(tmp_path, dtype="float32")
    assert difference(found(IMAGES), expected) < 1e-5
    assert has_no_dense_tensor(found, "test_resnet") is (layout != "dense")
    assert difference(exact(pruned("test_resnet")[0], IMAGES), expected) > 1e-5  # and not as the one before


def test_plan_and_nbytes_of_a_packed_ticket(tmp_path):
    ticket("resnet20").save_pretrained(tmp_path, layout="packed")
    found, bits = sparse(tmp_path), pruned("resnet20")[1].bits
    rows = {row.name: row for row in found.plan().rows}
    assert {name: (rows[name].kept, rows[name].total) for name in bits} == {
        name: (int(b.sum()), b.numel()) for name, b in bits.items()
    }
    assert found.nbytes > 8 * min(row.kept for row in rows.values() if row.kept)


# The card's accuracy


def slice_of_cifar(model):
    """All 300 images as the model takes them, and their labels."""
    data = open_data(str(EXAMPLES / "cifar10-slice" / "test.parquet"), train_split="test", need_test=False)
    pairs = list(TestImages(replace(data, test=data.train), data_config(model)))
    return torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.tensor([int(y) for _, y in pairs])


def test_the_card_s_accuracy_through_the_hub(hub):
    """All 300 images: the class of each is the dense model's, and as many are right as the card says."""
    hub.put(X, {path.name: path.read_bytes() for path in EXAMPLE.iterdir() if path.is_file()})
    fast, model = sparse(X), hf_px.from_pretrained(X)
    images, labels = slice_of_cifar(model)
    with torch.no_grad():
        expected = model(images)
    found = fast(images)
    assert len(images) == 300 and torch.equal(found.argmax(1), expected.argmax(1))
    assert difference(found, expected) < 1e-4
    results = hf_px.Ticket.from_pretrained(X).config["results"]
    (recorded,) = (r["value"] for r in results if r.get("dataset_config") == "first 30 of each class")
    assert int((found.argmax(1) == labels).sum()) == round(300 * recorded)


# Memory


def large_ticket(name, folder, side, **changes):
    torch.manual_seed(0)
    model = timm.create_model(name, **changes).eval()
    model.pretrained_cfg |= {"input_size": (3, side, side)}
    mask = hf_px.Mask({n: torch.rand(w.shape) < 0.05 for n, w in prunable(model).items()})
    hf_px.Ticket(mask.apply_(model), mask, model_args=changes).save_pretrained(folder, layout="packed")
    return os.path.getsize(folder / "ticket.safetensors"), sum(w.nbytes for w in model.parameters())


# VmHWM is the peak of the memory that is in use, since "5" was written to clear_refs; ru_maxrss has the parent's too
PEAKS = """
import json, sys
from pathlib import Path
import timm, torch, hf_px
from hf_px.runtime import tuning

def memory(name):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

tuning._REPEATS = 1
torch.set_num_threads(1)
hf_px.fast(timm.create_model("test_resnet").eval(), input_size=(3, 64, 64), progress=False)  # what is imported late
found = {}
for runtime in ("sparse", "dense"):
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    model = hf_px.from_pretrained(sys.argv[1], runtime=runtime)
    found[runtime] = memory("VmHWM") - before
    found.setdefault("nbytes", getattr(model, "nbytes", 0))
    del model
print(json.dumps(found))
"""


def peaks(folder):
    ran = subprocess.run([sys.executable, "-c", PEAKS, str(folder)], cwd=REPO, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks are read from Linux' /proc")
def test_weights_in_memory_and_the_peak_of_a_packed_load(tmp_path):
    """At most 2.5 times the packed file; and dense tensors are not made, so the peak is below a dense load's."""
    packed, dense = large_ticket("resnet26", tmp_path, 64)
    found = peaks(tmp_path)
    assert 0 < found["nbytes"] <= 2.5 * packed
    assert dense <= found["dense"]  # it is measured
    assert found["sparse"] < found["dense"]


@pytest.mark.slow
def test_weights_of_a_resnet50_in_memory(tmp_path):
    packed, _ = large_ticket("resnet50", tmp_path, 224)
    found = peaks(tmp_path)
    assert 0 < found["nbytes"] <= 2.5 * packed
    assert found["sparse"] < found["dense"]


# Damaged tickets


def held(seed, count, seconds):
    command = [sys.executable, str(REPO / "tests" / "support" / "fuzz_sparse.py"), "--seed", str(seed)]
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'tests'}", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([*command, "--count", str(count)], env=env, capture_output=True, text=True, timeout=seconds)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    broken = [f"{line['what']}\n    {line['fault']}\n    {line['repro']}" for line in lines if "broken" in line]
    assert not broken, "\n".join(broken)
    assert ran.returncode == 0, f"crashed ({ran.returncode}) at {lines[-1:]}: {ran.stderr[-2000:]}"
    return lines[-1]["ends"]


def test_damaged_tickets_are_refused_or_run_as_the_dense_ones():
    ends = held(0, 24, 170)
    assert ends["refused"] > 8 and ends["read"] > 2  # the cases are of both kinds


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_many_more_damaged_tickets(part):
    held(1000 + 300 * part, 300, 900)


def test_a_pruned_weight_that_another_operation_reads_too() -> None:
    """A layer and a product share one weight: the product gets its dense tensor, which a packed load does not have."""

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).mean((2, 3)) + self.conv.weight.square().sum()

    torch.manual_seed(0)
    model = Shared().eval()
    with torch.no_grad():
        model.conv.weight.mul_(torch.rand(model.conv.weight.shape) < 0.3)
    weights = {"conv.weight": SparseWeight.from_dense(model.conv.weight)}
    skeleton = Shared().eval()
    skeleton.conv.bias = model.conv.bias
    skeleton.conv.weight = torch.nn.Parameter(torch.empty_like(model.conv.weight, device="meta"))
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(FastModel(skeleton, lambda: weights, progress=False)(x), model(x).detach())
