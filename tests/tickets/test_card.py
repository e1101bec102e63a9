"""The card says what the ticket holds, in the Hub's own form, and nothing else."""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from support.loopback import LoopbackHub
from support.tickets import RESULT, deeplab_ticket, own_ticket, segformer_ticket, timm_ticket, transformers_ticket

import hf_px
from hf_px.core.errors import TicketError
from hf_px.core.mask import Mask
from hf_px.tickets import ticket_file
from hf_px.tickets.card import density_chart, read_repair

PROVENANCE = {
    "base": "timm/test_resnet.r160_in1k",
    "base_revision": "0123456789abcdef0123456789abcdef01234567",
    "license": "apache-2.0",
    "scorer": "px",
    "settings": {"rounds": 100, "seed": 7, "data": "digits"},
    "results": [RESULT],
    "command": "hf-px prune resnet50 --sparsity 0.9",
}


def card_of(
    tmp_path: Path, layout: str = "both", maker: object = timm_ticket, **provenance: object
) -> tuple[ModelCard, Mask]:
    model, mask = maker()  # type: ignore[operator]
    hf_px.Ticket(model, mask, **provenance).save_pretrained(tmp_path, layout=layout)
    return ModelCard.load(tmp_path / "README.md"), mask


@pytest.mark.parametrize("layout", ["both", "packed", "dense", "mask-only"])
def test_it_passes_the_hubs_validation(tmp_path: Path, hub: LoopbackHub, layout: str) -> None:
    card, _ = card_of(tmp_path, layout, **PROVENANCE)
    card.validate()
    assert [r for r in hub.requests if r[1] == "/api/validate-yaml" and r[2] == 200]


def test_metadata_is_what_the_hub_reads(tmp_path: Path) -> None:
    card, _ = card_of(tmp_path, **PROVENANCE)
    data = card.data
    assert data.base_model == PROVENANCE["base"] and data.base_model_relation == "finetune"
    assert data.library_name == "timm" and data.license == "apache-2.0"
    assert {"hf_px", "pruned", "sparse"} <= set(data.tags) and data.pipeline_tag == "image-classification"
    (result,) = data.eval_results
    assert (result.dataset_type, result.dataset_split, result.metric_type) == ("uoft-cs/cifar10", "test", "accuracy")
    assert result.metric_value == 0.9


def test_facts_are_there(tmp_path: Path) -> None:
    card, mask = card_of(tmp_path, **PROVENANCE)
    text = card.text
    config = hf_px.Ticket.from_pretrained(tmp_path).config
    for fact in (
        PROVENANCE["base_revision"],
        PROVENANCE["command"],
        mask.digest(),
        f"{config['sparsity']['nominal']:.4%}",
        f"{config['sparsity']['effective']:.4%}",
        "seed: 7",
        "rounds: 100",
        "licence apache-2.0",
        f"torch {torch.__version__.split('+')[0]}",
        "hf_px.from_pretrained(",
        "AutoModelForImageClassification.from_pretrained(",
        'timm.create_model("hf-hub:',
        "@inproceedings{",
    ):
        assert str(fact) in text, fact
    assert "| uoft-cs/cifar10 | test | accuracy | 0.9 | 0.93 |" in text  # the dense baseline beside it
    for name, bits in mask.bits.items():
        assert f"| `{name}` | {'x'.join(map(str, bits.shape))} | {int(bits.sum()):,} | {bits.numel():,} |" in text
    for file in ("ticket.safetensors", "model.safetensors"):
        assert f"| `{file}` | {(tmp_path / file).stat().st_size:,} |" in text


def test_what_was_not_measured_is_absent(tmp_path: Path) -> None:
    card, _ = card_of(tmp_path)
    assert card.data.eval_results is None and card.data.base_model is None and card.data.license is None
    assert "No result was recorded" in card.text
    for word in ("Base:", "Method:", "Command:", "None", "null", "undefined", "{{", "{%"):
        assert word not in card.text, word
    bare, _ = card_of(tmp_path / "bare", results=[{"dataset": "x", "metric": "accuracy", "value": 0.5}])
    assert "| 0.5 | not measured |" in bare.text
    assert "dense model was not measured" in bare.text


def test_it_offers_only_ways_that_work(tmp_path: Path) -> None:
    packed, _ = card_of(tmp_path / "packed", "packed")
    assert "timm.create_model" not in packed.text and packed.data.library_name == "hf_px"
    only, _ = card_of(tmp_path / "only", "mask-only", **PROVENANCE)
    assert "AutoModel" not in only.text and "no training of the ticket is included" in only.text
    assert only.data.library_name == "hf_px"
    other, _ = card_of(tmp_path / "other", maker=transformers_ticket)
    assert "ResNetForImageClassification.from_pretrained" in other.text and "timm.create_model" not in other.text
    assert other.data.library_name == "transformers"
    own, _ = card_of(tmp_path / "own", maker=own_ticket)
    assert "AutoModel" not in own.text and own.data.library_name == "hf_px"
    assert "With timm alone" not in own.text and "import hf_px\nimport timm\n" in own.text
    plain, _ = card_of(tmp_path / "plain")
    assert "With timm alone, from the dense copy:\n\n```python\nimport timm\n" in plain.text


