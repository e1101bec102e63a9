"""Errors a caller may want to catch; everything else is a plain ValueError or TypeError."""


class HfPxError(Exception):
    """Root of hf_px's own errors."""


class UnsupportedModelError(HfPxError):
    """The model cannot be run as its paths: an operation has no rule or is out of sight."""


class NonFiniteScoreError(HfPxError):
    """A scorer produced inf or nan."""


class NoSignalError(HfPxError):
    """Every weight scores zero: a mask would be arbitrary."""


class CollapseError(HfPxError):
    """No path from input to output is left."""


class DisagreementError(HfPxError):
    """Processes that should hold the same mask do not."""


class TicketError(HfPxError):
    """A ticket cannot be read, or must not be written: damaged, not a ticket, or not true to its mask."""
