"""hf-px eval: the metrics of a ticket anew, on any labelled data, beside those on its card."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.options import whole_number
from ..core.text import text_table
from ..prune_config import COLUMN_HELP
from .arguments import add_command, add_runtime_flag, check_file, runnable_model, warn_untrained

if TYPE_CHECKING:
    from ..data import Data
    from ..training.evaluate_ticket import Evaluation

EXAMPLES = """\
examples:
  hf-px eval me/resnet50-px-98 --data ~/photos
      accuracy on the test split of ~/photos, or on all of it; one folder of images per class, called as the ticket's
  hf-px eval me/cifar10-resnet20 --data cifar10 --runtime sparse
      the number on the card again, and images a second with zeros skipped
  hf-px eval out/deeplab-voc --data voc2012 --json voc.json
      mean IoU of a segmentation model, and the IoU of each class
"""


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "eval",
        "measure a ticket on labelled data, beside what its card says",
        eval_command,
        description="Measure a ticket on labelled data: accuracy of a classifier, mean IoU of a segmentation model, "
        "and images a second. The classes of the data must be the ticket's.",
        examples=EXAMPLES,
    )
    command.add_argument("ticket", metavar="TICKET", help="a directory, or owner/name on the Hub")
    command.add_argument("--data", metavar="SOURCE", required=True, help="labelled images, named as for hf-px prune")
    command.add_argument("--split", help="split of the data set (default: the test split, or the only one)")
    command.add_argument("--image-column", metavar="NAME", help=COLUMN_HELP["image"])
    command.add_argument("--label-column", metavar="NAME", help=COLUMN_HELP["label"])
    command.add_argument(
        "--by-number", action="store_true", help="match the classes of data and ticket by number, not by name"
    )
    add_runtime_flag(command)
    command.add_argument(
        "--batch-size", type=whole_number(1), metavar="N", help="(default: 256, fewer for a segmentation model)"
    )
    command.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub (default: main)")
    command.add_argument("--json", metavar="FILE", type=Path, help="write the numbers there, too")
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    command.set_defaults(flags={"test_split": "--split"})


def eval_command(args: argparse.Namespace) -> None:
    from ..core.files import write_atomic
    from ..data import check_source
    from ..models.remote import Source, disk_error
    from ..tickets.predict import ticket_images, ticket_record, ticket_task
    from ..training.evaluate_ticket import class_order, evaluate_ticket, open_for_ticket

    check_source(args.data)
    if args.json is not None:
        check_file("--json", args.json, ".json")
    source = Source.of(args.ticket, revision=args.revision)
    if ticket_task(source) is None and source.file("config.json") is not None:
        raise ValueError(
            f"{args.ticket}: neither a classifier nor a segmentation model, so there is nothing to measure"
        )
    model = runnable_model(args.ticket, source.revision, args.runtime)  # at the commit that config.json came from
    data = open_for_ticket(args.data, model, args.split, image_column=args.image_column, label_column=args.label_column)
    order = class_order(model, data, args.by_number)
    images = ticket_images(source, model)
    warn_untrained(source)
    found = evaluate_ticket(
        model, data, images, order, batch_size=args.batch_size, progress=not args.quiet and sys.stderr.isatty()
    )
    numbers = _numbers(found, data, ticket_record(source))
    _show(args, found, data, numbers, images, _runtime(model))
    if args.json is not None:
        record = {
            "ticket": args.ticket, "revision": source.revision, "data": data.dataset, "split": data.test_split,
            "images": found.images, "image_size": list(images["input_size"][1:]), "runtime": _runtime(model),
            "images_per_second": found.images_per_second, "metrics": found.metrics,
            "card": {metric: card for metric, (_, card) in numbers.items() if card},
        }  # fmt: skip
        try:
            write_atomic(args.json, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            raise disk_error(error, args.json.parent) from error


def _runtime(model: Any) -> str:
    from ..runtime.fast import FastModel

    return "sparse" if isinstance(model, FastModel) else "dense"


def _numbers(found: Evaluation, data: Data, record: Any) -> dict[str, tuple[float, dict[str, Any] | None]]:
    """{metric: (value here, what the card says)}, without the loss."""
    from ..training.evaluate_ticket import on_card

    shown = {metric: v for metric, v in found.metrics.items() if isinstance(v, float) and metric != "loss"}
    return {metric: (value, on_card(record, data, metric)) for metric, value in shown.items()}


def _show(
    args: argparse.Namespace, found: Evaluation, data: Data, numbers: dict[str, Any], images: Any, runtime: str
) -> None:
    size = "x".join(map(str, images["input_size"][1:]))
    print(
        f"{args.ticket} on {data.title}, split {data.test_split}: {found.images:,} images of {size}, {runtime} "
        f"runtime, {found.images_per_second:,.1f} images a second, reading included\n"
    )
    cards = [card for _, card in numbers.values() if card]
    keys = [key for key in ("value", "dense") if any(key in card for card in cards)]
    titles = {"value": "card", "dense": "card, dense"}
    rows = [("metric", "here", *(titles[key] for key in keys))]
    for metric, (value, card) in numbers.items():
        on_card = (f"{card[key]:.4f}" if card and key in card else "-" for key in keys)
        rows.append((metric, f"{value:.4f}", *on_card))
    print(text_table(rows, rule=True))
    if not cards:
        print(f"\nthe card has no number for {data.title}")
    elif others := sorted({card["split"] for card in cards} - {data.test_split}):
        print(f"\nthe card's numbers are of split {others[0] or '(not named)'}")
        if "held out" in (others[0] or ""):
            print(f"the other images of {data.title} trained this ticket: the numbers here are too good")
    by_class = found.metrics.get("iou")
    if isinstance(by_class, dict):
        values = [(name, "absent" if value is None else f"{value:.4f}") for name, value in by_class.items()]
        print("\n" + text_table([("class", "IoU"), *values], rule=True))
