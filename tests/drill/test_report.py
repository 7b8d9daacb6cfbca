"""Figures and verdict of a drill, from rounds and acknowledgements made by hand."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from rmqha.drill.audit import AuditResult
from rmqha.drill.report import Percentiles, Result, Round, broken_promises, buckets, normal_gap_ms, report_of
from rmqha.drill.traffic import AckedMessage, DrillTraffic
from rmqha.ops.local.phases import PHASES

CLEAN = AuditResult(lost=[], misplaced=[], swapped=0, copies=0, record_count=5)


def traffic(*stamps: int) -> DrillTraffic:
    acked = [AckedMessage(0, number, f"K{number}", 0, number, at_ms, 7) for number, at_ms in enumerate(stamps)]
    return DrillTraffic(acked=acked)


def one_round(failover_ms: int = 140) -> Round:
    phases: dict[str, int | None] = dict.fromkeys(PHASES, failover_ms)
    return Round(["broker-a-1"], "broker-a-1", 1000, "broker-a-2", 1300, 1900, phases, failover_ms)


SENT = traffic(900, 950, 1140, 1500, 1950, 2000, 2300)


def test_the_object_has_the_figures_that_scripts_read() -> None:
    found = asdict(report_of(Result("failover", "cp", "leader", 1, [one_round()], SENT, CLEAN, [])))
    assert (found["acked"], found["lost"], found["duplicates"], found["ok"]) == (7, 0, 0, True)
    assert (found["failover_ms_p50"], found["failover_ms_p90"], found["failover_ms_max"]) == (140, 140, 140)
    assert list(found["phases"]) == list(PHASES)
    assert found["phases"]["detect_ms"] == {"p50": 140, "p90": 140, "max": 140, "n": 1}
    assert found["unavailable_ms"]["max"] == 400, "1500 to 1900, where all was well again"
    assert found["recovery_ms"]["max"] == 600
    assert found["unavailable_normal_ms"] == 300
    assert found["latency_ms"] == {"p50": 7, "p99": 7, "max": 7}
    assert found["latency_buckets"][1] == {"le_ms": 10, "count": 7}
    assert found["rounds"][0]["failover_ms"] == 140


def test_a_drill_without_an_audit_knows_no_losses() -> None:
    found = report_of(Result("failover", "cp", "leader", 3, [], traffic(), None, ["a writable master: not in time"]))
    assert (found.lost, found.duplicates, found.ok, found.failover_ms_p50) == (None, None, False, None)


def test_p90_is_the_smallest_value_that_nine_tenths_do_not_exceed() -> None:
    assert Percentiles.of([*range(1, 11), None]) == Percentiles(6, 9, 10, 10)


def test_gaps_inside_a_fault_are_not_normal_ones() -> None:
    assert normal_gap_ms(traffic(0, 900, 1800, 2100), [one_round()]) == 900
    assert normal_gap_ms(traffic(990, 1950), [one_round()]) == 0


def test_every_acknowledgement_is_in_one_bucket() -> None:
    acked = [replace(SENT.acked[0], latency_ms=value) for value in (0, 5, 6, 5000, 5001)]
    rows = {row.le_ms: row.count for row in buckets(acked)}
    assert (rows[5], rows[10], rows[5000], rows[None]) == (2, 1, 1, 1)
    assert sum(rows.values()) == 5


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (replace(CLEAN, lost=["K1"]), "1 acknowledged messages are lost"),
        (replace(CLEAN, misplaced=["K1"]), "1 messages do not lie where"),
        (replace(CLEAN, swapped=2), "2 pairs of one key were swapped"),
        (replace(CLEAN, copies=1), "1 duplicates, and retries explain 0"),
    ],
)
def test_cp_allows_nothing_of_that(found: AuditResult, wanted: str) -> None:
    broken = broken_promises("cp", [one_round()], SENT, found)
    assert len(broken) == 1
    assert wanted in broken[0]


def test_cp_allows_no_acknowledgement_by_a_master_that_is_cut_off() -> None:
    cut = one_round()
    cut.stale_acked = 3
    assert broken_promises("cp", [cut], SENT, CLEAN) == ["a master that was cut off acknowledged 3 sends"]
    assert broken_promises("ap", [cut], SENT, CLEAN) == []


def test_ap_may_lose_what_was_acknowledged_around_a_fault_and_nothing_else() -> None:
    sent = traffic(-100, 950, 1140, 2300)
    cut = one_round()
    cut.direct = {"D1": 1200, "D2": 30_000}
    assert broken_promises("ap", [cut], sent, replace(CLEAN, lost=["K1", "K2", "D1"])) == []
    for key in ("K0", "K3", "D2"):
        assert "apart from any fault" in broken_promises("ap", [cut], sent, replace(CLEAN, lost=[key]))[0]


def test_a_send_that_was_given_up_is_told() -> None:
    sent = traffic(100)
    sent.failures.append("lane 3 number 4: no answer")
    assert broken_promises("ap", [], sent, CLEAN) == ["a send was given up: lane 3 number 4: no answer"]
