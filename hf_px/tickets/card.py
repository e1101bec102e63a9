"""The model card, from the facts that the ticket holds; what was not measured is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..core.errors import TicketError
from ..core.mask import Mask
from ..core.registry import scorers
from ..core.text import LONGEST, plain
from ..figures import draw_layers
from ..models.architecture import full_shapes, pipeline_task
from ..models.config_marks import OF_TORCHVISION, WIDTHS
from ..models.networks import ARCHITECTURES, OLD_NAMES
from ..pruning import list_scorers
from .exported_files import exported_sizes
from .provenance import check_by_class, is_repo_id, overall_sparsity, weights_outside
from .shrunk_ticket import read_shrunk
from .stored_dtype import recorded_dtype
from .ticket_file import DENSE, PACKED, Contents

CARD = "README.md"
CHART = "density.svg"
PREDICTIONS = "predictions.png"  # written by a recipe; the card shows it if it exists
DESCRIPTION = "Description"  # the key that PNG defines for a picture's description in words
SPEED = "speed.json"  # written by hf-px bench and by recipes; the card shows it if it is of this mask
GENERATED = "<!-- written by hf_px; remove this line to keep your own changes when the ticket is saved again -->"
_MOST_LINES, _LONGEST_LINE = 65, 600
_MOST_CLASSES = 300  # rows of a table; an untrusted ticket may list any number


def card_files(
    directory: Path, contents: Contents, layout: str, sizes: Mapping[str, int], repo: str | None
) -> dict[str, bytes]:
    """{file name: bytes} of the chart and the card; without the card if the one in `directory` was edited by hand."""
    files = {CHART: density_chart(contents.mask).encode()}
    path = directory / CARD
    if not path.is_file() or is_generated(path):
        predictions = read_predictions(directory / PREDICTIONS)
        speed = read_speed(directory / SPEED, contents.model_mask())
        # a push makes them together with the ticket; in another directory they may be of an older one
        exported = exported_sizes(directory) if repo else {}
        files[CARD] = card_text(contents, layout, sizes, repo, predictions, speed, exported).encode()
    return files


def read_speed(path: Path, mask: Mask) -> dict[str, Any] | None:
    """Milliseconds of one image, dense and sparse; None if the file is missing, damaged, or of another mask."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        times = {key: float(found[key]) for key in ("dense_ms", "sparse_ms")}
        if found["digest"] != mask.digest() or not all(0 < ms < math.inf for ms in times.values()):
            return None
        size = "x".join(str(int(side)) for side in found["image_size"])
        if "full_ms" in found and 0 < float(found["full_ms"]) < math.inf:
            times["full_ms"] = float(found["full_ms"])
        return times | {"machine": _table_cell(str(found["machine"])), "image_size": size}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def read_predictions(path: Path) -> list[str] | None:
    """The words of the picture of predictions, [] if it has none; None if there is no picture."""
    if not path.is_file():
        return None
    return [_table_cell(line, _LONGEST_LINE) for line in read_words(path)]


def read_words(path: Path) -> list[str]:
    """The words of a picture, untrusted; none if it has none, or is damaged."""
    from PIL import Image  # here: a ticket without a picture does not need it

    try:
        with Image.open(path, formats=("PNG",)) as file:
            text = file.info.get(DESCRIPTION, "")  # .text would decode all pixels, and there may be many
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # SyntaxError: PIL's of a broken PNG
        return []
    return [plain(line, _LONGEST_LINE) for line in str(text).splitlines()[:_MOST_LINES]]


