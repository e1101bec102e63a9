"""preprocessor_config.json beside a transformers classifier, so that transformers.pipeline takes images."""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub.errors import HFValidationError
from torch import nn

from ..core.errors import TicketError
from ..data.model_inputs import data_config
from ..models.architecture import pipeline_task
from ..models.image_config import PROCESSOR, processor_config
from ..models.remote import Source

if TYPE_CHECKING:
    from .ticket import Ticket

_MOST_BYTES = 2**20


def processor_file(ticket: Ticket, directory: Path | None = None) -> dict[str, bytes]:
    """{file name: bytes} of the image processor; empty if the model is no transformers classifier, or it is unknown.

    A ticket that was loaded keeps its own. A live model has the one that hf_px read with it, else the one of the
    directory or cached repo that it was loaded from, else that of `directory`, else the usual settings for its size.
    """
    record = ticket.model_record()
    if "model_type" not in record or pipeline_task(record) != "image-classification":
        return {}
    if ticket.source is not None:
        try:
            return _read(ticket.source)
        except TicketError as error:  # the network may be gone since the weights came
            warnings.warn(f"the image processor is not saved: {error}", stacklevel=4)
            return {}
        except HFValidationError:  # so may the directory: its name is no repo's
            pass
    model = ticket.to_model()
    if not hasattr(model, "image_config") and not hasattr(model, "timm_model"):
        if found := _of_origin(model):
            return found
        if directory is not None and (directory / PROCESSOR).is_file():
            return {}
    return {PROCESSOR: (json.dumps(processor_config(data_config(model)), indent=2) + "\n").encode()}


def _of_origin(model: nn.Module) -> dict[str, bytes]:
    """The processor of the directory or repo that transformers loaded the model from, without the network."""
    name = getattr(model, "name_or_path", "")
    if not isinstance(name, str) or not name:
        return {}
    with contextlib.suppress(TicketError, OSError, HFValidationError):  # a directory may be gone since
        return _read(Source.of(name, local_files_only=True))
    return {}


def _read(source: Source) -> dict[str, bytes]:
    path = source.file(PROCESSOR)
    if path is None or path.stat().st_size > _MOST_BYTES:
        return {}
    data = path.read_bytes()
    try:
        return {PROCESSOR: data} if isinstance(json.loads(data), dict) else {}
    except (ValueError, RecursionError):  # in an untrusted directory it may be a link to a secret
        return {}
