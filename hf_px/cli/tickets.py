"""Commands for tickets in a directory or on the Hub: info, predict, verify, push, convert, diff."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..core.text import text_table
from .arguments import add_command, add_runtime_flag, runnable_model, warn_untrained

LAYOUTS = ("both", "packed", "dense", "mask-only")
_WHERE = "a directory, or owner/name on the Hub"
_EXAMPLES = {
    "info": "  hf-px info me/resnet50-px-98\n  hf-px info out/resnet20 --json",
    "predict": "  hf-px predict me/resnet50-px-98 photo.jpg\n"
    "      the five likeliest classes\n"
    "  hf-px predict out/deeplab-voc street.jpg --output seen.png\n"
    "      a segmentation model: an image with each class in its colour, and the share of each class",
    "verify": "  hf-px verify me/resnet50-px-98 --revision v1",
    "push": "  hf-px push out/resnet20 me/resnet20-px-98 --private\n"
    "      log in first with `hf auth login`, or set HF_TOKEN",
    "convert": "  hf-px convert me/resnet50-px-98 small/ --layout packed\n"
    "  hf-px convert out/resnet20 out/resnet20 --layout both      (in place)",
    "diff": "  hf-px diff out/px out/snip",
}


def add_to(commands: Any) -> None:
    info = _command(commands, "info", "show the header of a ticket and its layers", info_command)
    info.add_argument("ticket", metavar="TICKET", help=_WHERE)
    _revision(info)
    info.add_argument("--json", action="store_true", help="as JSON, for programs")

    predict = _command(commands, "predict", "predict the classes in an image with a ticket", predict_command)
    predict.add_argument("ticket", metavar="TICKET", help=_WHERE)
    predict.add_argument("image", metavar="IMAGE", type=Path, help="a JPEG, PNG or other image")
    predict.add_argument(
        "--output",
        metavar="FILE.png",
        type=Path,
        help="image of a segmentation model's classes (default: IMAGE's name with -segmented.png, in this directory)",
    )
    _revision(predict)
    predict.add_argument(
        "--top", metavar="K", type=int, help="number of classes to show (default: 5; all for a segmentation model)"
    )
    add_runtime_flag(predict)
    predict.add_argument("--json", action="store_true", help="as JSON, for programs")
    predict.add_argument("--force", action="store_true", help="replace the output if it exists")

    verify = _command(
        commands, "verify", "check a ticket: digest, counts, finite values, zeros, copies", verify_command
    )
    verify.add_argument("ticket", metavar="TICKET", help=_WHERE)
    _revision(verify)

    push = _command(commands, "push", "push a ticket to the Hub, with its card", push_command)
    push.add_argument("ticket", metavar="TICKET", help=_WHERE)
    push.add_argument("repo", metavar="REPO", help="owner/name; created if it does not exist")
    push.add_argument("--private", action="store_true", help="make the repo private; refused if it is public already")
    push.add_argument("--layout", choices=LAYOUTS, default="both", help="(default: both, which any reader loads)")
    push.add_argument("--branch", metavar="NAME", help="push to this branch, created if needed (default: main)")
    push.add_argument("--message", metavar="TEXT", help="commit message")

    convert = _command(commands, "convert", "write a ticket in another layout", convert_command)
    convert.add_argument("ticket", metavar="TICKET", help=_WHERE)
    convert.add_argument(
        "output", metavar="DIR", type=Path, help="output directory: new, empty, or a ticket's, such as TICKET itself"
    )
    convert.add_argument("--layout", choices=LAYOUTS, required=True, help="; ".join(_LAYOUT_HELP))
    _revision(convert)
    convert.add_argument("--force", action="store_true", help="write to DIR even if it holds other files")

    diff = _command(commands, "diff", "compare the masks of two tickets by layer", diff_command)
    diff.add_argument("first", metavar="A", help=_WHERE)
    diff.add_argument("second", metavar="B", help=_WHERE)
    diff.add_argument("--json", action="store_true", help="as JSON, for programs")


_LAYOUT_HELP = (
    "both: packed, and a dense copy for readers without hf_px",
    "packed: the small file alone",
    "dense: all weights, zeros included",
    "mask-only: no weights, those of the base model are downloaded on loading",
)


def _command(commands: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    return add_command(commands, name, text, run, examples=f"examples:\n{_EXAMPLES[name]}")


def _revision(command: argparse.ArgumentParser) -> None:
    command.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub (default: main)")


def info_command(args: argparse.Namespace) -> None:
    from ..tickets.provenance import overall_sparsity, weights_outside
    from ..tickets.ticket import Ticket

    ticket = Ticket.from_pretrained(args.ticket, revision=args.revision)
    header, mask = ticket.config, ticket.mask
    if args.json:
        layers = {name: {"kept": int(b.sum()), "total": b.numel()} for name, b in mask.bits.items()}
        print(json.dumps({**header, "digest": mask.digest(), "layers": layers}, indent=1, ensure_ascii=False))
        return
    model = header["model"]
    name = model.get("architecture") or (model.get("architectures") or [model.get("custom")])[0]
    sparsity = header.get("sparsity", {})
    overall, outside = overall_sparsity(sparsity, mask), weights_outside(sparsity)
    effective = f", {sparsity['effective']:.4%} effective" if "effective" in sparsity else ""
    settings = ", ".join(f"{key} {value}" for key, value in header.get("settings", {}).items())
    rows = [
        ("model", name),
        ("base", " at ".join(filter(None, [header.get("base"), header.get("base_revision")]))),
        ("licence", header.get("license")),
        ("method", ": ".join(filter(None, [header.get("scorer"), settings]))),
        ("command", header.get("command")),
        ("sparsity", f"{overall:.4%} nominal{effective}; {mask.kept + outside:,} of {mask.total + outside:,} kept"),
        ("left out", f"{outside:,} weights outside the mask, all kept; {mask.sparsity:.4%} in it" if outside else ""),
        ("digest", mask.digest()),
        ("versions", ", ".join(f"{key} {value}" for key, value in header.get("versions", {}).items())),
    ]
    for result in header.get("results", []):
        split = f" {result['split']}" if "split" in result else ""
        part = f", {result['dataset_config']}" if "dataset_config" in result else ""
        dense = f" (dense {result['dense']})" if "dense" in result else ""
        rows.append(("result", f"{result['metric']} {result['value']}{dense} on {result['dataset']}{split}{part}"))
    print("\n".join(f"{key:9} {value}" for key, value in rows if value))
    print()
    _print_table(
        ("layer", "shape", "kept", "of", "density"),
        [
            (n, "x".join(map(str, b.shape)), f"{int(b.sum()):,}", f"{b.numel():,}", f"{float(b.float().mean()):.2%}")
            for n, b in mask.bits.items()
        ],
    )


def predict_command(args: argparse.Namespace) -> None:
    from ..core.files import write_atomic
    from ..core.head import segments
    from ..data.segmentation.overlay import png
    from ..models.remote import Source, disk_error
    from ..tickets import predict
    from ..tickets.predict import class_names, read_image

    # checks without the ticket first, then by its config.json, before the weights are downloaded
    if args.top is not None and args.top < 1:
        raise ValueError(f"--top {args.top}: at least 1")
    image = read_image(args.image)
    if args.output is not None:
        _check_output(args.output, args.image, args.force)
    source = Source.of(args.ticket, revision=args.revision)
    task = predict.ticket_task(source)
    if task == "image-classification" and args.output is not None:
        raise ValueError(f"--output {args.output}: {args.ticket} is a classifier, which makes no image; leave it out")
    output = args.output or Path(f"{args.image.stem}-segmented.png")
    if task == "image-segmentation":
        _check_output(output, args.image, args.force)

    # at the commit that config.json came from
    model = runnable_model(args.ticket, source.revision, args.runtime)
    warn_untrained(source)
    images = predict.ticket_images(source, model)
    answer: dict[str, Any] = {"ticket": args.ticket, "image": str(args.image)}
    if not segments(model):
        best = predict.classify(model, image, images, args.top or 5)
        _print_classes(args, answer | {"task": "image-classification"}, "probability", best)
        return
    _check_output(output, args.image, args.force)
    labels, names = predict.segment(model, image, images), class_names(model)
    try:
        write_atomic(output, png(predict.draw_segmentation(image, labels, names)))
    except OSError as error:
        raise disk_error(error, output.parent) from error
    there = [(name, share) for _, name, share in predict.class_shares(labels, names)][: args.top]
    _print_classes(args, answer | {"task": "image-segmentation", "output": str(output)}, "share", there)


def _print_classes(
    args: argparse.Namespace, answer: dict[str, Any], measure: str, found: list[tuple[str, float]]
) -> None:
    if args.json:
        classes = [{"class": name, measure: value} for name, value in found]
        print(json.dumps({**answer, "classes": classes}, indent=1, ensure_ascii=False))
        return
    _print_table(("class", measure), [(name, f"{value:.2%}") for name, value in found])
    if "output" in answer:
        print(f"\nwrote {answer['output']}")


def _check_output(output: Path, image: Path, force: bool) -> None:
    """Refuse an output that cannot be written, before the work."""
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


def verify_command(args: argparse.Namespace) -> None:
    from ..models.remote import Source
    from ..tickets.verify import verify

    for line in verify(Source.of(args.ticket, revision=args.revision)):
        print(f"ok  {line}", flush=True)


def push_command(args: argparse.Namespace) -> None:
    from ..models.remote import Source
    from ..tickets.directory import describe_sizes
    from ..tickets.save import file_sizes
    from ..tickets.ticket import Ticket
    from ..training.publish import files_beside

    source = Source.of(args.ticket)
    ticket = Ticket.from_pretrained(args.ticket)
    address = ticket.push_to_hub(
        args.repo,
        private=args.private or None,
        layout=args.layout,
        revision=args.branch,
        commit_message=args.message,
        files=files_beside(source.path) if source.is_dir else None,
    )
    print(f"pushed: {address}")
    print(describe_sizes(file_sizes(ticket, args.layout)).replace("on disk", "in the repo", 1))
    revision = f', revision="{args.branch}"' if args.branch else ""
    if "custom" in ticket.model_record():  # no library builds it by name
        load = f'hf_px.Ticket.from_pretrained("{args.repo}"{revision}).to_model(into=module), module being your own'
    else:
        load = f'hf_px.from_pretrained("{args.repo}"{revision})'
    print(f"load it with: {load}")


def convert_command(args: argparse.Namespace) -> None:
    from ..models.remote import Source
    from ..tickets.directory import describe_sizes, sizes_on_disk
    from ..tickets.ticket import Ticket
    from ..tickets.ticket_file import DENSE, PACKED
    from ..training.publish import files_beside

    output = args.output.expanduser()
    names = {path.name for path in output.iterdir()} if output.is_dir() else set()
    if names and not names & {PACKED, DENSE} and not args.force:
        raise ValueError(f"{output}: holds files, but no ticket; name another directory, or add --force")
    source = Source.of(args.ticket, revision=args.revision)
    ticket = Ticket.from_pretrained(args.ticket, revision=args.revision)
    ticket.save_pretrained(args.output, layout=args.layout, files=files_beside(source.path) if source.is_dir else None)
    print(f"wrote {output}\n{describe_sizes(sizes_on_disk(output))}")


def diff_command(args: argparse.Namespace) -> None:
    from ..analysis.overlap import overlap
    from ..tickets.ticket import Ticket

    found = overlap(Ticket.from_pretrained(args.first).mask, Ticket.from_pretrained(args.second).mask)
    rows = [*found.rows, found.all]
    if args.json:
        keys = ("layer", "first", "second", "shared", "jaccard")
        values = [(row.name, row.first, row.second, row.shared, row.jaccard) for row in rows]
        print(json.dumps([dict(zip(keys, line)) for line in values], indent=1))
        return
    _print_table(
        ("layer", "A keeps", "B keeps", "both", "Jaccard"),
        [(r.name, f"{r.first:,}", f"{r.second:,}", f"{r.shared:,}", f"{r.jaccard:.4f}") for r in rows],
    )


def _print_table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> None:
    print(text_table([head, *body], left=(0, 1) if head[1] == "shape" else (0,), rule=True))
