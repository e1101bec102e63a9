"""hf-px prune: score a model and keep the best; strings become things here, all of them before a model is loaded."""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..core.default import DEFAULT
from .arguments import add_command, at_least, device_of

if TYPE_CHECKING:
    from ..models.load import Loaded

MARK = "hf-px prune"  # in prune.json: this directory is ours to write to
EXAMPLES = """\
examples:
  hf-px prune --demo
      ResNet-20 with random weights, handwritten digits, 98.2 % in 100 rounds; no network
  hf-px prune resnet50 --sparsity 0.9 --data ~/photos --num-classes 12 --output out/resnet50
      random weights, Kaiming-normal as in the paper; ~/photos holds one folder of images per class
  hf-px prune resnet50.tv_in1k --scorer snip --data uoft-cs/cifar10 --num-classes 10
      pretrained weights and data, both from the Hub
  hf-px prune microsoft/resnet-18 --scorer magnitude --sparsity 0.5
      a transformers model from the Hub; magnitude needs no data
  hf-px prune moco_v2_800ep_pretrain.pth.tar --architecture mocov2-resnet50 --num-classes 10
      the authors' own checkpoint, converted; `hf-px prune mocov2-resnet50` downloads it
  hf-px prune deeplabv3plus-resnet50 --backbone mocov2-resnet50 --num-classes 3 --data ~/scans
      a segmenter; ~/scans/train holds images/ and masks/, in which each pixel is the number of its class
  hf-px prune ./my-vit --scope 2:4 --exclude vit.embeddings.patch_embeddings.projection.weight --data train.parquet
      a directory written by save_pretrained; two of every four weights stay, but in the tensor that 4 does not divide
"""


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "prune",
        "score a model, prune it, show what is left by layer",
        prune_command,
        description="Score a model's weights, keep the best, and show what is left by layer. "
        "The model's own weights are not changed: the result is a mask.",
        epilog=EXAMPLES,
    )
    model = command.add_argument_group("model")
    model.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="one of `hf-px backbones` (resnet20, imagenet-resnet50, …); a timm name (resnet50d, "
        "timm/resnet50.tv_in1k); a timm or transformers image model on the Hub (org/name) or a directory that holds "
        "one; a weights file or its https:// address, with --architecture",
    )
    model.add_argument("--demo", action="store_true", help="short for: hf-px prune resnet20, all else as by default")
    model.add_argument(
        "--pretrained",
        action=argparse.BooleanOptionalAction,
        help="take trained weights (default: yes where the name says which, as resnet50.tv_in1k, org/name and "
        "directories do; no for a bare architecture)",
    )
    model.add_argument(
        "--backbone",
        metavar="NAME",
        help="of a segmenter as deeplabv3plus-resnet50: whose weights its encoder starts from, named as MODEL is; "
        "--pretrained, --architecture and --revision are then the backbone's",
    )
    model.add_argument(
        "--architecture",
        metavar="NAME",
        help="of a weights file: a timm name, or one of `hf-px backbones`, whose checkpoints are converted",
    )
    model.add_argument("--revision", metavar="REV", help="of a model on the Hub: a commit, tag or branch")
    model.add_argument("--num-classes", type=at_least(1), metavar="N", help="give the model a new head of N classes")
    model.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda if there is one)")

    how = command.add_argument_group("method")
    how.add_argument("--scorer", default=DEFAULT, metavar="NAME", help="one of `hf-px scorers` (default: %(default)s)")
    how.add_argument(
        "--sparsity",
        type=float,
        metavar="S",
        help="fraction of weights to remove (default: 0.982, or what an n:m scope means)",
    )
    how.add_argument("--rounds", type=at_least(1), metavar="T", help="score and prune T times (default: the method's)")
    how.add_argument(
        "--scope", default="global", help="who competes: global, layer, erk, or n:m such as 2:4 (default: global)"
    )
    how.add_argument(
        "--schedule",
        default="exponential",
        help="density by round: exponential, linear or one-shot (default: exponential)",
    )
    how.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="NAME",
        help="leave this tensor whole: the head, say, which is pruned with the rest; may be given again",
    )
    how.add_argument(
        "--min-per-layer", type=at_least(0), default=0, metavar="N", help="leave each layer N weights (default: 0)"
    )
    how.add_argument(
        "--norm",
        help="statistics of normalisation layers, for px-path: batch or running; for px: batch, flow, running or "
        "released (default: batch; flow for px on segmenters)",
    )
    how.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="of weights, data and method (default: 0)"
    )

    data = command.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="SOURCE",
        help="digits: handwritten digits, no network (default); cifar10 and others by name; a folder with one "
        "sub-folder of images per class, or with parquet files; for a segmenter voc2012, or a folder with "
        "train/images and train/masks; a .parquet file; "
        "a Hub data set org/name; random: one batch of Gaussian noise with random labels, to try a command out, not to "
        "prune by",
    )
    data.add_argument("--per-class", type=at_least(1), default=10, metavar="N", help="examples per class (default: 10)")
    data.add_argument(
        "--batch-size", type=at_least(1), metavar="N", help="at most (default: 100; 8 pictures with masks)"
    )
    data.add_argument("--split", default="train", help="of the data set (default: train)")
    data.add_argument("--image-column", metavar="NAME", help="(default: image or img)")
    data.add_argument("--label-column", metavar="NAME", help="(default: label, labels or fine_label)")

    out = command.add_argument_group("output")
    out.add_argument(
        "--output", type=Path, metavar="DIR", help="write a packed ticket, mask.safetensors and prune.json there"
    )
    out.add_argument("--force", action="store_true", help="write to DIR even if it holds other files")
    out.add_argument("--quiet", action="store_true", help="no progress bar, no table")


