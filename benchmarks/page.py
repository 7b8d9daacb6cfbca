"""benchmarks/results/index.html: every table that has been measured, with plots of medians, spread and ratios. Pure.

Each number stands before a bar that is as long as the number is large among those of its column. Where a row has
median, p90 and max, or a ratio with its range, a line shows them on one scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.figures import cell, machine_line

Row = Mapping[str, Any]
STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:1100px}table{border-collapse:collapse;margin:8px 0}"
    "td,th{padding:2px 10px;text-align:right;vertical-align:top}td:first-child,th:first-child{text-align:left}"
    "td i{display:block;height:3px;background:#5d8aa8;margin-left:auto}svg{display:block;margin:8px 0}"
    "text{font-size:11px;fill:#444}"
)
WIDTH, LEFT, RIGHT, LINE = 900, 330, 60, 20
SPREAD = ("median", "p90", "max")
RATIO = ("× from", "×", "to")


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """`results`: what `benchmarks.figures.measured` wrote, each with its machine."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>rmqha benchmarks</title>',
        f"<style>{STYLE}</style></head><body><h1>Benchmarks</h1>",
        "<p>Compare inside one table: two were not measured at the same time. "
        "docs/operate/measurements.md says how.</p>",
    ]
    for result in results:
        name, busy = escape(str(result["name"])), result["load_average_after"]
        parts.append(f"<h2>{name}</h2><p>{escape(machine_line(result['machine']))}, {busy} after</p>")
        for title, rows in tables(result).items():
            parts += [f"<h3>{escape(title)}</h3>", _intervals(rows), _table(rows)]
    return "\n".join([*parts, "</body></html>\n"])


def tables(result: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Members of a result that are lists of flat rows, by name; `each` is what the rows were made of."""
    found = {}
    for name, value in result.items():
        rows = value if isinstance(value, list) and name != "each" else []
        if rows and all(isinstance(row, dict) and not _nested(row) for row in rows):
            found[name] = rows
    return found


def _nested(row: Row) -> bool:
    return any(isinstance(value, (list, dict)) for value in row.values())


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _table(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    tops = {
        name: max((abs(row[name]) for row in rows if _number(row.get(name))), default=0.0) if at else 0.0
        for at, name in enumerate(names)
    }
    lines = ["".join(f"<th>{escape(name)}</th>" for name in names)]
    for row in rows:
        cells = []
        for name in names:
            value = row.get(name, "")
            share = abs(value) / tops[name] if tops[name] and _number(value) else 0.0
            bar = f'<i style="width:{share * 100:.1f}%"></i>' if share else ""
            cells.append(f"<td>{escape(cell(value))}{bar}</td>")
        lines.append("".join(cells))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _intervals(rows: Sequence[Row]) -> str:
    """One line for each row that has a spread; "" if none has."""
    for names in (SPREAD, RATIO):
        spread = [row for row in rows if all(_number(row.get(name)) for name in names)]
        if spread:
            return _plot(spread, names)
    return ""


def _plot(rows: Sequence[Row], names: tuple[str, str, str]) -> str:
    is_ratio = names == RATIO
    # a ratio of 1 is what everything is held against
    top = max([1.0 if is_ratio else 0.0, *(float(row[name]) for row in rows for name in names)]) or 1.0

    def x(value: float) -> float:
        return LEFT + value / top * (WIDTH - LEFT - RIGHT)

    height = LINE * len(rows) + 4
    drawn = []
    if is_ratio:
        drawn.append(f'<line x1="{x(1):.1f}" x2="{x(1):.1f}" y1="0" y2="{height}" stroke="#bbb"/>')
    for at, row in enumerate(rows):
        first, second, third = (float(row[name]) for name in names)
        low, middle = (first, second) if is_ratio else (0.0, first)
        y = at * LINE + LINE // 2
        drawn += [
            f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(str(next(iter(row.values())))[:60])}</text>',
            f'<line x1="{x(low):.1f}" x2="{x(third):.1f}" y1="{y}" y2="{y}" stroke="#5d8aa8"/>',
            f'<circle cx="{x(middle):.1f}" cy="{y}" r="4" fill="#1a5276"/>',
            f'<text x="{x(third) + 6:.1f}" y="{y + 4}">{escape(cell(middle))}</text>',
        ]
        if not is_ratio:
            drawn.append(
                f'<line x1="{x(second):.1f}" x2="{x(second):.1f}" y1="{y - 4}" y2="{y + 4}" stroke="#1a5276"/>'
            )
    what = (
        "dot: ratio, which is the number; line: its range over the rounds"
        if is_ratio
        else "dot: median, which is the number; mark: p90; end: maximum"
    )
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">{"".join(drawn)}</svg><p>{what}</p>'
