"""The sections on masks: the scores that made them, and their overlap."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.overlap import overlap, random_jaccard
from ..figures import Table, draw_boxes, draw_heatmap
from ..figures.table import Value
from .document import Figure, Section
from .measure import Measured
from .wording import Group, layer_figure

_SCORES_HEAD = ("layer", "scored", "kept", "exactly 0", "least", "a quarter", "middle", "three quarters", "most")


def scores_section(groups: Sequence[Group]) -> Section | None:
    """None if no network has scores, nor a reason why it has none."""
    everyone = [one for group in groups for one in group.members]
    scored = [one for one in everyone if one.network.saliency is not None]
    reasons = [
        f"No scores of {one.name}: {one.network.no_scores_reason}." for one in everyone if one.network.no_scores_reason
    ]
    if not scored and not reasons:
        return None
    paragraphs = [
        "By layer: minimum, quartiles, median and maximum on a log scale; zeros are not drawn. The scales of two "
        "methods do not compare."
    ]
    if any(one.network.dense_name is not None for one in scored):
        paragraphs.append("For a model pruned here: the scores of its last round; the threshold is the lowest kept.")
    if any(one.network.dense_name is None for one in scored):
        paragraphs.append(
            "For a ticket: the scores of its weights as they are now; nothing is removed, so there is no threshold."
        )
    paragraphs += reasons
    for one in scored:
        found = one.network.saliency
        if found is not None and found.threshold is not None and not found.clean:
            paragraphs.append(f"{one.name}: no single threshold; each layer has its own.")
    orders = {one.name: group.names for group in groups for one in group.members}
    figures = [_scores_figure(f"scores-{i}", one, orders[one.name]) for i, one in enumerate(scored, 1)]
    return Section("scores", "Scores", tuple(paragraphs), tuple(figures))


def _scores_figure(name: str, one: Measured, order: Sequence[str]) -> Figure:
    found = one.network.saliency
    assert found is not None
    title = f"Scores by layer: {one.name}"
    rows = tuple((row.name, row.scored, row.kept, row.zero, *(row.quantiles or (None,) * 5)) for row in found.rows)
    alt = f"{sum(row.scored for row in found.rows):,} weights scored"
    alt += "" if found.threshold is None else f", those from {found.threshold:.3g} up are kept"
    svg = draw_boxes(
        [row.name for row in found.rows],
        [row.quantiles for row in found.rows],
        name=one.name,
        title=title,
        x="score",
        threshold=found.threshold,
        order=order,
        alt=alt,
    )
    return Figure(name, title, svg, Table(_SCORES_HEAD, rows, ("", ",d", ",d", ",d", *(".3g",) * 5)))


def overlap_section(groups: Sequence[Group]) -> Section | None:
    """None if there are fewer than two masks."""
    if sum(len(group.pruned) for group in groups) < 2:
        return None
    figures: list[Figure] = []
    paragraphs = ["Jaccard index: of the weights that either mask keeps, the share that both keep; 1 is the same mask."]
    for group in groups:
        if len(group.pruned) > 1:
            figures += _overlap_figures(group)
            expected = random_jaccard(*(one.network.bits for one in group.pruned[:2]))
            paragraphs.append(f"Random masks of these densities have an expected index of {expected:.3f}.")
    if len(groups) > 1:
        paragraphs.append("Masks of networks with different layers or image sizes do not compare.")
    return Section("overlap", "Overlap", tuple(paragraphs), tuple(figures))


def _overlap_figures(group: Group) -> list[Figure]:
    """A matrix of all pairs, and the overlap with the first mask by layer."""
    title = f"Overlap of masks{group.title_suffix}"
    masks = {one.name: one.network.bits for one in group.pruned}
    pairs = {(a, b): overlap(masks[a], masks[b]) for a in masks for b in masks}
    values = [[pairs[a, b].all.jaccard for b in masks] for a in masks]
    low, high = (end((pairs[a, b].all.jaccard, a, b) for a, b in pairs if a != b) for end in (min, max))
    alt = f"most alike: {high[1]} and {high[2]}, {high[0]:.2f}; least: {low[1]} and {low[2]}, {low[0]:.2f}"
    rows: tuple[tuple[Value, ...], ...] = tuple((a, *row) for a, row in zip(masks, values))
    first = group.pruned[0].name
    series = {b: [row.jaccard for row in pairs[first, b].rows] for b in masks if b != first}
    return [
        Figure(
            f"overlap-of-masks{group.file_suffix}",
            title,
            draw_heatmap(list(masks), values, title=title, alt=alt),
            Table(("", *masks), rows, ("", *(".3f" for _ in masks))),
        ),
        layer_figure(
            group,
            "overlap-by-layer",
            f"Overlap by layer with {first}",
            [row.name for row in pairs[first, first].rows],
            series,
            series,
            spec=".3f",
            x="Jaccard",
            total=1.0,
            alt=f"{alt}; by layer in the table",
        ),
    ]
