"""Rows as records, column by column (data plane: Arrow and NumPy, no object per row unless it has other properties).

A task makes records of its rows that lack only their place: queueOffset, physicalOffset and storeTimestamp. The driver
fills those in, a block at a time, appends, and gives the store what its queues and its index need, so that neither
reads the log again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqha.kernel.batch_kernel import BatchKernel, LogBlock
from rmqha.model.error import UsageError
from rmqha.model.message import (
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_INNER_BATCH,
)
from rmqha.scan.columns import FIXED, SMALL_BYTES, crcs_of_ranges, crcs_of_small
from rmqha.scan.walk import I64, unaligned
from rmqha.spark.write_rows import LOOPBACK, properties_of
from rmqha.store.appender import AppendContext, EncodedRecords
from rmqha.store.log.record import MAGIC_V1, MAGIC_V2, SECTOR_BYTES, seems_lost, topic_field
from rmqha.store.queue.dispatch_service import valid_topic
from rmqha.store.queue.dispatcher import DispatchedBlock
from rmqha.store.store import Store

MADE = pa.schema(
    [
        ("record", pa.binary()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("storedMs", pa.int64()),
    ]
)
"""Columns of made records: the bytes, what they are numbered by, and the store timestamp that the row asks for."""
PIECE_ROWS, PIECE_BYTES = 16384, 8 * 1024 * 1024
DISPATCH_BYTES = 16 * 1024 * 1024
SCAN_BYTES = 512 * 1024
"""Bytes of records whose queue and index entries are made in one call: the kernel keeps memory for so much."""
MAX_COUNTED = 1 << 16
_QUEUE_OFFSET_AT, _PHYSICAL_OFFSET_AT, _STORE_TIMESTAMP_AT = 20, 28, 56
_HOST = LOOPBACK[0] + LOOPBACK[1].to_bytes(4, "big")
_INT32 = (-(2**31), 2**31 - 1)
_TEXTS = ((PROPERTY_KEYS, "keys"), (PROPERTY_TAGS, "tags"), (PROPERTY_UNIQUE_KEY, "uniqKey"))


def made(batch: Any, now_ms: int, max_body_bytes: int) -> Iterator[Any]:
    """Batches of MADE, a row for each of the batch, in order; `now_ms` is the store timestamp of a row without one.
    UsageError for a row that cannot be a message."""
    for name in ("topic", "body"):
        if batch[name].null_count:
            raise UsageError("commitlog cannot write a row whose topic or body is null")
    ends = np.cumsum(np.asarray(pc.binary_length(batch["body"])), dtype=np.int64)
    low = 0
    while low < batch.num_rows:
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + PIECE_BYTES, "right"))
        high = max(min(high, low + PIECE_ROWS), low + 1)
        yield _made(batch.slice(low, high - low), now_ms, max_body_bytes)
        low = high


def _made(rows: Any, now_ms: int, max_body_bytes: int) -> Any:
    topics = rows["topic"].dictionary_encode()
    codes, names = np.asarray(topics.indices), topics.dictionary.to_pylist()
    fields = [_field(name) for name in names]
    lengths = np.array([len(field) for field, _ in fields])
    magics = np.array([MAGIC_V1 if version == 1 else MAGIC_V2 for _, version in fields], np.uint32)
    body, places, data = _bytes(rows["body"].cast(pa.binary()))
    properties, property_places, _ = _bytes(_properties(rows))
    body_sizes, property_sizes = np.diff(places), np.diff(property_places)
    if int(body_sizes.max()) > max_body_bytes:
        at = int(body_sizes.argmax())
        raise UsageError(
            f"commitlog cannot write a message of {body_sizes[at]} bytes for topic {names[codes[at]]}: it exceeds "
            f"maxMessageSize = {max_body_bytes}"
        )
    _check_properties(properties, property_sizes, lambda row: names[codes[row]])
    stored = _millis(rows, "storeTimestamp", np.full(rows.num_rows, now_ms, np.int64))
    queue_ids = _numbers(rows, "queueId", (0, _INT32[1]))
    head = np.zeros(rows.num_rows, FIXED)
    head["storeSize"] = FIXED.itemsize + body_sizes + lengths[codes] + 2 + property_sizes
    head["magic"] = magics[codes].view(np.int32)
    is_small = int(body_sizes.sum()) <= SMALL_BYTES * rows.num_rows
    crcs = crcs_of_small(body) if is_small else crcs_of_ranges(data, places[:-1], places[1:])
    head["bodyCRC"] = crcs & 0x7FFFFFFF
    head["queueId"], head["flag"] = queue_ids, _numbers(rows, "flag", _INT32)
    head["bornTimestamp"] = _millis(rows, "bornTimestamp", stored)
    head["bornHost"] = head["storeHost"] = np.void(_HOST)
    head["reconsumeTimes"], head["bodySize"] = _numbers(rows, "reconsumeTimes", _INT32), body_sizes
    parts = (
        _fixed_bytes(head),
        body,
        pa.array([field for field, _ in fields], pa.binary()).take(topics.indices),
        _fixed_bytes(property_sizes.astype(">u2")),
        properties,
    )
    records = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    columns = [records, rows["topic"].cast(pa.string()), pa.array(queue_ids, pa.int32()), pa.array(stored)]
    return pa.RecordBatch.from_arrays(columns, schema=MADE)


def _field(name: str) -> tuple[bytes, int]:
    if not name:
        raise UsageError("commitlog cannot write a row whose topic or body is null")
    if len(name.encode()) > MAX_TOPIC_BYTES or not valid_topic(name):
        raise UsageError(f"commitlog cannot write the topic {name[:80]!r}: brokers take no such name")
    return topic_field(name)


def _bytes(texts: Any) -> tuple[Any, I64, Any]:
    """A BinaryArray, the places in its bytes where each element begins and the last one ends, and those bytes."""
    _, offsets, data = texts.buffers()
    places = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
    return texts, places, b"" if data is None else data


def _fixed_bytes(values: NDArray[Any]) -> Any:
    """Elements of one size as a BinaryArray."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def _numbers(rows: Any, name: str, bounds: tuple[int, int]) -> I64:
    """A column of numbers, 0 where it is null or not there. UsageError for one outside the bounds."""
    if name not in rows.schema.names:
        return np.zeros(rows.num_rows, np.int64)
    found = np.asarray(pc.fill_null(rows[name], 0)).astype(np.int64)
    outside = (found < bounds[0]) | (found > bounds[1])
    if outside.any():
        raise UsageError(
            f"commitlog cannot write {name} = {found[outside][0]}: it must be from {bounds[0]} to {bounds[1]}"
        )
    return found


