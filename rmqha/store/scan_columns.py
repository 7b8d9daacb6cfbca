"""From record starts to Arrow columns (data plane: NumPy gathers, no object per record unless a body is compressed).

The layout is formats of RocketMQ's MessageDecoder: 48 fixed bytes, born host, storeTimestamp, store host, 16 fixed
bytes, body, topic, properties; hosts are 8 or 20 bytes by sysFlag, the topic's length field 1 byte (V1) or 2 (V2).
An inner batch (sysFlag 0x80, BatchCQ) is one row: its body holds the inner messages, as it is stored.
"""

from __future__ import annotations

import ipaddress
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqha.model.error import StoreError
from rmqha.store.scan_properties import Properties, parse, spans, split_keys, text
from rmqha.store.scan_walk import MAGIC_V2, RECORD_MIN_BYTES, LogFile, unaligned

I64 = NDArray[np.int64]

STRING_LIST = pa.list_(pa.field("element", pa.string()))
STRING_MAP = pa.map_(pa.string(), pa.string())
TIMESTAMP = pa.timestamp("us", "UTC")
TYPES: dict[str, Any] = {
    "topic": pa.string(),
    "flag": pa.int32(),
    "body": pa.binary(),
    "properties": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "keys": STRING_LIST,
    "tags": pa.string(),
    "msgId": pa.string(),
    "uniqKey": pa.string(),
    "physicalOffset": pa.int64(),
    "storeSize": pa.int32(),
    "sysFlag": pa.int32(),
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "bodyCRC": pa.int32(),
    "epoch": pa.int32(),
}
"""Every column with its Arrow type, in the order of the table."""

BODY_MAX_BYTES = 64 * 1024 * 1024
"""A decompressed body beyond it is refused, so that a few stored bytes cannot fill the memory."""
BATCH_BODY_MAX_BYTES = 1024 * 1024 * 1024

COMPRESSED, BORN_V6, STORE_V6 = 0x1, 0x10, 0x20
COMPRESSION_NAMES = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}

_HEAD = np.dtype(
    [
        ("storeSize", ">i4"),
        ("magic", ">i4"),
        ("bodyCRC", ">i4"),
        ("queueId", ">i4"),
        ("flag", ">i4"),
        ("queueOffset", ">i8"),
        ("physicalOffset", ">i8"),
        ("sysFlag", ">i4"),
        ("bornTimestamp", ">i8"),
    ]
)
_TAIL = np.dtype([("reconsumeTimes", ">i4"), ("preparedTransactionOffset", ">i8"), ("bodySize", ">i4")])
HEAD_FIELDS = frozenset(_HEAD.names or ())
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)
TIMESTAMP_MAX_MS = (2**63 - 1) // 1000
"""A later time, or one as far before 1970, is null: Arrow and Spark count microseconds."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a row has that its record does not hold."""

    broker_name: str | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, start offset), rising."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How columns are made."""

    columns: tuple[str, ...] = tuple(TYPES)
    properties_as: str = "json"
    decompress: bool = True
    verify_crc: bool = True
    """Compare every body that is delivered with its stored CRC."""

    @property
    def schema(self) -> Any:
        types = TYPES | ({"properties": STRING_MAP} if self.properties_as == "map" else {})
        return pa.schema([(name, types[name]) for name in self.columns])


