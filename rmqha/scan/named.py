"""The records of a range that the consume queues name for a filter, and no others where the queues are complete (data
plane). What the queues get wrong, or do not tell, is found by walking the log: the rows are the same either way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rmqha.model.error import StoreError
from rmqha.scan.columns import Records
from rmqha.scan.damage import pieces
from rmqha.scan.filter import RowFilter
from rmqha.scan.index import ContradictionError, DoubtError, QueueIndex, ReadCounts, Stripe, packs
from rmqha.scan.plan import LogRange
from rmqha.scan.read import FILTERED_WINDOW_BYTES, WINDOW_BYTES, LogFile
from rmqha.scan.storage import storage_of
from rmqha.scan.walk import I64, MAGIC_V1, MAGIC_V2


def named(file: LogFile, item: LogRange, rows: RowFilter, counts: ReadCounts) -> Iterator[Records]:
    """The records of the range that pass the filter, in log order; good until the next are asked for. If the queues
    contradict the log, those that they had hidden come last."""
    reader = _Reader(file, item, rows, counts)
    given: list[I64] = [np.empty(0, np.int64)]
    try:
        for found in reader.records():
            given.append(found.number("physicalOffset"))
            yield found
        return
    except (DoubtError, OSError) as doubt:
        start = item.start if isinstance(doubt, ContradictionError) else reader.sure
        counts.walk(str(doubt), item.end - start)
    base, known = file.name.base_offset, np.concatenate(given)
    for piece in pieces(file, start - base, item.end - base, item.source, window_bytes=FILTERED_WINDOW_BYTES):
        if isinstance(piece, Records):
            passed = rows.apply(piece)
            yield passed.select(~np.isin(passed.number("physicalOffset"), known))


class _Reader:
    """`sure` is a record's start before which every record that passes has been given."""

    def __init__(self, file: LogFile, item: LogRange, rows: RowFilter, counts: ReadCounts) -> None:
        self._file, self._item, self._rows, self._counts = file, item, rows, counts
        self._rest = rows.without_topics()
        self._base = file.name.base_offset
        self.sure = item.start

    def records(self) -> Iterator[Records]:
        item = self._item
        root = item.file.path.rpartition("/")[0].rpartition("/")[0]
        index = QueueIndex(storage_of(root), root, self._rows, item.start, item.size_bytes)
        try:
            for stripe in index.stripes(item.end):
                at = 0
                for low, high in stripe.gaps:
                    until = int(np.searchsorted(stripe.offsets, low))
                    yield from self._entries(stripe, at, until)
                    yield from self._gap(low, high)
                    at = until
                yield from self._entries(stripe, at, len(stripe.offsets))
        finally:
            index.close()
            self._counts.queue_bytes += index.read_bytes

    def _gap(self, low: int, high: int) -> Iterator[Records]:
        try:
            for piece in pieces(self._file, low - self._base, high - self._base, self._item.source):
                if isinstance(piece, Records):
                    self._counts.walk("queues have no entry", int(piece.fixed["storeSize"].sum()))
                    self._seen(piece)
                    yield self._rows.apply(piece)
        except StoreError:
            raise ContradictionError("queues contradict the log") from None

    def _entries(self, stripe: Stripe, low: int, high: int) -> Iterator[Records]:
        for pack in packs(stripe.offsets[low:high], stripe.sizes[low:high], WINDOW_BYTES):
            window = self._file.packed([(offset - self._base, size) for offset, size in pack.runs])
            records = Records(window, pack.places, self._item.source)
            part = slice(low + pack.low, low + pack.high)
            if not _agree(records, stripe, part).all():
                raise ContradictionError("queues contradict the log")
            of_topic = self._rows.topic_mask(records) if self._rows.names_topics else np.ones(len(records), bool)
            if not (of_topic | (stripe.queue_offsets[part] < 0)).all():
                raise ContradictionError("queues contradict the log")
            self._seen(records)
            yield self._rest.apply(records.select(of_topic))

    def _seen(self, records: Records) -> None:
        last = records.fixed[-1]
        self.sure = int(last["physicalOffset"]) + int(last["storeSize"])


def _agree(records: Records, stripe: Stripe, part: slice) -> NDArray[np.bool_]:
    """Mask of the records that are what their entries say."""
    fixed, numbers = records.fixed, stripe.queue_offsets[part]
    right: NDArray[np.bool_] = (fixed["magic"] == MAGIC_V1) | (fixed["magic"] == MAGIC_V2)
    right &= fixed["physicalOffset"] == stripe.offsets[part]
    right &= fixed["storeSize"] == stripe.sizes[part]
    right &= fixed["queueId"] == stripe.queue_ids[part]
    right &= (fixed["queueOffset"] == numbers) | (numbers < 0)
    return right
