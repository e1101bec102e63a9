"""What a px-path round costs on a vision transformer: python recipes/benchmark_steering.py

ViT-S/16 at 224 pixels, one thread. A round records the gates, replays the squared paths, and runs each image alone,
forward and back, for the weights that steer, here queries and keys, and for their units. CPU seconds, in alternating
turns; the figures are medians over turns.

  paths    the round without these last passes / two forward passes and a backward pass      (at most 1.5)
  round    the whole round / two forward passes, a backward pass and the passes of steering  (at most 1.5)
  memory   peak of a round / peak of a training step with SGD and momentum                   (at most 1)
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import torch.nn.functional as F

import hf_px
from hf_px.core.batches import Batches
from hf_px.core.forward import undisturbed
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.paths import steering_shares, weights_that_steer

Job = Callable[[], object]


def jobs(images: int) -> dict[str, Job]:
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_224").eval()
    x = torch.randn(images, 3, 224, 224)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    weights, batch = Mask.ones(prunable(model)).weights(model), Batches([x]).first()

    @torch.no_grad()
    def forward() -> None:
        model(x)

    def forward_backward() -> None:
        model(x).sum().backward()
        model.zero_grad()

    def training_step() -> None:
        F.cross_entropy(model(x), torch.zeros(images, dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def steering() -> None:
        with undisturbed(model):
            found = weights_that_steer(model, weights, batch)
            steering_shares(model, weights, found, batch, "batch", torch.Generator().manual_seed(0))

    def a_round() -> None:
        hf_px.score(model, "px-path", [x])

    return {
        "round": a_round, "forward": forward, "forward and backward": forward_backward, "steering": steering,
        "training step": training_step,
    }  # fmt: skip


def cpu_seconds(work: Job) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def peak(name: str, images: int) -> float:
    """Peak resident bytes above those of a forward pass on one image, in a process of its own."""
    command = [sys.executable, __file__, "--peak", name, "--images", str(images)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_peak(name: str, images: int) -> None:
    work = jobs(images)[name]
    jobs(1)["forward"]()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    work()
    print(_status("VmHWM") - before)


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=16, help="(default %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peak:
        return measure_peak(args.peak, args.images)
    works = jobs(args.images)
    for work in works.values():
        work()  # warm up
    turns = [{name: cpu_seconds(work) for name, work in works.items()} for _ in range(args.turns)]
    base = [turn["forward"] + turn["forward and backward"] for turn in turns]
    paths = statistics.median((turn["round"] - turn["steering"]) / b for turn, b in zip(turns, base))
    whole = statistics.median(turn["round"] / (b + turn["steering"]) for turn, b in zip(turns, base))
    print("CPU seconds: " + ", ".join(f"{name} {statistics.median(t[name] for t in turns):.2f}" for name in works))
    print(f"paths {paths:.2f} (at most 1.5), round {whole:.2f} (at most 1.5)")
    memory = peak("round", args.images) / peak("training step", args.images)
    print(f"memory {memory:.2f} (at most 1)")


if __name__ == "__main__":
    main()
