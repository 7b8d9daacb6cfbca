"""Statistics as RocketMQ counts them: samples of a minute, an hour and a day."""

from __future__ import annotations

import re

from rmqha.broker.services import statistics
from rmqha.broker.services.statistics import BrokerStatistics, PutTimes, StatsItemSet

S, HOUR = 1000, 3_600_000


def run(items: StatsItemSet, start_ms: int, seconds: int, *, per_second: int = 0) -> int:
    """Sample each second for so long, adding so many messages of ten bytes before each."""
    for second in range(1, seconds + 1):
        if per_second:
            items.add("T", per_second, per_second * 10, 1)
        items.sample(start_ms + second * S)
    return start_ms + seconds * S


def test_windows_grow_as_time_goes_on() -> None:
    items = StatsItemSet()
    items.sample(0)
    assert items.snapshots("T") is None, "nothing was counted yet"
    items.add("T", 1, 10, 1)
    found = items.snapshots("T")
    assert found is not None and all(item.total == 0 for item in found.values()), "no sample yet, as with RocketMQ"
    now_ms = run(items, 0, 60, per_second=5)
    found = items.snapshots("T")
    assert found is not None
    assert found["statsMinute"] == (301, 301 / 60, 301 / 61)
    assert found["statsHour"].total == 0
    now_ms = run(items, now_ms, 600)
    found = items.snapshots("T")
    assert found is not None
    assert found["statsMinute"] == (0, 0.0, 0.0), "it stood still for a minute"
    assert (found["statsHour"].total, found["statsHour"].per_second) == (301, 301 / 600)
    in_bytes = items.snapshots("T", in_bytes=True)
    assert in_bytes is not None and in_bytes["statsHour"].total == 3010


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    items = StatsItemSet()
    items.sample(0)
    items.add("T", 20, 200, 20)
    items.sample(9_999)
    assert items.per_second("T") == 0.0
    items.sample(10_000)
    assert items.per_second("T") == 2.0
    items.sample(20_000)
    assert items.per_second("T") == items.per_second("U") == 0.0


def test_what_stood_still_for_a_day_is_forgotten() -> None:
    items = StatsItemSet()
    items.add("T", 1, 1, 1)
    items.add("busy", 1, 1, 1)
    for hour in range(27):
        items.add("busy", 1, 1, 1)
        items.sample(hour * HOUR)
    assert "T" not in items and "busy" in items
    found = items.snapshots("busy")
    assert found is not None and found["statsDay"].total == 24


def test_names_beyond_the_bound_are_not_kept() -> None:
    items = StatsItemSet()
    for number in range(statistics.MAX_ITEM_COUNT + 5):
        items.add(number, 1, 1, 1)
    assert len(items) == statistics.MAX_ITEM_COUNT
    assert items.snapshots(statistics.MAX_ITEM_COUNT + 1) is None


def test_large_sets_are_sampled_in_turns() -> None:
    stats = BrokerStatistics("C")
    stats.sample(0)
    for number in range(statistics.SAMPLES_PER_STEP + 1):
        stats.stored(f"T{number}", 1, 1)
        stats.given(f"G{number}", "T", 1, 1)
    totals = []
    for second in range(5):
        stats.sample(10 * S + second * S)
        found = stats.find("TOPIC_PUT_NUMS", "T0"), stats.find("GROUP_GET_NUMS", "T@G0")
        totals.append([item["statsMinute"].total for item in found if item is not None])
    assert totals == [[1, 0], [1, 1], [1, 1], [1, 1], [1, 1]]


def test_how_long_puts_took() -> None:
    times = PutTimes()
    times.sample(0)
    for taken_ms in (0, 1, 9, 10, 99, 100, 999, 1000, 9_999, 10_000, 10**9):
        times.took(taken_ms)
    assert times.text() == (
        "[<=0ms]:1 [0~10ms]:2 [10~50ms]:1 [50~100ms]:1 [100~200ms]:1 [200~500ms]:0 [500ms~1s]:1 [1~2s]:1 [2~3s]:0 "
        "[3~4s]:0 [4~5s]:0 [5~10s]:1 [10s~]:2 "
    )
    times.sample(60_000)
    times.took(0, 5)
    assert times.text().startswith("[<=0ms]:1 "), "the last whole minute"
    times.sample(120_000)
    assert times.text().startswith("[<=0ms]:5 [0~10ms]:0 ")
    times.sample(180_000)
    assert not re.search(":[1-9]", times.text()), "a minute without one"


def test_percentiles_of_puts_are_the_last_whole_minutes() -> None:
    times = PutTimes()
    times.sample(0)
    for taken_ms in range(1, 101):
        times.took(taken_ms)
    times.sample(60_000)
    times.took(50)
    assert (times.percentile_ms(0.5), times.percentile_ms(0.99)) == (50, 99)
    times.took(10**9)
    times.sample(120_000)
    assert (times.percentile_ms(0.5), times.percentile_ms(1)) == (50, 10_000)
    assert "[10s~]:1" in times.text()


def test_rocketmqs_names() -> None:
    stats = BrokerStatistics("C")
    stats.sample(0)
    stats.stored("T", 3, 300, 2)
    stats.given("G", "T", 2, 200)
    stats.sent_back("G", "T")
    stats.sample(10 * S)
    totals = {
        (name, key): None if (found := stats.find(name, key)) is None else found["statsMinute"].total
        for name, key in (
            ("TOPIC_PUT_NUMS", "T"),
            ("TOPIC_PUT_SIZE", "T"),
            ("GROUP_GET_NUMS", "T@G"),
            ("GROUP_GET_SIZE", "T@G"),
            ("SNDBCK_PUT_NUMS", "T@G"),
            ("BROKER_PUT_NUMS", "C"),
            ("BROKER_GET_NUMS", "C"),
            ("GROUP_GET_NUMS", "G@T"),
            ("BROKER_PUT_NUMS", "other"),
            ("NO_SUCH", "T"),
        )
    }
    assert list(totals.values()) == [3, 300, 2, 200, 1, 3, 2, None, None, None]
