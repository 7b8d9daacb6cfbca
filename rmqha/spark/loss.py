"""Offsets of queues that were asked for and are not there: removed before they were read, or not written yet."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.model.error import StoreError
from rmqha.scan.api import Decoding, Interval, RowFilter, StoreView, read_store
from rmqha.scan.queues import QueueEntries
from rmqha.scan.storage import storage_of

ANY = Interval()
ON = "failOnDataLoss=false reads what is there"


def check_queues(rows: RowFilter, views: Sequence[StoreView], *, streams: bool = False) -> None:
    """StoreError if a queue begins later than its startingOffsets in a store that has it, or if no store has it as far
    as its offsets say; a query that streams waits for those."""
    entries = [QueueEntries(storage_of(view.root), view.root) for view in views] if rows.queue_offsets else []
    for (topic, queue_id), bounds in rows.queue_offsets.items():
        name, end = f"queue {queue_id} of {topic}", 0
        for view, queues in zip(views, entries, strict=True):
            begin, after = _extent(view, queues, topic, queue_id)
            if after > 0 and ANY.low < bounds.low < begin:
                raise StoreError(
                    f"{view.root}: {name} begins at {begin}, later than startingOffsets = {bounds.low}: older messages "
                    f"were removed; {ON}"
                )
            end = max(end, after)
        wanted = "startingOffsets", max(bounds.low, 0)
        if bounds.high < ANY.high:
            wanted = "endingOffsets", max(bounds.high + 1, wanted[1])
        if wanted[1] > end and not streams:
            raise StoreError(
                f"{views[0].root if len(views) == 1 else 'every store'}: {name} can be read up to {end}, less than "
                f"{wanted[0]} = {wanted[1]}; {ON}"
            )


def _extent(view: StoreView, queues: QueueEntries, topic: str, queue_id: int) -> tuple[int, int]:
    """First offset and the one behind the last, (0, 0) without such a queue. Where the store has no queues the log is
    read up to the first message, and how far it goes is not known."""
    if queues.exist:
        return queues.extent(topic, queue_id, view.min_offset, view.end_offset) or (0, 0)
    rows = RowFilter(queues=frozenset([(topic, queue_id)]))
    for batch in read_store(view, Decoding(("queueOffset",), on_corrupt="skip"), rows):
        return int(batch.column(0)[0].as_py()), ANY.high
    return 0, 0