@pytest.mark.parametrize("maker", [timm_ticket, own_ticket, transformers_ticket, deeplab_ticket, segformer_ticket])
def test_the_code_on_the_card_runs(tmp_path: Path, maker: object) -> None:
    card, mask = card_of(tmp_path, maker=maker)
    blocks = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert len(blocks) >= 2
    space: dict[str, object] = {"torch": torch}
    for block in blocks:
        code = block.replace("hf-hub:REPO", f"local-dir:{tmp_path}").replace("REPO", str(tmp_path))
        exec(code, space)  # the card's own words, as a stranger would paste them
        zeros = sum(int((p == 0).sum()) for p in space["model"].parameters())  # type: ignore[attr-defined]
        assert zeros >= mask.total - mask.kept


def test_the_picture_is_the_mask(tmp_path: Path) -> None:
    _, mask = card_of(tmp_path, maker=own_ticket)
    text = (tmp_path / "density.svg").read_text()
    assert text == density_chart(mask)
    svg = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    whole = [float(r.get("width")) for r in svg.iter(f"{space}rect") if r.get("class") == "whole"]
    bars = [float(r.get("width")) for r in svg.iter(f"{space}rect") if "bar" in r.get("class").split()]
    assert len(bars) == len(mask.bits) == len(whole)
    for bar, full, bits in zip(bars, whole, mask.bits.values()):
        assert bar / full == pytest.approx(float(bits.float().mean()), abs=1e-4)
    assert "![Density by layer" in (tmp_path / "README.md").read_text()


def test_names_cannot_break_the_picture() -> None:
    hostile = Mask({'<script>alert("x")</script>' * 5: torch.ones(2, dtype=torch.bool)})
    assert ElementTree.fromstring(density_chart(hostile)) is not None
    assert "<script" not in density_chart(hostile)


# segmentation

IOU = {"dataset": "org/voc", "split": "val", "metric": "mean_iou", "value": 0.41}
IOU |= {"by_class": {"background": 0.9, "cat": None, "dog": 0.25}}
IOU |= {"dense_by_class": {"background": 0.95, "cat": None, "dog": 0.5}, "dense": 0.5}


@pytest.mark.parametrize("maker", [deeplab_ticket, segformer_ticket])
def test_a_segmenter_is_called_one(tmp_path: Path, maker: object, hub: LoopbackHub) -> None:
    card, _ = card_of(tmp_path, maker=maker, results=[IOU, {**IOU, "task": "other"}])
    card.validate()
    assert card.data.pipeline_tag == "image-segmentation" and "image-segmentation" in card.data.tags
    assert "image-classification" not in str(card)
    assert [result.task_type for result in card.data.eval_results] == ["image-segmentation", "other"]
    if maker is segformer_ticket:
        assert "model = SegformerForSemanticSegmentation.from_pretrained(" in card.text
    packed, _ = card_of(tmp_path / "packed", "packed", maker=maker)
    assert packed.data.pipeline_tag == "image-segmentation"


