"""The HTML report: well-formed, with nothing from elsewhere, the faults where they were."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from rmqha.drill.page import LEFT, WIDTH, page
from rmqha.drill.report import Result, Round
from rmqha.drill.traffic import AckedMessage, DrillTraffic
from tests.drill.test_report import CLEAN, one_round, traffic


def parsed(text: str) -> ElementTree.Element:
    """As XML, once what HTML alone allows is taken away."""
    assert text.startswith("<!doctype html>")
    return ElementTree.fromstring(text.removeprefix("<!doctype html>").replace('<meta charset="utf-8">', ""))


def result(rounds: list[Round], sent: DrillTraffic, broken: list[str]) -> Result:
    return Result("failover", "cp", "leader", 1, rounds, sent, CLEAN, broken)


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = page(result([one_round()], traffic(900, 1140, 2000, 2300), []))
    root = parsed(text)
    assert len(root.findall(".//svg")) == 2
    assert not re.search(r"https?:|src=|href=", text)
    assert "All that is promised held." in text


def test_faults_are_drawn_where_they_were() -> None:
    """The plot spans 0 to 10 s; the fault lasts from 1 to 1.3 s, and all is well at 1.9 s."""
    root = parsed(page(result([one_round()], traffic(0, 9900), [])))
    fault, recovery = (
        (float(item.get("x", "")), float(item.get("width", ""))) for item in root.findall(".//svg")[0].iter("rect")
    )
    per_s = (WIDTH - LEFT) / 10
    assert fault == (round(LEFT + per_s, 1), round(0.3 * per_s, 1))
    assert recovery == (round(LEFT + 1.3 * per_s, 1), round(0.6 * per_s, 1))


def test_a_gap_is_a_gap_in_the_plot() -> None:
    root = parsed(page(result([], traffic(0, 10, 20, 500), [])))
    line = next(root.findall(".//svg")[0].iter("polyline")).get("points", "")
    heights = [float(point.partition(",")[2]) for point in line.split()]
    assert heights[0] == 0.0
    assert heights[1:5] == [156.0] * 4
    assert heights[5] == 104.0


def test_where_nothing_was_acknowledged_no_latency_is_drawn() -> None:
    root = parsed(page(result([], traffic(0, 10, 20, 500), [])))
    lines = [item.get("points", "").split() for item in root.findall(".//svg")[1].iter("polyline")]
    places = [[float(point.partition(",")[0]) for point in line] for line in lines]
    assert [len(set(line)) for line in places] == [1, 1], "two points alone, and no line from one to the other"
    assert places[0][0] < places[1][0]


def test_the_phases_of_a_failover_are_marked_where_they_were() -> None:
    item = one_round()
    item.phases = {"detect_ms": 100, "elect_ms": 200, "role_ms": None}
    root = parsed(page(result([item], traffic(0, 9900), [])))
    marks = [mark for mark in root.findall(".//svg")[0].iter("line") if mark.get("class") == "phase"]
    assert [mark.findtext("title") for mark in marks] == ["detect 100 ms", "elect 200 ms"]
    per_s = (WIDTH - LEFT) / 10
    assert [float(mark.get("x1", "")) for mark in marks] == [round(LEFT + per_s * at_s, 1) for at_s in (1.1, 1.2)]


def test_what_is_broken_is_shown_and_escaped() -> None:
    text = page(result([], DrillTraffic(acked=[AckedMessage(0, 0, "K", 0, 0, 5, 3)]), ["lost <b>1</b> & more"]))
    assert "BROKEN: lost &lt;b&gt;1&lt;/b&gt; &amp; more" in text
    parsed(text)


def test_a_drill_without_any_acknowledgement_has_a_page() -> None:
    assert "Nothing was acknowledged." in page(result([], DrillTraffic(), ["it did not start"]))
