"""hf-px shrink: a ticket without the channels that its mask has made superfluous."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..core.options import whole_number
from .arguments import add_command

EXAMPLES = """\
examples:
  hf-px prune resnet50.tv_in1k --data ~/photos --scope channel --of macs --sparsity 0.5 --output out/half
  hf-px shrink out/half out/small
      whole channels were pruned: half the multiply-adds are gone, in any runtime
  hf-px shrink me/resnet50-px-98 out/small
      single weights were pruned: only channels that nothing reads any more go, and few may be left out
"""


def add_to(commands: Any) -> None:
    command = add_command(
        commands,
        "shrink",
        "cut a ticket to the channels that its mask needs",
        shrink_command,
        description="Remove the channels that a ticket's mask has made superfluous, in all layers that share them. The "
        "smaller network computes the same, which is checked before it is written. `hf-px prune --scope channel` "
        "prunes whole channels.",
        examples=EXAMPLES,
    )
    command.add_argument("ticket", metavar="TICKET", help="a directory, or owner/name on the Hub")
    command.add_argument("output", metavar="DIR", type=Path, help="output directory, new or empty")
    command.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub (default: main)")
    command.add_argument(
        "--image-size", type=whole_number(1), metavar="N", help="height and width (default: the ticket's own)"
    )
    command.add_argument("--force", action="store_true", help="write to DIR even if it holds files")


def shrink_command(args: argparse.Namespace) -> None:
    from ..core.shareable import command_line
    from ..data import data_config
    from ..tickets.directory import describe_sizes, sizes_on_disk
    from ..tickets.image_processor import processor_file
    from ..tickets.shrunk_ticket import read_shrunk, shrink_ticket
    from ..tickets.stored_dtype import recorded_dtype
    from ..tickets.ticket import Ticket
    from .prune import check_output

    check_output(args.output, args.force, over_own=False, flag="DIR")
    ticket = Ticket.from_pretrained(args.ticket, revision=args.revision)
    channels, *size = data_config(ticket.to_model())["input_size"]
    input_size = (channels, *([args.image_size] * 2 if args.image_size else size))
    smaller, removal = shrink_ticket(ticket, input_size=input_size)
    earlier = ticket.provenance.get("command")
    smaller.provenance["command"] = f"{earlier} && {command_line()}" if earlier else command_line()
    dtype = recorded_dtype(ticket.provenance)
    smaller.save_pretrained(args.output, layout="packed", dtype=dtype, files=processor_file(ticket))
    if read_shrunk(ticket.provenance) is not None:
        print("this ticket was shrunk before; together, against the full width of the architecture:")
    print("\n".join([*removal.lines(), f"for an image of {'x'.join(map(str, input_size))}"]))
    print(f"wrote {args.output} (hf-px info {args.output})\n{describe_sizes(sizes_on_disk(args.output))}")
