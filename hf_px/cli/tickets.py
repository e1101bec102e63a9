"""Commands for tickets in a directory or on the Hub: info, verify, push, convert, diff."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.text import text_table
from .arguments import add_command, add_dtype_flag

LAYOUTS = ("both", "packed", "dense", "mask-only")
_WHERE = "a directory, or owner/name on the Hub"
_EXAMPLES = {
    "info": "  hf-px info me/resnet50-px-98\n  hf-px info out/resnet20 --json",
    "verify": "  hf-px verify me/resnet50-px-98 --revision v1",
    "push": "  hf-px push out/resnet20 me/resnet20-px-98 --dry-run\n"
    "      what would become public: files, commands, paths; needs no login\n"
    "  hf-px push out/resnet20 me/resnet20-px-98 --private\n"
    "      log in first with `hf auth login`, or set HF_TOKEN\n"
    "  hf-px push out/resnet20 me/resnet20-px-98 --export onnx\n"
    "      with ticket.onnx beside the ticket",
    "convert": "  hf-px convert me/resnet50-px-98 small/ --layout packed\n"
    "  hf-px convert out/resnet20 half/ --layout packed --dtype float16\n"
    "      then `hf-px eval half/ --data …` measures what the rounding costs\n"
    "  hf-px convert out/resnet20 out/resnet20 --layout both      (in place)",
    "diff": "  hf-px diff out/px out/snip",
}


def add_to(commands: Any) -> None:
    info = _command(commands, "info", "show the header of a ticket and its layers", info_command)
    info.add_argument("ticket", metavar="TICKET", help=_WHERE)
    _revision(info)
    info.add_argument("--json", action="store_true", help="as JSON, for programs")

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
    push.add_argument(
        "--dry-run", action="store_true", help="show what would be sent and who would see it; send nothing"
    )

    push.add_argument(
        "--export",
        choices=("onnx", "openvino", "torch"),
        help="upload the ticket as a file for this runtime, too, as hf-px export makes it; the card says how to run it",
    )

    convert = _command(commands, "convert", "write a ticket in another layout", convert_command)
    convert.add_argument("ticket", metavar="TICKET", help=_WHERE)
    convert.add_argument(
        "output", metavar="DIR", type=Path, help="output directory: new, empty, or a ticket's, such as TICKET itself"
    )
    convert.add_argument("--layout", choices=LAYOUTS, required=True, help="; ".join(_LAYOUT_HELP))
    add_dtype_flag(convert)
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
    from ..tickets.card import read_repair
    from ..tickets.provenance import overall_sparsity, weights_outside
    from ..tickets.shrunk_ticket import read_shrunk
    from ..tickets.stored_dtype import recorded_dtype
    from ..tickets.ticket import Ticket

    ticket = Ticket.from_pretrained(args.ticket, revision=args.revision)
    header, mask = ticket.config, ticket.mask
    if args.json:
        layers = {name: {"kept": int(b.sum()), "total": b.numel()} for name, b in mask.bits.items()}
        print(json.dumps({**header, "digest": mask.digest(), "layers": layers}, indent=1, ensure_ascii=False))
        return
    model = header["model"]
    name = model.get("architecture") or (model.get("architectures") or [model.get("custom")])[0]
    sparsity, stored = header.get("sparsity", {}), recorded_dtype(header)
    overall, outside = overall_sparsity(sparsity, mask), weights_outside(sparsity)
    effective = f", {sparsity['effective']:.4%} effective" if "effective" in sparsity else ""
    settings = ", ".join(f"{key} {value}" for key, value in header.get("settings", {}).items())
    repair, shrunk = read_repair(header), read_shrunk(header)
    rows = [
        ("model", name),
        ("base", " at ".join(filter(None, [header.get("base"), header.get("base_revision")]))),
        ("licence", header.get("license")),
        ("method", ": ".join(filter(None, [header.get("scorer"), settings]))),
        ("command", header.get("command")),
        ("cut", str(shrunk) if shrunk else ""),
        ("sparsity", f"{overall:.4%} nominal{effective}; {mask.kept + outside:,} of {mask.total + outside:,} kept"),
        ("left out", f"{outside:,} weights outside the mask, all kept; {mask.sparsity:.4%} in it" if outside else ""),
        ("dtype", f"weights in {stored}, biases and normalisation in float32" if stored else ""),
        ("repaired", _repair_in_words(repair) if repair else ""),
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


def _repair_in_words(repair: Mapping[str, Any]) -> str:
    before, after = repair["before"], repair["after"]
    return f"by {repair['images']:,} images; error of a layer's output, mean: {before:.2%} before, {after:.2%} after"


def verify_command(args: argparse.Namespace) -> None:
    from ..models.remote import Source
    from ..tickets.verify import verify

    for line in verify(Source.of(args.ticket, revision=args.revision)):
        print(f"ok  {line}", flush=True)


def push_command(args: argparse.Namespace) -> None:
    from ..models.config_marks import WIDTHS
    from ..models.remote import Source
    from ..tickets.directory import describe_sizes
    from ..tickets.save import file_sizes
    from ..tickets.ticket import Ticket
    from ..training.publish import files_beside

    source = Source.of(args.ticket)
    ticket = Ticket.from_pretrained(args.ticket)
    files = files_beside(source.path) if source.is_dir else {}
    about_export: list[str] = []
    if args.export:
        from ..deploy.export import export, stages

        made = export(ticket, args.export)
        files |= made.files
        with stages(progress=True) as stage:
            stage("compressing it, to tell the size")
            about_export = [f"and {' and '.join(made.files)}, for {made.runtime}", *made.lines()]
    if args.dry_run:
        _show_push(args, ticket, files)
        return
    address = ticket.push_to_hub(
        args.repo,
        private=args.private or None,
        layout=args.layout,
        revision=args.branch,
        commit_message=args.message,
        files=files,
    )
    print(f"pushed: {address}")
    print(
        describe_sizes(file_sizes(ticket, args.layout), WIDTHS in ticket.model_record()).replace(
            "on disk", "in the repo", 1
        )
    )
    print("\n".join(about_export), end="\n" if about_export else "")
    revision = f', revision="{args.branch}"' if args.branch else ""
    if "custom" in ticket.model_record():  # no library builds it by name
        load = f'hf_px.Ticket.from_pretrained("{args.repo}"{revision}).to_model(into=module), module being your own'
    else:
        load = f'hf_px.from_pretrained("{args.repo}"{revision})'
    print(f"load it with: {load}")


def _show_push(args: argparse.Namespace, ticket: Any, files: dict[str, bytes]) -> None:
    from ..tickets.push_preview import preview_push

    found = preview_push(ticket, args.repo, layout=args.layout, files=files)
    who = "you and whom you invite; refused if the repo is public" if args.private else "everyone, if the repo is"
    who += "" if args.private else " new or public (--private makes a new one private)"
    print("dry run: nothing is sent")
    print(f"to       {found.address}, branch {args.branch or 'main'}; the repo is created if it does not exist")
    print(f"seen by  {who}")
    if found.deleted:
        print(f"deleted  {', '.join(found.deleted)}, if the repo has it: from an older push")
    print()
    rows = [(name, f"{size:,}", found.notes.get(name, "")) for name, size in found.sizes.items()]
    rows.append(("together", f"{sum(found.sizes.values()):,}", ""))
    print(text_table([("file", "bytes", ""), *rows], left=(0, 2), rule=True))
    print("\ncommands in them:" + "".join(f"\n  {command}" for command in found.commands or ["none"]))
    print("\npaths and Hub names in these: " + (", ".join(found.names) or "none"))
    print("paths of this machine in the files:" + "".join(f"\n  {line}" for line in found.leaks or ["none"]))


def convert_command(args: argparse.Namespace) -> None:
    from ..models.config_marks import WIDTHS
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
    files = files_beside(source.path) if source.is_dir else None
    ticket.save_pretrained(args.output, layout=args.layout, dtype=args.dtype, files=files)
    print(f"wrote {output}\n{describe_sizes(sizes_on_disk(output), WIDTHS in ticket.model_record())}")


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