def _millis(rows: Any, name: str, default: I64) -> I64:
    """A column of times in milliseconds since 1970."""
    if name not in rows.schema.names:
        return default
    column = rows[name]
    if pa.types.is_timestamp(column.type):
        times = np.asarray(pc.fill_null(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 0))
        times = (times + 500) // 1000
    else:
        times = np.asarray(pc.fill_null(column, 0)).astype(np.int64)
    return np.where(np.asarray(column.is_null()), default, times) if column.null_count else times


def _properties(rows: Any) -> Any:
    """The properties of each row as they are stored, a BinaryArray."""
    names = rows.schema.names
    if "sysFlag" in names and (np.asarray(pc.fill_null(rows["sysFlag"], 0)) & SYS_FLAG_INNER_BATCH).any():
        return _properties_by_row(rows)
    texts = {column: _texts(rows[column]) for _, column in _TEXTS if column in names}
    if "properties" in names or any(text is None for text in texts.values()):
        return _properties_by_row(rows)
    pairs = [_pairs(name, texts[column]) for name, column in _TEXTS if column in texts]
    if not pairs:
        return pa.array([b""], pa.binary()).take(pa.array(np.zeros(rows.num_rows, np.int32)))
    return pc.binary_join_element_wise(*pairs, "").cast(pa.binary())


def _properties_by_row(rows: Any) -> Any:
    wanted = ("topic", "properties", "sysFlag", *(column for _, column in _TEXTS))
    chosen = rows.select([name for name in wanted if name in rows.schema.names])
    return pa.array(map(properties_of, chosen.to_pylist()), pa.binary())


def _texts(column: Any) -> Any:
    """The texts of a property; None if one must be checked by itself: it is no text, or holds a separator."""
    if pa.types.is_list(column.type):
        if column.flatten().null_count:
            return None
        # Arrow joins no texts of a list whose elements cannot be null
        column = pc.binary_join(column.cast(pa.list_(pa.string())), " ")
    column = column.cast(pa.string())
    return None if _holds(column, b"\x02") else column


def _pairs(name: str, texts: Any) -> Any:
    """Pairs `name 0x01 value 0x02` of the texts; empty bytes where a text is empty or null."""
    pairs = pc.binary_join_element_wise(pa.scalar(f"{name}\x01"), texts, pa.scalar("\x02"), "")
    is_there = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False)
    return pc.if_else(is_there, pairs, pa.scalar(""))


def _check_properties(properties: Any, sizes: I64, topic_of: Callable[[int], str]) -> None:
    """UsageError for properties that no record can hold."""
    longest = int(sizes.argmax())
    if sizes[longest] > MAX_PROPERTIES_BYTES:
        raise UsageError(
            f"commitlog cannot write the properties of a row of topic {topic_of(longest)}: they take "
            f"{sizes[longest]} bytes, and {MAX_PROPERTIES_BYTES} fit"
        )
    if _holds(properties, b"\0"):
        for row, item in enumerate(properties.to_pylist()):
            if seems_lost(item):
                raise UsageError(
                    f"commitlog cannot write the properties of a row of topic {topic_of(row)}: they must neither end "
                    f"with a zero byte nor hold {SECTOR_BYTES} of them together"
                )


