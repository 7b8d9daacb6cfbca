"""The time up to which timer messages are known, by a log that is dispatched late and a clock that is put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from rmqha.broker.timers.recall_set import KnownTime


def known_of(max_phy_offset: int, dispatched_offset: int, queue_end: int) -> tuple[KnownTime, Any]:
    log = SimpleNamespace(
        max_phy_offset=max_phy_offset, dispatched_offset=dispatched_offset, queue_range=lambda *_: (0, queue_end)
    )
    return KnownTime(cast(Any, log)), log


def test_all_is_known_up_to_now_once_all_entries_are_looked_at() -> None:
    known, log = known_of(100, 100, 3)
    known.check(2, 5000)
    assert known.ms == 0, "an entry has not been looked at"
    known.check(3, 5100)
    assert known.ms == 5100
    log.max_phy_offset = 200  # not dispatched: it may be an entry
    known.check(3, 5200)
    assert known.ms < 5200


def test_what_is_cut_is_waited_for_no_more() -> None:
    known, log = known_of(130, 100, 3)
    known.check(3, 5000)
    assert known.ms == 0
    log.max_phy_offset = 100
    known.check(3, 6000)
    assert known.ms == 6000


def test_nothing_behind_a_clock_that_is_put_back_is_known() -> None:
    """What is stored now has the earlier time."""
    known, _ = known_of(100, 100, 3)
    known.check(3, 9000)
    assert known.ms == 9000
    known.check(2, 4000)
    assert known.ms <= 4000
    known.check(3, 4100)
    assert known.ms == 4100
