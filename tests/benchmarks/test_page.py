"""The page of the benchmarks: whatever their tables hold, it is drawn, and escaped."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from benchmarks.page import page, tables

MACHINE = {
    "cores": 2,
    "python": "3.11",
    "kernel": "6",
    "fdatasync_ms": {"median": 0.1, "p90": 0.2, "max": 1.0},
    "load_average": 0.5,
}


def result(**figures: Any) -> dict[str, Any]:
    return {"name": "made <up>", "machine": MACHINE, "load_average_after": 1.0, **figures}


def drawn(**figures: Any) -> ElementTree.Element:
    """The body as XML, so that a tag that is not closed is seen."""
    text = page([result(**figures)])
    found = re.search(r"<body>.*</body>", text, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


def test_a_spread_is_a_line_from_nothing_to_its_maximum() -> None:
    body = drawn(phases=[{"phase": "detect", "n": 3, "median": 20.0, "p90": 30.0, "max": 40.0}])
    (plot,) = body.iter("svg")
    line, mark = plot.iter("line")
    (dot,) = plot.iter("circle")
    assert float(line.attrib["x1"]) < float(dot.attrib["cx"]) < float(mark.attrib["x1"]) < float(line.attrib["x2"])


def test_a_ratio_stands_against_one() -> None:
    body = drawn(rows=[{"what": "send", "ours": 3.0, "theirs": 2.0, "×": 1.5, "× from": 1.25, "to": 2.0}])
    (plot,) = body.iter("svg")
    one, span = plot.iter("line")
    assert float(one.attrib["x1"]) < float(span.attrib["x1"]) < float(span.attrib["x2"])


def test_a_bar_is_as_long_as_its_number_among_those_of_its_column() -> None:
    body = drawn(rows=[{"what": "a & b", "rate": 50, "none": ""}, {"what": "c", "rate": 200, "none": ""}])
    assert [bar.attrib["style"] for bar in body.iter("i")] == ["width:25.0%", "width:100.0%"]
    assert not list(body.iter("svg"))
    assert body.find(".//td").text == "a & b"  # type: ignore[union-attr]


def test_only_flat_rows_are_tables() -> None:
    found = tables(result(rows=[{"a": 1}], each=[{"a": 1}], nested=[{"a": {"b": 1}}], empty=[], rounds=3))
    assert list(found) == ["rows"]


def test_nothing_and_zeros_can_be_drawn() -> None:
    assert list(drawn().iter("table")) == []
    both = drawn(rows=[{"phase": "none", "median": 0, "p90": 0, "max": 0}], more=[{"x": None, "y": float("nan")}])
    assert len(list(both.iter("table"))) == 2
