"""hf-px repair: refit the kept weights of a ticket to the model that it was pruned from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.options import whole_number
from ..prune_config import COLUMN_HELP
from ..refit.options import IMAGES
from .arguments import add_command, usable_device

if TYPE_CHECKING:
    from torch import nn

    from ..tickets.ticket import Ticket

EXAMPLES = """\
examples:
  hf-px repair me/resnet50-px-80 --data ~/photos --output out/repaired
      a ticket on the Hub that names its base; ~/photos holds images, with or without folders of classes
  hf-px repair out/ticket --base weights.safetensors --architecture resnet50 --data train.parquet --output out/repaired
      a ticket of local weights, which names no base
"""


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "repair",
        "refit the kept weights of a ticket to the model that it was pruned from",
        repair_command,
        description="Refit the kept weights of a ticket by least squares, so that every layer computes what it did in "
        "the dense model, and move batch norm's statistics by what the pruning has changed. Needs images, no labels "
        "and no training.",
        examples=EXAMPLES,
    )
    command.add_argument("ticket", metavar="TICKET", help="a directory, or owner/name on the Hub")
    command.add_argument("--data", metavar="SOURCE", required=True, help="images, named as for hf-px prune")
    command.add_argument("--output", type=Path, metavar="DIR", required=True, help="write the repaired ticket there")
    command.add_argument("--base", metavar="MODEL", help="the model it was pruned from (default: as the ticket says)")
    command.add_argument("--architecture", metavar="NAME", help="architecture of --base, if that is a weights file")
    command.add_argument(
        "--images", type=whole_number(1), default=IMAGES, metavar="N", help=f"images to use (default: {IMAGES})"
    )
    command.add_argument("--split", default="train", help="split of the data set (default: train)")
    command.add_argument("--image-column", metavar="NAME", help=COLUMN_HELP["image"])
    command.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="draws the images (default: 0)")
    command.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda if there is one)")
    command.add_argument("--force", action="store_true", help="write to DIR even if it holds files")
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def repair_command(args: argparse.Namespace) -> None:
    from ..core.prunable import prunable
    from ..core.shareable import command_line
    from ..data import check_source, load_images
    from ..refit.repair import Repair
    from ..tickets.class_names import recorded_names
    from ..tickets.directory import describe_sizes, sizes_on_disk
    from ..tickets.image_processor import processor_file
    from ..tickets.stored_dtype import recorded_dtype
    from ..tickets.ticket import Ticket
    from .prune import check_output

    check_source(args.data)
    check_output(args.output, args.force, over_own=False)  # it may be the very ticket that is repaired
    device = usable_device(args.device)
    ticket = Ticket.from_pretrained(args.ticket)
    dense = _dense_model(args, ticket).to(device)
    mask = ticket.mask
    columns = {"split": args.split, "image_column": args.image_column}
    images = load_images(args.data, dense, args.images, args.seed, **columns)
    exclude = prunable(dense).keys() - mask.bits.keys()
    measured = Repair(dense, images, exclude=exclude, images=args.images, progress=not args.quiet)
    repaired, report = measured.repaired(mask)
    kept: dict[str, Any] = {key: ticket.provenance.get(key) for key in ("base", "base_revision", "license", "scorer")}
    settings = {**ticket.provenance.get("settings", {}), "weights": "trained before the pruning, repaired since"}
    kept |= {"settings": settings, "command": command_line(), "repair": report.to_dict()}
    kept |= {"datasets": ticket.provenance.get("datasets", ()), "class_names": recorded_names(ticket.model_record())}
    files = processor_file(ticket)
    dtype = recorded_dtype(ticket.provenance)
    Ticket(repaired.cpu(), mask, **kept).save_pretrained(args.output, layout="packed", dtype=dtype, files=files)
    before, after = report.mean_error
    print(
        f"{report.images} images: error of a layer's output, mean over layers, {before:.1%} before, {after:.1%} after"
    )
    print(f"wrote {args.output} (hf-px info {args.output})\n{describe_sizes(sizes_on_disk(args.output))}")


def _dense_model(args: argparse.Namespace, ticket: Ticket) -> nn.Module:
    """The base of the ticket, with the ticket's own head if that has other classes."""
    import torch

    from ..core.head import head_of
    from ..data import num_classes
    from ..models.load import load
    from ..tickets.stored_dtype import recorded_dtype, torch_dtype

    base, revision = args.base or ticket.provenance.get("base"), None
    if base is None:
        raise ValueError(f"{args.ticket}: names no base model; give the weights that it was pruned from with --base")
    if args.base is None:
        revision = ticket.provenance.get("base_revision")
    pruned = ticket.to_model()
    classes = num_classes(pruned)
    try:
        dense = load(base, num_classes=classes or None, revision=revision, architecture=args.architecture).model.eval()
    except (ValueError, OSError) as error:
        if args.base is not None:
            raise
        raise ValueError(f"{error}; the ticket names {base} as its base: --base DIR takes a copy of it") from error
    own, theirs = pruned.state_dict(), dense.state_dict()
    head = head_of(pruned)
    stored = torch_dtype(recorded_dtype(ticket.provenance) or "float32")  # both rounded, or bfloat16 looks trained
    for name, bits in ticket.mask.bits.items():
        if name not in theirs or theirs[name].shape != bits.shape:
            raise ValueError(f"{name}: not in {base}, or of another shape there; is --base another model?")
        kept = own[name][bits].float(), theirs[name][bits].to(stored).float()
        if torch.allclose(*kept, rtol=1e-3, atol=1e-6):
            continue
        if name not in head:
            raise ValueError(
                f"{name}: its kept weights are not those of {base}: the ticket was trained or repaired after pruning, "
                "which a repair would undo; or --base is another model"
            )
        for tensor in (name, name.removesuffix("weight") + "bias"):  # a head of other classes is the ticket's own
            if tensor in theirs:
                theirs[tensor].copy_(own[tensor])
    return dense
