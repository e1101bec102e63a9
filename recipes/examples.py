"""model_cards/examples: a run's ticket with its card and report, measured on a slice of real data beside it.

    HF_PX_DATA=/data python recipes/examples.py --slice
        write the slice again: the first 30 test images of each class of CIFAR-10, 300 in all
    HF_PX_DATA=/data python recipes/examples.py out/short/cells/px-path-0.982-s1 resnet20-cifar10-px-path-98
        make model_cards/examples/resnet20-cifar10-px-path-98 from a finished run; minutes, most of them for its report

The card then has two accuracies: that of the run on the whole test set, and that on the slice, which anyone can measure
again in a clone without a network; tests/recipes/test_examples.py does.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

import hf_px
from hf_px.cli import main as hf_px_command
from hf_px.data import TestImages, data_config, open_data
from hf_px.training.command_line import run_recipe
from hf_px.training.publish import files_beside

EXAMPLES = Path(__file__).resolve().parents[1] / "model_cards" / "examples"
SLICE = EXAMPLES / "cifar10-slice"
PER_CLASS = 30
TITLE = "CIFAR-10, first 30 test images of each class"
HEADER = ("base", "base_revision", "license", "scorer", "settings", "command")


def first_of_each_class(labels: torch.Tensor, count: int) -> list[int]:
    """The first `count` places of each class, in the order of the data."""
    return sorted(i for label in labels.unique() for i in (labels == label).nonzero().view(-1)[:count].tolist())


def draw_slice() -> None:
    """Rows of the test set, with the original bytes of the images."""
    import datasets

    from hf_px.data.presets import PRESETS

    copy = PRESETS["cifar10"].local_copy()
    if copy is None:
        raise ValueError("HF_PX_DATA: set it to a folder in which cifar10/ holds the data in the Hub's layout")
    test = datasets.load_dataset(str(copy), split="test")
    chosen = test.select(first_of_each_class(torch.tensor(test["label"][:]), PER_CLASS))
    part = SLICE / "test.parquet.part"
    chosen.to_parquet(part)
    part.rename(SLICE / "test.parquet")
    print(f"wrote {SLICE / 'test.parquet'}: {len(chosen)} images")


def right_on_slice(model: torch.nn.Module) -> tuple[int, int]:
    """(how many of the slice's images the model has right, how many there are), in float32."""
    data = open_data(str(SLICE / "test.parquet"), train_split="test", need_test=False)
    images = TestImages(replace(data, test=data.train), data_config(model))  # a file has one split
    x, y = (torch.stack([torch.as_tensor(images[i][part]) for i in range(len(images))]) for part in (0, 1))
    with torch.no_grad():
        return int((model.eval()(x).argmax(1) == y).sum()), len(y)


def copy_with_slice(source: Path, target: Path) -> None:
    """The run's ticket, packed, with the files beside it and one more line on its card."""
    ticket = hf_px.Ticket.from_pretrained(source)
    header, model = ticket.config, ticket.to_model()
    right, count = right_on_slice(model)
    measured = {
        "dataset": "uoft-cs/cifar10",
        "dataset_name": TITLE,
        "dataset_config": "first 30 of each class",  # or the Hub takes it for a second result on the whole test set
        "split": "test",
        "metric": "accuracy",
        "value": right / count,
        "note": f"{right} of {count}, in float32; beside this ticket in cifar10-slice",
        "task": "image-classification",
    }
    known = {key: header[key] for key in HEADER if key in header}
    hf_px.Ticket(model, ticket.mask, results=[*header.get("results", []), measured], **known).save_pretrained(
        target, layout="packed", files=files_beside(source)
    )
    print(f"wrote {target}: {right} of {count} right on the slice")


def write_example_report(target: Path) -> None:
    # latency is a property of the machine, not of the ticket
    if hf_px_command(["report", str(target), "--output", str(target / "report"), "--skip", "latency"]):
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="directory of a finished run")
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the example")
    parser.add_argument("--slice", action="store_true", help="write the slice again")
    args = parser.parse_args()
    if bool(args.run) == args.slice or (args.run and not args.name):
        parser.error("give RUN and NAME, or --slice alone")
    if args.slice:
        draw_slice()
    else:
        copy_with_slice(args.run, EXAMPLES / args.name)
        write_example_report(EXAMPLES / args.name)


if __name__ == "__main__":
    run_recipe(lambda: sys.exit(main()))
