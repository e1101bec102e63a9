"""Accuracy against milliseconds an image, and against bytes: the picture in README and model_cards/RESULTS.md.

    python recipes/tradeoff.py measure cifar10_resnet20_short cifar10_resnet20_short_head
        for each kept run: find its mask again by its settings, time it (hf-px bench), write speed.json beside the run
    python recipes/tradeoff.py draw
        model_cards/tradeoff.svg from all runs that have a speed.json

A run is kept without its ticket. Its time and size depend on the mask alone, which `hf-px prune` finds again; where the
digest is another one (px-path may differ on another machine), the run is left out and named. Times are of one image on
one thread, in the sparse runtime; stop everything else on the machine. A network without a mask has torch's time, and
its tensors' bytes.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from statistics import mean
from typing import Any

from hf_px.cli import main as command
from hf_px.core.files import write_atomic
from hf_px.figures import Panel, draw_panels
from hf_px.training.command_line import run_recipe

HOME = Path(__file__).resolve().parents[1] / "model_cards"
KEPT, PICTURE = HOME / "results", HOME / "tradeoff.svg"
DENSE = "dense"
Point = tuple[float, float, float]
Run = tuple[Path, Mapping[str, Any]]  # its directory, and results.json


def runs(names: list[str], methods: list[str] | None) -> Iterator[Run]:
    for name in names:
        paths = sorted((KEPT / name).glob("*/results.json"))
        if not paths:
            raise ValueError(f"{KEPT / name} holds no runs; name a directory of {KEPT}")
        for path in paths:
            run = json.loads(path.read_text("utf-8"))
            if methods is None or run["settings"]["scorer"] in methods:
                yield path.parent, run


def prune_flags(settings: Mapping[str, Any]) -> list[str]:
    """The flags of hf-px prune that find a run's mask again."""
    values = {"num-classes": 10, "data": settings["data"], "norm": settings.get("norm")}
    values |= {name: settings[name.replace("-", "_")] for name in ("scorer", "sparsity", "rounds", "seed", "per-class")}
    flags = [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]
    return [settings["model"], *flags, "--keep-head" if settings["keep_head"] else "--no-keep-head"]


def measure(run: Run) -> str:
    """Write speed.json beside a run; what came of it."""
    directory, found = run
    with tempfile.TemporaryDirectory() as place:
        ticket = Path(place) / "ticket"
        if quietly(["prune", *prune_flags(found["settings"]), "--quiet", "--output", str(ticket)]):
            return "could not be pruned again"
        if json.loads((ticket / "prune.json").read_text("utf-8"))["digest"] != found["mask"]["digest"]:
            return "another mask on this machine; left out"
        if quietly(["bench", str(ticket), "--save"]):
            return "could not be timed"
        speed = json.loads((ticket / "speed.json").read_text("utf-8"))
        speed["bytes"] = (ticket / "ticket.safetensors").stat().st_size
    write_atomic(directory / "speed.json", (json.dumps(speed, indent=1) + "\n").encode())
    return f"{speed['sparse_ms']:.3g} ms, dense {speed['dense_ms']:.3g}; {speed['bytes']:,} bytes"


def quietly(argv: list[str]) -> int:
    """Run a command of hf-px without what it prints."""
    with redirect_stdout(io.StringIO()):
        return command(argv)


def points() -> dict[str, list[Point]]:
    """{method, or dense: (ms, kilobytes, accuracy in %) at each sparsity}, means over the seeds with a speed."""
    found: dict[str, dict[float, list[Point]]] = {}
    dense: list[Point] = []
    for path in sorted(KEPT.glob("*/*/speed.json")):
        speed, run = (json.loads((path.parent / name).read_text("utf-8")) for name in ("speed.json", "results.json"))
        settings, results = run["settings"], run["results"]
        method = settings["scorer"] + (f":{settings['norm']}" if _other_norm(settings) else "")
        method += ", head kept" if settings["keep_head"] else ""
        one = (speed["sparse_ms"], speed["bytes"] / 1e3, 100 * results["ticket"]["accuracy"])
        found.setdefault(method, {}).setdefault(settings["sparsity"], []).append(one)
        if DENSE in results:
            dense.append((speed["dense_ms"], run["bytes"]["dense"] / 1e3, 100 * results[DENSE]["accuracy"]))
    means = {method: sorted(map(_mean, by.values())) for method, by in found.items()}
    best = sorted(means, key=lambda method: -max(accuracy for *_, accuracy in means[method]))
    return {method: means[method] for method in best} | {DENSE: [_mean(dense)] if dense else []}


def _mean(some: list[Point]) -> Point:
    ms, kilobytes, accuracy = (mean(column) for column in zip(*some))
    return ms, kilobytes, accuracy


def _other_norm(settings: Mapping[str, Any]) -> bool:
    return settings["scorer"] == "px" and settings["norm"] != "batch"


def picture() -> str:
    found = points()
    panels = [
        Panel({name: [(p[i], p[2]) for p in some] for name, some in found.items()}, x=x, log_x=True, dotted=(DENSE,))
        for i, x in enumerate(("milliseconds an image, one thread", "kilobytes on disk"))
    ]
    count = sum(len(some) for name, some in found.items() if name != DENSE)
    return draw_panels(
        panels,
        title="ResNet-20 on CIFAR-10, ten epochs: what a ticket costs",
        y="accuracy, %",
        alt=f"Accuracy at {count} points of {len(found) - 1} methods against time and size, beside the dense network; "
        "the numbers are in the tables of RESULTS.md",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    measuring = commands.add_parser("measure", help="speed.json for the runs under these names of model_cards/results")
    measuring.add_argument("names", nargs="+", metavar="NAME")
    measuring.add_argument("--methods", nargs="+", metavar="NAME", help="only runs of these (default: all)")
    commands.add_parser("draw", help="the picture, from the runs that have a speed.json")
    args = parser.parse_args()
    if args.what == "measure":
        for run in runs(args.names, args.methods):
            print(f"{run[0].relative_to(KEPT)}: {measure(run)}", flush=True)
    write_atomic(PICTURE, picture().encode())
    return 0


if __name__ == "__main__":
    run_recipe(lambda: sys.exit(main()))
