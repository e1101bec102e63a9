"""A ticket without its superfluous channels: the same function as a smaller network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..channels.shrink import Removal, shrunk
from .class_names import recorded_names

if TYPE_CHECKING:
    from .ticket import Ticket

KINDS = ("channels", "weights", "macs", "bytes")
_KEPT = ("base", "base_revision", "license", "scorer", "settings", "results", "command", "repair", "datasets")


def shrink_ticket(
    ticket: Ticket,
    *,
    input_size: Sequence[int] | None = None,
    batches: Iterable[Any] | None = None,
) -> tuple[Ticket, Removal]:
    """(the smaller ticket, what went). Its results are those of the ticket, whose function it computes."""
    model, mask = ticket.to_model(), ticket.mask
    smaller, left, removal = shrunk(model, mask, input_size=input_size, batches=batches)
    if (earlier := read_shrunk(ticket.provenance)) is not None:
        removal = removal.after(earlier)
    kept: dict[str, Any] = {key: ticket.provenance[key] for key in _KEPT if key in ticket.provenance}
    record = ticket.model_record()
    found = type(ticket)(
        smaller,
        left,
        class_names=recorded_names(record),
        model_args=record.get("model_args"),
        shrunk=removal.to_dict(),
        **kept,
    )
    found.source = ticket.source
    return found, removal


def read_shrunk(ticket: Mapping[str, Any]) -> Removal | None:
    """What shrink removed, from an untrusted ticket; None if it was not shrunk."""
    found: Any = ticket.get("shrunk")
    try:
        pairs = {key: (int(found[key][0]), int(found[key][1])) for key in KINDS}
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        return None
    return Removal(**pairs) if all(0 < after <= before < 2**50 for before, after in pairs.values()) else None


def whole_channels(ticket: Ticket) -> bool:
    """True if the mask leaves a layer without one of its rows: shrink has something to remove."""
    return any(not bool(bits.flatten(1).any(1).all()) for bits in ticket.mask.bits.values() if bits.dim() > 1)
