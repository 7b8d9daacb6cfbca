"""Which files go: the decision alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.store.log.retention import (
    HOUR_MS,
    HeldFile,
    ReplicaNeed,
    RetainedFile,
    RetentionInput,
    RetentionPlan,
    RetentionReason,
    plan,
)

SIZE = 1000
NOW_MS = 1000 * HOUR_MS
CONFIG = BrokerConfig()


def files(*ages_hours: float) -> list[RetainedFile]:
    """Full files whose newest records are so old."""
    return [
        RetainedFile(at * SIZE, (at + 1) * SIZE, int(NOW_MS - hours * HOUR_MS)) for at, hours in enumerate(ages_hours)
    ]


def situation(*ages_hours: float, **values: object) -> RetentionInput:
    """The last age is the active file's, half full; the disk is half full too; it is not the hour of deleteWhen."""
    *old, active = files(*ages_hours)
    end = active.start_offset + SIZE // 2
    base = RetentionInput(
        wall_ms=NOW_MS,
        local_hour=12,
        files=old,
        active=active,
        end_offset=end,
        settled_offset=end,
        used_bytes=50_000,
        free_bytes=50_000,
    )
    return replace(base, **values)  # type: ignore[arg-type]


def gone(found: RetentionPlan) -> list[tuple[int, RetentionReason]]:
    return [(file.start_offset, reason) for file, reason in found.removed]


def disk(percent: int) -> dict[str, Any]:
    return {"used_bytes": percent * 1000, "free_bytes": (100 - percent) * 1000}


def test_expired_files_go_in_the_hour_of_delete_when() -> None:
    aged = situation(80, 73, 71, 1)
    assert gone(plan(CONFIG, aged)) == []
    assert gone(plan(CONFIG, replace(aged, local_hour=4))) == [
        (0, RetentionReason.EXPIRED),
        (1000, RetentionReason.EXPIRED),
    ]
    two = replace(CONFIG, delete_when="2; 12")
    assert len(gone(plan(two, aged))) == 2


def test_expired_files_go_at_any_hour_on_demand_or_when_the_disk_fills() -> None:
    aged = situation(80, 71, 1)
    assert gone(plan(CONFIG, replace(aged, on_demand=True))) == [(0, RetentionReason.EXPIRED)]
    assert gone(plan(CONFIG, replace(aged, **disk(75)))) == []
    assert gone(plan(CONFIG, replace(aged, **disk(76)))) == [(0, RetentionReason.EXPIRED)]


def test_the_log_is_kept_below_its_size() -> None:
    limited = replace(CONFIG, commit_log_max_bytes=2500)
    assert gone(plan(limited, situation(1, 1, 1))) == []
    assert gone(plan(limited, situation(1, 1, 1, 1, 1))) == [(0, RetentionReason.SIZE), (1000, RetentionReason.SIZE)]


def test_force_removes_what_leads_below_its_level_and_no_more() -> None:
    young = situation(1, 1, 1, 1, 1, **disk(87))
    assert gone(plan(CONFIG, young)) == [(0, RetentionReason.DISK), (1000, RetentionReason.DISK)]
    assert plan(CONFIG, young).refusal == ""
    assert gone(plan(replace(CONFIG, clean_file_forcibly_enable=False), young)) == []


def test_force_begins_at_the_warning_level_at_the_latest() -> None:
    """A file of RocketMQ's may have its ratios in any order."""
    late = replace(CONFIG, disk_space_clean_forcibly_ratio=95, disk_max_used_space_ratio=98)
    assert gone(plan(late, situation(1, 1, 1, **disk(90)))) == []
    assert gone(plan(late, situation(1, 1, 1, **disk(91)))) == [(0, RetentionReason.DISK)]


def test_a_batch_has_a_limit() -> None:
    few = replace(CONFIG, delete_file_batch_max=2)
    assert len(gone(plan(few, situation(*[90] * 9, on_demand=True)))) == 2


def test_sends_are_refused_over_the_warning_level_only() -> None:
    assert plan(CONFIG, situation(1, **disk(90))).refusal == ""
    said = plan(CONFIG, situation(1, **disk(91))).refusal
    assert said.startswith("the disk is full: 91.0 % are in use, diskSpaceWarningLevelRatio is 90;")


