"""hf-px predict: the classes in images. All that can be refused is refused before weights are downloaded."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.options import whole_number
from ..core.text import text_table
from .arguments import add_command, add_runtime_flag, check_file, runnable_model, warn_untrained

if TYPE_CHECKING:
    from PIL import Image

CLASSIFIER, SEGMENTER = "image-classification", "image-segmentation"
MEASURE = {CLASSIFIER: "probability", SEGMENTER: "share"}
BATCH = {CLASSIFIER: 32, SEGMENTER: 4}  # a segmentation model's images are kept until they are drawn
TO_STDOUT = Path("-")
EXAMPLES = """\
examples:
  hf-px predict me/resnet50-px-98 photo.jpg
      the five likeliest classes
  hf-px predict me/resnet50-px-98 photos/ more/*.jpg --csv seen.csv
      the likeliest class of each image in the folder and below it, and of the others; a damaged one is named
  hf-px predict out/deeplab-voc street.jpg --output seen.png
      a segmentation model: an image with each class in its colour, and the share of each class
"""


def add_to(commands: Any) -> None:
    command = add_command(
        commands, "predict", "predict the classes in images with a ticket", predict_command, examples=EXAMPLES
    )
    command.add_argument("ticket", metavar="TICKET", help="a directory, or owner/name on the Hub")
    command.add_argument(
        "images", metavar="IMAGE", nargs="+", type=Path, help="a JPEG, PNG or other image, or a folder of images"
    )
    command.add_argument(
        "--output",
        metavar="FILE.png",
        type=Path,
        help="image of a segmentation model's classes (default: IMAGE's name with -segmented.png, in this directory); "
        "for several images a directory",
    )
    command.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub (default: main)")
    command.add_argument(
        "--top",
        metavar="K",
        type=int,
        help="number of classes to show (default: 5, 1 for several images; all for a segmentation model)",
    )
    command.add_argument(
        "--batch-size",
        type=whole_number(1),
        metavar="N",
        help=f"images at once (default: {BATCH[CLASSIFIER]}; {BATCH[SEGMENTER]} for a segmentation model)",
    )
    add_runtime_flag(command)
    command.add_argument("--csv", metavar="FILE", type=Path, help="write the classes there, too, one on each line")
    command.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        nargs="?",
        const=TO_STDOUT,
        help="write them there as JSON, too; without FILE, print JSON instead of a table",
    )
    command.add_argument("--force", action="store_true", help="replace the output if it exists")


@dataclass
class Answers:
    """The predictions so far, as they are written to files."""

    ticket: str
    task: str
    found: dict[Path, dict[str, Any]]  # in the order of the command line
    damaged: int = 0

    def add(self, path: Path, classes: Sequence[tuple[str, float]], **more: str) -> None:
        listed = [{"class": name, MEASURE[self.task]: value} for name, value in classes]
        self.found[path] = {"ticket": self.ticket, "image": str(path), "task": self.task, **more, "classes": listed}

    def add_damaged(self, path: Path, error: ValueError) -> None:
        print(f"hf-px: error: {error}", file=sys.stderr)
        self.found[path] = {"ticket": self.ticket, "image": str(path), "error": str(error)}
        self.damaged += 1

    def json(self, one: bool) -> str:
        found = list(self.found.values())
        return json.dumps(found[0] if one else found, indent=1, ensure_ascii=False)

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("image", "rank", "class", MEASURE[self.task]))
        for answer in self.found.values():
            for rank, line in enumerate(answer.get("classes", ()), 1):
                writer.writerow((answer["image"], rank, line["class"], line[MEASURE[self.task]]))
        return text.getvalue()


def predict_command(args: argparse.Namespace) -> int:
    from ..core.head import segments
    from ..models.remote import Source
    from ..tickets import predict
    from ..tickets.predict import image_files, read_image

    # checks without the ticket first, then by its config.json, before the weights are downloaded
    if args.top is not None and args.top < 1:
        raise ValueError(f"--top {args.top}: at least 1")
    for flag, path, suffix in (("--csv", args.csv, ".csv"), ("--json", args.json, ".json")):
        if path not in (None, TO_STDOUT):
            check_file(flag, path, suffix)
    paths = image_files(path.expanduser() for path in args.images)
    one = len(args.images) == 1 and not args.images[0].expanduser().is_dir()
    if one:
        read_image(paths[0])
    if args.output is not None:
        _outputs(args, paths, one)
    source = Source.of(args.ticket, revision=args.revision)
    task = predict.ticket_task(source)
    if task == CLASSIFIER and args.output is not None:
        raise ValueError(f"--output {args.output}: {args.ticket} is a classifier, which makes no image; leave it out")
    if task == SEGMENTER:
        _outputs(args, paths, one)

    model = runnable_model(args.ticket, source.revision, args.runtime)  # at the commit that config.json came from
    warn_untrained(source)
    images = predict.ticket_images(source, model)
    answers = Answers(args.ticket, SEGMENTER if segments(model) else CLASSIFIER, {path: {} for path in paths})
    if answers.task == SEGMENTER:
        _segment(args, model, images, paths, _outputs(args, paths, one), answers, one)
    else:
        _classify(args, model, images, paths, answers, one)
    _write(args, answers, one)
    if answers.damaged:
        print(f"hf-px: {answers.damaged} of {len(paths)} images could not be read", file=sys.stderr)
    return int(answers.damaged > 0)


def _classify(
    args: argparse.Namespace, model: Any, images: Any, paths: list[Path], answers: Answers, one: bool
) -> None:
    from ..tickets.predict import classify_all

    for part in _parts(args, paths, CLASSIFIER):
        there: list[Path] = []
        found = classify_all(model, _readable(part, there, answers), images, args.top or (5 if one else 1))
        for path, classes in zip(there, found):
            answers.add(path, classes)
            _print(args, paths, path, classes, "probability", one)


def _segment(
    args: argparse.Namespace,
    model: Any,
    images: Any,
    paths: list[Path],
    outputs: dict[Path, Path],
    answers: Answers,
    one: bool,
) -> None:
    from ..core.files import write_atomic
    from ..data.segmentation.overlay import png
    from ..models.remote import disk_error
    from ..tickets.predict import class_names, class_shares, draw_segmentation, segment_all

    names = class_names(model)
    for part in _parts(args, paths, SEGMENTER):
        there: list[Path] = []
        batch = list(_readable(part, there, answers))
        label_maps = segment_all(model, batch, images) if batch else []
        for path, image, labels in zip(there, batch, label_maps):
            output = outputs[path]
            try:
                output.parent.mkdir(exist_ok=True)
                write_atomic(output, png(draw_segmentation(image, labels, names)))
            except OSError as error:
                raise disk_error(error, output.parent) from error
            shares = [(name, share) for _, name, share in class_shares(labels, names)][: args.top]
            answers.add(path, shares, output=str(output))
            _print(args, paths, path, shares, "share", one, output)


def _parts(args: argparse.Namespace, paths: list[Path], task: str) -> Iterator[list[Path]]:
    size = args.batch_size or BATCH[task]
    for start in range(0, len(paths), size):
        yield paths[start : start + size]


def _readable(paths: list[Path], there: list[Path], answers: Answers) -> Iterator[Image.Image]:
    """The images that can be read, whose paths are appended to `there`; the others are named and left out."""
    from ..tickets.predict import read_image

    for path in paths:
        try:
            image = read_image(path)
        except ValueError as error:
            answers.add_damaged(path, error)
            continue
        there.append(path)
        yield image


def _print(
    args: argparse.Namespace,
    paths: list[Path],
    path: Path,
    classes: Sequence[tuple[str, float]],
    measure: str,
    one: bool,
    output: Path | None = None,
) -> None:
    """A table for a single image, a line for one of several."""
    if args.json == TO_STDOUT:
        return
    words = [(name, f"{value:.2%}") for name, value in classes]
    if one:
        print(text_table([("class", measure), *words], rule=True))
        if output:
            print(f"\nwrote {output}")
        return
    width = max(len(str(each)) for each in paths)
    there = ", ".join(" ".join(pair) for pair in words)
    print(f"{path!s:{width}}  {there}{f'; wrote {output}' if output else ''}", flush=True)


def _write(args: argparse.Namespace, answers: Answers, one: bool) -> None:
    from ..core.files import write_atomic
    from ..models.remote import disk_error

    if args.json == TO_STDOUT:
        print(answers.json(one))
    for path, text in ((args.csv, answers.csv()), (args.json, answers.json(one) + "\n")):
        if path in (None, TO_STDOUT):
            continue
        try:
            write_atomic(path, text.encode())
        except OSError as error:
            raise disk_error(error, path.parent) from error


def _outputs(args: argparse.Namespace, paths: list[Path], one: bool) -> dict[Path, Path]:
    """{image: the drawing to write}; refuses those that cannot be written, before the work."""
    if one:
        outputs = {paths[0]: args.output or Path(f"{paths[0].stem}-segmented.png")}
    else:
        folder = args.output or Path()
        if folder.is_file() or folder.suffix.lower() == ".png":
            raise ValueError(f"--output {folder}: there are {len(paths)} images; name a directory for the drawings")
        if not folder.absolute().parent.is_dir():
            raise ValueError(f"--output {folder}: no directory {folder.parent}; make it first")
        outputs = {path: folder / f"{path.stem}-segmented.png" for path in paths}
    taken: dict[Path, Path] = {}
    for image, output in outputs.items():
        if (other := taken.setdefault(output, image)) != image:
            raise ValueError(f"{other} and {image}: both would be drawn to {output}; name one of them at a time")
        if one or output.exists():
            _check_output(output, image, args.force)
    return outputs


def _check_output(output: Path, image: Path, force: bool) -> None:
    if output.suffix.lower() != ".png":
        raise ValueError(f"--output {output}: a PNG is written; name it {output.stem}.png")
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: no directory {output.parent}; make it first")
    if output.is_dir():
        raise ValueError(f"--output {output}: is a directory; name a file in it")
    if output.exists() and output.samefile(image):
        raise ValueError(f"--output {output}: is the input image, which would be lost; choose another name")
    if output.exists() and not force:
        raise ValueError(f"--output {output}: exists; choose another name, or add --force")
