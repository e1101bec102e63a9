"""Errors a caller may want to catch; everything else is a plain ValueError or TypeError."""

from __future__ import annotations


class HfPxError(Exception):
    """Root of hf_px's own errors."""


class UnsupportedModelError(HfPxError):
    """The model cannot be run as its paths: an operation has no rule or cannot be intercepted."""


class NonFiniteScoreError(HfPxError):
    """A scorer produced inf or nan."""


class NoSignalError(HfPxError):
    """Every weight scores zero: a mask would be arbitrary."""


class CollapseError(HfPxError):
    """No path from input to output is left."""


class DisagreementError(HfPxError):
    """Processes that should hold the same mask do not."""


class TicketError(HfPxError):
    """A ticket cannot be read, or must not be written: damaged, not a ticket, or its pruned weights are not zero."""


class ExportError(HfPxError):
    """A network cannot be exported, or the exported one computes something else."""


def first_line(error: BaseException) -> str:
    """The first line of the message, for errors of other libraries."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