def prune_command(args: argparse.Namespace) -> None:
    import torch

    from ..analysis import summary
    from ..core.allocate import NofM
    from ..core.allocate import scope as parse_scope
    from ..core.head import head_of, silent_classes
    from ..core.registry import norm_option, scorers
    from ..data import check_source, data_config, load_pruning_set
    from ..models.load import check_name, load
    from ..pruning import checked_schedule, checked_sparsity, prune
    from ..training.tasks import task_of

    # what can be refused without a model, is
    if args.demo and args.model:
        raise ValueError(f"--demo prunes a ResNet-20, not {args.model}; leave one of the two out")
    args.model = "resnet20" if args.demo else args.model
    if args.model is None:
        raise ValueError("name a model, or try hf-px prune --demo; see hf-px prune --help")
    record, task = scorers[args.scorer], task_of(args.model)
    options = norm_option(record, args.norm or task.norms.get(record.name))
    args.batch_size = args.batch_size or task.prune_batch_size
    args.norm = options.get("norm")
    scope = parse_scope(args.scope)
    if args.sparsity is None and not isinstance(scope, NofM):
        args.sparsity = 0.982
    args.sparsity = checked_sparsity(args.sparsity, scope)
    scope.check({}, 1 - args.sparsity)
    _, args.rounds = checked_schedule(args.schedule, args.rounds, record)
    args.device = device_of(args.device)
    if args.data and record.needs == "weights":
        print(f"hf-px: {record.name} needs no data; --data {args.data} is not read", file=sys.stderr)
    if args.data is None and record.needs != "weights" and task.name == "segmentation":
        raise ValueError(f"{args.model} needs pictures with masks: name a folder or data set with --data, or voc2012")
    args.data = None if record.needs == "weights" else args.data or "digits"
    if args.data:
        check_source(args.data)
    if args.output:
        _claim(args.output, args.force)
    check_name(args.model, pretrained=args.pretrained, architecture=args.architecture, backbone=args.backbone)

    torch.manual_seed(args.seed)
    loaded = load(
        args.model,
        pretrained=args.pretrained,
        num_classes=args.num_classes,
        seed=args.seed,
        revision=args.revision,
        architecture=args.architecture,
        backbone=args.backbone,
    )
    if loaded.new_head and not args.quiet:
        print(f"hf-px: a new head, drawn at random: {', '.join(loaded.new_head)}", file=sys.stderr)
    model = loaded.model.to(args.device)
    batches = None
    if args.data:
        batches = load_pruning_set(
            args.data,
            model,
            args.per_class,
            args.batch_size,
            args.seed,
            split=args.split,
            image_column=args.image_column,
            label_column=args.label_column,
        )
    input_size = tuple(data_config(model)["input_size"])

    start = time.perf_counter()
    mask = prune(
        model,
        record.name,
        sparsity=args.sparsity,
        batches=batches,
        rounds=args.rounds,
        scope=args.scope,
        schedule=args.schedule,
        seed=args.seed,
        progress=not args.quiet,
        min_per_layer=args.min_per_layer,
        exclude=args.exclude,
        input_size=input_size,
        **options,
    )
    seconds = time.perf_counter() - start
    if silent := silent_classes(model, mask):
        head, shown = ", ".join(head_of(model)), ", ".join(map(str, silent[:10]))
        print(
            f"hf-px: warning: {head} keeps no weight for {len(silent)} class{'es' * (len(silent) > 1)} ({shown}): "
            f"their outputs are constants; --exclude {head} leaves it whole",
            file=sys.stderr,
        )
    table = summary(model, mask, input_size=input_size)
    memory = _peak_memory()
    if not args.quiet:
        print(table)
        work = f"{args.rounds} round{'s' * (args.rounds > 1)} in {seconds:.1f} s"
        print(f"\n{record.name} on {args.model}: {work}, peak memory {memory / 2**20:,.0f} MiB")
    if args.output:
        _write(args, mask, table, seconds, memory)
        _write_ticket(args, loaded, mask)
        print(f"wrote {args.output}: a ticket (hf-px info {args.output}), mask.safetensors and prune.json")


