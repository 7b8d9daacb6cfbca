"""The HTML report of a drill: one page that needs nothing else; plots as SVG with the faults drawn in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10

from rmqha.drill.report import DrillReport, Result, Round, RoundReport, report_of
from rmqha.ops.local.phases import PHASES

STEP_MS = 100
"""Time (ms) of one point of the plots."""
WIDTH, HEIGHT, LEFT, BOTTOM = 1000, 180, 60, 24
MAX_LATENCY_MS = 60_000
PHASE_COLOURS = {
    name.removesuffix("_ms").replace("_", " "): colour
    for name, colour in zip(PHASES, ("#7b241c", "#b9770e", "#6c3483", "#1e8449", "#117a65", "#000000"), strict=True)
}
STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:1060px}table{border-collapse:collapse}"
    "td,th{padding:2px 10px;text-align:right}td:first-child,th:first-child{text-align:left}"
    ".bad{color:#b00}svg{display:block;margin:8px 0}text{font-size:11px;fill:#444}"
)


def page(result: Result) -> str:
    """The HTML page of a drill."""
    found = report_of(result)
    title = escape(f"drill {found.scenario}, {found.target}, {found.mode}")
    verdict = "".join(f'<p class="bad">BROKEN: {escape(sentence)}</p>' for sentence in found.broken)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{title}</title><style>{STYLE}</style></head>",
        f"<body><h1>{title}</h1>",
        f"<p>{len(found.rounds)} of {found.n} faults, {found.rate_per_s} messages a second: "
        f"{found.acked} acknowledged, {found.lost} lost, {found.duplicates} duplicates, "
        f"{found.given_up} given up.</p>",
        verdict or "<p>All that is promised held.</p>",
        _plots(result),
        _figures(found),
        _rounds(found.rounds),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _plots(result: Result) -> str:
    acked = result.traffic.acked
    if not acked:
        return "<p>Nothing was acknowledged.</p>"
    begin = min(item.at_ms for item in acked)
    count = (max(item.at_ms for item in acked) - begin) // STEP_MS + 1
    rates, slowest = [0] * count, [0] * count
    for item in acked:
        at = (item.at_ms - begin) // STEP_MS
        rates[at] += 1000 // STEP_MS
        slowest[at] = max(slowest[at], item.latency_ms)
    # a tenth of a second without an acknowledgement has no latency: the line is broken there
    levels = [log10(max(1, value)) if rate else None for value, rate in zip(slowest, rates, strict=True)]
    rate_marks = [(str(value), float(value)) for value in (0, max(rates))]
    latency_marks = [(f"{value} ms", log10(value)) for value in (1, 10, 100, 1000, 10_000) if value <= MAX_LATENCY_MS]
    return (
        "<h2>Acknowledgements a second</h2>"
        + _plot([float(value) for value in rates], rate_marks, result.rounds, begin)
        + "<h2>Slowest acknowledged send, by the time of its acknowledgement</h2>"
        + _plot(levels, latency_marks, result.rounds, begin)
        + "<p>Dark: from the fault until it was taken back. Light: until all was well. Upright lines: the phases of "
        "each failover, in their order; a gap in the lower line: nothing was acknowledged.</p>"
    )


def _plot(
    values: Sequence[float | None], marks: Sequence[tuple[str, float]], rounds: Sequence[Round], begin_ms: int
) -> str:
    """One plot as SVG. `values`: one per STEP_MS, None where there is nothing to draw; `marks`: labels of the vertical
    axis, the last one is its top."""
    top = max(marks[-1][1], *(value for value in values if value is not None), 1e-9)
    span_ms = len(values) * STEP_MS

    def x(at_ms: float) -> float:
        return LEFT + max(0.0, min(1.0, at_ms / span_ms)) * (WIDTH - LEFT)

    def y(value: float) -> float:
        return (HEIGHT - BOTTOM) * (1 - value / top)

    drawn = []
    for item in rounds:
        healed = item.healed_at_ms or item.fault_at_ms
        for since, until, colour in (
            (item.fault_at_ms, healed, "#f5b7b1"),
            (healed, item.healthy_at_ms or healed, "#fdebd0"),
        ):
            left, right = x(since - begin_ms), x(until - begin_ms)
            drawn.append(
                f'<rect x="{left:.1f}" y="0" width="{right - left:.1f}" height="{HEIGHT - BOTTOM}" fill="{colour}">'
                f"<title>{escape(' and '.join(item.hit))}</title></rect>"
            )
        for name, at_ms in _phase_marks(item):
            place = x(at_ms - begin_ms)
            drawn.append(
                f'<line class="phase" x1="{place:.1f}" x2="{place:.1f}" y1="0" y2="{HEIGHT - BOTTOM}" '
                f'stroke="{PHASE_COLOURS[name]}"><title>{escape(name)} {at_ms - item.fault_at_ms} ms</title></line>'
            )
    for label, value in marks:
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y(value) + 9:.1f}" text-anchor="end">{escape(label)}</text>')
    for part in _unbroken(values):
        points = " ".join(f"{x(at * STEP_MS):.1f},{y(value):.1f}" for at, value in part)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="#1a5276" stroke-linecap="round"/>')
    drawn.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">0 s</text>')
    drawn.append(f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{span_ms / 1000:.0f} s</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">{"".join(drawn)}</svg>'


def _phase_marks(item: Round) -> list[tuple[str, int]]:
    """Names and wall times of the phases that a failover went through."""
    return [
        (name.removesuffix("_ms").replace("_", " "), item.fault_at_ms + after_ms)
        for name, after_ms in item.phases.items()
        if after_ms is not None
    ]


def _unbroken(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Runs of (place, value) without a None between them; a lone point is drawn as a line of no length."""
    runs: list[list[tuple[int, float]]] = []
    joined = False
    for at, value in enumerate(values):
        if value is not None:
            if not joined:
                runs.append([])
            runs[-1].append((at, value))
        joined = value is not None
    return [run if len(run) > 1 else run * 2 for run in runs]