def read_repair(ticket: Mapping[str, Any]) -> dict[str, Any] | None:
    """images, errors {layer: (before, after)} and their means, from an untrusted ticket; None without a repair."""
    found: Any = ticket.get("repair")
    try:
        errors = {str(n): (float(before), float(after)) for n, (before, after) in found["errors"].items()}
        images = int(found["images"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    if not errors or not all(0 <= value < math.inf for pair in errors.values() for value in pair):
        return None
    means = [sum(pair[i] for pair in errors.values()) / len(errors) for i in (0, 1)]
    return {"images": images, "errors": errors, "before": means[0], "after": means[1]}


def density_chart(mask: Mask) -> str:
    """SVG bar chart of kept / total of each layer; equal masks give equal charts."""
    kept = {name: int(bits.sum()) for name, bits in mask.bits.items()}
    shares = [kept[name] / bits.numel() if bits.numel() else 0.0 for name, bits in mask.bits.items()]
    return draw_layers(
        list(kept),
        {"density": shares},
        title=f"Density by layer, {1 - mask.sparsity:.2%} over these layers",
        x="share of its weights that a layer keeps",
        total=1.0,
        texts={"density": [f"{share:.2%}" for share in shares]},
        alt=f"One bar per layer, from input to output: {mask.kept:,} of {mask.total:,} weights are kept.",
    )


def is_generated(path: Path) -> bool:
    """False for a card that was edited by hand."""
    return GENERATED in path.read_text(encoding="utf-8", errors="replace")


def card_text(
    contents: Contents,
    layout: str,
    sizes: Mapping[str, int],
    repo: str | None,
    predictions: Sequence[str] | None,
    speed: Mapping[str, Any] | None = None,
    exported: Mapping[str, int] | None = None,
) -> str:
    """The card of a ticket whose files have these sizes; `repo` is its Hub id, if known."""
    ticket, mask = contents.ticket, contents.model_mask()
    library = _library(contents.model)
    classes = contents.model.get("architectures") or [""]
    has_weights = layout != "mask-only"
    record = contents.model.get("pretrained_cfg")
    label_names = record.get("label_names") if isinstance(record, Mapping) else None
    results, recorded = ticket.get("results", []), ticket.get("sparsity")
    card = ModelCard.from_template(
        _metadata(contents, library, layout),
        template_str=_template(),
        generated=GENERATED,
        repo=repo or "REPO",
        chart=CHART,
        predictions=PREDICTIONS if predictions is not None else None,
        predictions_words=predictions,
        speed=speed,
        exported=exported or {},
        ticket=ticket,
        library=library,
        auto_class=classes[0] if library == "transformers" else "AutoModelForImageClassification",
        name=_model_name(contents),
        layout=layout,
        sizes=sizes,
        packed=PACKED,
        dense=DENSE,
        dense_bytes=sum(t.nbytes for t in (contents.tensors or {}).values()) if has_weights else None,
        bound=entropy_bound(contents) if has_weights else None,
        sparsity=(ticket.get("sparsity") or {"kept": mask.kept, "total": mask.total})
        | {"nominal": overall_sparsity(recorded, mask), "masked": mask.sparsity, "outside": weights_outside(recorded)},
        digest=contents.mask.digest(),
        layers=_layer_rows(contents),
        method=scorers[ticket["scorer"]] if ticket.get("scorer") in list_scorers() else None,
        settings={k: v for k, v in ticket.get("settings", {}).items() if v is not None},
        results=results,
        warnings=list(
            dict.fromkeys(_table_cell(str(r["warning"]), 4 * _LONGEST_LINE) for r in results if r.get("warning"))
        ),
        by_class=[table for result in results if (table := _by_class_table(result, label_names))],
        dtype=recorded_dtype(ticket),
        segments=pipeline_task(contents.model) == "image-segmentation",
        repair=read_repair(ticket),
        shrunk=read_shrunk(ticket),
    )
    return str(card)


def _layer_rows(contents: Contents) -> list[tuple[str, str, int, int]]:
    """(name, shape, kept, total) of each layer; where shrink has cut it, with its shape at full width."""
    full = full_shapes(contents.model)
    rows = []
    for name, bits in contents.mask.bits.items():
        before, shape = ("x".join(map(str, each)) for each in (full.get(name, bits.shape), bits.shape))
        rows.append((name, shape if shape == before else f"{shape} of {before}", int(bits.sum()), bits.numel()))
    return rows


def entropy_bound(contents: Contents) -> int:
    """Least bytes for random masks: stored values at their own width, and Σ n·H(kept/n) bits for the masks."""
    tensors, bits = contents.tensors or {}, contents.mask.bits
    dense = sum(t.numel() * t.element_size() for name, t in tensors.items() if name not in bits)
    parts = [(int(b.sum()), b.numel(), tensors[name].element_size()) for name, b in bits.items()]
    return math.ceil(dense + sum(kept * width + n * _entropy(kept, n) / 8 for kept, n, width in parts))


def _entropy(kept: int, total: int) -> float:
    """H(p) = -p log₂ p - (1 - p) log₂ (1 - p), in bits, for p = kept / total."""
    shares = [count / total for count in (kept, total - kept) if 0 < count < total]
    return -sum(p * math.log2(p) for p in shares)


def _class_order(name: str, names: Any) -> tuple[int, int, str]:
    """Sort key: the order of the label names if the ticket has them, else by number, else by name."""
    known = names.index(name) if isinstance(names, list) and name in names else 2**31
    return known, int(name) if name.isdecimal() and len(name) < 9 else 2**31, name


def _by_class_table(result: Mapping[str, Any], names: Any) -> dict[str, Any] | None:
    """A table of one result by class; None if it has none."""
    try:
        check_by_class(result)
    except TicketError:  # from an untrusted ticket: the card leaves it out
        return None
    ticket, dense = result.get("by_class"), result.get("dense_by_class")
    if not ticket:
        return None
    metric = plain(result.get("metric"))
    return {
        "title": f"{'IoU' if metric == 'mean_iou' else _table_cell(metric)} by class",
        "rows": [
            (_table_cell(name), _value(value), "not measured" if dense is None else _value(dense[name]))
            for name, value in sorted(ticket.items(), key=lambda item: _class_order(item[0], names))[:_MOST_CLASSES]
        ],
        "more": max(0, len(ticket) - _MOST_CLASSES),
    }


def _value(value: float | None) -> str:
    return "absent" if value is None else f"{value:.4f}"


def _table_cell(name: str, longest: int = LONGEST) -> str:
    """An untrusted name with Markdown and HTML escaped, so that it cannot end the table or start a link or tag."""
    return "".join(f"&#{ord(letter)};" if letter in "|<>&`*[]\\!_" else letter for letter in plain(name, longest))


def _metadata(contents: Contents, library: str, layout: str) -> ModelCardData:
    ticket = contents.ticket
    base = ticket.get("base")
    on_hub = isinstance(base, str) and base.count("/") == 1
    task = pipeline_task(contents.model)
    results = ticket.get("results", [])
    dense_copy = layout in ("both", "dense") and WIDTHS not in contents.model
    metadata: dict[str, Any] = {
        # the Hub's "Use this model" button: a library that can read the files of this layout
        "library_name": library if library in ("timm", "transformers") and dense_copy else "hf_px",
        "license": ticket.get("license"),
        "base_model": base if on_hub else None,
        "base_model_relation": "finetune" if on_hub else None,
        "tags": sorted({"hf_px", "pruned", "sparse", task or "vision"}),
        "pipeline_tag": task,
        "datasets": _datasets(ticket) or None,
    }
    evaluations = [
        EvalResult(
            task_type=result.get("task") or task or "image-classification",
            dataset_type=str(result["dataset"]),
            dataset_name=str(result.get("dataset_name", result["dataset"])),
            dataset_config=result.get("dataset_config"),
            dataset_split=result.get("split"),
            metric_type=result["metric"],
            metric_value=result["value"],
        )
        for result in results
    ]
    metadata |= {"eval_results": evaluations, "model_name": _model_name(contents)} if evaluations else {}
    return ModelCardData(**{key: value for key, value in metadata.items() if value is not None})


def _datasets(ticket: Mapping[str, Any]) -> list[str]:
    """Hub ids of the data that an untrusted ticket was made with or measured on."""
    made_with = ticket.get("datasets")
    names = [*(made_with if isinstance(made_with, list) else []), *(r["dataset"] for r in ticket.get("results", []))]
    return sorted({name for name in names if isinstance(name, str) and is_repo_id(name)})


def _model_name(contents: Contents) -> str:
    names = contents.model.get("architectures") or [None]
    name = contents.model.get("architecture") or names[0] or contents.model.get("custom", "model").rpartition(".")[2]
    shrunk, sparsity = read_shrunk(contents.ticket), overall_sparsity(contents.ticket.get("sparsity"), contents.mask)
    smaller = f", {1 - shrunk.weights[1] / shrunk.weights[0]:.2%} of its weights removed" if shrunk else ""
    return f"{name}{smaller}" + (f", {sparsity:.2%} sparse" if sparsity or not shrunk else "")


def _library(model: Mapping[str, Any]) -> str:
    """The library that builds the model: transformers, timm, hf_px, or "custom" for none of them."""
    if "model_type" in model:
        return "transformers"
    if "custom" in model:
        return "custom"
    name = model["architecture"]
    ours = {name, OLD_NAMES.get(name)} & ARCHITECTURES.keys() or str(name).startswith(OF_TORCHVISION)
    return "hf_px" if ours else "timm"


def _template() -> str:
    try:
        return (resources.files("hf_px.model_cards") / "template.md").read_text(encoding="utf-8")
    except ModuleNotFoundError:  # a clone, or an editable install
        return (Path(__file__).parents[2] / "model_cards" / "template.md").read_text(encoding="utf-8")
