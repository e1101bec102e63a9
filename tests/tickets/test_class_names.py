"""A ticket carries class names, data sets and an image processor: transformers' pipeline takes it as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from PIL import Image
from support.loopback import LoopbackHub
from support.tickets import own_ticket, pruned, transformers_ticket

import hf_px
from hf_px.cli import main
from hf_px.core.errors import TicketError
from hf_px.tickets.class_names import recorded_names
from hf_px.tickets.predict import class_names, classify, ticket_images

NAMES = ["ant", "bee", "cat", "dog"]
PROCESSOR = "preprocessor_config.json"


def photo(path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    Image.fromarray(pixels).resize((90, 70), Image.Resampling.BICUBIC).save(path)
    return path


def processor(mean: float = 0.4, size: int = 48) -> transformers.BitImageProcessor:
    small = {"shortest_edge": size}, {"height": size, "width": size}
    return transformers.BitImageProcessor(
        size=small[0], crop_size=small[1], image_mean=[mean] * 3, image_std=[0.2] * 3, resample=2
    )


def check_pipeline(repo: str, image: Path) -> None:
    """The pipeline's classes and probabilities are those of hf-px predict."""
    model = hf_px.from_pretrained(repo)
    ours = classify(model, Image.open(image), ticket_images(repo, model), 4)
    theirs = transformers.pipeline("image-classification", repo, device="cpu")(str(image), top_k=4)
    assert [one["label"] for one in theirs] == [name for name, _ in ours] and ours[0][0] in NAMES
    assert [one["score"] for one in theirs] == pytest.approx([value for _, value in ours], abs=0.02)


def test_a_pipeline_takes_a_ticket_from_the_hub(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    image = photo(tmp_path / "photo.png")
    model, mask = transformers_ticket()
    model.image_config = {"input_size": (3, 48, 48), "mean": (0.4,) * 3, "std": (0.2,) * 3, "crop_pct": 1.0}
    ticket = hf_px.Ticket(model, mask, class_names=NAMES, license="mit", datasets=["me/bugs"])
    ticket.push_to_hub("alice/bugs")
    check_pipeline("alice/bugs", image)
    card = ModelCard(hub.files("alice/bugs")["README.md"].decode()).data
    assert (card.license, card.datasets) == ("mit", ["me/bugs"])
    # loaded and pushed again, nothing is lost
    hf_px.Ticket.from_pretrained("alice/bugs").push_to_hub("alice/again", layout="dense")
    check_pipeline("alice/again", image)
    first, second = (json.loads(hub.files(f"alice/{name}")[PROCESSOR]) for name in ("bugs", "again"))
    assert first == second and first["image_mean"] == [0.4] * 3 and first["crop_size"]["width"] == 48


def test_the_processor_is_that_of_the_models_origin(tmp_path: Path) -> None:
    dense, _ = transformers_ticket()
    dense.save_pretrained(tmp_path / "dense")
    processor(0.3).save_pretrained(tmp_path / "dense")
    kind = transformers.AutoModelForImageClassification
    hf_px.Ticket(*pruned(kind.from_pretrained(tmp_path / "dense"))).save_pretrained(tmp_path / "a")
    assert json.loads((tmp_path / "a" / PROCESSOR).read_text())["image_mean"] == [0.3] * 3
    # of unknown origin: the usual one, but not over one that is there
    hf_px.Ticket(*transformers_ticket()).save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "b" / PROCESSOR).read_text())["image_mean"] == pytest.approx([0.485, 0.456, 0.406])
    hf_px.Ticket(*transformers_ticket()).save_pretrained(tmp_path / "a")
    assert json.loads((tmp_path / "a" / PROCESSOR).read_text())["image_mean"] == [0.3] * 3
    (tmp_path / "secret").write_text("hf_secret")
    (tmp_path / "a" / PROCESSOR).unlink()
    (tmp_path / "a" / PROCESSOR).symlink_to(tmp_path / "secret")
    hf_px.Ticket.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "c")
    assert not (tmp_path / "c" / PROCESSOR).exists()


def test_prune_and_repair_keep_names_and_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
    transformers.ResNetForImageClassification(config).save_pretrained("dense")
    processor(size=32).save_pretrained("dense")
    for name in NAMES:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(2):
            photo(tmp_path / "photos" / name / f"{i}.png")
    how = ["--data", "photos", "--sparsity", "0.5", "--repair-images", "8", "--rounds", "1", "--quiet"]
    prune = ["prune", "dense", "--num-classes", "4", *how]
    assert main([*prune, "--output", "own"]) == 0  # the head stays, and its names, which are placeholders
    assert class_names(hf_px.from_pretrained("own")) is None
    config.num_labels = 2
    transformers.ResNetForImageClassification(config).save_pretrained("dense")
    assert main([*prune, "--output", "new"]) == 0
    assert class_names(hf_px.from_pretrained("new")) == tuple(NAMES)
    assert json.loads(Path("new", PROCESSOR).read_text())["image_mean"] == [0.4] * 3
    capsys.readouterr()
    plain = ["--scorer", "snip", "--rounds", "1", "--per-class", "2", "--data", "photos", "--sparsity", "0.5"]
    assert main(["prune", "dense", "--num-classes", "4", *plain, "--no-repair", "--output", "plain"]) == 0
    assert main(["repair", "plain", "--base", "dense", "--data", "photos", "--output", "repaired", "--quiet"]) == 0
    assert class_names(hf_px.from_pretrained("repaired")) == tuple(NAMES)
    assert Path("repaired", PROCESSOR).read_bytes() == Path("new", PROCESSOR).read_bytes()
    assert main(["prune", "resnet20", "--num-classes", "4", *plain, "--output", "random"]) == 0
    assert class_names(hf_px.from_pretrained("random")) == tuple(NAMES)
    assert not Path("random", PROCESSOR).exists()


def test_names_of_every_kind_of_model(tmp_path: Path) -> None:
    words = [f"class of {i}" for i in range(10)]
    model, mask = own_ticket()
    hf_px.Ticket(model, mask, class_names=words).save_pretrained(tmp_path / "own")
    assert class_names(hf_px.from_pretrained(tmp_path / "own")) == tuple(words)
    assert "label_names" not in model.pretrained_cfg  # the model is not changed
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
    mask = hf_px.prune(linear, "magnitude", sparsity=0.5, progress=False)
    hf_px.Ticket(mask.apply_(linear), mask, class_names=["no", "yes"]).save_pretrained(tmp_path / "custom")
    record = hf_px.Ticket.from_pretrained(tmp_path / "custom").model_record()
    assert recorded_names(record) == ("no", "yes")
    for names, error in ((words[:9], "9 names, but the model has 10 classes"), ("words", "list of strings")):
        with pytest.raises((TicketError, TypeError), match=error):
            hf_px.Ticket(*own_ticket(), class_names=names)
    with pytest.raises(TicketError, match=r"`datasets`: .* is not a list of owner/name"):
        hf_px.Ticket(*own_ticket(), datasets=["/home/anna/scans"])
