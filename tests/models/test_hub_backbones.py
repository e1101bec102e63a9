"""Backbones by their names on the Hub: timm's, transformers', single files; pinned, private, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import HfApi
from support.makers import dense, ticket
from support.readers import outputs, strangers
from torch import nn
from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification, ResNetModel

import hf_px
from hf_px.cli import main
from hf_px.models.load import load
from hf_px.models.records import backbones

X = "alice/x"


@pytest.fixture(autouse=True)
def token(monkeypatch):
    """alice is logged in."""
    monkeypatch.setenv("HF_TOKEN", "hf_alice")


def same(one: nn.Module, other: nn.Module, but: tuple[str, ...] = ()) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a if name not in but)


def push_timm(model: nn.Module, repo: str = X) -> str:
    timm.models.push_to_hf_hub(model, repo, safe_serialization=True, model_card={"license": "mit"})
    return HfApi().model_info(repo).sha


def push_transformers(folder: Path, seed: int = 0, model: nn.Module | None = None, processor: bool = True) -> str:
    (model or dense.__wrapped__("transformers", seed)).save_pretrained(folder)
    if processor:
        made = ConvNextImageProcessor(size={"shortest_edge": 96}, crop_pct=0.75, image_mean=[0.1, 0.2, 0.3])
        made.save_pretrained(folder)
    HfApi().create_repo(X, exist_ok=True)
    return HfApi().upload_folder(repo_id=X, folder_path=folder).oid


def test_a_repo_in_timms_format(hub):
    first = push_timm(dense("test_resnet", 0))
    second = push_timm(dense("test_resnet", 1))
    found = load(X)
    assert same(found.model, dense("test_resnet", 1))
    assert (found.base, found.revision, found.trained, found.new_head) == (X, second, True, ())
    assert found.license == "mit"  # its card says so
    assert found.model.pretrained_cfg["input_size"] == dense("test_resnet").pretrained_cfg["input_size"]
    pinned = load(X, revision=first, num_classes=3, seed=1)
    assert same(pinned.model, _headed(dense("test_resnet", 0), 3), but=("fc.weight", "fc.bias"))
    assert (pinned.revision, pinned.new_head) == (first, ("fc.weight", "fc.bias"))
    assert same(pinned.model, load(X, revision=first, num_classes=3, seed=1).model)
    bare = load(X, pretrained=False, seed=1)
    assert (bare.base, bare.revision, bare.trained) == (None, None, False)
    assert same(bare.model, load(X, pretrained=False, seed=1).model)
    with pytest.raises(ValueError, match="has no revision 'v9'"):
        load(X, revision="v9")


def _headed(model: nn.Module, classes: int) -> nn.Module:
    other = timm.create_model("test_resnet", num_classes=classes)
    body = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("fc.")}
    other.load_state_dict(body, strict=False)
    return other


def test_a_repo_in_transformers_format(hub, tmp_path):
    first = push_transformers(tmp_path / "a", 0)
    second = push_transformers(tmp_path / "b", 1)
    found = load(X)
    assert same(found.model, dense("transformers", 1))
    assert (found.base, found.revision, found.trained, found.new_head) == (X, second, True, ())
    assert not found.model.training
    assert found.model.image_config == {
        "input_size": (3, 96, 96),
        "mean": (0.1, 0.2, 0.3),
        "std": (0.5, 0.5, 0.5),
        "interpolation": "bicubic",
        "crop_pct": 0.75,
        "crop_mode": "center",
    }
    torch.manual_seed(3)
    before = torch.get_rng_state()
    pinned = load(X, revision=first, num_classes=7, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert set(pinned.new_head) == {"classifier.1.weight", "classifier.1.bias"}
    assert pinned.revision == first and pinned.model.config.num_labels == 7
    old = dense("transformers", 0).state_dict()
    assert all(torch.equal(old[n], t) for n, t in pinned.model.state_dict().items() if n not in pinned.new_head)
    torch.manual_seed(4)
    assert same(pinned.model, load(X, revision=first, num_classes=7, seed=1).model)
    assert not same(pinned.model, load(X, revision=first, num_classes=7, seed=2).model)
    local = load(str(tmp_path / "a"))  # the same, from a directory
    assert same(local.model, dense("transformers", 0)) and local.model.image_config["crop_pct"] == 0.75
    assert (local.base, local.revision, local.trained) == (None, None, True)


def test_a_model_without_an_image_processor_says_nothing_of_images(hub, tmp_path):
    push_transformers(tmp_path, processor=False)
    assert not hasattr(load(X).model, "image_config")


def test_a_model_without_a_head_gets_one_and_says_so(hub, tmp_path, capsys):
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    push_transformers(tmp_path, model=ResNetModel(config))
    found = load(X, num_classes=5)
    assert isinstance(found.model, ResNetForImageClassification)
    assert set(found.new_head) == {"classifier.1.weight", "classifier.1.bias"}
    capsys.readouterr()
    load(X)
    assert "has no head; classifier.1.bias, classifier.1.weight initialised at random" in capsys.readouterr().err


def test_code_of_strangers_is_not_run_nor_asked_about(hub, tmp_path):
    push_transformers(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    odd = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine", "AutoModelForImageClassification": "code.Net"}}
    code = f"open({str(tmp_path / 'poisoned')!r}, 'w')"
    hub.put(X, {"config.json": json.dumps(config | odd).encode(), "code.py": code.encode()})
    with pytest.raises(ValueError, match="alice/x: not loaded as an image classifier"):
        load(X)
    assert not (tmp_path / "poisoned").exists()


def test_half_a_body_is_not_completed_at_random(hub, tmp_path):
    from safetensors.torch import load_file, save_file

    dense("transformers").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    gone = next(name for name in state if name.endswith("convolution.weight"))
    save_file({n: t for n, t in state.items() if n != gone}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=f"{gone} is missing or has another shape"):
        load(str(tmp_path))
    timm.models.save_for_hf(dense("test_resnet"), tmp_path / "timm", safe_serialization=True)
    state = load_file(tmp_path / "timm" / "model.safetensors")
    save_file({n: t for n, t in state.items() if n != "layer2.0.conv2.weight"}, tmp_path / "timm/model.safetensors")
    for classes in (None, 3):  # timm by itself would be lenient with another head
        with pytest.raises(ValueError, match="not loaded as an image classifier"):
            load(str(tmp_path / "timm"), num_classes=classes)


def test_timms_own_ids_come_from_the_hub(hub, tmp_path):
    """The weights of a tag are asked for by naming it."""
    name = "test_resnet.r160_in1k"
    torch.manual_seed(0)
    model = timm.create_model("test_resnet").eval()
    commits = []
    for shift in (0.0, 1.0):
        with torch.no_grad():
            model.fc.bias.fill_(shift)
        timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
        commits.append(hub.put(f"timm/{name}", {"model.safetensors": (tmp_path / "model.safetensors").read_bytes()}))
    for spelled in (name, f"timm/{name}"):
        found = load(spelled)
        assert same(found.model, model)
        assert (found.base, found.revision, found.trained) == (f"timm/{name}", commits[1], True)
        assert found.license == timm.models.get_pretrained_cfg(name).license
    assert same(load("test_resnet", pretrained=True).model, model)
    assert not load("test_resnet").trained and not load(name, pretrained=False).trained
    pinned = load(name, revision=commits[0])
    assert pinned.revision == commits[0] and not pinned.model.fc.bias.any()
    headed = load(name, num_classes=4)
    assert headed.new_head == ("fc.weight", "fc.bias") and headed.model.num_classes == 4
    assert "file" not in found.model.pretrained_cfg

    # and a ticket of one says which weights it was cut from
    argv = ["prune", name, "--revision", commits[0], "--scorer", "magnitude", "--sparsity", "0.5", "--quiet"]
    assert main([*argv, "--output", str(tmp_path / "out")]) == 0
    config = hf_px.Ticket.from_pretrained(tmp_path / "out").config
    assert (config["base"], config["base_revision"]) == (f"timm/{name}", commits[0])
    assert config.get("license") == found.license


def test_a_short_name_keeps_clips_attention_pool(hub, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("resnet50_clip").eval()
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    sha = hub.put("timm/resnet50_clip.openai", {"model.safetensors": (tmp_path / "model.safetensors").read_bytes()})
    found = load("clip-resnet50", num_classes=3)
    assert same(found.model.stem, model.stem) and same(found.model.stages, model.stages)
    assert found.new_head == ("head.proj.weight", "head.proj.bias")
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in found.model.state_dict().items() if "proj" not in n)
    record = backbones["clip-resnet50"]
    assert (found.base, found.revision) == ("timm/resnet50_clip.openai", sha)
    assert (found.license, found.citation) == ("mit", record.citation)
    assert {key: found.model.pretrained_cfg[key] for key in asdict(record.images)} == asdict(record.images)


def test_a_repo_of_one_file_is_converted(hub, tmp_path):
    torch.manual_seed(0)
    body = timm.create_model("resnet50", num_classes=0).eval()
    state = {f"backbone.{name}": tensor for name, tensor in body.state_dict().items()}
    torch.save({"teacher": state | {"head.mlp.0.weight": torch.ones(2, 2)}}, tmp_path / "dino.pth")
    api = HfApi()
    api.create_repo(X)
    api.upload_file(path_or_fileobj=tmp_path / "dino.pth", path_in_repo="dino.pth", repo_id=X)
    sha = api.model_info(X).sha
    found = load(X, architecture="dino-resnet50")
    assert same(found.model, body)
    assert (found.base, found.revision, found.license) == (X, sha, "apache-2.0")
    assert load(X, architecture="dino-resnet50", revision=sha, num_classes=2).new_head == ("fc.weight", "fc.bias")
    with pytest.raises(ValueError, match=r"no config\.json; for a repo of one weights file, set `architecture`"):
        load(X)
    api.upload_file(path_or_fileobj=b"x", path_in_repo="other.pth", repo_id=X)
    with pytest.raises(ValueError, match=r"expected one weights file, it has dino\.pth, other\.pth"):
        load(X, architecture="dino-resnet50")


def test_a_private_repo_is_for_its_owner(hub, monkeypatch, tmp_path):
    HfApi().create_repo(X, private=True)
    push_timm(dense("test_resnet"))
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match=r"alice/x: not loaded .* no such repo on the Hub, or a private one"):
        load(X, token="hf_bob")
    assert load(X, token="hf_alice").trained


@pytest.mark.parametrize("kind", ["test_resnet", "transformers", "resnet20"])
@pytest.mark.parametrize("layout", ["both", "packed", "dense"])
def test_a_ticket_is_no_backbone(hub, kind, layout):
    ticket(kind).push_to_hub(X, layout=layout)
    with pytest.raises(ValueError, match=r"a ticket, already pruned: hf-px info and hf-px predict"):
        load(X)


def test_records_of_strangers_reach_no_file(hub, tmp_path):
    timm.models.save_for_hf(dense("test_resnet"), tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    for change in ({"model_args": {"checkpoint_path": "/etc/passwd"}}, {"architecture": "no_such_net"}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=r"not loaded as an image classifier: config\.json"):
            load(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        load(str(tmp_path))


def test_strangers_load_tickets_of_our_networks_by_timm(hub, tmp_path, monkeypatch):
    """`timm.create_model("hf-hub:…")` after `import hf_px`, and transformers' wrapper around timm too."""
    for layout in ("both", "dense"):
        ticket("resnet20").push_to_hub(f"alice/{layout}", layout=layout)
    jobs = [{"how": "timm", "where": f"hf-hub:alice/{layout}"} for layout in ("both", "dense")]
    jobs += [{"how": "AutoModelForImageClassification", "where": "alice/both"}]
    expected_outputs = outputs(ticket("resnet20").to_model())
    for job, answer in zip(jobs, strangers(jobs, hf_px=True, home=tmp_path)):
        assert answer.get("outputs") == pytest.approx(expected_outputs, abs=1e-6), (job, answer)
