"""recipes/configs: every row of the paper's table of training set-ups, number for number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.places import REPO

from hf_px.data import PRESETS
from hf_px.models.load import check_name, load
from hf_px.training.command_line import parse_options
from hf_px.training.config import ModelOptions, Options, OutputOptions

RECIPES = REPO / "recipes"
SHORT, TRANSFER = (RECIPES / "configs" / f"cifar10-{name}-short.yaml" for name in ("resnet20", "resnet50-transfer"))
VIT = RECIPES / "configs" / "cifar10-vit-small-short.yaml"  # the paper has no transformer
CONFIGS = sorted(set((RECIPES / "configs").glob("*.yaml")) - {SHORT, TRANSFER, VIT})
VOC = "Pascal VOC2012"
SETS = ("CIFAR-10", "CIFAR-100", "Tiny-ImageNet")
# data set, architecture, optimizer, lr, epochs at which it falls by 10, momentum, weight decay, epochs, batch size
TABLE = {
    ("CIFAR-10", "ResNet-20", "SGD", 0.1, (80, 120), 0.9, 1e-4, 160, 128),
    ("CIFAR-100", "VGG-16", "SGD (Nesterov)", 0.1, (60, 120), 0.9, 5e-4, 160, 128),
    ("Tiny-ImageNet", "ResNet-18", "SGD", 0.2, (100, 150), 0.9, 1e-4, 200, 256),
    ("ImageNet", "ResNet-50", "SGD", 0.1, (30, 60, 80), 0.9, 1e-4, 90, 448),
    (VOC, "DeepLabV3+ (ResNet-50)", "SGD", 0.001, (50, 60), 0.9, 1e-4, 80, 4),
    *((data, "ResNet-50", "SGD", 0.1, (91, 136), 0.9, 1e-4, 182, 256) for data in SETS),
}
RANDOM = {
    ("CIFAR-10", "ResNet-20"): "resnet20",
    ("CIFAR-100", "VGG-16"): "vgg16-cifar",
    ("Tiny-ImageNet", "ResNet-18"): "resnet18-tiny",
    ("ImageNet", "ResNet-50"): "resnet50",
}
MODELS = {
    # the second half of the table stands for three pre-trainings each
    **{(data, f"{by}-resnet50"): (data, "ResNet-50") for data in SETS for by in ("imagenet", "mocov2", "clip")},
    **{(data, model): (data, architecture) for (data, architecture), model in RANDOM.items()},
    **{
        (VOC, f"deeplabv3plus-resnet50 on {by}-resnet50"): (VOC, "DeepLabV3+ (ResNet-50)")
        for by in ("imagenet", "mocov2", "dino")
    },
}


def read(path: Path, *flags: str) -> Options:
    return parse_options("prune_finetune", "", ["--config", str(path), *flags])


def title(name: str) -> str:
    return {"imagenet-1k": "ImageNet", "voc2012": VOC}.get(name) or PRESETS[name].title


def model_of(options: ModelOptions) -> str:
    return f"{options.model} on {options.backbone}" if options.backbone else options.model


def test_there_is_one_for_each_row_and_each_pre_training() -> None:
    found = [(title(options.data.data), model_of(options.model)) for options in map(read, CONFIGS)]
    assert sorted(found) == sorted(MODELS) and len(found) == 16


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_is_exact(path: Path) -> None:
    options = read(path)
    model, data, pruning, training = options.model, options.data, options.pruning, options.training
    optimizer = {"sgd": "SGD", "nesterov": "SGD (Nesterov)"}[training.optimizer]
    row = (
        *MODELS[title(data.data), model_of(model)], optimizer, training.lr, tuple(training.lr_drops),
        training.momentum, training.weight_decay, training.epochs, training.batch_size,
    )  # fmt: skip
    assert row in TABLE
    assert training.lr_schedule == "step" and training.lr_drop_factor == 0.1
    assert (pruning.scorer, pruning.sparsity, pruning.rounds, data.per_class) == ("px", 0.982, None, 10)
    assert pruning.keep_head is False and pruning.norm is None
    check_name(model.model, backbone=model.backbone)
    # nothing that the paper does not name
    assert not (training.warmup_epochs or training.label_smoothing or training.ema_decay or training.grad_clip)
    assert options.output == OutputOptions()


def test_the_short_one_is_the_papers_but_for_what_it_names() -> None:
    """A sixteenth of the epochs, the learning rate falls after the same part of them; half precision."""
    long, short = (read(path).settings() for path in (RECIPES / "configs" / "cifar10-resnet20.yaml", SHORT))
    assert {key: (long[key], short[key]) for key in long if long[key] != short[key]} == {
        "epochs": (160, 10), "lr_drops": ([80, 120], [5, 7.5]), "mixed_precision": (None, "bf16"),
        "eval_epochs": (1, 5), "layout": ("both", "packed"),
    }  # fmt: skip
    assert [drop / short["epochs"] for drop in short["lr_drops"]] == [drop / 160 for drop in long["lr_drops"]]


def test_the_short_transfer_is_the_papers_but_for_what_it_names() -> None:
    paper = RECIPES / "configs" / "cifar10-imagenet-resnet50.yaml"
    long, short = (read(path).settings() for path in (paper, TRANSFER))
    assert {key: (long[key], short[key]) for key in long if long[key] != short[key]} == {
        "image_size": (None, 64), "train_images": (None, 2000), "test_images": (None, 2000),
        "ridge_per_class": (0, 100), "sparsity": (0.982, 0.956), "keep_head": (False, True),
        "lr": (0.1, 0.02), "grad_clip": (None, 1.0), "lr_schedule": ("step", "cosine"), "lr_drops": ([91, 136], []),
        "epochs": (182, 4), "batch_size": (256, 50), "mixed_precision": (None, "bf16"),
        "eval_epochs": (1, 4), "layout": ("both", "packed"),
    }  # fmt: skip


def test_the_vision_transformer_is_small_and_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)  # the config names the model's directory from there
    options = read(VIT)
    assert not options.trained
    model = load(options.model.model, pretrained=False, num_classes=10).model
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 1.3e6
    assert model.config.image_size == 32


def test_a_flag_overrides_whatever_a_config_says() -> None:
    path = RECIPES / "configs" / "cifar10-resnet20.yaml"
    training = read(path, "--lr-schedule", "cosine", "--epochs", "3").training
    assert (training.lr_schedule, training.lr_drops, training.epochs) == ("cosine", [], 3)
    training = read(path, "--lr_drops", "20", "30", "--epochs", "40").training
    assert (training.lr_schedule, training.lr_drops) == ("step", [20, 30])
    with pytest.warns(UserWarning, match="lr_drops 80: never reached in 2 epochs"):
        training = read(path, "--epochs", "2").training
    assert training.epochs == 2
    assert parse_options("prune_finetune", "", ["--lr-drops", "4"]).training.lr_schedule == "step"


def test_the_table_here_is_the_papers(shared: Path) -> None:
    text = (shared / "paper.tex").read_text(encoding="utf-8")
    text = re.sub(r"\s*\\cite\{[^}]*\}", "", text[: text.index(r"\label{tab:setups}")])
    text = text[text.rindex(r"\begin{tabular}") :]
    found = set()
    for line in text.splitlines():
        cells = [cell.strip().removesuffix(r"\\").strip() for cell in line.split("&")]
        if len(cells) == 9 and cells[0] != r"\textbf{Dataset}":
            drops = tuple(map(int, cells[4].removeprefix("x10 at epochs ").split(",")))
            found.add((*cells[:3], float(cells[3]), drops, *map(float, cells[5:7]), *map(int, cells[7:])))
    assert found == TABLE


def test_segmentation_crops_as_the_paper_does() -> None:
    augmentation = PRESETS["voc2012"].augmentation
    assert (augmentation.scale, augmentation.flip) == ((0.5, 2.0), 0.5)
    found = [options.data for options in map(read, CONFIGS)]
    sizes = {data.image_size for data in found if data.data == "voc2012"}
    assert sizes == {513}
