"""hf-px prune: score a model's weights, keep the best, show what is left. All checks come before a model is loaded."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.options import add_options, options_from
from ..prune_config import PruneConfig
from ..refit.options import IMAGES, RepairOptions
from .arguments import add_command, add_data_flags, add_dtype_flag, add_model_flags, usable_device

if TYPE_CHECKING:
    from ..core.mask import Mask
    from ..models.load import LoadedModel
    from ..refit.repair import RepairReport

WRITTEN_BY = "hf-px prune"  # in prune.json: hf-px may overwrite such a directory
EXAMPLES = """\
examples:
  hf-px prune --demo
      ResNet-20 with random weights, handwritten digits, 98.2 % in 100 rounds; no network
  hf-px prune resnet50 --sparsity 0.9 --data ~/photos --num-classes 12 --output out/resnet50
      random weights, Kaiming-normal as in the paper; ~/photos holds one folder of images per class
  hf-px prune resnet50.tv_in1k --data ~/photos --output out/resnet50-80
      trained weights: 80 % are removed in rounds and the others repaired, without labels or training
  hf-px prune resnet50.tv_in1k --scorer snip --data uoft-cs/cifar10 --num-classes 10 --no-repair
      trained weights and data, both from the Hub; the kept weights stay as they were
  hf-px prune microsoft/resnet-18 --scorer magnitude --sparsity 0.5
      a transformers model from the Hub; magnitude needs no data
  hf-px prune torchvision/mobilenet_v3_small --num-classes 10 --output out/mobilenet
      torchvision's network, random weights; torchvision/mobilenet_v3_small.imagenet1k_v1 downloads trained ones
  hf-px prune moco_v2_800ep_pretrain.pth.tar --architecture mocov2-resnet50 --num-classes 10
      the authors' own checkpoint, converted; `hf-px prune mocov2-resnet50` downloads it
  hf-px prune deeplabv3plus-resnet50 --backbone mocov2-resnet50 --num-classes 3 --data ~/scans
      a segmentation model; ~/scans/train holds images/ and masks/, whose pixels are class numbers
  hf-px prune ./my-vit --scope 2:4 --exclude vit.embeddings.patch_embeddings.projection.weight --data train.parquet
      a directory of save_pretrained; two of every four weights stay, except in the tensor that 4 does not divide