def _holds(texts: Any, byte: bytes) -> bool:
    """True if this byte is in the texts, or in their memory before or behind them."""
    _, _, data = texts.buffers()
    return data is not None and byte in data.to_pybytes()


# --- and appended -----------------------------------------------------------------------------------------------------


def append(store: Store, batch: Any, queue_counts: dict[str, int], kernel: BatchKernel | None = None) -> None:
    """Append a batch of MADE and dispatch it; `queue_counts` has the number of queues of each topic then. `kernel` is
    the store's. Raises StoreError when the disk fails or is full."""
    if batch.num_rows:
        block = _Block(batch, queue_counts, kernel)
        while block.low < block.count:
            store.append_made(block.next_size, block.place)
            store.set_confirm_offset(store.max_phy_offset)
            while store.dispatch(DISPATCH_BYTES) or store.index.build(DISPATCH_BYTES):
                pass


def _groups(values: I64, limit: int) -> tuple[I64, NDArray[Any]]:
    """The values that occur, all below `limit`, in order, and the place of each among them."""
    if limit > MAX_COUNTED:
        return np.unique(values, return_inverse=True)
    found = np.flatnonzero(np.bincount(values, minlength=limit))
    places = np.zeros(limit, np.uint16)  # NumPy sorts numbers of two bytes by their digits, ten times as fast
    places[found] = np.arange(len(found))
    return found, places[values]


class _Block:
    """Records of one batch, placed from `low` on."""

    def __init__(self, batch: Any, queue_counts: dict[str, int], kernel: BatchKernel | None) -> None:
        self._kernel = kernel
        _, places, data = _bytes(batch["record"])
        self._data = np.frombuffer(data, np.uint8)[places[0] : places[-1]].copy()
        self._starts, self._ends = places[:-1] - places[0], places[1:] - places[0]
        self._asked = np.asarray(batch["storedMs"])
        topics = batch["topic"].dictionary_encode()
        names, queue_ids = topics.dictionary.to_pylist(), np.asarray(batch["queueId"])
        width = int(queue_ids.max()) + 1
        groups, self._group = _groups(np.asarray(topics.indices) * np.int64(width) + queue_ids, len(names) * width)
        self._keys = [(names[group // width], group % width) for group in groups.tolist()]
        for topic, queue_id in self._keys:
            queue_counts[topic] = max(queue_counts.get(topic, 0), queue_id + 1)
        counts = np.bincount(self._group)
        self._order = order = np.argsort(self._group, kind="stable")
        self._rank = np.empty(batch.num_rows, np.int64)
        self._rank[order] = np.arange(batch.num_rows) - np.repeat(np.cumsum(counts) - counts, counts)
        self._first: I64 | None = None
        self.low, self.count = 0, batch.num_rows

    @property
    def next_size(self) -> int:
        """Bytes of the record that comes next."""
        return int(self._ends[self.low] - self._starts[self.low])

    def place(self, context: AppendContext) -> EncodedRecords:
        """Place as many records as the file has room for."""
        if self._first is None:
            self._first = np.array([context.next_offset(key) for key in self._keys], np.int64)
        low, base = self.low, context.phy_offset - int(self._starts[self.low])
        high = int(np.searchsorted(self._ends, context.room_end - base, "right"))
        assert high > low, "the place has room for the first record"
        stored = np.maximum.accumulate(np.maximum(self._asked[low:high], context.store_timestamp_ms))
        starts = self._starts[low:high]
        for at, values in (
            (_QUEUE_OFFSET_AT, self._first[self._group[low:high]] + self._rank[low:high]),
            (_PHYSICAL_OFFSET_AT, starts + base),
            (_STORE_TIMESTAMP_AT, stored),
        ):
            unaligned(self._data, "V8")[starts + at] = values.astype(">i8").view("V8")
        used = np.bincount(self._group[:high], minlength=len(self._keys))
        next_offsets = dict(zip(self._keys, (self._first + used).tolist(), strict=True))
        self.low = high
        records = self._data[int(starts[0]) : int(self._ends[high - 1])].tobytes()
        blocks = list(self._derived(records, low, high, base))
        return EncodedRecords(records, next_offsets, int(stored[-1]), blocks)

    def _derived(self, records: bytes, low: int, high: int, base: int) -> Iterator[DispatchedBlock]:
        """Entries of queues and index of the records [low, high), as far as these are plain; none if dispatch, which
        reads the log, is as quick as the kernel."""
        if self._kernel is None or not self._kernel.scans_in_bulk:
            return
        first = int(self._starts[low])
        while low < high:
            start = int(self._starts[low])
            end = max(int(np.searchsorted(self._ends[:high], start + SCAN_BYTES, "right")), low + 1)
            data = records[start - first : int(self._ends[end - 1]) - first]
            found = self._kernel.scan(LogBlock(data, base + start, end - low, len(self._keys)))
            bounds, runs, entries, stamps = found
            if len(stamps) < end - low:
                return
            yield DispatchedBlock(base + start, len(data), runs, entries, end - low, bounds, stamps[-1], stamps)
            low = end
