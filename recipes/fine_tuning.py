"""Which settings suit trained weights? Dense twin and ticket for each backbone, data set and set of settings.

    python recipes/fine_tuning.py --backbone resnet50=weights.safetensors,resnet50-original --output-dir out/fine_tuning
        a ResNet-50 of a weights file on digits and a balanced part of CIFAR-10, by each of SETTINGS
    python recipes/fine_tuning.py --backbone … --backbone resnet20=cifar.safetensors,resnet20_cifar_a --voc VOC2012
        two backbones, and a third data set: objects cut out of Pascal VOC's images by their label maps
    python recipes/fine_tuning.py ... --only defaults "rate x 3"
        some of the settings; --data cifar10 voc: some of the data sets
    python recipes/fine_tuning.py ... -- --mixed-precision bf16
        flags of the recipe, for every cell, go after --

Run it again to continue: finished cells are skipped. The output directory holds a run for each cell, and cells.json
with the accuracies of all.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from hf_px.core.files import write_atomic
from hf_px.core.options import HelpFormatter
from hf_px.core.shareable import command_line
from hf_px.core.versions import versions
from hf_px.data.presets import VOC_CLASSES
from hf_px.training.command_line import run_recipe
from hf_px.training.sweep.runner import parse_sweep

SETTINGS = {
    "defaults": [],
    "rate x 2": ["--lr", "2e-4", "--head-lr", "2e-3"],
    "rate x 3": ["--lr", "3e-4", "--head-lr", "3e-3"],
    "random head": ["--head", "random"],
    "rate x 2 and random head": ["--lr", "2e-4", "--head-lr", "2e-3", "--head", "random"],
    "SGD": ["--optimizer", "sgd"],
    "norms train": ["--norms", "train"],
    "paper's": [
        "--optimizer", "sgd", "--lr", "0.1", "--batch-size", "128", "--head", "random", "--norms", "train",
        "--warmup-epochs", "0", "--grad-clip", "0",
    ],
}  # fmt: skip
IMAGES = {"digits": 32, "cifar10": 64, "voc": 96}  # pixels of a ResNet for large images; one for CIFAR takes its own
CIFAR = ["--train-images", "1000", "--test-images", "1000"]
MIN_SIDE = 48  # pixels of an object
MIN_TRAIN, MIN_TEST = 6, 3  # objects of a class


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument(
        "--backbone", action="append", required=True, metavar="NAME=FILE,ARCHITECTURE", help="trained weights; repeat"
    )
    parser.add_argument("--voc", type=Path, metavar="DIR", help="train/ and val/ with images/ and masks/")
    parser.add_argument("--sparsity", type=float, default=0.8)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--data", nargs="+", choices=IMAGES, default=list(IMAGES), metavar="NAME", help="some of them")
    parser.add_argument("--output-dir", type=Path, default=Path("out/fine_tuning"))
    args = parse_sweep(parser, sys.argv[1:] if argv is None else argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    data = {"digits": "digits", "cifar10": "cifar10"}
    if args.voc is not None:
        data["voc"] = str(voc_objects(args.voc, args.output_dir / "voc_objects"))
    data = {name: source for name, source in data.items() if name in args.data}
    backbones = dict(word.split("=", 1) for word in args.backbone)
    path = args.output_dir / "cells.json"
    kept = json.loads(path.read_text()) if path.is_file() else {"commands": [], "cells": {}}
    kept |= {"commands": list(dict.fromkeys([*kept["commands"], command_line()])), "versions": versions()}
    cells = [(b, d, s) for s in args.only for b in backbones for d in data]
    for backbone, name, settings in tqdm(cells, desc="cells", unit="cell"):
        weights, _, architecture = backbones[backbone].partition(",")
        flags = [
            "--model",
            weights,
            "--architecture",
            architecture,
            "--data",
            data[name],
            *SETTINGS[settings],
            *args.rest,
        ]
        flags += CIFAR if name == "cifar10" else []
        flags += ["--image-size", str(IMAGES[name] if backbone == "resnet50" else 32)]
        flags += ["--sparsity", str(args.sparsity), "--bench", "false", "--layout", "packed"]
        key = f"{settings}, {backbone}, {name}"
        if (cell := run_cell(args.output_dir / re.sub("[^a-z0-9-]+", "_", key.lower()), flags)) is not None:
            kept["cells"][key] = cell
            write_atomic(path, (json.dumps(kept, indent=1) + "\n").encode())
            print(f"{key}: {cell['accuracy']}", flush=True)


def run_cell(place: Path, flags: list[str]) -> dict[str, Any] | None:
    """Accuracies of a cell, from its finished run, or from one that starts or continues now; None if it fails."""
    if (found := _results(place)) is None:
        recipe = Path(__file__).with_name("prune_finetune.py")
        command = [sys.executable, str(recipe), *flags, "--output-dir", str(place), "--resume"]
        with open(f"{place}.log", "w") as log:
            subprocess.run(command, stdout=log, stderr=log, check=False)
        if (found := _results(place)) is None:
            print(f"{place.name}: failed, see {place}.log", file=sys.stderr)
            return None
    accuracies = {name: metrics["accuracy"] for name, metrics in found["results"].items()}
    keys = ("epochs", "batch_size", "optimizer", "lr", "head_lr", "head", "norms", "warmup_epochs", "grad_clip")
    return {"accuracy": accuracies, "settings": {key: found["settings"][key] for key in keys}, "data": found["data"]}


def _results(place: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((place / "results.json").read_text())
    except OSError:
        return None
    return found if found["finished"] else None


def voc_objects(source: Path, target: Path) -> Path:
    """A folder of classes: for every image and class the box around its pixels, with a tenth more on each side."""
    if target.is_dir():
        return target
    objects = {split: list(_objects(source / split)) for split in ("train", "val")}
    counts = {split: [name for name, _, _ in found] for split, found in objects.items()}
    for split, found in objects.items():
        for name, stem, image in found:
            if counts["train"].count(name) >= MIN_TRAIN and counts["val"].count(name) >= MIN_TEST:
                (target / split / name).mkdir(parents=True, exist_ok=True)
                image.save(target / split / name / f"{stem}.jpg", quality=95)
    return target


def _objects(folder: Path) -> Iterator[tuple[str, str, Image.Image]]:
    for path in sorted((folder / "masks").glob("*.png")):
        labels = np.array(Image.open(path))
        image = Image.open(folder / "images" / f"{path.stem}.jpg").convert("RGB")
        for label in set(np.unique(labels).tolist()) - {0, 255}:
            rows, columns = np.where(labels == label)
            left, top, right, bottom = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            if min(right - left, bottom - top) >= MIN_SIDE:
                x, y = (right - left) // 10, (bottom - top) // 10
                box = (max(0, left - x), max(0, top - y), min(image.width, right + x), min(image.height, bottom + y))
                yield VOC_CLASSES[label], path.stem, image.crop(tuple(map(int, box)))


if __name__ == "__main__":
    run_recipe(main)
