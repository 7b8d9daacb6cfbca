"""The drawing of a group's logs: parts, forks, cuts and places."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nameserver.web.forks import MAX_INTERVALS, ForkedLog, LogCut, cuts_of, draw_logs, fork_offset
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.wire.state.history import parse_history


def history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in entries)


MASTER = ForkedLog("m", history((1, 0), (2, 1000), (4, 1500)), 0, 2000, is_master=True)


def parts(lane: dict[str, Any]) -> list[tuple[int | None, str, int, int]]:
    return [(part["epoch"], part["kind"], part["start"], part["end"]) for part in lane["parts"]]


def test_a_slave_that_is_level_agrees_to_its_end() -> None:
    found = draw_logs([MASTER, ForkedLog("s", MASTER.history, 0, 1900)])
    assert found["reference"] == "m"
    assert parts(found["lanes"][1]) == [(1, "log", 0, 1000), (2, "log", 1000, 1500), (4, "log", 1500, 1900)]
    assert found["lanes"][1]["forkBytes"] == 0
    assert found["lanes"][1]["words"] == "the same as m up to its end, 100 bytes behind"
    assert found["lanes"][0]["words"] == "leads; its log ends at 2000 in epoch 4"


def test_a_fork_within_an_epoch_and_an_epoch_of_its_own() -> None:
    old = ForkedLog("old", history((1, 0), (2, 1000), (3, 1700)), 0, 1800)
    lane = draw_logs([MASTER, old])["lanes"][1]
    assert parts(lane) == [
        (1, "log", 0, 1000),
        (2, "log", 1000, 1500),
        (2, "fork", 1500, 1700),
        (3, "fork", 1700, 1800),
    ]
    assert (lane["partsAt"], lane["forkBytes"]) == (1500, 300)
    assert lane["words"] == "parts from m at 1500: its last 300 bytes are not in that log"


def test_logs_that_share_nothing() -> None:
    lane = draw_logs([MASTER, ForkedLog("x", history((9, 50)), 50, 90)])["lanes"][1]
    assert parts(lane) == [(9, "fork", 50, 90)]
    assert lane["words"] == "shares nothing with m: no epoch of both has the same start"


def test_without_a_master_the_one_is_the_reference_that_would_be_elected() -> None:
    short, long = ForkedLog("a", MASTER.history, 0, 1600), ForkedLog("b", MASTER.history, 0, 1700)
    assert draw_logs([short, long])["reference"] == "b"
    assert draw_logs([])["marks"] == []
    assert draw_logs([])["reference"] is None


def test_an_empty_log_and_an_empty_epoch_are_drawn() -> None:
    begun = ForkedLog("b", history((1, 0), (5, 2000)), 0, 2000, is_master=True)
    found = draw_logs([begun, ForkedLog("new", EpochHistory(), 0, 0)])
    assert parts(found["lanes"][0]) == [(1, "log", 0, 2000), (5, "log", 2000, 2000)]
    assert found["lanes"][1]["parts"] == []
    assert found["lanes"][1]["words"] == "no epoch entry yet"


def test_removed_files_are_not_drawn() -> None:
    lane = draw_logs([ForkedLog("t", MASTER.history, 1200, 2000, is_master=True)])["lanes"][0]
    assert parts(lane) == [(2, "log", 1200, 1500), (4, "log", 1500, 2000)]


def test_cuts_come_from_the_replicas_own_events_with_their_reason() -> None:
    told: list[dict[str, Any]] = [
        {"at_ms": 1, "event": "log_truncated", "end_offset": 500, "cut_bytes": 20, "epochs_dropped": 0},
        {"at_ms": 2, "event": "log_truncated", "end_offset": 900, "cut_bytes": 100, "epochs_dropped": 1},
        {"at_ms": 2, "event": "ha_aligned", "end_offset": 900, "cut_bytes": 100, "reason": "the logs fork at 900"},
        {"at_ms": 3, "event": "log_truncated", "end_offset": "900", "cut_bytes": None},
        {"event": "log_truncated"},
        {"at_ms": 4, "event": "log_truncated", "end_offset": 900, "cut_bytes": 0},
    ]
    events = parse_history({"events": told})
    assert cuts_of(events) == (LogCut(1, 500, 520), LogCut(2, 900, 1000, "the logs fork at 900"))
    lane = draw_logs([ForkedLog("s", history((1, 0)), 0, 950, cuts=cuts_of(events))])["lanes"][0]
    assert (None, "cut", 900, 1000) in parts(lane)
    assert lane["parts"][-1]["reason"] == "the logs fork at 900"


def test_a_long_history_shows_its_newest_part_and_counts_the_rest() -> None:
    epochs = history(*((number, number * 100) for number in range(60)))
    found = draw_logs([ForkedLog("m", epochs, 0, 6000, is_master=True), ForkedLog("s", epochs, 0, 5950)])
    assert len(found["marks"]) == MAX_INTERVALS + 1
    drawn = {part["epoch"] for part in found["lanes"][0]["parts"]}
    assert found["omittedEpochs"] == 60 - len(drawn) > 0
    assert max(drawn) == 59


def test_a_small_fork_is_wide_enough_to_be_seen_beside_a_huge_epoch() -> None:
    big = history((1, 0), (2, 10**13))
    lane = draw_logs(
        [ForkedLog("m", big, 0, 10**13 + 5, is_master=True), ForkedLog("s", history((1, 0)), 0, 10**13 + 100)]
    )["lanes"][1]
    fork = next(part for part in lane["parts"] if part["kind"] == "fork")
    assert fork["x2"] - fork["x1"] > 0.05


@st.composite
def logs(draw_: st.DrawFn) -> ForkedLog:
    epochs = sorted(draw_(st.sets(st.integers(0, 40), max_size=30)))
    starts = sorted(draw_(st.sets(st.integers(0, 5000), min_size=len(epochs), max_size=len(epochs))))
    low = draw_(st.integers(0, starts[0] if starts else 100))
    end = draw_(st.integers(starts[-1] if starts else low, 6000))
    cuts = tuple(LogCut(at, end, end + size) for at, size in enumerate(draw_(st.lists(st.integers(1, 99), max_size=7))))
    return ForkedLog("log", history(*zip(epochs, starts, strict=True)), low, end, draw_(st.booleans()), cuts)


@given(st.lists(logs(), max_size=5))
def test_any_histories_are_drawn_in_order_and_within_the_frame(some: list[ForkedLog]) -> None:
    found = draw_logs(some)
    json.dumps(found)
    places = [mark["x"] for mark in found["marks"]]
    assert places == sorted(places)
    assert not places or (places[0], places[-1]) in ((0.0, 1.0), (0.0, 0.0))
    assert len(places) <= MAX_INTERVALS + 1
    for log, lane in zip(some, found["lanes"], strict=True):
        held = [part for part in lane["parts"] if part["kind"] != "cut"]
        assert all(0 <= part["x1"] <= part["x2"] <= 1 and part["start"] <= part["end"] for part in lane["parts"])
        assert all(left["end"] <= right["start"] for left, right in pairwise(held))
        forked = sum(part["bytes"] for part in held if part["kind"] == "fork")
        assert forked <= lane["forkBytes"] <= log.end_offset - log.min_offset


@given(logs(), logs())
def test_parting_is_within_the_log(left: ForkedLog, right: ForkedLog) -> None:
    point = fork_offset(left, right)
    assert point is None or point <= left.end_offset
