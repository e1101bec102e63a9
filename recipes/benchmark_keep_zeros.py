"""What keep_zeros costs: python recipes/benchmark_keep_zeros.py

A training step with pruned weights kept at zero / the same step of the same network without; the aim is at most 1.08.
Both are timed in alternating turns, each on a model and an optimizer of its own, so that a busy moment affects both. A
figure is the median over turns of the ratio within a turn. A step is forward, backward, step and zero_grad.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

import hf_px

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05),
    "AdamW, fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True),
}


def training_step(model: nn.Module, optimizer: Optimizer, batch: int, size: int) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, size, size, generator=generator).contiguous(memory_format=torch.channels_last)
    y = torch.arange(batch)

    def run() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="a timm name (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="images of a step (default: %(default)s)")
    parser.add_argument("--size", type=int, default=96, help="pixels of a side (default: %(default)s)")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.8, 0.982])
    parser.add_argument("--turns", type=int, default=15, help="number of turns (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=None, help="threads for torch (default: its own choice)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    print(f"{args.model}, {args.batch} images of {args.size}x{args.size}, {args.turns} turns")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("| optimizer | sparsity | without, ms | kept zeros, ms | ratio |\n" + "|---" * 5 + "|")
    for name, build in OPTIMIZERS.items():
        for sparsity in args.sparsity:
            torch.manual_seed(0)
            plain = timm.create_model(args.model, zero_init_last=False).train()
            mask = hf_px.prune(plain, "magnitude", sparsity=sparsity, progress=False, min_per_layer=64)
            mask.apply_(plain)  # both start from the same weights
            sparse = copy.deepcopy(plain)
            optimizers = build(plain), build(sparse)
            hf_px.keep_zeros(sparse, mask, optimizers[1])
            steps = [
                training_step(model, optimizer, args.batch, args.size)
                for model, optimizer in zip((plain, sparse), optimizers)
            ]
            for step in steps * 2:  # warm up: caches, allocator, the optimizer's state
                step()
            turns = [[timed(step) for step in steps] for _ in range(args.turns)]
            without, kept = (statistics.median(times) * 1e3 for times in zip(*turns))
            ratio = statistics.median(kept / without for without, kept in turns)
            print(f"| {name} | {sparsity:.1%} | {without:.0f} | {kept:.0f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