def test_results_by_class(tmp_path: Path) -> None:
    accuracy = {"dataset": "x", "metric": "pixel_accuracy", "value": 0.5, "by_class": {"cat": 1}}
    card, _ = card_of(tmp_path, maker=deeplab_ticket, results=[IOU, accuracy, RESULT])
    assert (
        "\n\n<details><summary>IoU by class</summary>\n\n| class | this ticket | dense baseline |\n|---|---|---|\n"
        "| background | 0.9000 | 0.9500 |\n| cat | absent | absent |\n| dog | 0.2500 | 0.5000 |\n\nabsent: the class "
        "is neither in the test set nor predicted, and does not count in the mean; predicted, but not in the test set: "
        "0.\n"
    ) in card.text
    assert (
        "<summary>pixel&#95;accuracy by class</summary>" in card.text and "| cat | 1.0000 | not measured |" in card.text
    )
    assert card.text.count("<details>") == card.text.count("</details>") == 3
    assert "by class" not in card_of(tmp_path / "other", results=[RESULT])[0].text


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"by_class": {"cat": float("nan")}, "dense_by_class": None}, "by_class has nan for 'cat'"),
        ({"by_class": {"cat": "0.5"}, "dense_by_class": None}, "by_class has '0.5' for 'cat'"),
        ({"by_class": [0.5], "dense_by_class": None}, r"by_class is \[0.5\], not a dict"),
        ({"by_class": {1: 0.5}, "dense_by_class": None}, "not a dict of class names"),
        ({"dense_by_class": {"background": 0.5}}, "dense_by_class has other classes than by_class"),
        ({"by_class": None}, "dense_by_class has other classes than by_class"),
    ],
)
def test_wrong_results_by_class(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(TicketError, match=complaint):
        hf_px.Ticket(*own_ticket(), results=[{**IOU, **change}])


def test_names_of_classes_cannot_break_the_card(tmp_path: Path) -> None:
    names = [
        "a|b",
        "</details><script>",
        "x\n## y",
        "[l](http://e)",
        "z" * 500,
        "\x1b[2J",
        *(f"~{i}" for i in range(400)),
    ]
    card, _ = card_of(tmp_path, maker=own_ticket, results=[{**RESULT, "by_class": dict.fromkeys(names, 0.5)}])
    assert card.text.count("</details>") == 2 and "<script" not in card.text and "\n## y" not in card.text
    assert "| a&#124;b | 0.5000 | not measured |" in card.text and "](http://e" not in card.text
    assert "z" * 60 not in card.text and "\x1b" not in card.text
    assert "\nAnd 106 more.\n" in card.text


def test_a_strangers_results_by_class_may_be_anything(tmp_path: Path) -> None:
    hf_px.Ticket(*own_ticket(), results=[IOU]).save_pretrained(tmp_path, layout="packed")
    contents = ticket_file.read_ticket_file(tmp_path / ticket_file.PACKED)
    changed = dict(vars(contents)) | {"ticket": contents.ticket | {"results": [{**RESULT, "by_class": {"a": "b"}}]}}
    changed.pop("mask", None)
    ticket_file.write_ticket_file(tmp_path / ticket_file.PACKED, ticket_file.Contents(**changed))
    hf_px.Ticket.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    assert "by class" not in (tmp_path / "again" / "README.md").read_text()


def test_predictions_are_shown_where_they_are(tmp_path: Path) -> None:
    made = hf_px.Ticket(*deeplab_ticket(), results=[IOU])
    made.save_pretrained(tmp_path)
    assert "predictions" not in (tmp_path / "README.md").read_text()
    made.save_pretrained(tmp_path, files={"predictions.png": b"pixels"})
    text = (tmp_path / "README.md").read_text()
    results = text[text.index("## Results") : text.index("## How it was made")]
    assert "</details>\n\n![Predictions: " in results and "](predictions.png)\n\nImages of the test set" in results
    assert "not by result" in results and results.endswith("not by result.\n\n")
    assert (tmp_path / "predictions.png").read_bytes() == b"pixels"
    (tmp_path / "predictions.png").unlink()
    made.save_pretrained(tmp_path)
    assert "predictions" not in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    "repair",
    [{"images": 3}, {"images": "many", "errors": {"a": [1, 2]}}, {"images": 1, "errors": {"a": [1]}},
     {"images": 1, "errors": {"a": [float("inf"), 0.0]}}, {"images": 1, "errors": [1, 2]}],
    ids=str,
)  # fmt: skip
def test_a_card_says_nothing_of_a_repair_that_makes_no_sense(repair: dict[str, object]) -> None:
    """A ticket's header comes from a stranger."""
    assert read_repair({"repair": repair}) is None
    assert read_repair({"repair": {"images": 2, "errors": {"a": [0.5, 0.25], "b": [0.1, 0.05]}}}) is not None


def test_the_words_of_a_picture_are_its_text_alternative_and_cannot_leave_their_line(tmp_path: Path) -> None:
    words = "two images; ![x](y) is right\n1 truth a|b; ticket <script>\n</details> # head"
    note, file = PngInfo(), io.BytesIO()
    note.add_itxt("Description", words)
    Image.new("RGB", (2, 2)).save(file, "PNG", pnginfo=note)
    hf_px.Ticket(*timm_ticket()).save_pretrained(tmp_path, files={"predictions.png": file.getvalue()})
    card = (tmp_path / "README.md").read_text()
    (line,) = [line for line in card.splitlines() if line.endswith("](predictions.png)")]
    assert line.startswith("![two images; &#33;&#91;x&#93;(y) is right]")
    assert "\n1. 1 truth a&#124;b; ticket &#60;script&#62;\n2. &#60;/details&#62; # head\n\n</details>\n" in card
    assert "chosen by class and position, not by result. Tick: right; cross: wrong." in card


def test_a_warning_is_not_cut_short(tmp_path: Path) -> None:
    warning = (
        "The dense twin is at chance level: " + "it has learned nothing, so train it for longer; " * 8 + "the end."
    )
    hf_px.Ticket(*timm_ticket(), results=[RESULT | {"warning": warning}]).save_pretrained(tmp_path)
    assert f"Warning: {warning}" in (tmp_path / "README.md").read_text()
