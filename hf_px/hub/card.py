"""The model card: facts that the ticket holds, in the Hub's own form; what was not measured is not there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..errors import TicketError
from ..models import ARCHITECTURES
from ..registry import scorers
from ..rounds import list_scorers
from . import format
from .format import DENSE, PACKED, Contents
from .picture import densities

NAME = "README.md"
PICTURE = "density.svg"
# who edits the card takes this line out, and it is theirs
MARK = "<!-- written by hf_px; remove this line to keep your own changes when the ticket is saved again -->"
_RESULT = {"dataset", "metric", "value", "dense", "split", "task", "dataset_name", "dataset_config", "note"}


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
    return {key: value for key, value in result.items() if value is not None}


def files(
    directory: Path, contents: Contents, layout: str, sizes: Mapping[str, int], repo: str | None
) -> dict[str, bytes]:
    """The card and its picture; without a card where somebody has written one by hand."""
    found = {PICTURE: densities(contents.mask).encode()}
    path = directory / NAME
    if not path.is_file() or is_ours(path):
        found[NAME] = text(contents, layout, sizes, repo).encode()
    return found


def is_ours(path: Path) -> bool:
    return MARK in path.read_text(encoding="utf-8", errors="replace")


def text(contents: Contents, layout: str, sizes: Mapping[str, int], repo: str | None) -> str:
    """The card of a ticket whose files have these sizes; `repo` is where it goes, if that is known."""
    told, mask = contents.ticket, contents.own_mask()
    kind = _kind(contents.model)
    names = contents.model.get("architectures") or [""]
    weights = layout != "mask-only"
    card = ModelCard.from_template(
        _metadata(contents, kind, layout),
        template_str=_template(),
        mark=MARK,
        repo=repo or "REPO",
        picture=PICTURE,
        told=told,
        kind=kind,
        loader=names[0] if kind == "transformers" else "AutoModelForImageClassification",
        name=_name(contents),
        layout=layout,
        sizes=sizes,
        packed=PACKED,
        dense=DENSE,
        bytes_dense=sum(t.numel() * t.element_size() for t in (contents.tensors or {}).values()) if weights else None,
        bound=format.bound(contents) if weights else None,
        sparsity=told.get("sparsity") or {"nominal": mask.sparsity, "kept": mask.kept, "total": mask.total},
        digest=contents.mask.digest(),
        layers=[(n, "x".join(map(str, b.shape)), int(b.sum()), b.numel()) for n, b in mask.bits.items()],
        method=scorers[told["scorer"]] if told.get("scorer") in list_scorers() else None,
        settings={k: v for k, v in told.get("settings", {}).items() if v is not None},
        results=told.get("results", []),
    )
    return str(card)


def _metadata(contents: Contents, kind: str, layout: str) -> ModelCardData:
    told = contents.ticket
    base = told.get("base")
    known: dict[str, Any] = {
        # the Hub shows how to load a model by this: with what reads the files that are there
        "library_name": kind if kind in ("timm", "transformers") and layout in ("both", "dense") else "hf_px",
        "license": told.get("license"),
        "base_model": base if isinstance(base, str) and base.count("/") == 1 else None,
        "base_model_relation": "finetune" if isinstance(base, str) and base.count("/") == 1 else None,
        "tags": sorted({"hf_px", "pruned", "sparse", "image-classification" if _classifies(contents) else "vision"}),
        "pipeline_tag": "image-classification" if _classifies(contents) else None,
        "datasets": sorted({r["dataset"] for r in told.get("results", []) if "/" in str(r["dataset"])}) or None,
    }
    results = [
        EvalResult(
            task_type=result.get("task", "image-classification"),
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


def _classifies(contents: Contents) -> bool:
    names = contents.model.get("architectures") or [""]
    return bool(contents.model.get("num_classes")) or str(names[0]).endswith("ForImageClassification")


def _template() -> str:
    try:
        return (resources.files("hf_px.model_cards") / "template.md").read_text(encoding="utf-8")
    except ModuleNotFoundError:  # a clone, or installed from one with --editable
        return (Path(__file__).parents[2] / "model_cards" / "template.md").read_text(encoding="utf-8")
