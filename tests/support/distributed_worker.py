"""What test_distributed.py runs on each process: prune, and write what this process saw."""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn

import hf_px
from hf_px.core.errors import DisagreementError


def main(output: str, how: str) -> None:
    torch.set_num_threads(1)  # the same on one process and two: threads change the order of additions
    accelerator = None
    if how == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
    elif how == "torch":
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    batches = [(torch.randn(6, 3, 10, 10), torch.randint(5, (6,))) for _ in range(5)]  # odd: one process has more
    found = {"rank": rank, "world": world, "masks": {}, "kept": {}}
    for scorer in hf_px.list_scorers():
        mask = hf_px.prune(
            model,
            scorer,
            sparsity=0.8,
            batches=batches,
            rounds=4,
            progress=False,
            accelerator=accelerator,
            min_per_layer=2,
        )
        found["masks"][scorer], found["kept"][scorer] = mask.digest(), mask.kept
    mask = hf_px.prune(
        model, "px", sparsity=0.5, batches=batches[:1], rounds=2, progress=False, accelerator=accelerator
    )
    found["masks"]["px, fewer batches than processes"] = mask.digest()
    if world > 1:
        with torch.no_grad():
            model[3].weight.add_(0.1 * rank)
        try:
            hf_px.prune(model, "magnitude", sparsity=0.5, accelerator=accelerator)
        except DisagreementError as error:
            found["other weights"] = str(error)
    with open(f"{output}.{rank}", "w") as file:
        json.dump(found, file)
    if dist.is_initialized():
        dist.barrier()  # gloo aborts a process whose peer has hung up first
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
