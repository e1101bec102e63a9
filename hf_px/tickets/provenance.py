"""Where a ticket comes from: base, scorer, settings, measured results, command and versions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..core.errors import TicketError
from ..core.mask import Mask
from ..core.shareable import shareable
from ..core.versions import versions
from .file_parts import canonical_json

RESULT_KEYS = {"dataset", "metric", "value", "dense", "split", "task", "dataset_name", "dataset_config", "note"}
RESULT_KEYS |= {"by_class", "dense_by_class", "warning"}


UNTRAINED = "random, not trained"  # `weights` in the settings of a ticket that was never trained


def weights_outside(recorded: Any) -> int:
    """Prunable weights that the mask leaves out, all of them kept, by the `sparsity` of an untrusted ticket."""
    outside = recorded.get("outside", 0) if isinstance(recorded, Mapping) else 0
    return outside if type(outside) is int and 0 <= outside < 2**50 else 0


def overall_sparsity(recorded: Any, mask: Mask) -> float:
    """Share of all prunable weights that is pruned; `recorded` as in weights_outside."""
    return (mask.total - mask.kept) / max(1, mask.total + weights_outside(recorded))


def never_trained(ticket: Mapping[str, Any]) -> bool:
    """True if the record of an untrusted ticket says that its weights, or those of its head, are random."""
    settings = ticket.get("settings")
    return isinstance(settings, Mapping) and UNTRAINED in str(settings.get("weights", ""))


def provenance(
    base: str | None,
    base_revision: str | None,
    license: str | None,
    scorer: str | None,
    settings: Mapping[str, Any] | None,
    results: Iterable[Mapping[str, Any]],
    command: str | None,
    repair: Mapping[str, Any] | None = None,
    shrunk: Mapping[str, Any] | None = None,
    datasets: Iterable[str] = (),
) -> dict[str, Any]:
    """The `ticket` object of a ticket file's header, without local paths."""
    if not isinstance(settings or {}, Mapping) or not all(isinstance(key, str) for key in settings or {}):
        raise TypeError(f"`settings`: expected a dict with string keys, got {settings!r:.100}")
    if isinstance(results, (str, Mapping)) or not all(isinstance(result, Mapping) for result in results):
        raise TypeError(f"`results`: expected a list of dicts with dataset, metric and value, got {results!r:.100}")
    if base is not None:
        _check_base(base)
    datasets = [datasets] if isinstance(datasets, str) else list(datasets)
    if not all(map(is_repo_id, datasets)):
        raise TicketError(f"`datasets`: {datasets!r:.100} is not a list of owner/name on the Hub; omit local data")
    record = {
        "base": base,
        "base_revision": base_revision,
        "license": license,
        "scorer": scorer,
        "settings": dict(settings or {}),
        "results": [check_result(result) for result in results],
        "command": command,
        "repair": dict(repair or {}),
        "shrunk": dict(shrunk or {}),
        "datasets": datasets,
        "versions": versions("huggingface-hub"),
    }
    try:
        return json.loads(canonical_json(shareable({key: value for key, value in record.items() if value})))
    except (TypeError, ValueError) as error:
        raise TicketError(f"`settings` and `results` hold numbers, strings and lists of them: {error}") from error


def is_repo_id(name: Any) -> bool:
    """True for owner/name, as a model or data set on the Hub is called."""
    try:
        validate_repo_id(name)
        return name.count("/") == 1 and not Path(name).is_absolute()
    except (HFValidationError, TypeError):
        return False


def _check_base(base: Any) -> None:
    if not is_repo_id(base):
        raise TicketError(f"`base`: {base!r:.100} is not owner/name on the Hub; omit it for local or random weights")


def check_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Check one measurement and drop its empty entries."""
    if unknown := sorted(result.keys() - RESULT_KEYS):
        raise TicketError(f"`results`: unknown key {unknown[0]!r}; a result has {', '.join(sorted(RESULT_KEYS))}")
    if missing := [key for key in ("dataset", "metric", "value") if result.get(key) is None]:
        raise TicketError(f"`results`: {missing[0]} is missing; a result has at least dataset, metric and value")
    for key in ("value", "dense"):
        number = result.get(key)
        if number is not None and not _is_finite(number):
            raise TicketError(f"`results`: {key} is {number!r}, not a finite number")
    check_by_class(result)
    return {key: value for key, value in result.items() if value is not None}


def check_by_class(result: Mapping[str, Any]) -> None:
    """Check by_class and dense_by_class: {class: value, or None if the test set has none of it}."""
    by_class = result.get("by_class")
    for key in ("by_class", "dense_by_class"):
        values = result.get(key)
        if values is None:
            continue
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise TicketError(f"`results`: {key} is {values!r:.100}, not a dict of class names to numbers")
        if odd := [name for name, value in values.items() if not (value is None or _is_finite(value))]:
            raise TicketError(
                f"`results`: {key} has {values[odd[0]]!r:.100} for {odd[0]!r:.100}; expected a finite number or None"
            )
        if not isinstance(by_class, Mapping) or values.keys() != by_class.keys():
            raise TicketError(f"`results`: {key} has other classes than by_class; give both the same")


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