"""
DATA = (
    "digits: handwritten digits, no network (default); cifar10 and others by name; a folder with one sub-folder of "
    "images per class, or with parquet files; for a segmentation model voc2012, or a folder with train/images and "
    "train/masks; a .parquet file; a Hub data set org/name; random: one batch of Gaussian noise with random labels, to "
    "try a command"
)


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "prune",
        "score a model, prune it, show what is left by layer",
        prune_command,
        description="Score a model's weights, keep the best, and show what is left by layer. Random weights stay as "
        "they are, for training; trained ones are repaired, so that the ticket works at once, but for a new head.",
        examples=EXAMPLES,
    )
    model = command.add_argument_group("model")
    model.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="one of `hf-px backbones` (resnet20, imagenet-resnet50, …); a timm name (resnet50d, "
        "timm/resnet50.tv_in1k); torchvision/resnet18, or with weights "
        "torchvision/resnet18.imagenet1k_v1; a timm or transformers image model on the Hub (org/name) or a directory "
        "that holds one; a weights file or its https:// address, with --architecture",
    )
    model.add_argument("--demo", action="store_true", help="the same as: hf-px prune resnet20")
    model.add_argument(
        "--backbone",
        metavar="NAME",
        help="for a segmentation model such as deeplabv3plus-resnet50: the model whose weights its encoder starts "
        "from, named like MODEL; --pretrained, --architecture and --revision are then the backbone's",
    )
    add_model_flags(model)
    add_options(command.add_argument_group("pruning"), PruneConfig, command=True)
    add_options(command.add_argument_group("repair"), RepairOptions, command=True)
    add_data_flags(command.add_argument_group("data"), DATA)
    out = command.add_argument_group("output")
    out.add_argument(
        "--output", type=Path, metavar="DIR", help="write a packed ticket, mask.safetensors and prune.json there"
    )
    add_dtype_flag(out)
    out.add_argument("--force", action="store_true", help="write to DIR even if it holds other files")
    out.add_argument("--quiet", action="store_true", help="no progress bar, no table")


def prune_command(args: argparse.Namespace) -> None:
    import torch

    from ..analysis.summary import summary
    from ..core.head import segments
    from ..data import data_config, load_images, load_pruning_set
    from ..models.load import load
    from ..pruning import prune
    from ..refit.rounds import for_repair, prune_and_repair
    from ..tickets.directory import describe_sizes, sizes_on_disk

    config = _checked(args)
    torch.manual_seed(config.seed)
    loaded = load(args.model, num_classes=args.num_classes, seed=config.seed, revision=args.revision, **_weights(args))
    if loaded.new_head and not args.quiet:
        print(f"hf-px: new head with random weights: {', '.join(loaded.new_head)}", file=sys.stderr)
    model = loaded.model.to(args.device)
    if args.repair:
        config = for_repair(config, new_head=bool(loaded.new_head))
    config = config.resolved(segmentation=segments(model))
    batches = None
    columns = {"split": args.split, "image_column": args.image_column, "label_column": args.label_column}
    if args.data and config.record.needs != "weights":
        batches = load_pruning_set(args.data, model, args.per_class, args.batch_size, config.seed, **columns)
    images = load_images(args.data, model, args.repair_images, config.seed, **columns) if args.repair else None
    about = _about_data(args, loaded) if args.output and (batches or images) else {}
    input_size = tuple(data_config(model)["input_size"])

    start = time.perf_counter()
    more: dict[str, Any] = {"batches": batches, "progress": not args.quiet, "input_size": input_size}
    report = None
    if images is not None:
        options = {"most": args.repair_images, "new_head": bool(loaded.new_head)}
        model, mask, report = prune_and_repair(model, config, images, **options, **more)
        loaded = replace(loaded, model=model)
    else:
        mask = prune(model, config, **more)
    seconds = time.perf_counter() - start
    _warn_of_silent_classes(model, mask)
    table = summary(model, mask, input_size=input_size)
    memory = _peak_memory()
    if not args.quiet:
        print(table)
        work = f"{config.rounds} round{'s' * (config.total_rounds > 1)} in {seconds:.1f} s"
        print(f"\n{config.scorer} on {args.model}: {work}, peak memory {memory / 2**20:,.0f} MiB")
        _print_repair(report, loaded.trained)
    if args.output:
        settings = _settings(args, config)
        _write_record(args.output, settings, mask, table, seconds, memory, report)
        _write_ticket(args.output, settings, loaded, mask, report, about)
        print(f"wrote {args.output}: a ticket (hf-px info {args.output}), mask.safetensors and prune.json")
        print(describe_sizes(sizes_on_disk(args.output)))
        if config.whole_channels:
            print(f"its pruned channels are zeros still: hf-px shrink {args.output} DIR removes them")
    elif not args.quiet:
        print("nothing was saved: add --output DIR to write the ticket and its mask")


def _print_repair(report: RepairReport | None, trained: bool) -> None:
    if report is not None:
        before, after = report.mean_error
        print(
            f"repaired by {report.images} images: error of a layer's output, mean over layers, {before:.1%} before "
            f"and {after:.1%} after"
        )
    elif trained:
        print("the kept weights were not repaired: train them, or name images with --data to repair by")


def _checked(args: argparse.Namespace) -> PruneConfig:
    """Fill in defaults and refuse all that can be refused without a model."""
    from ..data import check_source
    from ..training.tasks import CLASSIFICATION, task_of

    if args.demo and args.model:
        raise ValueError(f"--demo prunes a ResNet-20, not {args.model}; leave one of the two out")
    args.model = "resnet20" if args.demo else args.model
    if args.model is None:
        raise ValueError("name a model, or try hf-px prune --demo; see hf-px prune --help")
    task = task_of(args.model)
    config = options_from(PruneConfig, args)
    options_from(RepairOptions, args)  # raises if a value is out of range
    config = _decide_repair(args, config)
    args.batch_size = args.batch_size or task.prune_batch_size
    args.device = usable_device(args.device)
    needs_data = config.record.needs != "weights"
    if args.data and not needs_data and not args.repair:
        print(f"hf-px: {config.scorer} needs no data; --data {args.data} is not read", file=sys.stderr)
    if args.data is None and needs_data and task is not CLASSIFICATION:
        raise ValueError(
            f"{args.model} needs images with label maps: name a folder or data set with --data, or voc2012"
        )
    if not args.repair:
        args.data = args.data or "digits" if needs_data else None
    if args.data:
        check_source(args.data)
    if args.output:
        check_output(args.output, args.force)
    elif args.dtype:
        raise ValueError(f"--dtype {args.dtype} is that of the ticket on disk; name its directory with --output")
    return config


def _decide_repair(args: argparse.Namespace, config: PruneConfig) -> PruneConfig:
    """Set args.repair, and the defaults of trained weights."""
    from ..models.load import check_name
    from ..models.names import loads_trained
    from ..refit.rounds import for_repair, for_trained

    check_name(args.model, **_weights(args))
    trained = loads_trained(args.model, **_weights(args))
    if args.repair and args.data is None:
        raise ValueError("--repair needs images, with or without labels: name a folder or data set with --data")
    args.repair = args.data is not None and trained if args.repair is None else args.repair
    args.repair_images = (args.repair_images or IMAGES) if args.repair else None
    if args.repair:
        return for_repair(config, new_head=True)
    return for_trained(config) if trained else config


def _weights(args: argparse.Namespace) -> dict[str, Any]:
    return {"pretrained": args.pretrained, "architecture": args.architecture, "backbone": args.backbone}


def check_output(directory: Path, force: bool, over_own: bool = True, flag: str = "--output") -> None:
    """Refuse a directory with files, before the work; with `over_own` those that hf-px prune wrote may be replaced."""
    from ..core.files import unwritable_parent

    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{flag} {directory}: is a file; name a directory")
    if directory.is_dir() and any(directory.iterdir()) and not force:
        try:
            ours = json.loads((directory / "prune.json").read_text(encoding="utf-8"))["written_by"] == WRITTEN_BY
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not (ours and over_own):
            raise ValueError(f"{flag} {directory}: holds other files; name another directory, or add --force")
    if (parent := unwritable_parent(directory)) is not None:
        raise ValueError(f"{flag} {directory}: {parent} is not a writable directory")


def _warn_of_silent_classes(model: Any, mask: Mask) -> None:
    from ..core.head import head_of, silent_classes
    from ..core.text import name_list

    if silent := silent_classes(model, mask):
        print(
            f"hf-px: warning: {', '.join(head_of(model))} keeps no weight for {len(silent)} "
            f"class{'es' * (len(silent) > 1)} ({name_list(silent, 10)}): their outputs are constants; --keep-head "
            "keeps all weights of the head",
            file=sys.stderr,
        )


def _settings(args: argparse.Namespace, config: PruneConfig) -> dict[str, Any]:
    """All flags, with defaults filled in."""
    left_out = ("run", "parser", "demo", "output", "force", "quiet", "traceback")
    settings = {name: value for name, value in vars(args).items() if name not in left_out}
    settings |= {name: getattr(config, name) for name in settings if hasattr(config, name)}
    settings |= {name: list(settings[name]) for name in ("keep_dense", "exclude")}
    return settings | {"device": str(args.device)}


def _write_record(
    directory: Path,
    settings: dict[str, Any],
    mask: Mask,
    table: Any,
    seconds: float,
    memory: int,
    report: RepairReport | None,
) -> None:
    """mask.safetensors and prune.json."""
    from ..core.files import write_atomic
    from ..core.shareable import shareable
    from ..core.versions import versions
    from ..tickets.mask_file import save_mask
    from ..training.resume import write_local

    directory.mkdir(parents=True, exist_ok=True)
    write_local(directory, settings)
    settings = shareable(settings)
    packages = versions("numpy")
    record = {
        "written_by": WRITTEN_BY,
        "settings": settings,
        "digest": mask.digest(),
        "total": mask.total,
        "kept": mask.kept,
        "seconds": round(seconds, 3),
        "peak_memory_bytes": memory,
        "summary": table.to_dict(),
        **({"repair": report.to_dict()} if report else {}),
        "python": packages.pop("python"),
        "versions": packages,
    }
    notes = {key: str(settings[key]) for key in ("model", "scorer", "sparsity", "rounds", "seed")}
    save_mask(mask, directory / "mask.safetensors", notes)
    write_atomic(directory / "prune.json", (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def _about_data(args: argparse.Namespace, loaded: LoadedModel) -> dict[str, Any]:
    """What the data tells of a ticket: its id, if on the Hub, and its class names, if the head is made for them."""
    from ..data import describe_data, num_classes
    from ..tickets.provenance import is_repo_id

    dataset, names = describe_data(args.data, args.split, args.label_column)
    about: dict[str, Any] = {"datasets": [dataset]} if is_repo_id(dataset) else {}
    own_head = loaded.trained and not loaded.new_head
    return about if own_head or not names or len(names) != num_classes(loaded.model) else about | {"class_names": names}


def _write_ticket(
    directory: Path,
    settings: dict[str, Any],
    loaded: LoadedModel,
    mask: Mask,
    report: RepairReport | None,
    about: dict[str, Any],
) -> None:
    from ..core.shareable import command_line
    from ..tickets.provenance import UNTRAINED
    from ..tickets.ticket import Ticket

    mask.apply_(loaded.model)
    # the base of a ticket is a repo on the Hub; the address of a file is a setting
    address = {"weights_from": loaded.base} if "://" in (loaded.base or "") else {}
    keys = [
        "sparsity",
        "rounds",
        "scope",
        *(["of"] if settings["scope"].startswith("channel") else []),
        "schedule",
        "norm",
        "keep_head",
        "keep_dense",
        "min_per_layer",
        "exclude",
    ]
    keys += ["seed", *(["data", "per_class"] if settings["data"] else [])]
    shown = {key: settings[key] for key in keys if settings[key] not in (None, [], 0) or key == "seed"}
    trained = "as trained before the pruning, not since" if loaded.trained else UNTRAINED
    trained = "trained before the pruning, repaired since" if report and loaded.trained else trained
    if loaded.trained and loaded.new_head:
        trained += f"; new head {UNTRAINED}"
    Ticket(
        loaded.model,
        mask,
        base=None if address else loaded.base,
        base_revision=loaded.revision,
        license=loaded.license,
        scorer=settings["scorer"],
        settings=shown | {"weights": trained} | address,
        command=command_line(),
        repair=report.to_dict() if report else None,
        **about,
    ).save_pretrained(directory, layout="packed", dtype=settings["dtype"])


def _peak_memory() -> int:
    """Peak resident bytes of this process; on a GPU, the peak that torch has allocated there."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
