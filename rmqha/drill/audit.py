"""Audit of the replicas' CommitLog files against what was acknowledged.

DrillError means that a log itself is wrong, whatever was acknowledged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rmqha.drill.error import DrillError
from rmqha.drill.history import Attempt, AttemptOutcome, check
from rmqha.drill.traffic import TOPIC, AckedMessage, FailedSend
from rmqha.model.message import PROPERTY_UNIQUE_KEY, decode_properties
from rmqha.store.log.record import BLANK, MAGIC_BLANK, Record, decode

STAMP_SLACK_MS = 2
"""Error (ms) of stamps: whole milliseconds of the wall clock, and a call's begin is computed from its duration."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Result of an audit. `lost`: acknowledged messages that are not in the log. `misplaced`: messages that are not
    where the acknowledgement said. `swapped`: pairs of one lane in another order than they were sent. `copies`: records
    beyond the first of a UNIQ_KEY."""

    lost: list[str]
    misplaced: list[str]
    swapped: int
    copies: int
    record_count: int

    @property
    def line(self) -> str:
        return (
            f"{self.record_count} records, {len(self.lost)} acknowledged lost, {len(self.misplaced)} misplaced, "
            f"{self.swapped} swapped, {self.copies} duplicated"
        )


def committed_bytes(store: Path, end: int) -> Iterator[tuple[int, memoryview]]:
    """CommitLog files: the physical offset of the first byte, and the content up to `end`, of each."""
    for path in sorted((store / "commitlog").iterdir()):
        base = int(path.name)
        if base < end:
            yield base, memoryview(path.read_bytes())[: end - base]


def records(store: Path, end: int) -> Iterator[Record]:
    """Every record up to `end`; its own offset is checked. Raises DrillError."""
    for base, data in committed_bytes(store, end):
        at = 0
        while at < len(data):
            size, magic = BLANK.unpack_from(data, at)
            if magic != MAGIC_BLANK:
                record = decode(data, at)
                if record.phy_offset != base + at:
                    raise DrillError(
                        f"{store}: the record at byte {base + at} says that it lies at {record.phy_offset}"
                    )
                yield record
            at += size


def check_same_bytes(stores: Collection[Path], end: int) -> None:
    """Raise DrillError unless all replicas hold the same log up to `end`."""
    first, *others = stores
    wanted = list(committed_bytes(first, end))
    found = sum(len(data) for _, data in wanted)
    if found != end:
        raise DrillError(f"{first} holds {found} bytes of the {end} that are committed")
    for other in others:
        if list(committed_bytes(other, end)) != wanted:
            raise DrillError(f"{first} and {other} differ below byte {end}")


def audit(
    store: Path,
    end: int,
    acked: Collection[AckedMessage],
    direct: Collection[str] = (),
    failed: Collection[FailedSend] = (),
) -> AuditResult:
    """Compare one replica's log with the acknowledgements. `direct`: UNIQ_KEYs that must be there as well; `failed`:
    sends that were not acknowledged. Raises DrillError also for an impossible history (`rmqha.drill.history`)."""
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    numbers: Counter[int] = Counter()
    queues: dict[str, list[tuple[int, str]]] = defaultdict(list)
    unknown = {item.body: item for item in failed}
    for record in records(store, end):
        if record.topic == TOPIC:
            if record.queue_offset != numbers[record.queue_id]:
                raise DrillError(f"{store}: queue {record.queue_id} has a hole at {numbers[record.queue_id]}")
            numbers[record.queue_id] += 1
            msg_id = decode_properties(record.properties)[PROPERTY_UNIQUE_KEY]
            places[msg_id].append((record.queue_id, record.queue_offset))
            body = bytes(record.body).decode(errors="replace")
            queues[str(record.queue_id)].append((record.queue_offset, body if body in unknown else msg_id))
    _check_history(store, queues, acked, failed)
    lost = [item.msg_id for item in acked if item.msg_id not in places] + [key for key in direct if key not in places]
    return AuditResult(
        lost=lost,
        misplaced=[
            item.msg_id
            for item in acked
            if item.msg_id in places and (item.queue_id, item.queue_offset) not in places[item.msg_id]
        ],
        swapped=_swapped([item for item in acked if item.msg_id in places]),
        copies=sum(len(found) - 1 for found in places.values()),
        record_count=sum(numbers.values()),
    )


def _check_history(
    store: Path,
    queues: Mapping[str, Sequence[tuple[int, str]]],
    acked: Collection[AckedMessage],
    failed: Collection[FailedSend],
) -> None:
    """Check the order of real time, which holds in AP too. The producer tries again by itself, so the number of copies
    is not checked here."""
    attempts = [
        Attempt(
            item.msg_id,
            item.at_ms - item.latency_ms,
            AttemptOutcome.ACKED,
            item.at_ms,
            str(item.queue_id),
            item.queue_offset,
            repeats=True,
        )
        for item in acked
    ]
    attempts += [Attempt(item.body, item.called_at_ms, repeats=True) for item in failed]
    verdict = check(attempts, queues, foreign=True, slack_ms=STAMP_SLACK_MS)
    if verdict.unexplained or verdict.disordered:
        raise DrillError(f"{store}: {[*verdict.unexplained, *verdict.disordered][0]}")


def _swapped(acked: Collection[AckedMessage]) -> int:
    lanes: dict[int, list[AckedMessage]] = defaultdict(list)
    for item in acked:
        lanes[item.lane].append(item)
    return sum(
        before.queue_id != after.queue_id or before.queue_offset >= after.queue_offset
        for lane in lanes.values()
        for before, after in pairwise(sorted(lane, key=lambda item: item.number))
    )
