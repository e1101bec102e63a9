"""How fast is a network with fewer channels? Whole channels pruned and removed, beside the full width, as a table.

    python recipes/benchmark_channels.py
        ResNet-18 and ResNet-50 at half and a quarter of their multiply-adds: torch, ONNX Runtime and OpenVINO
    python recipes/benchmark_channels.py --networks resnet50_imagenet_caffe.safetensors --architecture resnet50-original
        trained weights
    python recipes/benchmark_channels.py --scope global --of weights --masks magnitude snip --sparsities 0.982 \\
            --num-classes 10
        single weights pruned: what `shrink` alone removes. At 1,000 classes magnitude empties the head

*Of the promise* is the time of the smaller network over that of the full one, divided by the same ratio of
multiply-adds; 1 is as promised. Full and small take turns in one run; a ratio is that of medians. Random weights have
the statistics of batch norm of one batch through the pruned network. For the other runtimes: pip install '.[export]'.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hf_px
from hf_px.analysis.latency import latency
from hf_px.channels.shrink import Removal, shrunk
from hf_px.core.errors import CollapseError, first_line
from hf_px.core.files import write_atomic
from hf_px.models.load import load
from hf_px.runtime.engines import other_engines


def networks(name: str, sparsity: float, method: str, args: argparse.Namespace) -> tuple[nn.Module, nn.Module, Removal]:
    """(the network, the one with fewer channels, what went)"""
    torch.manual_seed(0)
    loaded = load(name, architecture=args.architecture, num_classes=args.num_classes)
    size = (3, args.image_size, args.image_size)
    generator, model = torch.Generator().manual_seed(0), loaded.model.eval()
    x = torch.randn(8, *size, generator=generator)
    rounds = None if method in ("magnitude", "snip") else args.rounds
    labelled = [(x, torch.arange(len(x)))]
    mask = hf_px.prune(
        model,
        method,
        sparsity=sparsity,
        scope=args.scope,
        of=args.of,
        batches=labelled,
        rounds=rounds,
    )
    mask.apply_(model)
    if not loaded.trained:
        calibrate_(model, x)
    small, _, removal = shrunk(model, mask, input_size=size)
    return model, small, removal


@torch.no_grad()
def calibrate_(model: nn.Module, x: torch.Tensor) -> None:
    """Batch norms take the statistics of this batch: with untouched ones activations may be denormal, which is slow."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()(x)
    model.eval()


def measure(name: str, sparsity: float, method: str, args: argparse.Namespace) -> dict[str, Any]:
    full, small, removal = networks(name, sparsity, method, args)
    x = torch.randn(args.batch, 3, args.image_size, args.image_size, generator=torch.Generator().manual_seed(1))
    models = {("torch", "full"): full, ("torch", "small"): small}
    for width, model in (("full", full), ("small", small)):
        models |= {(engine, width): each for engine, each in other_engines(model, x).items()}
    times = latency({" ".join(key): each for key, each in models.items()}, x, seconds=args.seconds)
    ms = {key: 1e3 * times[" ".join(key)].median for key in models}
    part = removal.macs[1] / removal.macs[0]
    engines = {
        engine: {
            "full_ms": full_ms,
            "small_ms": ms[engine, "small"],
            "of_promise": ms[engine, "small"] / full_ms / part,
        }
        for (engine, width), full_ms in ms.items()
        if width == "full"
    }
    return {"network": name, "mask": method, "sparsity": sparsity, "removal": removal.to_dict(), "engines": engines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet18", "resnet50"], metavar="NAME", help="as --model")
    parser.add_argument("--architecture", metavar="NAME", help="of a file of weights")
    parser.add_argument("--num-classes", type=int, metavar="N", help="of a new head (default: the network's own)")
    parser.add_argument("--scope", default="channel", help="which weights compete (default channel)")
    parser.add_argument("--of", default="macs", choices=("weights", "macs"), help="with --scope channel (default macs)")
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.5, 0.75], metavar="S")
    parser.add_argument("--masks", nargs="+", default=["magnitude"], metavar="NAME", help="methods")
    parser.add_argument("--rounds", type=int, default=10, help="of iterative methods (default 10)")
    parser.add_argument("--image-size", type=int, default=224, help="(default 224)")
    parser.add_argument("--batch", type=int, default=1, help="images at once (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="(default 1)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each runtime and width (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results: list[dict[str, Any]] = []
    for name in args.networks:
        for method in args.masks:
            for sparsity in args.sparsities:
                try:
                    results.append(found := measure(name, sparsity, method, args))
                except CollapseError as error:
                    print(f"| {name} | {method} | {100 * sparsity:g} % | {first_line(error)} |", flush=True)
                    continue
                if len(results) == 1:
                    columns = [f"{engine}, ms: full, small, of the promise" for engine in found["engines"]]
                    columns = ["network", "mask", "sparsity", "weights left", "multiply-adds left", *columns]
                    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
                left = [f"{after / before:.1%}" for before, after in (found["removal"][k] for k in ("weights", "macs"))]
                engines = [
                    f"{e['full_ms']:.1f}, {e['small_ms']:.1f}, {e['of_promise']:.2f}" for e in found["engines"].values()
                ]
                print(f"| {' | '.join([name, method, f'{100 * sparsity:g} %', *left, *engines])} |", flush=True)
    if args.json:
        write_atomic(args.json, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
