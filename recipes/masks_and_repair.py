"""Masks × repair on trained weights, without training: top-1 with norms taken anew, and repaired.

    python recipes/masks_and_repair.py resnet50.tv_in1k --data imagenet-sample.parquet --output out/masks.json
    python recipes/masks_and_repair.py weights.safetensors --architecture resnet50-original --data … --output … \\
            --masks magnitude px-path obs@px --sparsities 0.8 0.9 --rounds 1 5

Every second image calibrates, the others test. A mask is a scorer, or scorer@scope: layer, erk, or another scorer whose
global mask gives each layer its number of weights. With more than one round the kept weights are refitted between
rounds. Methods that need data score by the first 32 calibration images. Results are written one by one; the same
command again adds what is missing.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

import hf_px
from hf_px.core.allocate import Floors, Scope, best
from hf_px.core.files import write_atomic
from hf_px.core.forward import evaluating, output_tensor
from hf_px.core.options import HelpFormatter
from hf_px.core.shareable import command_line
from hf_px.core.versions import versions
from hf_px.data.labelled_split import ReadColumn
from hf_px.data.model_inputs import data_config
from hf_px.data.transforms import image_transform
from hf_px.models.load import load
from hf_px.refit.norm_statistics import measure_norms, move_statistics_
from hf_px.refit.repair import Repair
from hf_px.training.command_line import run_recipe

MASKS = ("magnitude", "px-path", "px", "snip", "wanda@erk", "wanda@magnitude", "obs@magnitude", "obs@erk", "obs@px")
SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95)
SCORING_IMAGES = 32  # path scores of a ResNet-50 at 224 pixels take seconds for each round of them


@dataclass(frozen=True)
class LayerCounts(Scope):
    """Each layer keeps as many weights as another mask leaves it; in earlier rounds more, in proportion."""

    mask: hf_px.Mask

    def __call__(self, scores: Mapping[str, Tensor], density: float, within: hf_px.Mask, floors: Floors) -> hf_px.Mask:
        share = density / self.mask.density
        bits = {}
        for name, s in scores.items():
            count = min(round(share * int(self.mask.bits[name].sum())), int(within.bits[name].sum()))
            ranked = torch.where(within.bits[name], s, torch.full_like(s, -1.0)).flatten()
            bits[name] = best(ranked, count).view(s.shape)
        return hf_px.Mask(bits)


class AccuracyTable:
    """A dense model, its images, and the accuracies that are known so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.path: Path = args.output
        self.model = load(args.model, architecture=args.architecture).model.eval()
        rows = datasets.load_dataset("parquet", data_files=str(args.data), split="train")
        transform = image_transform(data_config(self.model))
        read = ReadColumn(rows, "image")
        images = [transform(read(i).convert("RGB")) for i in tqdm(range(len(rows)), desc="images")]
        self.images = torch.stack(images).contiguous(memory_format=torch.channels_last)
        self.labels = torch.tensor(rows["label"])
        calibration, labels = self.images[0::2], self.labels[0::2]
        self.calibration = list(calibration.split(32))
        self.scoring = [(calibration[:SCORING_IMAGES], labels[:SCORING_IMAGES])]
        self.results: dict[str, Any] = {"cells": {}}
        if self.path.is_file():
            self.results = json.loads(self.path.read_text("utf-8"))
        self.results |= {"command": command_line(), "versions": versions(), "model": Path(args.model).name}
        self.results |= {"calibration_images": len(calibration), "test_images": len(self.images) - len(calibration)}
        if "dense" not in self.results:
            self.results["dense"] = self.accuracy(self.model)
        self.repair = Repair(self.model, self.calibration, images=len(calibration))

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Top-1 on the test images, in per cent."""
        model = copy.deepcopy(model).to(memory_format=torch.channels_last)
        with evaluating(model):
            answers = torch.cat([output_tensor(model(x)).argmax(1) for x in self.images[1::2].split(32)])
        return round(100 * float((answers == self.labels[1::2]).double().mean()), 2)

    def add(self, name: str, sparsity: float, rounds: int) -> None:
        key = f"{name} {sparsity:g} {rounds}"
        if key in self.results["cells"]:
            return
        start = time.perf_counter()
        mask = self.mask(name, sparsity, rounds)
        pruning = time.perf_counter() - start
        pruned = mask.apply_(copy.deepcopy(self.model))
        move_statistics_(pruned, self.model, measure_norms(pruned, self.repair.batches), self.repair.norms)
        cell: dict[str, Any] = {"norms": self.accuracy(pruned)}
        start = time.perf_counter()
        repaired, report = self.repair.repaired(mask)
        cell |= {"seconds_pruning": round(pruning, 1), "seconds_repair": round(time.perf_counter() - start, 1)}
        cell |= {"repaired": self.accuracy(repaired), "layer_error": [round(e, 4) for e in report.mean_error]}
        self.results["cells"][key] = cell
        write_atomic(self.path, (json.dumps(self.results, indent=1) + "\n").encode())
        print(f"{key}: {cell}", flush=True)

    def mask(self, name: str, sparsity: float, rounds: int) -> hf_px.Mask:
        scorer, _, scope = name.partition("@")
        chosen: Any = scope or "global"
        if scope in hf_px.list_scorers():
            chosen = LayerCounts(self.mask(scope, sparsity, 1))
        working = copy.deepcopy(self.model)

        def refit(t: int, mask: hf_px.Mask) -> None:
            if t < rounds:
                working.load_state_dict(self.repair.refitted(mask)[0].state_dict())

        more = {"scope": chosen, "keep_head": False if chosen == "global" else None, "on_round": refit}
        return hf_px.prune(working, scorer, sparsity=sparsity, batches=self.scoring, rounds=rounds, **more)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("model", help="a trained model, named as for hf-px prune")
    parser.add_argument("--architecture", metavar="NAME", help="architecture of a weights file")
    parser.add_argument("--data", type=Path, required=True, help="a parquet file with the columns image and label")
    parser.add_argument("--output", type=Path, required=True, help="a JSON file; cells that it has are not run again")
    parser.add_argument("--masks", nargs="+", default=MASKS, metavar="NAME", help=f"(default: {' '.join(MASKS)})")
    parser.add_argument("--sparsities", nargs="+", type=float, default=SPARSITIES, metavar="S")
    parser.add_argument("--rounds", nargs="+", type=int, default=(1,), metavar="T", help="(default: 1)")
    args = parser.parse_args(argv)
    args.output.parent.mkdir(parents=True, exist_ok=True)  # before the work
    table = AccuracyTable(args)
    for rounds in args.rounds:
        for sparsity in args.sparsities:
            for name in args.masks:
                table.add(name, sparsity, rounds)


if __name__ == "__main__":
    run_recipe(main)
