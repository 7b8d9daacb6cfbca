"""Counts and rates for operators: of topics and groups as RocketMQ's StatsItems (request 315), of the broker for
`mqadmin clusterList` and brokerStatus. No trio."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

WINDOW_COUNT = 11
RATE_WINDOW_MS = 10_000
MAX_ITEM_COUNT = 20_000
"""Bound on the items of one set, since clients choose the names; further keys are not counted."""

SAMPLES_PER_STEP = 2_000
"""Samples after which one step ends: a few milliseconds."""


class StatsSnapshot(NamedTuple):
    """Growth over a window."""

    total: int = 0
    per_second: float = 0.0
    mean: float = 0.0
    """`total` divided by the number of calls that added to it."""

    def to_json(self) -> dict[str, float]:
        return {"avgpt": self.mean, "sum": self.total, "tps": self.per_second}


class _Window(NamedTuple):
    """Period (ms) and number of samples, as in RocketMQ."""

    period_ms: int
    sample_count: int


WINDOWS: Final = {
    "statsMinute": _Window(RATE_WINDOW_MS, 7),
    "statsHour": _Window(600_000, 7),
    "statsDay": _Window(3_600_000, 25),
}
_WINDOWS = tuple(WINDOWS.values())
_SAMPLE = 3
"""Numbers of one sample: messages, bytes, calls."""


class _Item:
    __slots__ = ("call_count", "message_count", "samples", "size_bytes")

    def __init__(self) -> None:
        self.message_count = self.size_bytes = self.call_count = 0
        self.samples = tuple(array("q") for _ in _WINDOWS)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.message_count, self.size_bytes, self.call_count


class StatsItemSet:
    """Messages and bytes by key since the start, with samples of the last minute, hour and day."""

    def __init__(self) -> None:
        self._items: dict[Hashable, _Item] = {}
        self._beyond = _Item()
        self._sampled_ms: tuple[deque[int], ...] = tuple(deque(maxlen=window.sample_count) for window in _WINDOWS)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._items

    def add(self, key: Hashable, count: int, size_bytes: int, call_count: int) -> None:
        item = self._items.get(key) or self._new(key)
        item.message_count += count
        item.size_bytes += size_bytes
        item.call_count += call_count

    def _new(self, key: Hashable) -> _Item:
        if len(self._items) >= MAX_ITEM_COUNT:
            return self._beyond
        item = self._items[key] = _Item()
        return item

    def sample(self, now_ms: int) -> int:
        """Take the due samples, of a large set those of one window; call about once a second. An item without growth
        for a day is dropped. Returns the number of samples."""
        count = 0
        for place, (window, sampled_ms) in enumerate(zip(_WINDOWS, self._sampled_ms, strict=True)):
            if not sampled_ms:
                sampled_ms.append(now_ms - window.period_ms)  # all began at 0
            if now_ms - sampled_ms[-1] >= window.period_ms:
                count += len(self._items)
                self._take(place, window.sample_count * _SAMPLE)
                sampled_ms.append(now_ms)
                if count > SAMPLES_PER_STEP:
                    break
        return count

    def _take(self, place: int, max_length: int) -> None:
        is_longest = place == len(_WINDOWS) - 1
        still = []
        for key, item in self._items.items():
            samples = item.samples[place]
            samples.extend(item.counts if samples else (0, 0, 0, *item.counts))  # it began at 0 with this period
            if len(samples) > max_length:
                del samples[:_SAMPLE]
            if is_longest and len(samples) == max_length and samples[:_SAMPLE] == samples[-_SAMPLE:]:
                still.append(key)
        for key in still:
            del self._items[key]

    def per_second(self, key: Hashable) -> float:
        """Messages per second in the last whole period of ten seconds."""
        item = self._items.get(key)
        return 0.0 if item is None else self._growth(item, 0, 0, 2).per_second

    def snapshots(self, key: Hashable, *, in_bytes: bool = False) -> Mapping[str, StatsSnapshot] | None:
        """Growth by window name, of messages or of bytes; None for an unknown key."""
        item = self._items.get(key)
        if item is None:
            return None
        return {
            name: self._growth(item, place, int(in_bytes), window.sample_count)
            for place, (name, window) in enumerate(WINDOWS.items())
        }

    def _growth(self, item: _Item, place: int, number: int, max_count: int) -> StatsSnapshot:
        samples = item.samples[place]
        count = min(len(samples) // _SAMPLE, max_count)
        if not count:
            return StatsSnapshot()
        sampled_ms = self._sampled_ms[place]
        first = -count * _SAMPLE
        total = samples[number - _SAMPLE] - samples[first + number]
        calls = samples[-1] - samples[first + _SAMPLE - 1]
        elapsed_ms = sampled_ms[-1] - sampled_ms[-count]
        return StatsSnapshot(total, total * 1000 / elapsed_ms, total / calls if calls else 0.0)


class BrokerStatistics:
    """Statistics under RocketMQ's names. `cluster`: key of those of the whole broker."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.topic_puts, self.broker_puts = StatsItemSet(), StatsItemSet()
        """Records by their topic in the log: of producers, and the broker's own copies."""
        self.group_gets, self.broker_gets = StatsItemSet(), StatsItemSet()
        """Records given to consumers, by (group, topic)."""
        self.send_backs = StatsItemSet()
        """Messages sent back by a consumer group, by (group, topic)."""
        self.put_times = PutTimes()

    def stored(self, topic: str, count: int, size_bytes: int, call_count: int = 1) -> None:
        self.topic_puts.add(topic, count, size_bytes, call_count)
        self.broker_puts.add(self.cluster, count, size_bytes, 0)  # RocketMQ counts no calls here

    def given(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        self.group_gets.add((group, topic), count, size_bytes, 1)
        self.broker_gets.add(self.cluster, count, size_bytes, 0)

    def sent_back(self, group: str, topic: str) -> None:
        self.send_backs.add((group, topic), 1, 0, 1)

    def sample(self, now_ms: int) -> None:
        """Sample all sets; call about once a second."""
        self.put_times.sample(now_ms)
        count = 0
        for items in (self.topic_puts, self.broker_puts, self.group_gets, self.broker_gets, self.send_backs):
            count += items.sample(now_ms)
            if count > SAMPLES_PER_STEP:
                break  # the next call goes on: what was taken now is due no more

    def find(self, name: str, key: str) -> Mapping[str, StatsSnapshot] | None:
        """Growth by window name of one of RocketMQ's statistics; None for an unknown name or key."""
        topic, _, group = key.partition("@")
        match name:
            case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE":
                return self.topic_puts.snapshots(key, in_bytes=name == "TOPIC_PUT_SIZE")
            case "GROUP_GET_NUMS" | "GROUP_GET_SIZE":
                return self.group_gets.snapshots((group, topic), in_bytes=name == "GROUP_GET_SIZE")
            case "SNDBCK_PUT_NUMS":
                return self.send_backs.snapshots((group, topic))
            case "BROKER_PUT_NUMS":
                return self.broker_puts.snapshots(key)
            case "BROKER_GET_NUMS":
                return self.broker_gets.snapshots(key)
        return None


_PUT_TIMES: Final = {
    1: "<=0ms",
    10: "0~10ms",
    50: "10~50ms",
    100: "50~100ms",
    200: "100~200ms",
    500: "200~500ms",
    1000: "500ms~1s",
    2000: "1~2s",
    3000: "2~3s",
    4000: "3~4s",
    5000: "4~5s",
    10000: "5~10s",
}
"""RocketMQ's names for durations of a put, by their upper bounds (ms)."""
_STEPS = ((20, 1), (50, 2), (100, 5), (200, 10), (500, 50), (1000, 100), (10_000, 1000))
"""RocketMQ's buckets for its percentiles: up to the first number (ms), with this width."""
PUT_TIMES_PERIOD_MS = 60_000


def _bounds() -> Iterator[int]:
    """Upper bound (ms) of each bucket; every bound of _PUT_TIMES lies between two."""
    lowest = 0
    for highest, width in _STEPS:
        yield from range(lowest + width, highest + 1, width)
        lowest = highest
    yield from (limit_ms - 1 for limit_ms in _PUT_TIMES)


class PutTimes:
    """Durations of appends in the last whole minute, or so far in the first, as RocketMQ counts them for brokerStatus
    and Apache's exporter."""

    BOUNDS: Final = tuple(sorted(set(_bounds())))

    def __init__(self) -> None:
        self._counts = self._last_counts = self._none()
        self._began_ms: int | None = None

    def took(self, taken_ms: int, count: int = 1) -> None:
        self._counts[bisect_left(self.BOUNDS, taken_ms)] += count

    def sample(self, now_ms: int) -> None:
        """Begin a new minute if it is time; call about once a second."""
        if self._began_ms is None:
            self._began_ms = now_ms
        elif now_ms - self._began_ms >= PUT_TIMES_PERIOD_MS:
            self._began_ms = now_ms
            self._last_counts, self._counts = self._counts, self._none()

    @classmethod
    def _none(cls) -> array[int]:
        return array("q", bytes(8 * (len(cls.BOUNDS) + 1)))

    def text(self) -> str:
        counts, lowest = [], 0
        for limit_ms in _PUT_TIMES:
            end = bisect_left(self.BOUNDS, limit_ms)
            counts.append(sum(self._last_counts[lowest:end]))
            lowest = end
        names = (*_PUT_TIMES.values(), "10s~")
        return "".join(
            f"[{name}]:{count} " for name, count in zip(names, (*counts, sum(self._last_counts[lowest:])), strict=True)
        )

    def percentile_ms(self, share: float) -> float:
        """Duration (ms) within which that share of appends ended, interpolated in the bucket; 0 without any, 10,000 for
        a longer one."""
        wanted, passed, lowest = int(sum(self._last_counts) * share), 0, 0
        for bound_ms, count in zip(self.BOUNDS, self._last_counts, strict=False):
            if wanted <= passed + count:
                return lowest + ((bound_ms - lowest) * (wanted - passed) / count if count else 0)
            passed, lowest = passed + count, bound_ms
        return float(self.BOUNDS[-1])


class Meter:
    """Rate of one counter. `sample` is called about once a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=WINDOW_COUNT)

    def sample(self, now_ms: int, count: int) -> None:
        if not self._samples or now_ms - self._samples[-1][0] >= 1000:
            self._samples.append((now_ms, count))

    def per_second(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (start_ms, start), (end_ms, end) = self._samples[0], self._samples[-1]
        return round((end - start) * 1000 / (end_ms - start_ms), 2)


class Meters:
    """Rates of counters by key; counters may appear and disappear."""

    def __init__(self) -> None:
        self._meters: dict[Hashable, Meter] = {}

    def sample(self, now_ms: int, counts: Iterable[tuple[Hashable, int]]) -> None:
        """Sample all counters; call about once a second. A missing counter is dropped."""
        kept = {}
        for key, count in counts:
            kept[key] = self._meters.get(key) or Meter()
            kept[key].sample(now_ms, count)
        self._meters = kept

    def per_second(self, key: Hashable) -> int:
        """Rate per second, 0 for a counter that was lowered by a cut of the log."""
        meter = self._meters.get(key)
        return 0 if meter is None else max(0, round(meter.per_second()))


class DayCounts:
    """Values of a counter at the begin of this day and the day before, in local time; 0 before the process started."""

    def __init__(self) -> None:
        self.this_morning = 0
        self.yesterday_morning = 0
        self._hour = 0

    def sample(self, hour: int, count: int) -> None:
        """Sample the counter at `hour` of the local day; call at least once an hour."""
        if hour < self._hour:
            self.yesterday_morning, self.this_morning = self.this_morning, count
        self._hour = hour
