"""How fast is a sparse model? hf_px's runtime beside dense torch, ONNX Runtime and OpenVINO, as Markdown tables.

    python recipes/benchmark_runtime.py
        four networks at three sparsities, masks uniform at random: one image on one thread
    python recipes/benchmark_runtime.py --batch 16 --threads 2
    python recipes/benchmark_runtime.py --masks magnitude px-path --networks resnet50
        masks of real methods: their early layers are denser, where an image has most pixels
    python recipes/benchmark_runtime.py --scaling
        time of the sparse ResNet-50 against kept weights and against pixels

Each row is one run with alternating turns; a ratio is that of medians. Weights are random, and the statistics of batch
norms are taken from a batch through the pruned network: with untouched ones, activations of a sparse network fall to
denormal numbers, which are slow. ONNX Runtime and OpenVINO: pip install 'hf-px[export]'.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

import hf_px
from hf_px.core.files import write_atomic
from hf_px.core.prunable import prunable
from hf_px.runtime.bench import DENSE, SPARSE, Bench, bench

NETWORKS = {
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "vit_small_patch16_224": "ViT-S/16",
    "mobilenetv2_100": "MobileNetV2",
}
SPARSITIES = (0.9, 0.956, 0.982)


def pruned(name: str, sparsity: float, mask: str, size: int = 224) -> nn.Module:
    """The network in eval mode, pruned, with calibrated batch norms."""
    torch.manual_seed(0)
    options = {} if name.startswith(("vgg", "mobilenet", "vit")) else {"zero_init_last": False}
    model = timm.create_model(name, **options)
    generator = torch.Generator().manual_seed(0)
    if mask == "uniform":
        weights = prunable(model).items()
        hf_px.Mask({n: torch.rand(w.shape, generator=generator) >= sparsity for n, w in weights}).apply_(model)
    else:
        batches = [torch.randn(8, 3, size, size, generator=generator)]
        rounds = None if mask == "magnitude" else 10
        hf_px.prune(model, mask, sparsity=sparsity, batches=batches, rounds=rounds, min_per_layer=256).apply_(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the statistics become those of the batch below
    with torch.no_grad():
        model.train()(torch.randn(4, 3, size, size, generator=generator))
    return model.eval()


def measure(
    name: str, sparsity: float, mask: str, args: argparse.Namespace, others: bool = True, size: int = 224
) -> Bench:
    model = pruned(name, sparsity, mask, size)
    fast = hf_px.fast(model, input_size=(3, size, size))
    x = torch.randn(args.batch, 3, size, size, generator=torch.Generator().manual_seed(1))
    found = bench(model, fast, x, others=others, seconds=args.seconds)
    if args.plan:
        print(fast.plan((3, size, size)))
    return found


def table(args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    columns = ["sparse, ms", "torch, ms", "ONNX Runtime, ms", "OpenVINO, ms", "/ ONNX Runtime", "/ torch"]
    print(f"| {' | '.join(['network', 'mask', 'sparsity', *columns])} |")
    print("|---" * 9 + "|")
    for name in args.networks:
        for mask in args.masks:
            for sparsity in args.sparsities:
                found = measure(name, sparsity, mask, args)
                results.append({"network": name, "mask": mask, "sparsity": sparsity, **found.to_dict()})
                ms = {row.runtime: 1e3 * row.latency.median for row in found.rows}
                other = [ms.get(f"{engine}, dense") for engine in ("ONNX Runtime", "OpenVINO")]
                cells = [
                    NETWORKS.get(name, name),
                    mask,
                    f"{100 * sparsity:g} %",
                    f"{ms[SPARSE]:.1f}",
                    f"{ms[DENSE]:.1f}",
                ]
                cells += [f"{each:.1f}" if each else "" for each in other]
                cells += [f"{other[0] / ms[SPARSE]:.2f}" if other[0] else "", f"{ms[DENSE] / ms[SPARSE]:.2f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


def scaling(args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    print("| sparsity | pixels | sparse, ms | torch, ms |\n|---|---|---|---|")
    cells = [(s, 224) for s in (0.5, 0.7, 0.8, 0.9, 0.956, 0.982, 0.99)] + [(0.956, size) for size in (96, 160, 320)]
    for sparsity, size in cells:
        found = measure("resnet50", sparsity, "uniform", args, others=False, size=size)
        results.append({"network": "resnet50", "sparsity": sparsity, **found.to_dict()})
        sparse, dense = (1e3 * found.row(name).latency.median for name in (SPARSE, DENSE))
        print(f"| {100 * sparsity:g} % | {size}x{size} | {sparse:.1f} | {dense:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="NAME", help="timm names")
    parser.add_argument("--sparsities", nargs="+", type=float, default=list(SPARSITIES), metavar="S")
    parser.add_argument("--masks", nargs="+", default=["uniform"], metavar="NAME", help="uniform, or a method")
    parser.add_argument("--batch", type=int, default=1, help="images at once (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="(default 1)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each runtime (default 3)")
    parser.add_argument("--scaling", action="store_true", help="time against kept weights and pixels instead")
    parser.add_argument("--plan", action="store_true", help="show the time of each layer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results: list[dict[str, Any]] = []
    (scaling if args.scaling else table)(args, results)
    if args.json:
        write_atomic(args.json, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
