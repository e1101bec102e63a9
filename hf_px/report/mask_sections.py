"""Masks: the scores that made them, and what they share."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis import by_chance, overlap
from ..figures import Table, boxes, heatmap, layers
from .document import Figure, Section
from .measure import Measured
from .wording import end, names, titled


def scores(groups: Sequence[Sequence[Measured]]) -> Section | None:
    figures: list[Figure] = []
    words = [
        "By layer: least, a quarter, the middle, three quarters and most, on a log scale; zeros are not drawn. Scales "
        "of two methods do not compare."
    ]
    found_by = [one for group in groups for one in group if one.network.saliency is not None]
    if any(one.network.dense is not None for one in found_by):
        words.append("Of a model that was pruned here: what the last round saw. The threshold is the least that stays.")
    if any(one.network.dense is None for one in found_by):
        words.append(
            "Of a ticket: the scores of its weights as they are now; nothing is cut, so there is no threshold."
        )
    words += [
        f"No scores of {one.name}: {one.network.unscored}."
        for group in groups
        for one in group
        if one.network.mask is not None and one.network.unscored
    ]
    for one in found_by:
        found = one.network.saliency
        assert found is not None
        names = [row.name for row in found.rows]
        marks = {} if found.threshold is None else {"threshold": found.threshold}
        title = f"Scores by layer: {one.name}"
        rows = tuple((row.name, row.scored, row.kept, row.zero, *(row.quantiles or (None,) * 5)) for row in found.rows)
        head = ("layer", "scored", "kept", "exactly 0", "least", "a quarter", "middle", "three quarters", "most")
        alt = f"{sum(row.scored for row in found.rows):,} weights scored"
        alt += "" if found.threshold is None else f", those from {found.threshold:.3g} up stay"
        figures.append(
            Figure(
                f"scores-{len(figures) + 1}",
                title,
                boxes(
                    names,
                    {one.name: [row.quantiles for row in found.rows]},
                    title=title,
                    x="score",
                    marks=marks,
                    order=[other.name for group in groups if one in group for other in group],
                    alt=alt,
                ),
                Table(head, rows, ("", ",d", ",d", ",d", *(".3g",) * 5)),
            )
        )
        if found.threshold is not None and not found.clean:
            words.append(f"{one.name}: no single threshold: layers were cut by their own.")
    return Section("scores", "Scores", tuple(words), tuple(figures)) if len(words) > 1 else None


def overlaps(groups: Sequence[Sequence[Measured]]) -> Section | None:
    figures: list[Figure] = []
    words = [
        "Jaccard: of the weights that one mask or the other keeps, the part that both keep; 1 is the same mask.",
    ]
    for i, group in enumerate(groups):
        pruned = [one for one in group if one.network.mask is not None]
        if len(pruned) < 2:
            continue
        masks = {one.name: one.network.bits for one in pruned}
        pairs = {(a, b): overlap(masks[a], masks[b]) for a in masks for b in masks}
        values = [[pairs[a, b].all.jaccard for b in masks] for a in masks]
        title = titled("Overlap of masks", group, groups)
        low = min((pairs[a, b].all.jaccard, a, b) for a, b in pairs if a != b)
        high = max((pairs[a, b].all.jaccard, a, b) for a, b in pairs if a != b)
        alt = f"most alike: {high[1]} and {high[2]}, {high[0]:.2f}; least: {low[1]} and {low[2]}, {low[0]:.2f}"
        figures.append(
            Figure(
                f"overlap-of-masks{end(i, groups)}",
                title,
                heatmap(list(masks), values, title=title, alt=alt),
                Table(("", *masks), tuple((a, *row) for a, row in zip(masks, values)), ("", *(".3f" for _ in masks))),
            )
        )
        first = pruned[0].name
        by_name = [row.name for row in pairs[first, first].rows]
        series = {b: [row.jaccard for row in pairs[first, b].rows] for b in masks if b != first}
        title = f"Overlap by layer with {first}"
        figures.append(
            Figure(
                f"overlap-by-layer{end(i, groups)}",
                title,
                layers(
                    by_name,
                    series,
                    title=title,
                    x="Jaccard",
                    whole=1.0,
                    order=names(group),
                    alt=f"{alt}; by layer in the table",
                ),
                Table(
                    ("layer", *series),
                    tuple((n, *(s[k] for s in series.values())) for k, n in enumerate(by_name)),
                    ("", *(".3f" for _ in series)),
                ),
            )
        )
        chance = by_chance(masks[first], masks[pruned[1].name])
        words.append(f"Of masks drawn at random with these densities one would expect {chance:.3f}.")
    masked = [one for group in groups for one in group if one.network.mask is not None]
    if len(groups) > 1 and len(masked) > 1:
        words.append("Masks of networks that are unlike in their layers or images do not compare.")
    return Section("overlap", "Overlap", tuple(words), tuple(figures)) if len(masked) > 1 else None
