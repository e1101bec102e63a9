"""hf-px bench: how fast a ticket runs here, dense and sparse, beside other runtimes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..core.options import whole_number
from ..core.text import text_table
from .arguments import add_command

_EXAMPLES = """\
examples:
  hf-px bench me/resnet50-px-95
      one image on one thread: torch with all zeros, hf_px without them
  hf-px bench out/resnet20 --batch 16 --threads 2 --plan
      and where the time of the sparse model goes, layer by layer
  pip install 'hf-px[export]'
      then ONNX Runtime and OpenVINO run beside them, on the dense model
"""


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "bench",
        "time a ticket, dense and sparse, beside other runtimes",
        bench_command,
        description="Time a ticket on this machine's CPU in float32: dense torch, the sparse runtime of hf_px, and "
        "ONNX Runtime and OpenVINO where they are installed. All run in one process with alternating turns.",
        examples=_EXAMPLES,
    )
    command.add_argument("ticket", metavar="TICKET", help="a directory, or owner/name on the Hub")
    command.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub (default: main)")
    command.add_argument("--batch", type=whole_number(1), default=1, metavar="N", help="images at once (default: 1)")
    command.add_argument("--threads", type=whole_number(1), default=1, metavar="N", help="threads (default: 1)")
    command.add_argument(
        "--image-size", type=whole_number(1), metavar="N", help="height and width (default: the ticket's own)"
    )
    command.add_argument(
        "--seconds", type=whole_number(1), default=3, metavar="S", help="time for each runtime (default: 3)"
    )
    command.add_argument("--plan", action="store_true", help="show the time of each layer of the sparse model")
    command.add_argument(
        "--save", action="store_true", help="write speed.json into the ticket's directory, and its figures on the card"
    )
    command.add_argument("--json", action="store_true", help="as JSON, for programs")


def bench_command(args: argparse.Namespace) -> None:
    import torch

    from ..data import data_config
    from ..models.architecture import full_width
    from ..runtime.bench import bench
    from ..runtime.packed import load_packed
    from ..tickets.card import SPEED
    from ..tickets.directory import layout_of
    from ..tickets.ticket import Ticket

    if args.save and not Path(args.ticket).is_dir():
        raise ValueError(f"--save writes into a directory, and {args.ticket} is none; bench a local copy")
    torch.set_num_threads(args.threads)
    ticket = Ticket.from_pretrained(args.ticket, revision=args.revision)
    model, full = ticket.to_model().float(), full_width(ticket.model_record())
    channels, height, width = data_config(model)["input_size"]
    if args.image_size:
        height = width = args.image_size
    quiet = args.json or not sys.stderr.isatty()
    fast = load_packed(args.ticket, revision=args.revision, progress=not quiet)
    assert fast is not None  # None is for `only_compiled`
    x = torch.randn(args.batch, channels, height, width, generator=torch.Generator().manual_seed(0))
    found = bench(model, fast, x, full=full, seconds=args.seconds)
    if args.save:
        data = (json.dumps(found.speed(ticket.mask), indent=1) + "\n").encode()
        ticket.save_pretrained(args.ticket, layout=layout_of(Path(args.ticket)), files={SPEED: data})
    plan = fast.plan((channels, height, width)) if args.plan else None
    if args.json:
        rows = [row._asdict() for row in plan.rows] if plan else None
        print(json.dumps(found.to_dict() | ({"plan": rows} if rows else {}), indent=1))
        return
    images = f"{args.batch} image{'s' * (args.batch > 1)} of {height}x{width}"
    print(f"{args.ticket}: {images} on {found.machine}")
    table = [("runtime", "ms", "quartiles", "images/s", "speed-up", "difference", "bytes of weights")]
    for row in found.rows:
        ms = [1e3 * value for value in (row.latency.median, row.latency.low, row.latency.high)]
        table.append(
            (
                row.runtime, f"{ms[0]:.2f}", f"{ms[1]:.2f} to {ms[2]:.2f}", f"{row.images_per_second:,.1f}",
                f"{row.speedup:.2f}", "" if row.difference != row.difference else f"{row.difference:.1e}",
                f"{row.weight_bytes:,}",
            )
        )  # fmt: skip
    print(text_table(table))
    print("speed-up over dense torch; difference: largest difference of outputs, relative to the largest output")
    if plan:
        print(f"\n{plan}")
