"""Data plane: ConsumeQueues made from the log in bulk, with NumPy; no Python object per record.

What it writes is what `DispatchService.dispatch` writes, byte for byte. Records are found by `scan.walk`, their fields
gathered by arrays, and everything that is rare is left to `DispatchService.dispatch` itself, a piece of the log at a
time: a record that is not whole, an inner batch, a topic with other queues, a delayed message, a tag that is long or
not ASCII.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.message import PROPERTY_TAGS
from rmqha.scan.walk import I64, MAGIC_V1, Window, unaligned, walk
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.record import SYS_BORN_V6, SYS_COMMIT, SYS_INNER_BATCH, SYS_STORE_V6, SYS_TRANSACTION
from rmqha.store.queue.consume_queue import ConsumeQueues
from rmqha.store.queue.dispatch_service import DispatchService

BLOCK_BYTES = 64 * 1024 * 1024
PIECE_COUNT = 4 * 1024
"""Records at a time: their arrays stay in the processor's cache."""
MAX_PROPERTIES_BYTES = 4 * 1024 * 1024
"""Most bytes of properties in one piece; with more than a kilobyte for each record the plain way costs no more."""
MAX_GATHERED_BYTES = 512
"""Most bytes of the longest properties in a piece, for them to be gathered by words."""
MAX_TAG_BYTES = 255
_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("crc", "V4"),
        ("queue_id", ">i4"),
        ("flag", "V4"),
        ("queue_offset", ">i8"),
        ("phy_offset", ">i8"),
        ("sys_flag", ">i4"),
    ]
)
_UNIT = np.dtype([("phy_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_WORD = "<u8"
_WORD_BYTES = 8
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES)] + [(1 << 64) - 1], np.uint64)
"""By how many bytes of a little-endian word count."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_TAGS = PROPERTY_TAGS.encode() + b"\x01"
_PAIR_END = 2


class _Records(NamedTuple):
    """Fields of a piece's records; positions are from the file's start."""

    start: I64
    size: I64
    queue_id: I64
    queue_offset: I64
    sys_flag: I64
    topic_at: I64
    topic_size: I64
    properties_at: I64
    properties_size: I64
    stored: I64


def rebuild(log: CommitLog, queues: ConsumeQueues, service: DispatchService, end_offset: int) -> None:
    """Dispatch the whole records of [service.position, end_offset). Stops before one that is not whole: what it is,
    `service.dispatch` says. Raises StoreError as that does."""
    while service.position < end_offset:
        view, file_start, file_end = log.file_view(service.position)
        at = service.position - file_start
        data = view[at : at + BLOCK_BYTES]
        block = Window(
            log.file_path(file_start),
            service.position,
            data,
            np.frombuffer(data, np.uint8),
            len(view) - at - len(data),
        )
        chain = walk(block, min(file_end, end_offset - file_start) - at)
        sizes = unaligned(block.data, ">i4")
        for first in range(0, len(chain.starts), PIECE_COUNT):
            starts = chain.starts[first : first + PIECE_COUNT]
            piece_end = block.base_offset + int(starts[-1]) + int(sizes[starts[-1]])
            if _put_piece(block, starts, queues, service):
                service.position = piece_end
                continue
            service.dispatch(end_offset, piece_end - service.position)
            if service.position != piece_end:
                return
        # the walk passes over a blank record at once
        if chain.broken or not chain.end or block.base_offset + chain.end > end_offset:
            return
        service.position = block.base_offset + chain.end


def _put_piece(file: Window, starts: I64, queues: ConsumeQueues, service: DispatchService) -> bool:
    """Write the entries of a piece's records; False, with nothing done, if the piece must be dispatched record by
    record."""
    records = _fields(file, starts)
    if records is None:
        return False
    group = _groups(file, records)
    if group is None:
        return False
    first = np.zeros(int(group.max()) + 1, np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]
    names: list[str | None] = [None] * len(first)
    for number in np.argsort(first).tolist():
        row = first[number]
        at = int(records.topic_at[row])
        name = file.data[at : at + int(records.topic_size[row])].tobytes()
        names[number] = service.topic(name, file.base_offset + int(records.start[row]))
    if any(name == SCHEDULE_TOPIC or name in queues.batch_topics for name in names):
        return False
    codes = _codes(file, records)
    if codes is None:
        return False
    kind = records.sys_flag & SYS_TRANSACTION
    known = np.array([name is not None for name in names])
    chosen = np.flatnonzero(((kind == 0) | (kind == SYS_COMMIT)) & known[group])
    order = chosen[np.argsort(group[chosen], kind="stable")]
    units = np.empty(len(order), _UNIT)
    units["phy_offset"] = records.start[order] + file.base_offset
    units["size"] = records.size[order]
    units["code"] = codes[order]
    owner, offsets = group[order], records.queue_offset[order]
    cuts = np.flatnonzero((np.diff(owner) != 0) | (np.diff(offsets) != 1)) + 1
    bounds = [0, *cuts.tolist(), len(order)]
    try:
        for low, high in pairwise(bounds):
            if low < high:
                topic = names[owner[low]]
                assert topic is not None
                queue_id = int(records.queue_id[order[low]])
                queues.collect_units(topic, queue_id, int(offsets[low]), units[low:high].tobytes())
        queues.write()
    finally:
        queues.forget()
    service.last_store_timestamp_ms = max(service.last_store_timestamp_ms, int(records.stored.max()))
    return True


def _fields(file: Window, start: I64) -> _Records | None:
    """The records' fields; None if the lengths of one do not add up, or if one takes several entries or none here."""
    data = file.data
    heads = unaligned(data, _HEAD)[start]
    size, sys_flag, queue_id, queue_offset = (
        heads[name].astype(np.int64) for name in ("size", "sys_flag", "queue_id", "queue_offset")
    )
    if (sys_flag & SYS_INNER_BATCH).any() or (queue_id < 0).any() or (queue_offset < 0).any():
        return None
    end = start + size
    born_bytes = np.where(sys_flag & SYS_BORN_V6, 20, 8)
    body_at = start + 80 + born_bytes + np.where(sys_flag & SYS_STORE_V6, 12, 0)
    length_bytes = np.where(heads["magic"] == MAGIC_V1, 1, 2)
    if (body_at + length_bytes + 2 > end).any():
        return None
    body_size = unaligned(data, ">i4")[body_at - 4].astype(np.int64)
    topic_at = body_at + body_size + length_bytes
    if (body_size < 0).any() or (topic_at + 2 > end).any():
        return None
    topic_size = np.where(length_bytes == 1, data[topic_at - 1], unaligned(data, ">u2")[topic_at - 2]).astype(np.int64)
    properties_at = topic_at + topic_size + 2
    if (topic_size == 0).any() or (properties_at > end).any():
        return None
    properties_size = unaligned(data, ">u2")[properties_at - 2].astype(np.int64)
    if (properties_at + properties_size != end).any():
        return None
    stored = unaligned(data, ">i8")[start + 48 + born_bytes].astype(np.int64)
    return _Records(
        start, size, queue_id, queue_offset, sys_flag, topic_at, topic_size, properties_at, properties_size, stored
    )


