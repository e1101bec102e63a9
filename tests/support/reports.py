"""Reports that tests share, with one or more tickets, long names and many layers; the numbers are made up."""

from __future__ import annotations

from hf_px.figures import Table, draw_boxes, draw_heatmap, draw_layers
from hf_px.report import Figure, Report, Section
from support.svg import draw_lines

HOSTILE = '<script>alert("x")</script>]]>&\'"\x1b[2J\x00\u202e --> <img src=http://evil.example/x.png> [a](http://evil)'
TICKETS = ("px-98", "synflow-l2, 98.20 %", "hf-user/resnet20-digits-px-sap-long-name-seed-3", "random")
SHORT = ("conv.weight", *(f"blocks.{i}.{part}.weight" for i in range(9) for part in ("conv1", "conv2")), "head.weight")
LONG = tuple(
    f"base_model.encoder.layer.{i}.{part}.weight"
    for i in range(16)
    for part in (
        *("attention.attention.query", "attention.attention.key", "attention.attention.value"),
        *("attention.output.dense", "intermediate.dense", "output.dense", "layer_scale1.gamma_of_it", "mlp.fc1.linear"),
        *("mlp.fc2.linear", "x"),
    )
)


def by_layer(names: tuple[str, ...], series: dict[str, list], spec: str = ".2%") -> Table:
    rows = tuple((name, *(values[i] for values in series.values())) for i, name in enumerate(names))
    return Table(("layer", *series), rows, ("", *(spec for _ in series)))


def a_report(tickets: tuple[str, ...] = TICKETS, names: tuple[str, ...] = SHORT, words: str = "A paragraph.") -> Report:
    """A report with every kind of figure and table."""
    n = len(tickets)
    rows = (
        ("kept weights", *(f"{4876 + i:,} of 270,896" for i in range(n))),
        ("base", *["hf-user/a-repository-with-a-rather-long-name@0123456789abcdef0123456789abcdef"] * n),
        ("accuracy", *(0.9 + i / 100 for i in range(n))),
        ("seed", *[None] * n),
    )
    sections = (
        density_section(tickets, names, words),
        spectrum_section(tickets, words),
        Section(
            "scores",
            "Scores",
            (words,),
            (scores_figure(tickets, names), overlap_figure(tickets), rounds_figure(tickets)),
        ),
        cost_section(tickets),
    )
    command = f"hf-px report {' '.join(tickets)} --output report/"
    return Report(
        "What the tickets kept, and what is left of the network",
        (words, "All numbers were measured on this machine."),
        Table(("", *tickets), rows),
        sections,
        {"command": command, "seed": 0, "data": "digits", "nan": float("nan")},
    )


def density_section(tickets: tuple[str, ...], names: tuple[str, ...], words: str) -> Section:
    shares = {t: [((7 * i + 3 * j) % 11) / 10 for i in range(len(names))] for j, t in enumerate(tickets)}
    units = {t: [round(64 * share) for share in values] for t, values in shares.items()}
    density = draw_layers(names, shares, title="Density by layer", x="share kept", total=1.0, alt="…")
    width = draw_layers(names, units, title="Live output units", x="units", total=64, alt="Units")
    figures = (
        Figure("density-by-layer", "Density by layer", density, by_layer(names, shares), words),
        Figure("width", "Live units", width, by_layer(names, units, "d")),
    )
    return Section("density", "Density and width", (words,), figures)


def spectrum_section(tickets: tuple[str, ...], words: str) -> Section:
    spectra = {t: [(k, 1e4 * k ** -(1 + j / 3)) for k in range(1, 501)] for j, t in enumerate(("dense", *tickets))}
    title = "Eigenvalues of the fixed-weight NTK, the largest first"
    svg = draw_lines(spectra, title=title, x="rank", y="eigenvalue", log_x=True, log_y=True)
    rows = tuple((k + 1, *(points[k][1] for points in spectra.values())) for k in range(0, 500, 10))
    table = Table(("rank", *spectra), rows, ("d", *(".4g" for _ in spectra)))
    distances = Table(("ticket", "distance to dense"), tuple((t, i / 7) for i, t in enumerate(tickets)), ("", ".4f"))
    figures = (Figure("ntk", "Eigenvalues", svg, table),)
    return Section("spectrum", "Spectrum of the fixed-weight NTK", (words, words), figures, distances)


def scores_figure(tickets: tuple[str, ...], names: tuple[str, ...]) -> Figure:
    scores = [tuple(10.0 ** (q - i % 5) for q in (-4, -3, -2.4, -2, 0)) for i in range(len(names))]
    look = {"title": "Scores by layer", "x": "score", "alt": "Scores"}
    svg = draw_boxes(names, scores, name=tickets[0], threshold=1e-3, **look)
    quantiles = ("least", "quarter", "middle", "three quarters", "most")
    table = Table(("layer", *quantiles), tuple((a, *b) for a, b in zip(names, scores)), ("", *[".3g"] * 5))
    return Figure("scores-by-layer", "Scores by layer", svg, table)


def overlap_figure(tickets: tuple[str, ...]) -> Figure:
    n = len(tickets)
    overlap = [[1.0 if a == b else 1 / (2 + abs(a - b)) for b in range(n)] for a in range(n)]
    svg = draw_heatmap(tickets, overlap, title="Overlap of masks (Jaccard)", alt="Overlap")
    table = Table(("ticket", *tickets), tuple((t, *row) for t, row in zip(tickets, overlap)), ("", *[".4f"] * n))
    return Figure("overlap", "Overlap of masks", svg, table)


def rounds_figure(tickets: tuple[str, ...]) -> Figure:
    rounds = {t: [(r, 90 + j + r / 100) for r in (1, 2, 10, 100, 200)] for j, t in enumerate(tickets)}
    svg = draw_lines(rounds, title="Accuracy against rounds", x="rounds", y="test accuracy, %", log_x=True)
    table = Table(("ticket", "accuracy"), tuple((t, points[-1][1]) for t, points in rounds.items()))
    return Figure("rounds", "Accuracy against rounds", svg, table)


def cost_section(tickets: tuple[str, ...]) -> Section:
    table = Table(
        ("ticket", "multiply-adds", "of them live", "latency, ms", "± ms", "packed bytes"),
        tuple((t, 41_000_000, 820_000 + i, 12.3456, 0.1, 12345) for i, t in enumerate(tickets)),
        ("", ",d", ",d", ".2f", ".2f", ",d"),
    )
    return Section("cost", "Cost", ("Unstructured zeros do not make it faster here.",), table=table)
