"""The model card: facts that the ticket holds, in the Hub's own form; what was not measured is not there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..core.errors import TicketError
from ..core.mask import Mask
from ..core.registry import scorers
from ..core.text import plain
from ..figures import layers
from ..models.networks import ARCHITECTURES, SEGMENTERS
from ..pruning import list_scorers
from . import ticket_file
from .ticket_file import DENSE, PACKED, Contents

NAME = "README.md"
PICTURE = "density.svg"
PREDICTIONS = "predictions.png"  # a run's, not ours: shown where it lies beside the card
# who edits the card takes this line out, and it is theirs
MARK = "<!-- written by hf_px; remove this line to keep your own changes when the ticket is saved again -->"
_RESULT = {"dataset", "metric", "value", "dense", "split", "task", "dataset_name", "dataset_config", "note"}
_RESULT |= {"by_class", "dense_by_class"}
_MOST_CLASSES = 300  # in a table; what a stranger's ticket says may have any length


def checked_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """One measurement: dataset, metric and value, and what else is known of it."""
    if odd := sorted(result.keys() - _RESULT):
        raise TicketError(f"results: {odd[0]!r} is not known; a result has {', '.join(sorted(_RESULT))}")
    if lacking := [key for key in ("dataset", "metric", "value") if result.get(key) is None]:
        raise TicketError(f"results: {lacking[0]} is missing; a result has at least dataset, metric and value")
    for key in ("value", "dense"):
        number = result.get(key)
        if number is not None and (not isinstance(number, (int, float)) or not math.isfinite(number)):
            raise TicketError(f"results: {key} is {number!r}, not a number that was measured")
    _check_by_class(result)
    return {key: value for key, value in result.items() if value is not None}


def _check_by_class(result: Mapping[str, Any]) -> None:
    """{class: value, or None where the test set has none of it}, and of the same classes for the dense model."""
    by_class = result.get("by_class")
    for key in ("by_class", "dense_by_class"):
        found = result.get(key)
        if found is None:
            continue
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise TicketError(f"results: {key} is {found!r:.100}, not a dict of class names to numbers")
        if odd := [name for name, value in found.items() if not (value is None or _finite(value))]:
            raise TicketError(
                f"results: {key} has {found[odd[0]]!r:.100} for {odd[0]!r:.100}; a number that was measured, or None"
            )
        if not isinstance(by_class, Mapping) or found.keys() != by_class.keys():
            raise TicketError(f"results: {key} has other classes than by_class; give both the same")


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def files(
    directory: Path, contents: Contents, layout: str, sizes: Mapping[str, int], repo: str | None
) -> dict[str, bytes]:
    """The card and its picture; without a card where somebody has written one by hand.

    The card shows what lies in the directory by now: predictions.png, if it is there.
    """
    found = {PICTURE: densities(contents.mask).encode()}
    path = directory / NAME
    if not path.is_file() or is_ours(path):
        found[NAME] = text(contents, layout, sizes, repo, (directory / PREDICTIONS).is_file()).encode()
    return found


def densities(mask: Mask) -> str:
    """Kept / total of each layer, from none to all; equal masks give equal pictures."""
    kept = {name: int(bits.sum()) for name, bits in mask.bits.items()}
    shares = [kept[name] / bits.numel() if bits.numel() else 0.0 for name, bits in mask.bits.items()]
    return layers(
        list(kept),
        {"density": shares},
        title=f"Density by layer, {1 - mask.sparsity:.2%} over all",
        x="share of its weights that a layer keeps",
        whole=1.0,
        texts={"density": [f"{share:.2%}" for share in shares]},
        alt=f"A bar a layer, from input to output: {mask.kept:,} of {mask.total:,} weights are kept.",
    )


def is_ours(path: Path) -> bool:
    return MARK in path.read_text(encoding="utf-8", errors="replace")


def text(contents: Contents, layout: str, sizes: Mapping[str, int], repo: str | None, predictions: bool = False) -> str:
    """The card of a ticket whose files have these sizes; `repo` is where it goes, if that is known."""
    told, mask = contents.ticket, contents.own_mask()
    kind = _kind(contents.model)
    names = contents.model.get("architectures") or [""]
    weights = layout != "mask-only"
    record = contents.model.get("pretrained_cfg")
    label_names = record.get("label_names") if isinstance(record, Mapping) else None
    card = ModelCard.from_template(
        _metadata(contents, kind, layout),
        template_str=_template(),
        mark=MARK,
        repo=repo or "REPO",
        picture=PICTURE,
        predictions=PREDICTIONS if predictions else None,
        told=told,
        kind=kind,
        loader=names[0] if kind == "transformers" else "AutoModelForImageClassification",
        name=_name(contents),
        layout=layout,
        sizes=sizes,
        packed=PACKED,
        dense=DENSE,
        bytes_dense=sum(t.numel() * t.element_size() for t in (contents.tensors or {}).values()) if weights else None,
        bound=ticket_file.bound(contents) if weights else None,
        sparsity=told.get("sparsity") or {"nominal": mask.sparsity, "kept": mask.kept, "total": mask.total},
        digest=contents.mask.digest(),
        layers=[(n, "x".join(map(str, b.shape)), int(b.sum()), b.numel()) for n, b in mask.bits.items()],
        method=scorers[told["scorer"]] if told.get("scorer") in list_scorers() else None,
        settings={k: v for k, v in told.get("settings", {}).items() if v is not None},
        results=told.get("results", []),
        by_class=[table for result in told.get("results", []) if (table := _by_class(result, label_names))],
        segments=task_of(contents.model) == "image-segmentation",
    )
    return str(card)


def _place(name: str, names: Any) -> tuple[int, int, str]:
    """In the order of the classes, where the ticket knows it; JSON has them by the alphabet."""
    known = names.index(name) if isinstance(names, list) and name in names else 2**31
    return known, int(name) if name.isdecimal() and len(name) < 9 else 2**31, name


def _by_class(result: Mapping[str, Any], names: Any) -> dict[str, Any] | None:
    """A table of one result by class; None where it has none."""
    try:
        _check_by_class(result)
    except TicketError:  # a stranger's, and the card is as good without
        return None
    ticket, dense = result.get("by_class"), result.get("dense_by_class")
    if not ticket:
        return None
    metric = plain(result.get("metric"))
    return {
        "title": f"{'IoU' if metric == 'mean_iou' else _cell(metric)} by class",
        "rows": [
            (_cell(name), _value(value), "not measured" if dense is None else _value(dense[name]))
            for name, value in sorted(ticket.items(), key=lambda item: _place(item[0], names))[:_MOST_CLASSES]
        ],
        "more": max(0, len(ticket) - _MOST_CLASSES),
    }


def _value(value: float | None) -> str:
    return "absent" if value is None else f"{value:.4f}"


def _cell(name: str) -> str:
    """A name that ends neither the cell of a table nor the table, and starts no link or tag."""
    return "".join(f"&#{ord(letter)};" if letter in "|<>&`*[]\\!_" else letter for letter in plain(name))


def _metadata(contents: Contents, kind: str, layout: str) -> ModelCardData:
    told = contents.ticket
    base = told.get("base")
    task = task_of(contents.model)
    known: dict[str, Any] = {
        # the Hub shows how to load a model by this: with what reads the files that are there
        "library_name": kind if kind in ("timm", "transformers") and layout in ("both", "dense") else "hf_px",
        "license": told.get("license"),
        "base_model": base if isinstance(base, str) and base.count("/") == 1 else None,
        "base_model_relation": "finetune" if isinstance(base, str) and base.count("/") == 1 else None,
        "tags": sorted({"hf_px", "pruned", "sparse", task or "vision"}),
        "pipeline_tag": task,
        "datasets": sorted({r["dataset"] for r in told.get("results", []) if "/" in str(r["dataset"])}) or None,
    }
    results = [
        EvalResult(
            task_type=result.get("task") or task or "image-classification",
            dataset_type=str(result["dataset"]),
            dataset_name=str(result.get("dataset_name", result["dataset"])),
            dataset_config=result.get("dataset_config"),
            dataset_split=result.get("split"),
            metric_type=result["metric"],
            metric_value=result["value"],
        )
        for result in told.get("results", [])
    ]
    known |= {"eval_results": results, "model_name": _name(contents)} if results else {}
    return ModelCardData(**{key: value for key, value in known.items() if value is not None})


def _name(contents: Contents) -> str:
    """What the model is, in a word."""
    names = contents.model.get("architectures") or [None]
    name = contents.model.get("architecture") or names[0] or contents.model.get("custom", "model").rpartition(".")[2]
    return f"{name}, {contents.mask.sparsity:.2%} sparse"


def _kind(model: Mapping[str, Any]) -> str:
    if "model_type" in model:
        return "transformers"
    if "custom" in model:
        return "custom"
    import timm

    # ours are timm's too, but only where hf_px is installed
    name = model["architecture"]
    return "timm" if timm.is_model(name) and name not in ARCHITECTURES else "hf_px"


def task_of(model: Mapping[str, Any]) -> str | None:
    """The Hub's name for what a model does, by its record; None where that is neither of ours."""
    names = model.get("architectures")
    name = names[0] if isinstance(names, list) and names else ""
    if model.get("architecture") in SEGMENTERS or str(name).endswith("ForSemanticSegmentation"):
        return "image-segmentation"
    if model.get("num_classes") or str(name).endswith("ForImageClassification"):
        return "image-classification"
    return None


def _template() -> str:
    try:
        return (resources.files("hf_px.model_cards") / "template.md").read_text(encoding="utf-8")
    except ModuleNotFoundError:  # a clone, or installed from one with --editable
        return (Path(__file__).parents[2] / "model_cards" / "template.md").read_text(encoding="utf-8")
