"""Plans on disk: the same program as the one that was exported, or none; files are data that may be damaged."""

from __future__ import annotations

import json
import os

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.makers import pruned
from support.sparse import always_sparse, difference, exact, prune_, trained_
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

import hf_px
from hf_px.runtime import fast as module
from hf_px.runtime import plan_file
from hf_px.runtime.graph import Layer, Pool, Ref, TorchOp, export
from hf_px.runtime.plan_file import load_plan, plan_path, save_plan
from hf_px.runtime.weights import SparseWeight

SIZE = (3, 32, 32)
IMAGES = torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(0))


def model(seed=0, **changes):
    torch.manual_seed(seed)
    return prune_(trained_(timm.create_model("test_resnet", num_classes=5, **changes)), 0.3, seed)


def fast(model, size=SIZE):
    return always_sparse(hf_px.fast(model, input_size=size, progress=False))


def plans(own_cache):
    return sorted((own_cache / "plans").glob("*"))


@pytest.fixture
def exports(monkeypatch):
    """A list with one entry for each model that was exported."""
    found = []
    monkeypatch.setattr(module, "export", lambda *args: found.append(1) or export(*args))
    return found


def same_graph(one, other):
    fields = ("ops", "inputs", "outputs", "shapes", "tensors", "out_spec")
    return all(getattr(one, field) == getattr(other, field) for field in fields) and all(
        torch.equal(one.constants[name], other.constants[name]) for name in one.constants | other.constants
    )


@pytest.mark.parametrize("kind", ["test_resnet", "test_vit", "transformers"])
def test_a_saved_plan_is_the_plan(kind, tmp_path):
    network = pruned(kind)[0] if kind != "test_vit" else timm.create_model(kind, img_size=32).eval()
    graph = export(network, torch.zeros(1, *SIZE))
    choices = {op.out: i for i, op in enumerate(graph.ops) if isinstance(op, Layer)}
    save_plan(tmp_path / "a" / "plan.safetensors", graph, choices)
    found, chosen = load_plan(tmp_path / "a" / "plan.safetensors")
    assert same_graph(found, graph) and chosen == choices


def test_all_that_an_operation_may_hold_comes_back(tmp_path):
    args = [
        Ref("x"), [Ref("y"), None, 1, 2.5, "gelu", True], float("inf"), torch.float32, torch.device("cpu"),
        torch.strided, torch.contiguous_format, -float("inf"),
    ]  # fmt: skip
    graph = export(nn.Conv2d(3, 4, 1).eval(), torch.zeros(1, *SIZE))
    graph.ops = [
        TorchOp("y", "aten.relu.default", args, {"dtype": torch.int64, "ref": Ref("z")}),
        Layer("z", "y", "w", None, ("a", None, "m", "v", 1e-5), (1, 2), (3, 4), (5, 6), 7, "r", 0.0, 6.0),
        Pool("p", "z", (1, 2), (3, 4), (5, 6), (7, 8)),
    ]
    graph.constants = {"c": torch.arange(3), "d": torch.tensor(2.0), "e": torch.ones(2, 2, dtype=torch.bool)}
    save_plan(tmp_path / "plan.safetensors", graph, {})
    found, _ = load_plan(tmp_path / "plan.safetensors")
    assert same_graph(found, graph)


def test_the_second_time_nothing_is_exported_and_the_result_is_the_same(own_cache, exports):
    first = fast(model())(IMAGES)
    assert len(exports) == 1 and len(plans(own_cache)) == 1
    assert torch.equal(fast(model())(IMAGES), first)
    assert len(exports) == 1 and len(plans(own_cache)) == 1
    assert difference(first, exact(model(), IMAGES)) < 1e-5


def test_an_output_object_comes_back_from_a_plan(exports):
    for _ in range(2):
        found = fast(pruned("transformers")[0])(IMAGES)
        assert isinstance(found, ImageClassifierOutputWithNoAttention)
    assert len(exports) == 1 and difference(found.logits, exact(pruned("transformers")[0], IMAGES).logits) < 1e-5


def test_other_positions_sizes_and_modules_have_plans_of_their_own(own_cache):
    fast(model())
    other_values = model()
    with torch.no_grad():
        other_values.fc.weight.mul_(2)
    fast(other_values)
    assert len(plans(own_cache)) == 1
    fast(model(), (3, 40, 32))
    fast(model(seed=1))
    activation = model()
    activation.layer1[0].act2 = nn.GELU()
    found = fast(activation.eval())
    assert len(plans(own_cache)) == 4
    assert difference(found(IMAGES), exact(activation, IMAGES)) < 1e-5


