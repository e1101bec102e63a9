"""How small is a ticket, and how fast does it load? packed / bitmask / dense / bound side by side.

    python recipes/ticket_sizes.py                       ResNet-50, float32, at five sparsities
    python recipes/ticket_sizes.py --dtype bfloat16 --turns 9

Sizes are of files. The bound is surviving values at their own width plus the entropy of the mask, summed over tensors,
plus the tensors that are not pruned; the bitmask column is computed: a bit a weight and the same values. Each load is
in a process of its own, with the file in the page cache, as a user loads a model once; the median of the turns. A save
is measured once, to disk, the dense one by safetensors. Times are packed / dense.
`tensors` ends with all tensors in memory of their own, `model` with a module ready to run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file, save_file

import hf_px
import hf_px.tickets.ticket  # imported now, not inside the first load
from hf_px.tickets import ticket_file
from hf_px.tickets.card import entropy_bound

LOAD = {
    "packed tensors": lambda folder: ticket_file.read_ticket_file(f"{folder}/{ticket_file.PACKED}").tensors,
    "dense tensors": lambda folder: {n: t.clone() for n, t in load_file(f"{folder}/{ticket_file.DENSE}").items()},
    "packed model": lambda folder: hf_px.from_pretrained(folder),
    "dense model": lambda folder: timm.create_model(f"local-dir:{folder}", pretrained=True),
}


def seconds(kind: str, folder: str) -> float:
    """One load, in a process of its own, which has all imports behind it."""

    def child() -> None:
        start = time.perf_counter()
        found = LOAD[kind](folder)
        sender.send(time.perf_counter() - start)
        del found

    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=child)
    process.start()
    took = receiver.recv()
    process.join()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="a timm name (default: resnet50)")
    parser.add_argument("--scorer", default="magnitude", help="a method that needs no data (default: magnitude)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.36, 0.738, 0.893, 0.956, 0.982])
    parser.add_argument("--turns", type=int, default=5, help="loads of each kind (default: 5)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a forked process cannot use its parent's

    print(f"{args.model}, random weights, {args.scorer} with at least 64 weights a layer, {args.dtype}")
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, one thread")
    head = "sparsity", "packed", "bitmask", "dense", "bound", "packed/bound", "save", "tensors", "model"
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for sparsity in args.sparsity:
        torch.manual_seed(0)
        model = timm.create_model(args.model, zero_init_last=False).to(getattr(torch, args.dtype))
        mask = hf_px.prune(model, args.scorer, sparsity=sparsity, progress=False, min_per_layer=64)
        ticket = hf_px.Ticket(mask.apply_(model), mask)
        with tempfile.TemporaryDirectory() as folder:
            ticket.save_pretrained(folder)
            packed, dense = (Path(folder, name).stat().st_size for name in (ticket_file.PACKED, ticket_file.DENSE))
            contents = ticket_file.read_ticket_file(Path(folder, ticket_file.PACKED))
            bound = entropy_bound(contents)
            width = next(iter(model.parameters())).element_size()
            plain = sum(t.nbytes for n, t in contents.tensors.items() if n not in contents.mask.bits)
            bitmask = plain + mask.kept * width + sum(-(-b.numel() // 8) for b in mask.bits.values())
            start = time.perf_counter()
            ticket_file.write_ticket_file(Path(folder, "again"), contents)
            middle = time.perf_counter()
            save_file(contents.tensors, Path(folder, "again"))
            save = f"{(middle - start) * 1e3:.0f} / {(time.perf_counter() - middle) * 1e3:.0f} ms"
            times: dict[str, list[float]] = {kind: [] for kind in LOAD}
            for _ in range(args.turns):  # in turn, so that a busy moment of the machine meets all alike
                for kind, found in times.items():
                    found.append(seconds(kind, folder))
        took = {kind: statistics.median(found) for kind, found in times.items()}

        def ratio(what: str, took: dict[str, float] = took) -> str:
            one, other = took[f"packed {what}"], took[f"dense {what}"]
            return f"{one * 1e3:.0f} / {other * 1e3:.0f} ms = {one / other:.2f}"

        cells = [f"{sparsity:.1%}", *(f"{size:,}" for size in (packed, bitmask, dense, bound))]
        cells += [f"{packed / bound:.3f}", save, ratio("tensors"), ratio("model")]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