def _claim(directory: Path, force: bool) -> None:
    """See that the directory is ours to write to, before the work; nothing is made yet."""
    from ..core.files import closed_above

    if directory.exists() and not directory.is_dir():
        raise ValueError(f"--output {directory}: is a file; name a directory")
    if directory.is_dir() and any(directory.iterdir()) and not force:
        try:
            ours = json.loads((directory / "prune.json").read_text(encoding="utf-8"))["written_by"] == MARK
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not ours:
            raise ValueError(f"--output {directory}: holds other files; name another directory, or add --force")
    if (closed := closed_above(directory)) is not None:
        raise ValueError(f"--output {directory}: {closed} is not a directory that can be written to")


def _write(args: argparse.Namespace, mask: Any, table: Any, seconds: float, memory: int) -> None:
    from ..core.files import write_atomic
    from ..core.shareable import shareable
    from ..tickets.mask_file import save_mask
    from ..training.local_settings import write_local

    settings = {
        k: v for k, v in vars(args).items() if k not in ("run", "demo", "output", "force", "quiet", "traceback")
    }
    settings["device"] = str(args.device)
    args.output.mkdir(parents=True, exist_ok=True)
    write_local(args.output, settings)
    settings = shareable(settings)
    record = {
        "written_by": MARK,
        "settings": settings,
        "digest": mask.digest(),
        "total": mask.total,
        "kept": mask.kept,
        "seconds": round(seconds, 3),
        "peak_memory_bytes": memory,
        "summary": table.to_dict(),
        "versions": {
            "hf-px": __version__,
            **{name: metadata.version(name) for name in ("torch", "timm", "transformers", "numpy")},
        },
        "python": sys.version.split()[0],
    }
    notes = {key: str(settings[key]) for key in ("model", "scorer", "sparsity", "rounds", "seed")}
    save_mask(mask, args.output / "mask.safetensors", notes)
    write_atomic(args.output / "prune.json", (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def _write_ticket(args: argparse.Namespace, loaded: Loaded, mask: Any) -> None:
    from ..core.shareable import command_line
    from ..tickets.ticket import Ticket

    mask.apply_(loaded.model)
    at = {"weights_from": loaded.base} if "://" in (loaded.base or "") else {}  # a ticket's base is on the Hub
    keys = ["sparsity", "rounds", "scope", "schedule", "norm", "min_per_layer", "exclude", "seed"]
    keys += ["data", "per_class"] if args.data else []
    Ticket(
        loaded.model,
        mask,
        base=None if at else loaded.base,
        base_revision=loaded.revision,
        license=loaded.license,
        scorer=args.scorer,
        settings={key: value for key in keys if (value := getattr(args, key)) not in (None, [], 0) or key == "seed"}
        | {"weights": "as trained before the pruning, not since" if loaded.trained else "random, not trained"}
        | at,
        command=command_line(),
    ).save_pretrained(args.output, layout="packed")


def _peak_memory() -> int:
    """Bytes, the most this process has held; on a GPU, the most that torch has held there."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
