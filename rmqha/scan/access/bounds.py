"""Bounds of the log that offsets of queues give: a queue's records stand in the log in the order of their offsets, so
the places of its first and last wanted record, by its ConsumeQueue, bound those between (control plane).
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqha.scan.access.config_files import queue_count
from rmqha.scan.files import StoreView
from rmqha.scan.filter import ANY_NUMBER, Interval, RowFilter
from rmqha.scan.queues import QueueEntries
from rmqha.scan.read import LogFile
from rmqha.scan.storage import Storage, storage_of


def of_queues(view: StoreView, rows: RowFilter) -> tuple[int, int]:
    """Physical offsets [start, end) outside which no record of the view can pass, as far as its queues tell; each of
    them is a record's start or end, or the view's."""
    whole = view.min_offset, view.end_offset
    wanted = list(_wanted(storage_of(view.root), view, rows))
    if not wanted or None in wanted:
        return whole
    entries = QueueEntries(storage_of(view.root), view.root)
    starts, ends = [], []
    for topic, queue_id, bounds in filter(None, wanted):
        low, high = _places(view, entries, topic, queue_id, bounds)
        starts.append(low)
        ends.append(high)
    return max(min(starts), whole[0]), min(max(ends), whole[1])


def _wanted(storage: Storage, view: StoreView, rows: RowFilter) -> Iterator[tuple[str, int, Interval] | None]:
    """The queues that can have records that pass, with the offsets of those; None if some cannot be told."""
    topics = {topic for topic, _ in rows.queues} if rows.queues is not None else rows.topics
    if topics is None or rows.topic_pattern is not None:
        yield None
        return
    for topic in sorted(topics if rows.topics is None else topics & rows.topics):
        if not topic or "/" in topic or storage.entries(f"{view.root}/batchconsumequeue/{topic}") is not None:
            yield None
            continue
        found = storage.entries(f"{view.root}/consumequeue/{topic}") or ()
        listed = {int(name) for name, size in found if size is None and name.isdecimal()}
        if rows.queues is not None:
            named = {queue for name, queue in rows.queues if name == topic}
        else:
            count = queue_count(storage, view.root, topic)
            named = listed | set(range(len(listed) + 1 if count is None else min(count, len(listed) + 1)))
        # a queue that is not listed may have records all the same: lost, or not dispatched yet
        if not named <= listed:
            yield None
            continue
        for queue_id in sorted(named):
            of_queue = rows.queue_offsets.get((topic, queue_id), ANY_NUMBER)
            limit = of_queue.meet(rows.intervals.get("queueOffset", ANY_NUMBER))
            values = rows.values.get("queueOffset")
            if values is not None:
                limit = limit.meet(Interval(min(values, default=0), max(values, default=-1)))
            yield topic, queue_id, limit


def _places(view: StoreView, entries: QueueEntries, topic: str, queue_id: int, bounds: Interval) -> tuple[int, int]:
    """Start of the record with the first offset and end of the one with the last; the view's where there is none."""
    start, end = view.min_offset, view.end_offset
    if bounds.low > 0:
        found = _record(view, entries, topic, queue_id, bounds.low)
        start = start if found is None else found[0]
    if 0 <= bounds.high < ANY_NUMBER.high:
        found = _record(view, entries, topic, queue_id, bounds.high)
        end = end if found is None else found[1]
    return start, end


def _record(
    view: StoreView, entries: QueueEntries, topic: str, queue_id: int, queue_offset: int
) -> tuple[int, int] | None:
    """The place of the record that the queue has at this offset, if the log has that one there."""
    place = entries.place(topic, queue_id, queue_offset)
    name = None if place is None else next((n for n in view.files if n.base_offset <= place < n.end_offset), None)
    if place is None or name is None or not view.min_offset <= place < view.end_offset:
        return None
    with LogFile(name) as file:
        record = file.record_at(place - name.base_offset)
    if record is None or record.topic[0].as_py() != topic:
        return None
    held = int(record.number("queueId")[0]), int(record.number("queueOffset")[0])
    return (place, place + int(record.fixed["storeSize"][0])) if held == (queue_id, queue_offset) else None