def _groups(file: Window, records: _Records) -> I64 | None:
    """A number for each record, equal for equal topic and queue; None if two of them have one hash."""
    words = unaligned(file.data, _WORD)
    mixed = records.queue_id.astype(np.uint64) * _MIX + records.topic_size.astype(np.uint64)
    columns: list[NDArray[Any]] = [records.queue_id, records.topic_size]
    for at in range(0, int(records.topic_size.max()), _WORD_BYTES):
        left = np.clip(records.topic_size - at, 0, _WORD_BYTES)
        # behind a topic stand at least its properties' length and, at the end of the file, room for a blank record
        column = words[np.minimum(records.topic_at + at, len(words) - 1)] & _MASKS[left]
        columns.append(column)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX + column
    _, first, group = np.unique(mixed, return_index=True, return_inverse=True)
    numbers: I64 = group.reshape(-1).astype(np.int64)
    if any((column != column[first][numbers]).any() for column in columns):
        return None
    return numbers


def _laid_out(file: Window, records: _Records) -> tuple[NDArray[np.uint8], I64, I64] | None:
    """The properties of all records in one array, and where those of each begin and end in it; None if they are too
    many. Short ones are gathered by words at equal distances, half as dear as one by one."""
    at, sizes = records.properties_at, records.properties_size
    words = -(-int(sizes.max()) // _WORD_BYTES)
    width = words * _WORD_BYTES
    if width <= MAX_GATHERED_BYTES and int(at.max()) + width <= file.size_bytes:
        table = np.empty((len(at), words), _WORD)
        source = unaligned(file.data, _WORD)
        for column in range(words):
            table[:, column] = source[at + column * _WORD_BYTES]
        begins = np.arange(len(at), dtype=np.int64) * width
        return table.view(np.uint8).reshape(-1), begins, begins + sizes
    if int(sizes.sum()) > MAX_PROPERTIES_BYTES:
        return None
    pieces = map(file.data.data.__getitem__, map(slice, at.tolist(), (at + sizes).tolist()))
    ends = np.cumsum(sizes)
    return np.frombuffer(b"".join(pieces), np.uint8), ends - sizes, ends


def _codes(file: Window, records: _Records) -> I64 | None:
    """The tagsCode of each record: Java's hash of its last property TAGS, 0 without one."""
    codes = np.zeros(len(records.properties_size), np.int64)
    laid_out = _laid_out(file, records)
    if laid_out is None:
        return None
    octets, begins_at, ends_at = laid_out
    total = len(octets)
    if total < len(_TAGS):
        return codes
    found = np.flatnonzero(octets[: total - len(_TAGS) + 1] == _TAGS[0])
    for index in range(1, len(_TAGS)):
        found = found[octets[found + index] == _TAGS[index]]
    row = np.searchsorted(begins_at, found, "right") - 1
    begins = (found == begins_at[row]) | (octets[found - 1] == _PAIR_END)
    inside = begins & (found + len(_TAGS) <= ends_at[row])
    row, value_at = row[inside], found[inside] + len(_TAGS)
    last = np.r_[row[1:] != row[:-1], True] if len(row) else np.zeros(0, bool)
    row, value_at = row[last], value_at[last]
    pair_ends = np.r_[np.flatnonzero(octets == _PAIR_END), total]
    value_end = np.minimum(pair_ends[np.searchsorted(pair_ends, value_at)], ends_at[row])
    value_size = value_end - value_at
    longest = int(value_size.max()) if len(value_size) else 0
    if longest > MAX_TAG_BYTES:
        return None
    hashed = np.zeros(len(row), np.uint32)
    for index in range(longest):
        active = index < value_size
        octet = octets[np.minimum(value_at + index, total - 1)]
        if (octet[active] >= 0x80).any():
            return None
        hashed = np.where(active, hashed * np.uint32(31) + octet, hashed)
    codes[row] = hashed.view(np.int32)
    return codes
