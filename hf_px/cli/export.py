"""hf-px export: a ticket as a file for ONNX Runtime, OpenVINO or torch alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..core.options import whole_number
from .arguments import add_command

FORMATS = ("onnx", "openvino", "torch")
EXAMPLES = """\
examples:
  hf-px export out/photos --to onnx
      photos.onnx, for ONNX Runtime, TensorRT and others: any number of images in a call, normalised by the caller
  hf-px export out/half --to onnx --shrink --output half.onnx
      without the channels that `hf-px prune --scope channel` has emptied: a smaller and faster network
  hf-px export me/resnet50-px-98 --to openvino --normalise --batch 1
      resnet50-px-98.xml and .bin; the graph takes one image of pixels from 0 to 1 and normalises it itself
  hf-px export out/photos --to torch --half --data ~/photos
      photos.pt2, with float16 weights, compared with the ticket on images of yours

Single zeros make no runtime but that of hf_px faster, and an exported file stores them: its size is that of a dense
network. Zeros in whole channels are another matter, see --shrink.
"""


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "export",
        "write a ticket for ONNX Runtime, OpenVINO or torch alone",
        export_command,
        description="Write a ticket's network as a file that runs without hf_px. The file says which ticket it is, how "
        "images are prepared for it and what its classes are. Before it is kept, it runs in its own runtime on real "
        "images; outputs that differ from the ticket's by more than 1e-3 of the largest one (1e-2 with --half) are an "
        "error, and no file is left.",
        examples=EXAMPLES,
    )
    command.add_argument("ticket", metavar="TICKET", help="a directory, or owner/name on the Hub")
    command.add_argument(
        "--to",
        choices=FORMATS,
        required=True,
        help="onnx: one file, opset 18; openvino: .xml and .bin by its own converter; torch: .pt2 by torch.export",
    )
    command.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="(default: the ticket's name in this directory, such as photos.onnx)",
    )
    command.add_argument("--shrink", action="store_true", help="first remove the channels that the mask does not need")
    command.add_argument(
        "--batch", type=_batch, default="dynamic", metavar="N", help="images in a call, or dynamic (default: dynamic)"
    )
    command.add_argument(
        "--image-size", type=whole_number(1), metavar="N", help="height and width (default: the ticket's own)"
    )
    command.add_argument(
        "--half",
        action="store_true",
        help="float16 weights, half the bytes; onnx and torch compute in float16 too. Images and outputs stay float32",
    )
    command.add_argument(
        "--normalise",
        action="store_true",
        help="put (x - mean) / std into the graph, whose input is then called pixels, not pixel_values (default: the "
        "caller normalises)",
    )
    command.add_argument(
        "--data",
        metavar="SOURCE",
        help="real images to compare on, named as for hf-px prune (default: two photographs of scikit-learn)",
    )
    command.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub (default: main)")
    command.add_argument("--force", action="store_true", help="replace FILE if it exists")
    command.add_argument("--quiet", action="store_true", help="no progress")


def _batch(text: str) -> int | str:
    return text if text == "dynamic" else whole_number(1)(text)


def export_command(args: argparse.Namespace) -> None:
    from ..data import check_source
    from ..deploy.export import check_format, check_target, export, stages
    from ..tickets.shrunk_ticket import whole_channels
    from ..tickets.ticket import Ticket

    kind = check_format(args.to)
    name = Path(args.ticket).expanduser().resolve().name if Path(args.ticket).exists() else Path(args.ticket).name
    output = args.output or Path(f"{name}{kind.suffix}")
    check_target(output, kind, args.force)
    if args.data is not None:
        check_source(args.data)
    ticket = Ticket.from_pretrained(args.ticket, revision=args.revision)
    made = export(
        ticket,
        args.to,
        output,
        shrink=args.shrink,
        batch=args.batch,
        image_size=args.image_size,
        half=args.half,
        normalise=args.normalise,
        data=args.data,
        force=args.force,
        progress=not args.quiet,
    )
    written = " and ".join(str(output.with_suffix(Path(name).suffix)) for name in made.files)
    with stages(not args.quiet) as stage:
        stage("compressing it, to tell the size")
        lines = made.lines()
    print("\n".join([f"wrote   {written}", *lines]))
    if whole_channels(ticket) and not args.shrink:
        print("some channels of this ticket are zeros: --shrink removes them first, for a smaller and faster network")