class Records:
    """Some records of one file, decoded column by column on demand.

    The records must have passed the walk: their size, magic and own offset are right.
    """

    def __init__(self, file: LogFile, starts: I64, source: Source = Source()) -> None:
        self.file = file
        self.starts = starts
        self.source = source
        self.head: NDArray[Any] = unaligned(file.data, _HEAD)[starts]
        self._values: dict[bytes, Any] = {}

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, chosen: NDArray[np.bool_]) -> Records:
        return self if chosen.all() else Records(self.file, self.starts[chosen], self.source)

    def number(self, name: str) -> NDArray[Any]:
        """A numeric column; timestamps in milliseconds."""
        if name == "storeTimestamp":
            return self._gather(">i8", self._store_timestamp_at).astype(np.int64)
        fields = self.head if name in HEAD_FIELDS else self._tail
        return fields[name].astype(fields.dtype[name].newbyteorder("="))

    def column(self, name: str, decoding: Decoding) -> Any:
        match name:
            case "topic":
                return self.topic
            case "body":
                return self._body(decoding)
            case "properties":
                pairs = self.properties
                return pairs.as_map(STRING_MAP) if decoding.properties_as == "map" else pairs.as_json()
            case "brokerName":
                return pa.array([self.source.broker_name], pa.string()).take(pa.array(np.zeros(len(self), np.int32)))
            case "bornTimestamp" | "storeTimestamp":
                return _timestamps(self.number(name))
            case "keys":
                return split_keys(self.property(b"KEYS"), STRING_LIST)
            case "tags":
                return self.property(b"TAGS")
            case "uniqKey":
                return self.property(b"UNIQ_KEY")
            case "msgId":
                return self._message_ids()
            case "bornHost":
                return self._hosts(self.starts + 48, BORN_V6)
            case "storeHost":
                return self._hosts(self._store_timestamp_at + 8, STORE_V6)
            case "epoch":
                return self._epochs()
        return pa.array(self.number(name))

    def batch(self, decoding: Decoding) -> Any:
        """A RecordBatch of the wanted columns."""
        arrays = [self.column(name, decoding) for name in decoding.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=decoding.schema)

    # where the parts of each record are

    @cached_property
    def _store_timestamp_at(self) -> I64:
        return self.starts + 56 + np.where(self.head["sysFlag"] & BORN_V6, 12, 0)

    @cached_property
    def _tail_at(self) -> I64:
        return self._store_timestamp_at + 16 + np.where(self.head["sysFlag"] & STORE_V6, 12, 0)

    @cached_property
    def _tail(self) -> NDArray[Any]:
        fits = self._tail_at + _TAIL.itemsize <= self.file.size_bytes
        if not fits.all():
            self._fail(int(np.argmin(fits)), "a header inside the file", "one that is longer")
        return self._gather(_TAIL, self._tail_at)

    @cached_property
    def _layout(self) -> tuple[tuple[I64, I64, I64, I64, I64], NDArray[np.bool_]]:
        """Positions of body, body end, topic, topic end, properties, and whether they end where the record ends.

        Where they do not, the positions mean nothing but stay inside the record.
        """
        record_end = self.starts + self.head["storeSize"]
        wide = self.head["magic"] == MAGIC_V2
        body = self._tail_at + _TAIL.itemsize
        body_end = body + self._tail["bodySize"]
        fits = (body_end >= body) & (body_end + 3 + wide <= record_end)
        body_end = np.where(fits, body_end, self.starts)
        topic_size = self.file.data[body_end].astype(np.int64)
        if wide.any():
            topic_size[wide] = self._gather(">u2", body_end[wide])
        topic = body_end + 1 + wide
        topic_end = topic + topic_size
        fits &= topic_end + 2 <= record_end
        topic_end = np.where(fits, topic_end, topic)
        properties = topic_end + 2
        fits &= properties + self._gather(">u2", topic_end) == record_end
        return (body, body_end, topic, topic_end, properties), fits

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Do the lengths inside each record add up to its size? Those of a record that is being written do not."""
        return self._layout[1]

    @cached_property
    def _parts(self) -> tuple[I64, I64, I64, I64, I64]:
        """As _layout; StoreError if some record's lengths do not add up."""
        parts, fits = self._layout
        if not fits.all():
            bad = int(np.argmin(fits))
            sizes = f"a body of {self._tail['bodySize'][bad]} bytes and other lengths that do not add up to it"
            self._fail(bad, f"parts of {self.head['storeSize'][bad]} bytes together", sizes)
        return parts

    def _gather(self, dtype: Any, positions: I64) -> NDArray[Any]:
        gathered: NDArray[Any] = unaligned(self.file.data, dtype)[positions]
        return gathered

    def _spans(self, start: I64, end: I64) -> Any:
        """Byte ranges of the file as a BinaryArray; positions are made relative, for Arrow's offsets are int32."""
        if not len(start):
            return pa.array([], pa.binary())
        low, high = int(start[0]), int(end[-1])
        return spans(pa.py_buffer(self.file.data[low:high]), start - low, end - low)

    def _fail(self, index: int, expected: str, found: str) -> None:
        offset = self.file.base_offset + int(self.starts[index])
        raise StoreError(f"{self.file.path} at physical offset {offset}: expected {expected}, found {found}")

    # columns

    @cached_property
    def topic(self) -> Any:
        """The StringArray of topics."""
        _, _, start, end, _ = self._parts
        encoded = self._spans(start, end).dictionary_encode()
        return text(encoded.dictionary).take(encoded.indices)

    @cached_property
    def properties(self) -> Properties:
        _, _, _, _, start = self._parts
        return parse(self._spans(start, self.starts + self.head["storeSize"]))

    def property(self, name: bytes) -> Any:
        """StringArray of one property, null where a record lacks it."""
        if name not in self._values:
            self._values[name] = self.properties.value(name)
        return self._values[name]

    def _body(self, decoding: Decoding) -> Any:
        start, end = self._parts[:2]
        if decoding.verify_crc:
            self._verify_crc(start, end)
        stored = self._spans(start, end)
        compressed: Any = np.flatnonzero(self.head["sysFlag"] & COMPRESSED) if decoding.decompress else ()
        if not len(compressed):
            return stored
        bodies, total = stored.to_pylist(), 0
        for index in compressed:
            bodies[index] = self._decompressed(int(index), bodies[index])
            total += len(bodies[index])
            if total > BATCH_BODY_MAX_BYTES:
                self._fail(int(index), f"at most {BATCH_BODY_MAX_BYTES} bytes of bodies at once", "more")
        return pa.array(bodies, pa.binary())

    def _verify_crc(self, start: I64, end: I64) -> None:
        slices = map(slice, start.tolist(), end.tolist())
        view = memoryview(self.file.data.data)
        found = np.fromiter(map(zlib.crc32, map(view.__getitem__, slices)), np.int64, len(self)) & 0x7FFFFFFF
        right = found == self.head["bodyCRC"]
        if not right.all():
            bad = int(np.argmin(right))
            self._fail(bad, f"body CRC {self.head['bodyCRC'][bad]}", f"{found[bad]}")

    def _decompressed(self, index: int, body: bytes) -> bytes:
        name = COMPRESSION_NAMES.get(int(self.head["sysFlag"][index]) >> 8 & 0x7)
        try:
            if name == "zlib":
                plain = zlib.decompressobj().decompress(body, BODY_MAX_BYTES + 1)
            elif name is not None and codec_available(name):
                plain = pa.CompressedInputStream(pa.BufferReader(body), name).read(BODY_MAX_BYTES + 1)
            else:
                self._fail(index, "a compression known here", f"{name or 'another'}; set decompress=false")
        except (zlib.error, OSError):
            self._fail(index, f"a body compressed by {name}", "other bytes; set decompress=false")
        if len(plain) > BODY_MAX_BYTES:
            self._fail(index, f"a body of at most {BODY_MAX_BYTES} bytes", "a longer one; set decompress=false")
        return bytes(plain)

    def _message_ids(self) -> Any:
        """As clients show it: UNIQ_KEY, or the offset message id of a record without one."""
        ids = self.property(b"UNIQ_KEY")
        if not ids.null_count:
            return ids
        lacking = np.asarray(ids.is_null())
        made = Records(self.file, self.starts[lacking], self.source)._offset_message_ids()
        places = np.where(lacking, len(ids) + np.cumsum(lacking) - 1, np.arange(len(ids)))
        return pa.concat_arrays([ids, made]).take(pa.array(places))

    def _offset_message_ids(self) -> Any:
        """Upper-case hex of store host (4 or 16 bytes), port (4) and physical offset (8)."""
        wide = (self.head["sysFlag"] & STORE_V6) != 0
        made: NDArray[Any] = np.empty(len(self), object)
        for chosen, address_bytes in ((~wide, 4), (wide, 16)):
            picked = np.flatnonzero(chosen)
            raw = np.empty((len(picked), address_bytes + 12), np.uint8)
            host = self._gather(f"V{address_bytes + 4}", self._store_timestamp_at[picked] + 8)
            raw[:, : address_bytes + 4] = host.view(np.uint8).reshape(len(picked), address_bytes + 4)
            offsets = self.head["physicalOffset"][picked].astype(">i8")
            raw[:, address_bytes + 4 :] = offsets.view(np.uint8).reshape(len(picked), 8)
            digits = _HEX[raw].view(np.uint8)
            made[picked] = [row.tobytes().decode("ascii") for row in digits]
        return pa.array(made, pa.string())

    def _hosts(self, positions: I64, wide_bit: int) -> Any:
        """`address:port`, IPv6 in brackets."""
        wide = (self.head["sysFlag"] & wide_bit) != 0
        encoded = self._spans(positions, positions + np.where(wide, 20, 8)).dictionary_encode()
        shown = [_host(item) for item in encoded.dictionary.to_pylist()]
        return pa.array(shown, pa.string()).take(encoded.indices)

    def _epochs(self) -> Any:
        epochs = np.array([(0, -1), *self.source.epochs], np.int64)
        index = np.searchsorted(epochs[:, 1], self.number("physicalOffset"), "right") - 1
        return pa.array(epochs[index, 0].astype(np.int32), mask=index == 0)


def codec_available(name: str) -> bool:
    """Was pyarrow built with this codec? Wheels have all three."""
    return bool(pa.Codec.is_available(name))


def body_is_whole(file: LogFile, start: int) -> bool:
    """Does the record at `start` add up, and does its body match its CRC? A record that is being written does not."""
    one = Records(file, np.array([start], np.int64))
    try:
        body, body_end = one._parts[:2]
        one._verify_crc(body, body_end)
    except StoreError:
        return False
    return True


def record_sizes(file: LogFile, starts: I64) -> I64:
    sizes: I64 = unaligned(file.data, ">i4")[starts].astype(np.int64)
    assert not len(sizes) or int(sizes.min()) >= RECORD_MIN_BYTES
    return sizes


def _timestamps(milliseconds: I64) -> Any:
    """Null where a client sent a time that no timestamp can hold."""
    outside = (milliseconds > TIMESTAMP_MAX_MS) | (milliseconds < -TIMESTAMP_MAX_MS)
    micros = np.where(outside, 0, milliseconds) * 1000
    return pa.array(micros, mask=outside if outside.any() else None).cast(TIMESTAMP)


def _host(stored: bytes) -> str:
    address, port = ipaddress.ip_address(stored[:-4]), int.from_bytes(stored[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