def test_the_name_depends_on_everything(tmp_path, monkeypatch):
    weights = {"a": SparseWeight.from_dense(torch.eye(3)), "b": SparseWeight.from_dense(torch.ones(2, 2))}
    other = {**weights, "a": SparseWeight.from_dense(torch.eye(3).flip(0))}
    names = {
        plan_path(tmp_path, {"architecture": "x"}, weights, SIZE),
        plan_path(tmp_path, {"architecture": "y"}, weights, SIZE),
        plan_path(tmp_path, {"architecture": "x"}, other, SIZE),
        plan_path(tmp_path, {"architecture": "x"}, {"a": weights["b"], "b": weights["a"]}, SIZE),
        plan_path(tmp_path, {"architecture": "x"}, weights, (3, 32, 33)),
    }
    monkeypatch.setattr(plan_file, "processor", lambda: "another")
    names.add(plan_path(tmp_path, {"architecture": "x"}, weights, SIZE))
    monkeypatch.setattr(plan_file, "versions", lambda: {"torch": "99"})
    names.add(plan_path(tmp_path, {"architecture": "x"}, weights, SIZE))
    assert len(names) == 7
    assert plan_path(tmp_path, {"architecture": "x"}, dict(reversed(weights.items())), SIZE) in names


def test_a_module_of_the_user_s_own_has_no_plan(own_cache):
    fast(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(3600, 2)).eval())
    assert not plans(own_cache)


def metadata_of(path):
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def with_plan(path, change, good=True):
    """Write the plan again, changed; with its checksum made good or not."""
    metadata = metadata_of(path)
    plan = json.loads(metadata["plan"])
    change(plan)
    metadata["plan"] = json.dumps(plan)
    if good:
        metadata["sha256"] = plan_file._digest(metadata["plan"], {})
    save_file({}, path, metadata)


def foreign_operator(plan):
    op = next(op for op in plan["ops"] if op["kind"] == "TorchOp")
    op["target"] = "profiler._record_function_enter.default"
    assert torch.ops.profiler._record_function_enter.default  # torch has it


def unknown_operator(plan):
    next(op for op in plan["ops"] if op["kind"] == "TorchOp")["target"] = "aten.no_such_thing.default"


def not_a_dtype(plan):
    next(op for op in plan["ops"] if op["kind"] == "TorchOp")["kwargs"] = {"x": {"dtype": "load"}}


def other_kind(plan):
    plan["ops"][0]["kind"] = "Graph"


def other_field(plan):
    plan["ops"][0]["__class__"] = 1


def wider_padding(plan):
    next(op for op in plan["ops"] if op["kind"] == "Layer")["padding"] = [9, 9]


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "cut in its header": lambda path: path.write_bytes(path.read_bytes()[:500]),
    "foreign": lambda path: path.write_bytes(b"PK\3\4" + bytes(500)),
    "another safetensors file": lambda path: save_file({"a": torch.ones(2)}, path),
    "of other metadata": lambda path: save_file({"a": torch.ones(2)}, path, {"plan": "[]"}),
    "no JSON": lambda path: save_file({}, path, {"plan": "{", "sha256": plan_file._digest("{", {})}),
    "a list": lambda path: save_file({}, path, {"plan": "[]", "sha256": plan_file._digest("[]", {})}),
    "one more tensor": lambda path: save_file({"a": torch.ones(2)}, path, metadata_of(path)),
    "another padding": lambda path: with_plan(path, wider_padding, good=False),
    "an operator that is not of aten": lambda path: with_plan(path, foreign_operator),
    "an operator that torch has not": lambda path: with_plan(path, unknown_operator),
    "a function in place of a dtype": lambda path: with_plan(path, not_a_dtype),
    "an unknown kind": lambda path: with_plan(path, other_kind),
    "an unknown field": lambda path: with_plan(path, other_field),
}


def test_a_plan_that_cannot_be_read_is_ignored_and_written_again(own_cache, exports):
    expected = fast(model())(IMAGES)
    (path,) = plans(own_cache)
    good = path.read_bytes()
    for name, damage in DAMAGES.items():
        path.write_bytes(good)
        damage(path)
        assert path.read_bytes() != good and load_plan(path) is None, name
    assert torch.allclose(fast(model())(IMAGES), expected, rtol=1e-5, atol=1e-6)
    assert len(exports) == 2 and load_plan(path) is not None
    path.unlink()
    path.mkdir()
    assert load_plan(path) is None
    fast(model())


def test_flipped_bits_are_noticed_or_harmless(own_cache):
    fast(model())
    (path,) = plans(own_cache)
    good, data = load_plan(path), path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for at in torch.randint(len(data), (150,), generator=generator).tolist():
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        found = load_plan(path)
        assert found is None or (same_graph(found[0], good[0]) and found[1] == good[1]), at


def test_a_folder_that_cannot_be_written_to_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HF_PX_CACHE", str(tmp_path / "file"))
    assert difference(fast(model())(IMAGES), exact(model(), IMAGES)) < 1e-5
    if os.getuid():  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        monkeypatch.setenv("HF_PX_CACHE", str(tmp_path / "closed"))
        fast(model())


def test_a_plan_that_json_cannot_express_is_not_written(tmp_path):
    graph = export(nn.Conv2d(3, 4, 1).eval(), torch.zeros(1, *SIZE))
    graph.ops.append(TorchOp("y", "aten.relu.default", [object()]))
    save_plan(tmp_path / "plan.safetensors", graph, {})
    assert not list(tmp_path.iterdir())


def test_plans_lie_in_the_cache_of_hugging_face_by_default(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.delenv("HF_PX_CACHE")
    assert str(plan_file.plan_folder()) == os.path.join(constants.HF_HOME, "hf_px", "plans")
