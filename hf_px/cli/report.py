"""hf-px report: what is asked for, checked before any work; then networks, numbers, pages."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .arguments import add_command, at_least, device_of

EXAMPLES = """\
examples:
  hf-px report out/resnet20-digits-px-path-0.982-s0 --output report
      of a ticket; open report/index.html. Spectra are on the ticket's own data, where those are on this disk
  hf-px report me/resnet50-px-98 me/resnet50-snip-98 --data ~/photos
      two tickets from the Hub side by side; ~/photos holds one folder of images per class
  hf-px report resnet20 --scorers px synflow-l2 snip random --sparsity 0.9312 --data cifar10
      a model, dense and pruned here by four methods: the paper's comparison of spectra
  hf-px report resnet20 --scorers px --seeds 0 1 --data-seeds 0 1 --skip spectrum latency
      how far masks agree between weights, and between draws of the data
"""
PARTS = ("spectrum", "latency")


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "report",
        "show a ticket or model: spectrum, width, cost, scores, overlap; as a page, Markdown and tables",
        report_command,
        description="Measure tickets or models and write one page about them that opens from disk, with the same as "
        "Markdown, CSV and JSON. Interrupted, the same command goes on where it was.",
        epilog=EXAMPLES,
    )
    command.set_defaults(interrupted="; the same command goes on where it was")
    command.add_argument(
        "networks",
        metavar="TICKET_OR_MODEL",
        nargs="+",
        help="a ticket: its directory, or owner/name on the Hub; or a model, named as in hf-px prune",
    )
    out = command.add_argument_group("output")
    out.add_argument("--output", type=Path, default=Path("report"), metavar="DIR", help="(default: report)")
    out.add_argument("--quiet", action="store_true", help="no progress bar")

    cut = command.add_argument_group("models: prune them here; tickets are shown as they are")
    cut.add_argument(
        "--scorers", nargs="+", default=[], metavar="NAME", help="of `hf-px scorers` (default: none, the dense model)"
    )
    cut.add_argument("--sparsity", type=float, default=0.982, metavar="S", help="(default: 0.982)")
    cut.add_argument("--rounds", type=at_least(1), metavar="T", help="(default: each method's own)")
    cut.add_argument("--norm", help="of px: batch, flow, running, released (default: batch; flow for segmenters)")
    cut.add_argument(
        "--seeds", nargs="+", type=at_least(0), default=[0], metavar="N", help="of weights and methods (default: 0)"
    )
    cut.add_argument("--num-classes", type=at_least(1), metavar="N", help="give the model a new head of N classes")
    cut.add_argument("--architecture", metavar="NAME", help="of a weights file")
    cut.add_argument(
        "--pretrained", action=argparse.BooleanOptionalAction, help="take trained weights (default: as in hf-px prune)"
    )
    cut.add_argument("--revision", metavar="REV", help="on the Hub: a commit, tag or branch, of all that are named")

    data = command.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="SOURCE",
        help="as in hf-px prune (default: a ticket's own, if those are on this disk; for a model: digits)",
    )
    data.add_argument("--per-class", type=at_least(1), default=10, metavar="N", help="to prune by (default: 10)")
    data.add_argument("--batch-size", type=at_least(1), metavar="N", help="to prune by (default: 100; 8 with masks)")
    data.add_argument("--data-seeds", nargs="+", type=at_least(0), default=[0], metavar="N", help="draws of examples")
    data.add_argument("--split", default="train", help="(default: train)")
    data.add_argument("--image-column", metavar="NAME", help="(default: image or img)")
    data.add_argument("--label-column", metavar="NAME", help="(default: label, labels or fine_label)")

    how = command.add_argument_group("measurements")
    how.add_argument(
        "--skip",
        nargs="+",
        choices=PARTS,
        default=[],
        help="leave these out; the rest takes seconds, of a small network",
    )
    how.add_argument(
        "--images",
        type=at_least(1),
        metavar="N",
        help="of the spectra, from those to prune by (default: 100; 16 for a large network)",
    )
    how.add_argument(
        "--draws", type=at_least(0), metavar="N", help="of weights, for the mean kernel (default: 5; 1 for a large one)"
    )
    how.add_argument("--top", type=at_least(1), metavar="K", help="eigenvalues (default: all; 10 of a large network)")
    how.add_argument(
        "--statistics", choices=("batch", "running"), default="batch",
        help="of BatchNorm in the kernels: of these images, or the stored ones (default: batch)",
    )  # fmt: skip
    how.add_argument("--memory", type=float, default=2.0, metavar="GIB", help="for derivatives (default: 2)")
    how.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda if there is one)")


def report_command(args: argparse.Namespace) -> None:
    from ..core.allocate import scope
    from ..core.errors import first_line
    from ..core.registry import norm_option, scorers
    from ..core.shareable import command_line
    from ..data import check_source
    from ..pruning import checked_sparsity, list_scorers
    from ..report.cache import NAME, Parts
    from ..report.measure import How, measure
    from ..report.networks import Asked, check_names
    from ..report.prune_models import networks
    from ..report.sections import report
    from ..report.write_files import check, write

    # what can be refused before anything is loaded, is
    output = args.output.expanduser()
    check(output, beside=(NAME,))
    checked_sparsity(args.sparsity, scope("global"))
    list_scorers()  # registers them
    for several in ("scorers", "seeds", "data_seeds"):  # twice the same is once
        setattr(args, several, list(dict.fromkeys(getattr(args, several))))
    for name in args.scorers:
        record = scorers[name]
        if "norm" in record.options:
            norm_option(record, args.norm)
    if args.norm and not any("norm" in scorers[name].options for name in args.scorers):
        raise ValueError(f"--norm {args.norm}: no method of --scorers has that option; px has")
    if args.data:
        check_source(args.data)
    if not args.memory >= 0.01:
        raise ValueError(f"--memory {args.memory:g}: at least 0.01 GiB")
    device = device_of(args.device)
    parts = Parts(output / NAME)
    asked = Asked(
        names=args.networks, scorers=args.scorers, sparsity=args.sparsity, rounds=args.rounds, norm=args.norm,
        seeds=args.seeds, data_seeds=args.data_seeds, data=args.data, per_class=args.per_class,
        batch_size=args.batch_size, split=args.split, image_column=args.image_column, label_column=args.label_column,
        architecture=args.architecture, num_classes=args.num_classes, pretrained=args.pretrained,
        revision=args.revision, device=device, progress=not args.quiet,
    )  # fmt: skip
    check_names(asked)
    how = How(
        images=args.images, draws=args.draws, top=args.top, norm=args.statistics, memory=int(args.memory * 2**30),
        skip=frozenset(args.skip), progress=not args.quiet,
    )  # fmt: skip
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output {output}: cannot be made ({first_line(error)}); name another directory") from error
    found = measure(networks(asked, parts), parts, how)
    settings = {"command": command_line(), **_settings(args, found)}
    page = write(report(found, settings), output, beside=(NAME,))
    print(f"wrote {page}; beside it report.md, report.json, figures/ and tables/")


def _settings(args: argparse.Namespace, found: Any) -> dict[str, Any]:
    """What the numbers depend on, and what they were made with."""
    import torch
    from timm import __version__ as timm_version
    from transformers import __version__ as transformers_version

    from .. import __version__

    first = next((one for one in found if one.own is not None), None)
    kernels = first and {
        "images": first.images,
        "draws": first.mean.draws if first.mean else 0,
        "statistics of BatchNorm": args.statistics,
        "data": first.network.data,
    }
    if kernels:
        kernels |= {
            "seed of draws": 0,
            "split": args.split,
            "data seed": args.data_seeds[0],
            "per class": args.per_class,
        }
    cut = {"sparsity": args.sparsity, "seeds": args.seeds, "data seeds": args.data_seeds, "per class": args.per_class}
    versions = {"hf-px": __version__, "torch": torch.__version__}
    versions |= {"timm": timm_version, "transformers": transformers_version}
    return {
        **({"kernels": kernels} if first else {}),
        **({"pruned here": {"methods": args.scorers, **cut}} if args.scorers else {}),
        "versions": versions,
    }