def _figures(found: DrillReport) -> str:
    rows = [(name.removesuffix("_ms").replace("_", " "), figures) for name, figures in found.phases.items()]
    rows += [("no acknowledgement", found.unavailable_ms), ("heal to all well", found.recovery_ms)]
    cells = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{figure}</td>" for figure in (figures.p50, figures.p90, figures.max, figures.n))
        + "</tr>"
        for name, figures in rows
        if figures.n
    )
    buckets = "".join(
        f"<tr><td>{'more' if row.le_ms is None else row.le_ms}</td><td>{row.count}</td></tr>"
        for row in found.latency_buckets
    )
    return (
        f"<h2>Milliseconds</h2><table><tr><th></th><th>p50</th><th>p90</th><th>max</th><th>n</th></tr>{cells}</table>"
        f"<h2>Latency</h2><table><tr><th>up to, ms</th><th>sends</th></tr>{buckets}</table>"
    )


def _rounds(rounds: Sequence[RoundReport]) -> str:
    names = ("failover_ms", "unavailable_ms", "recovery_ms", "cut_bytes", "stale_acked")
    head = "".join(f"<th>{name}</th>" for name in ("hit", "led afterwards", *names, "notes"))
    body = ""
    for item in rounds:
        figures = (item.failover_ms, item.unavailable_ms, item.recovery_ms, item.cut_bytes, item.stale_acked)
        body += (
            f"<tr><td>{escape(' '.join(item.hit))}</td><td>{escape(item.master)}</td>"
            + "".join(f"<td>{'' if figure is None else figure}</td>" for figure in figures)
            + f"<td>{escape('; '.join(item.notes))}</td></tr>"
        )
    return f"<h2>Faults</h2><table><tr>{head}</tr>{body}</table>"
