"""hf-px report: measure tickets or models and write a page about them. All flags are checked before any work."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.options import add_options, flag_of, options_from, whole_number
from ..prune_config import PruneConfig
from .arguments import add_command, add_data_flags, add_model_flags, usable_device

if TYPE_CHECKING:
    from ..report.networks import ReportRequest

EXAMPLES = """\
examples:
  hf-px report out/resnet20-digits-px-path-0.982-s0 --output report
      a ticket; open report/index.html. Spectra are measured on the ticket's own data, if those are on this disk
  hf-px report me/resnet50-px-98 me/resnet50-snip-98 --data ~/photos
      two tickets from the Hub side by side; ~/photos holds one folder of images per class
  hf-px report resnet20 --scorers px synflow-l2 snip random --sparsity 0.9312 --no-keep-head --data cifar10
      a model, dense and pruned here by four methods: the paper's comparison of spectra
  hf-px report resnet20 --scorers px --seeds 0 1 --data-seeds 0 1 --skip spectrum latency
      overlap of masks between random weights, and between draws of the data
"""
PARTS = ("spectrum", "latency")
PRUNING = ("sparsity", "rounds", "norm", "keep_head")  # fields of PruneConfig that are flags here
# the others: a ticket of `hf-px prune` can have any of them, and be reported
FLAGS = {field.name: f"hf-px prune {flag_of(field.name)}" for field in dataclasses.fields(PruneConfig)}
FLAGS |= {"scorer": "--scorers", "seed": "--seeds"}


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "report",
        "measure a ticket or model: spectrum, width, cost, scores, overlap; as a page, Markdown and tables",
        report_command,
        description="Measure tickets or models and write one page about them that opens from disk, with the same "
        "content as Markdown, CSV and JSON. After an interruption, the same command continues.",
        examples=EXAMPLES,
    )
    command.set_defaults(interrupted="; the same command continues", flags=FLAGS)
    command.add_argument(
        "networks",
        metavar="TICKET_OR_MODEL",
        nargs="+",
        help="a ticket: its directory, or owner/name on the Hub; or a model, named as in hf-px prune",
    )
    out = command.add_argument_group("output")
    out.add_argument("--output", type=Path, default=Path("report"), metavar="DIR", help="(default: report)")
    out.add_argument("--quiet", action="store_true", help="no progress bar")

    pruning = command.add_argument_group("models: prune them here; tickets are shown as they are")
    methods = "methods of `hf-px scorers` (default: none, the dense model)"
    pruning.add_argument("--scorers", nargs="+", default=[], metavar="NAME", help=methods)
    add_options(pruning, PruneConfig, only=PRUNING, command=True)
    seeds = "seeds of weights and methods (default: 0)"
    pruning.add_argument("--seeds", nargs="+", type=whole_number(0), default=[0], metavar="N", help=seeds)
    add_model_flags(pruning)

    data = command.add_argument_group("data")
    add_data_flags(data, "as in hf-px prune (default: a ticket's own, if on this disk; digits for a model)")
    draws = "seeds of the draw of examples (default: 0)"
    data.add_argument("--data-seeds", nargs="+", type=whole_number(0), default=[0], metavar="N", help=draws)
    _add_measurements(command.add_argument_group("measurements"))


def _add_measurements(group: Any) -> None:
    add = group.add_argument
    skip = "leave these out; for a small network the rest takes seconds"
    add("--skip", nargs="+", choices=PARTS, default=[], help=skip)
    images = "images of the spectra, from those to prune by (default: 100; 16 for a large network)"
    add("--images", type=whole_number(1), metavar="N", help=images)
    draws = "draws of the weights for the mean kernel (default: 5; 1 for a large network)"
    add("--draws", type=whole_number(0), metavar="N", help=draws)
    top = "number of eigenvalues (default: all; 10 for a large network)"
    add("--top", type=whole_number(1), metavar="K", help=top)
    statistics = "statistics of BatchNorm in the kernels: of these images, or the stored ones (default: batch)"
    add("--statistics", choices=("batch", "running"), default="batch", help=statistics)
    runtime = "how pruned networks are timed: with dense kernels, sparse, or sparse where possible (default: auto)"
    add("--runtime", choices=("auto", "dense", "sparse"), default="auto", help=runtime)
    add("--memory", type=float, default=2.0, metavar="GIB", help="memory for derivatives (default: 2)")


def report_command(args: argparse.Namespace) -> None:
    from ..core.errors import first_line
    from ..core.shareable import command_line
    from ..report.cache import ReportCache
    from ..report.measure import MeasureOptions, measure
    from ..report.prune_models import load_networks
    from ..report.sections import build_report
    from ..report.write_files import CACHE_FOLDER, check_report_directory, write_report

    output = args.output.expanduser()
    check_report_directory(output)
    request = _request(args)
    if not args.memory >= 0.01:
        raise ValueError(f"--memory {args.memory:g}: at least 0.01 GiB")
    options = MeasureOptions(
        images=args.images,
        draws=args.draws,
        top=args.top,
        norm=args.statistics,
        memory=int(args.memory * 2**30),
        skip=frozenset(args.skip),
        runtime=args.runtime,
        progress=not args.quiet,
    )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--output {output}: cannot be created ({first_line(error)}); name another directory"
        ) from error
    cache = ReportCache(output / CACHE_FOLDER)
    found = measure(load_networks(request, cache), cache, options)
    settings = {"command": command_line(), **_settings(args, request, found)}
    page = write_report(build_report(found, settings), output)
    print(f"wrote {page}; beside it report.md, report.json, figures/ and tables/")


def _request(args: argparse.Namespace) -> ReportRequest:
    """The networks to measure; all names and flags are checked without loading anything."""
    from ..data import check_source
    from ..report.networks import ReportRequest, check_names

    for name in ("scorers", "seeds", "data_seeds"):  # the same value twice counts once
        setattr(args, name, list(dict.fromkeys(getattr(args, name))))
    configs = [PruneConfig(name) for name in args.scorers]
    having = [config.scorer for config in configs if "norm" in config.record.options]
    if args.norm and not having:
        raise ValueError(f"--norm {args.norm}: no method of --scorers has that option; px has")
    options_from(PruneConfig, args, norm=None)  # checks the flags, methods or not
    if args.data:
        check_source(args.data)
    args.device = usable_device(args.device)
    same = [field.name for field in dataclasses.fields(ReportRequest) if hasattr(args, field.name)]
    request = ReportRequest(
        names=args.networks,
        pruning=[
            options_from(PruneConfig, args, scorer=name, norm=args.norm if name in having else None)
            for name in args.scorers
        ],
        progress=not args.quiet,
        **{name: getattr(args, name) for name in same},
    )
    check_names(request)
    return request


def _settings(args: argparse.Namespace, request: ReportRequest, found: Any) -> dict[str, Any]:
    """What the numbers depend on, for the page."""
    from ..core.versions import versions

    settings: dict[str, Any] = {}
    first = next((network for network in found if network.spectra.own is not None), None)
    if first is not None:
        settings["kernels"] = {
            "images": first.spectra.images,
            "draws": first.spectra.mean.draws if first.spectra.mean else 0,
            "statistics of BatchNorm": args.statistics,
            "data": first.network.data,
            "seed of draws": 0,
            "split": args.split,
            "data seed": args.data_seeds[0],
            "per class": args.per_class,
        }
    if request.pruning:
        settings["pruned here"] = {
            "methods": args.scorers,
            "sparsity": request.pruning[0].resolved().sparsity,
            "seeds": args.seeds,
            "data seeds": args.data_seeds,
            "per class": args.per_class,
        }
    packages = versions()
    packages.pop("python")
    return {**settings, "versions": packages}
