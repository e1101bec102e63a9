"""What a repair costs: python recipes/benchmark_repair.py

Seconds of each stage in units of one forward pass over the same images, and the peak of the process's memory. The aim
for a ResNet-50 on 128 images of 224 pixels: at most 8 forward passes besides the solutions, and 6 GB.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import timm
import torch

import hf_px
from hf_px.core.input_moments import measure_inputs
from hf_px.refit.norm_statistics import measure_norms
from hf_px.refit.repair import Repair

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="a timm name (default: %(default)s)")
    parser.add_argument("--images", type=int, default=128, help="number of images (default: %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side (default: %(default)s)")
    parser.add_argument("--sparsity", type=float, default=0.8, help="by magnitude (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="forward passes before and after (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=None, help="threads for torch (default: its own choice)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model = timm.create_model(args.model).eval().to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(args.images, 3, args.size, args.size, generator=generator)
    batches = list(images.contiguous(memory_format=torch.channels_last).split(BATCH))
    mask = hf_px.prune(model, "magnitude", sparsity=args.sparsity)

    @torch.no_grad()
    def forward() -> None:
        for x in batches:
            model(x)

    forward()
    passes = [timed(forward)[0] for _ in range(args.turns)]
    whole, repaired = timed(lambda: Repair(model, batches, images=args.images, progress=False))
    refit, _ = timed(lambda: repaired.refitted(mask))
    moments, _ = timed(lambda: measure_inputs(repaired.dense, repaired.weights, repaired.batches, args.images))
    norms, _ = timed(lambda: measure_norms(repaired.dense, repaired.batches))
    total = whole + refit + norms  # the sparse network's statistics take as long as the dense one's
    passes += [timed(forward)[0] for _ in range(args.turns)]
    one = statistics.median(passes)
    stages = {
        "the layers' inputs and their Gram matrices": moments, "statistics of both networks": 2 * norms,
        "solutions": refit,
        "all": total, "all but the solutions": total - refit,
    }  # fmt: skip
    print(f"{args.model}, {args.images} images of {args.size}x{args.size}, {args.sparsity:g}: forward {one:.2f} s")
    for title, seconds in stages.items():
        print(f"{title:42} {seconds:7.2f} s  {seconds / one:5.2f} forward passes")
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


if __name__ == "__main__":
    main()