def test_a_start_offset_takes_the_files_that_end_below_it() -> None:
    assert gone(plan(CONFIG, situation(1, 1, 1, start_offset=1999))) == [(0, RetentionReason.START_OFFSET)]
    assert len(gone(plan(CONFIG, situation(1, 1, 1, start_offset=2000)))) == 2


def test_what_a_slave_copies_stays_and_it_is_named() -> None:
    slow, fast = ReplicaNeed(BrokerId(3), PhyOffset(1500)), ReplicaNeed(BrokerId(2), PhyOffset(9000))
    aged = situation(90, 90, 90, 1, on_demand=True, needs=[fast, slow])
    found = plan(CONFIG, aged)
    assert gone(found) == [(0, RetentionReason.EXPIRED)]
    assert found.held == HeldFile(1000, RetentionReason.EXPIRED, (slow,))
    forced = replace(aged, **disk(89))
    assert gone(plan(CONFIG, forced)) == [(0, RetentionReason.EXPIRED)]


def test_only_force_on_a_critical_disk_passes_a_slave_over() -> None:
    slow = ReplicaNeed(BrokerId(3), PhyOffset(1500))
    found = plan(CONFIG, situation(90, 90, 90, 1, needs=[slow], **disk(91)))
    assert [start for start, _ in gone(found)] == [0, 1000, 2000]
    assert found.passed_over == (slow,)
    kept = plan(replace(CONFIG, clean_file_forcibly_enable=False), situation(90, 90, 1, needs=[slow], **disk(91)))
    assert kept.held == HeldFile(1000, RetentionReason.EXPIRED, (slow,))
    assert kept.passed_over == ()


def test_what_is_not_settled_never_goes() -> None:
    found = plan(CONFIG, situation(90, 90, 1, settled_offset=1999, **disk(99)))
    assert gone(found) == [(0, RetentionReason.EXPIRED)]
    assert found.held == HeldFile(1000, RetentionReason.EXPIRED, ())


def test_the_active_file_is_ended_once_all_of_it_would_go() -> None:
    old = situation(90, 80, on_demand=True, may_append=True)
    assert plan(CONFIG, old).roll is RetentionReason.EXPIRED
    assert plan(CONFIG, replace(old, may_append=False)).roll is None
    assert plan(CONFIG, replace(old, active=None)).roll is None
    assert plan(CONFIG, replace(old, needs=[ReplicaNeed(BrokerId(2), PhyOffset(10))])).roll is None
    young = situation(90, 1, on_demand=True, may_append=True)
    assert plan(CONFIG, young).roll is None
    assert plan(CONFIG, replace(young, start_offset=young.end_offset)).roll is RetentionReason.START_OFFSET


@given(
    ages=st.lists(st.integers(0, 100), min_size=1, max_size=12),
    used=st.integers(0, 100),
    settled=st.integers(0, 13_000),
    needs=st.lists(st.integers(0, 13_000), max_size=3),
    start=st.integers(0, 13_000),
    limit=st.sampled_from([0, 2000, 5000]),
    hour=st.integers(0, 23),
)
def test_nothing_goes_that_must_stay(
    ages: list[int], used: int, settled: int, needs: list[int], start: int, limit: int, hour: int
) -> None:
    config = replace(CONFIG, commit_log_max_bytes=limit)
    wanted = [ReplicaNeed(BrokerId(index), PhyOffset(at)) for index, at in enumerate(needs)]
    now = situation(*ages, settled_offset=settled, needs=wanted, start_offset=start, local_hour=hour, **disk(used))
    found = plan(config, now)
    assert [file for file, _ in found.removed] == list(now.files[: len(found.removed)]), "the oldest, without a hole"
    assert all(file.end_offset <= settled for file, _ in found.removed)
    broken = {need for file, _ in found.removed for need in wanted if need.offset < file.end_offset}
    assert broken == set(found.passed_over)
    assert not broken or used > 90
    assert bool(found.refusal) == (used > 90)


@pytest.mark.parametrize("when", ["24", "x", "04;-1", "4.5", "0000004"])
def test_hours_that_do_not_exist_are_refused(when: str) -> None:
    with pytest.raises(ConfigError, match="deleteWhen"):
        replace(CONFIG, delete_when=when).check("here")
