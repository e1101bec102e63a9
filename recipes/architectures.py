"""What works: every scorer on every architecture of recipes/zoo.py, as a Markdown table.

    python recipes/architectures.py                       the table of the README
    python recipes/architectures.py --only resnet vit     architectures whose name holds one of these words

A tick means: finite scores, exactly as many weights as asked for, and a model that is bit for bit what it was.
"""

from __future__ import annotations

import argparse
import re
import warnings

from tqdm.auto import tqdm
from zoo import ZOO, Architecture

import hf_px
from hf_px.core.errors import UnsupportedModelError

# scorers that pass or fail together: they run the same machinery
GROUPS = {
    "px, px-path": ["px", "px-path"],
    "synflow, -l2, logsynflow": ["synflow", "synflow-l2", "logsynflow"],
    "phew": ["phew"],
    "ntk-sap": ["ntk-sap"],
    "snip, iter-snip, force": ["snip", "iter-snip", "force"],
    "grasp, prospr": ["grasp", "prospr"],
    "magnitude, random": ["magnitude", "random"],
}
OPTIONS = {"phew": {"walks": 64}, "prospr": {"lr": 0.01}}


def cell(architecture: Architecture, names: list[str], sparsity: float) -> str:
    model, batches = architecture.model(), architecture.batches()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in names:
        try:
            options = OPTIONS.get(name, {})
            # a floor: one round of a method meant for a hundred may empty the head of so narrow a network
            mask = hf_px.prune(
                model, name, sparsity=sparsity, batches=batches, rounds=1, min_per_layer=4, progress=False, **options
            )
        except UnsupportedModelError as error:
            return "no: " + re.search("the operation (.*?), so", str(error))[1]
        same = all(tensor.equal(before[key]) for key, tensor in model.state_dict().items())
        if mask.kept != round((1 - sparsity) * mask.total) or not same:
            return f"{name}: wrong"
    return "✓"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="architectures whose name holds one of these words")
    parser.add_argument("--sparsity", type=float, default=0.3, help="to prune to (default %(default)s)")
    options = parser.parse_args()
    chosen = [a for a in ZOO if any(word in a.name for word in options.only or [""])]
    if not chosen:
        parser.error(f"no architecture is called like {' or '.join(options.only)}; see recipes/zoo.py")
    warnings.simplefilter("ignore")
    assert sorted(n for names in GROUPS.values() for n in names) == hf_px.list_scorers(), "a new scorer needs a column"
    rows: dict[tuple[str, ...], list[str]] = {}  # the same cells, one row
    for architecture in tqdm(chosen, unit="model"):
        cells = tuple(cell(architecture, names, options.sparsity) for names in GROUPS.values())
        rows.setdefault(cells, []).append(f"`{architecture.name}`")
    print("| architectures | " + " | ".join(GROUPS) + " |")
    print("|---" * (len(GROUPS) + 1) + "|")
    for cells, names in rows.items():
        print(f"| {', '.join(names)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
