"""From record starts to Arrow columns (data plane: NumPy gathers, no object per record unless a body is compressed).

The layout is formats of RocketMQ's MessageDecoder: 48 fixed bytes, born host, storeTimestamp, store host, 16 fixed
bytes, body, topic, properties; hosts are 8 or 20 bytes by sysFlag, the topic's length field 1 byte (V1) or 2 (V2).
An inner batch (sysFlag 0x80, BatchCQ) is one record here; `inner_batches` makes records of its messages.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqha.model.error import StoreError
from rmqha.scan.native import columns as native_columns
from rmqha.scan.properties import Properties, parse, spans, split_keys, text
from rmqha.scan.walk import ANY_FLAGS, MAGIC_V2, Window, gather, where_bytes

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

SMALL_BYTES = 480
"""Size up to which a bytes object costs less than a slice of a memoryview: no call for memory, little to copy."""
PIECE_COUNT = 256
"""Number of objects at a time: their memory stays in the processor's cache."""


def crc_of(body: bytes) -> int:
    """CRC of one body, as a record stores it."""
    return int(crc32(body)) & 0x7FFFFFFF


def crcs_of_ranges(data: Any, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """CRCs of the ranges [start, end) of a buffer."""
    slices = map(slice, start.tolist(), end.tolist())
    return np.fromiter(map(crc32, map(memoryview(data).__getitem__, slices)), np.int64, len(start))


def crcs_of_small(bodies: Any) -> NDArray[np.int64]:
    """CRCs of the elements of a BinaryArray, in half the time if they are small."""
    count = len(bodies)
    pieces = (bodies[at : at + PIECE_COUNT].to_numpy(zero_copy_only=False) for at in range(0, count, PIECE_COUNT))
    return np.fromiter(map(crc32, chain.from_iterable(piece.tolist() for piece in pieces)), np.int64, count)


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
CORRUPT = "_corrupt"
"""One more column where damage becomes rows: the sentence, null for a sound record."""
STORE_PATH = "storePath"
"""One more column for whoever asks for it: the store's directory or address, which tells plain brokers apart."""

BODY_MAX_BYTES = 64 * 1024 * 1024
"""A decompressed body beyond it is refused, so that a few stored bytes cannot fill the memory."""
BATCH_BODY_MAX_BYTES = 32 * 1024 * 1024
"""Most bytes of all decompressed bodies of a batch, unless it is one record: so a task's memory is bounded."""

COMPRESSED, BORN_V6, STORE_V6 = 0x1, 0x10, 0x20
COMPRESSION_NAMES = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}

FIXED = np.dtype(
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
        ("bornHost", "V8"),
        ("storeTimestamp", ">i8"),
        ("storeHost", "V8"),
        ("reconsumeTimes", ">i4"),
        ("preparedTransactionOffset", ">i8"),
        ("bodySize", ">i4"),
    ]
)
"""The first 88 bytes of a record; what stands behind bornTimestamp stands there only if both hosts are IPv4."""
_TAIL = np.dtype([("reconsumeTimes", ">i4"), ("preparedTransactionOffset", ">i8"), ("bodySize", ">i4")])
TAIL_FIELDS = frozenset(_TAIL.names or ())
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)
TIMESTAMP_MAX_MS = (2**63 - 1) // 1000
"""A later time, or one as far before 1970, is null: Arrow and Spark count microseconds."""


@dataclass(frozen=True, slots=True)
class Source:
    """Values of a row that its record does not hold."""

    broker_name: str | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, start offset), rising."""
    root: str | None = None
    """The store's directory."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Choices for the making of columns."""

    columns: tuple[str, ...] = tuple(TYPES)
    properties_as: str = "json"
    decompress: bool = True
    verify_crc: bool = True
    """Compare every body that is delivered with its stored CRC."""
    on_corrupt: str = "fail"
    """fail, skip, or row: one row for what is damaged, with a sentence in the column _corrupt."""
    explode_batches: bool = True
    """Each message of an inner batch is a row; else the batch is one, whose body holds them as they are stored."""

    @property
    def schema(self) -> Any:
        """Arrow schema of the columns."""
        return _schema(self.columns, self.properties_as)


@lru_cache(maxsize=64)
def _schema(columns: tuple[str, ...], properties_as: str) -> Any:
    types = TYPES | {CORRUPT: pa.string(), STORE_PATH: pa.string()}
    if properties_as == "map":
        types["properties"] = STRING_MAP
    return pa.schema([(name, types[name]) for name in columns])


class _TooLargeError(Exception):
    """The bodies are more than one batch may hold."""


class Records:
    """Some records of one window, decoded column by column on demand.

    The records must have passed the walk: their size, magic and own offset are right.
    """

    def __init__(
        self,
        window: Window,
        starts: I64,
        source: Source = Source(),
        fixed: NDArray[Any] | None = None,
        seen_flags: int = ANY_FLAGS,
    ) -> None:
        self.window = window
        self.starts = starts
        self.source = source
        self.seen_flags = seen_flags
        """All bits of sysFlag that one of the records has, or more."""
        if fixed is not None:
            self.__dict__["fixed"] = fixed
        self.faults: dict[int, str] = {}
        """Reason why a row's body cannot be delivered, by row, where it is not raised."""
        self.members: NDArray[np.bool_] | None = None
        """Mask of the records that were made of an inner batch's messages."""
        self._values: dict[bytes, Any] = {}

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def fixed(self) -> NDArray[Any]:
        """The first bytes of each record."""
        return gather(self.window.data, FIXED, self.starts)

    def select(self, chosen: NDArray[np.bool_]) -> Records:
        """The records at which `chosen` (a mask) is True."""
        if chosen.all():
            return self
        places = np.flatnonzero(chosen)
        fixed = self.fixed.view(f"V{FIXED.itemsize}")[places].view(FIXED)
        picked = Records(self.window, self.starts[places], self.source, fixed, self.seen_flags)
        if "_layout" in self.__dict__:
            parts, fits = self._layout
            picked.__dict__["_layout"] = tuple(part[places] for part in parts), fits[places]
        picked._values = {name: found.take(pa.array(places)) for name, found in self._values.items()}
        if self.members is not None:
            picked.members = self.members[places]
        if self.faults:
            picked.faults = {row: self.faults[at] for row, at in enumerate(places.tolist()) if at in self.faults}
        return picked

    def number(self, name: str) -> NDArray[Any]:
        """A numeric column; timestamps in milliseconds."""
        if name == "storeTimestamp" and not self._all_v4:
            return self._gather(">i8", self._store_timestamp_at).astype(np.int64)
        fields = self._tail if name in TAIL_FIELDS else self.fixed
        return fields[name].astype(fields.dtype[name].newbyteorder("="))

    def column(self, name: str, decoding: Decoding) -> Any:
        """Arrow array of a column, one value for each record."""
        match name:
            case "topic":
                return self.topic
            case "body":
                return self._body(decoding)
            case "properties":
                pairs = self.properties
                return pairs.as_map(STRING_MAP) if decoding.properties_as == "map" else pairs.as_json()
            case "brokerName":
                return pa.repeat(pa.scalar(self.source.broker_name, pa.string()), len(self))
            case "storePath":
                return pa.repeat(pa.scalar(self.source.root, pa.string()), len(self))
            case "bornTimestamp" | "storeTimestamp":
                return _timestamps(self.number(name))
            case "keys":
                return self.keys
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
            case "_corrupt":
                return pa.array([self.faults.get(row) for row in range(len(self))], pa.string())
        numbers = self.number(name)
        if self.members is not None and name in ("storeSize", "bodyCRC"):
            numbers[self.members] = 0  # as a client has it
        return _plain(TYPES[name], numbers)

    def batches(self, decoding: Decoding) -> Iterator[Any]:
        """RecordBatches of the wanted columns: one, or as many as bound their decompressed bodies.

        StoreError for a body that is not what its record says, unless `decoding` leaves such rows out or makes the body
        null and says why."""
        with suppress(_TooLargeError):
            yield self._batch(decoding)
            return
        first_half = np.arange(len(self)) < len(self) // 2
        for chosen in (first_half, ~first_half):
            yield from self.select(chosen).batches(decoding)

    def _batch(self, decoding: Decoding) -> Any:
        made = self.by_columns(decoding)
        if self.faults and decoding.on_corrupt == "skip":
            sound = np.ones(len(self), bool)
            sound[list(self.faults)] = False
            return made.filter(pa.array(sound))
        return made

    def by_columns(self, decoding: Decoding) -> Any:
        """One RecordBatch, column by column, natively where that can be; faults are noted. Errors as of `batches`."""
        names = decoding.columns
        found = self._native(decoding)
        # bodies first: whether they are sound is itself a column
        found |= {
            name: self.column(name, decoding)
            for name in sorted(names, key=lambda name: name != "body")
            if name not in found
        }
        return pa.RecordBatch.from_arrays([found[name] for name in names], schema=decoding.schema)

    def _native(self, decoding: Decoding) -> dict[str, Any]:
        """Arrow arrays of the columns that a native decoder makes, if there is one and all records are plain."""
        if self.faults:
            return {}
        refused = COMPRESSED if decoding.decompress and "body" in decoding.columns else 0
        return native_columns.arrays(
            self.window.data, self.starts, decoding.columns, TYPES, refused, decoding.verify_crc
        )

    # where the parts of each record are

    @cached_property
    def _all_v4(self) -> bool:
        return not (self.fixed["sysFlag"] & (BORN_V6 | STORE_V6)).any()

    @cached_property
    def _store_timestamp_at(self) -> I64:
        return self.starts + 56 + np.where(self.fixed["sysFlag"] & BORN_V6, 12, 0)

    @cached_property
    def _tail_at(self) -> I64:
        return self._store_timestamp_at + 16 + np.where(self.fixed["sysFlag"] & STORE_V6, 12, 0)

    @cached_property
    def _tail(self) -> NDArray[Any]:
        """Fields behind the hosts. Of a record too short for the hosts that its sysFlag claims they are a neighbour's
        bytes; `whole` is False for it."""
        if self._all_v4:
            return self.fixed
        return self._gather(_TAIL, np.minimum(self._tail_at, self.window.size_bytes - _TAIL.itemsize))

    @cached_property
    def _layout(self) -> tuple[tuple[I64, I64, I64, I64, I64], NDArray[np.bool_]]:
        """Positions of body, body end, topic, topic end, properties, and whether they end where the record ends.

        Where they do not, the positions mean nothing but stay inside the record.
        """
        record_end = self.starts + self.fixed["storeSize"]
        wide = self.fixed["magic"] == MAGIC_V2
        any_wide = bool(wide.any())
        length_bytes: Any = 1 + wide if any_wide else 1
        body = self.starts + FIXED.itemsize if self._all_v4 else self._tail_at + _TAIL.itemsize
        body_end = body + self.number("bodySize").astype(np.int64)
        topic = body_end + length_bytes
        fits = (body_end >= body) & (topic + 2 <= record_end)
        if not fits.all():
            body = np.where(fits, body, self.starts)
            body_end = np.where(fits, body_end, self.starts)
            topic = body_end + length_bytes
        topic_size = self.window.data[body_end].astype(np.int64)
        if any_wide:
            topic_size[wide] = self._gather(">u2", body_end[wide])
        topic_end = topic + topic_size
        fits &= topic_end + 2 <= record_end
        if not fits.all():
            topic_end = np.where(fits, topic_end, topic)
        properties = topic_end + 2
        fits &= properties + self._gather(">u2", topic_end) == record_end
        return (body, body_end, topic, topic_end, properties), fits

    @property
    def whole(self) -> NDArray[np.bool_]:
        """True where the lengths inside a record add up to its size. Those of one that is being written do not."""
        return self._layout[1]

    @cached_property
    def _parts(self) -> tuple[I64, I64, I64, I64, I64]:
        """The positions of `_layout`. StoreError if some record's lengths do not add up."""
        parts, fits = self._layout
        if not fits.all():
            raise StoreError(self.describe_incomplete(int(np.argmin(fits))))
        return parts

    def describe_incomplete(self, index: int) -> str:
        """The sentence for a record whose lengths do not add up."""
        sizes = f"a body of {self._tail['bodySize'][index]} bytes and other lengths that do not add up to it"
        return self.describe(index, f"parts of {self.fixed['storeSize'][index]} bytes together", sizes)

    def _gather(self, dtype: Any, positions: I64) -> NDArray[Any]:
        return gather(self.window.data, dtype, positions)

    def _spans(self, start: I64, end: I64) -> Any:
        """Byte ranges of the window as a BinaryArray, copied."""
        return spans(self._buffer, start, end)

    @cached_property
    def _buffer(self) -> Any:
        return pa.py_buffer(self.window.data)

    def describe(self, index: int, expected: str, found: str) -> str:
        """The sentence for a record that is not what it should be."""
        offset = int(self.fixed["physicalOffset"][index])
        return f"{self.window.path} at physical offset {offset}: expected {expected}, found {found}"

    def note(self, decoding: Decoding, index: int, sentence: str) -> None:
        """A record's body cannot be delivered: StoreError, or a fault of its row, as `decoding` says."""
        if decoding.on_corrupt == "fail":
            raise StoreError(sentence)
        self.faults.setdefault(index, sentence)

    # columns

    @cached_property
    def topic_codes(self) -> tuple[list[str], NDArray[Any]]:
        """The topics that occur, and of each record the place of its topic among them."""
        _, _, start, end, _ = self._parts
        encoded = self._spans(start, end).dictionary_encode()
        return text(encoded.dictionary).to_pylist(), np.asarray(encoded.indices)

    @cached_property
    def topic(self) -> Any:
        """The StringArray of topics."""
        _, _, start, end, _ = self._parts
        return text(self._spans(start, end))

    def topic_is(self, name: str) -> NDArray[np.bool_]:
        """Mask of the records of this topic, whose name must not hold U+FFFD, which stands for several bytes."""
        _, _, start, end, _ = self._parts
        encoded = name.encode()
        places = np.flatnonzero(end - start == len(encoded))
        same = np.zeros(len(self), bool)
        same[places[where_bytes(self.window.data, start[places], encoded)]] = True
        return same

    @cached_property
    def keys(self) -> Any:
        """The ListArray of keys."""
        return split_keys(self.property(b"KEYS"), STRING_LIST)

    @cached_property
    def properties(self) -> Properties:
        """Properties of all records, not yet parsed by name."""
        _, _, _, _, start = self._parts
        return parse(self._spans(start, self.starts + self.fixed["storeSize"]))

    def property(self, name: bytes) -> Any:
        """StringArray of one property, null where a record lacks it."""
        if name not in self._values:
            self._values[name] = self.properties.value(name)
        return self._values[name]

    def _body(self, decoding: Decoding) -> Any:
        if decoding.verify_crc:
            self._verify_crc(decoding)
        stored = self._stored_bodies
        compressed: Any = np.flatnonzero(self.fixed["sysFlag"] & COMPRESSED) if decoding.decompress else ()
        if not len(compressed) and not self.faults:
            return stored
        bodies, total = stored.to_pylist(), 0
        for index in map(int, compressed):
            if index in self.faults:
                continue
            try:
                bodies[index] = self.decompressed(index, bodies[index])
            except StoreError as error:
                self.note(decoding, index, str(error))
                continue
            total += len(bodies[index])
            if total > BATCH_BODY_MAX_BYTES and len(self) > 1:
                raise _TooLargeError
        for index in self.faults:
            bodies[index] = None
        return pa.array(bodies, pa.binary())

    def _verify_crc(self, decoding: Decoding) -> None:
        found = self._body_crcs()
        for bad in np.flatnonzero(found != self.fixed["bodyCRC"]).tolist():
            expected = f"body CRC {self.fixed['bodyCRC'][bad]}"
            self.note(decoding, bad, self.describe(bad, expected, f"{found[bad]}"))

    def _body_crcs(self) -> I64:
        start, end = self._parts[:2]
        small = int((end - start).sum()) <= SMALL_BYTES * len(self)
        found = crcs_of_small(self._stored_bodies) if small else crcs_of_ranges(self.window.raw, start, end)
        return found & 0x7FFFFFFF

    @cached_property
    def _stored_bodies(self) -> Any:
        start, end = self._parts[:2]
        return spans(pa.py_buffer(self.window.raw), start, end, long=True)

    def sound_count(self) -> int:
        """Number of records before the first whose lengths do not add up or whose body does not match its CRC, which
        may still be under way."""
        whole = self.whole
        if not whole.all():
            return Records(self.window, self.starts[: int(np.argmin(whole))]).sound_count()
        right = self._body_crcs() == self.fixed["bodyCRC"]
        return len(self) if right.all() else int(np.argmin(right))

    def extent(self, index: int) -> tuple[int, int, int, int]:
        """Positions of one record's start, of the 16 bytes before its body, of the body and of its end. StoreError if
        its lengths do not add up."""
        if not self._layout[1][index]:
            raise StoreError(self.describe_incomplete(index))
        body, body_end = int(self._layout[0][0][index]), int(self._layout[0][1][index])
        return int(self.starts[index]), body - _TAIL.itemsize, body, body_end

    def decompressed(self, index: int, body: bytes) -> bytes:
        """The plain form of a compressed body. StoreError if it has none."""
        name = COMPRESSION_NAMES.get(int(self.fixed["sysFlag"][index]) >> 8 & 0x7)
        if name is None or (name != "zlib" and not codec_available(name)):
            raise StoreError(
                self.describe(index, "a compression known here", f"{name or 'another'}; set decompress=false")
            )
        try:
            if name == "zlib":
                plain = zlib.decompressobj().decompress(body, BODY_MAX_BYTES + 1)
            else:
                plain = pa.CompressedInputStream(pa.BufferReader(body), name).read(BODY_MAX_BYTES + 1)
        except (zlib.error, OSError):
            raise StoreError(
                self.describe(index, f"a body compressed by {name}", "other bytes; set decompress=false")
            ) from None
        if len(plain) > BODY_MAX_BYTES:
            longest = f"a body of at most {BODY_MAX_BYTES} bytes"
            raise StoreError(self.describe(index, longest, "a longer one; set decompress=false"))
        return bytes(plain)

    def _message_ids(self) -> Any:
        """Message ids as clients show them: UNIQ_KEY, or the offset message id of a record without one."""
        ids = self.property(b"UNIQ_KEY")
        if not ids.null_count:
            return ids
        lacking = np.asarray(ids.is_null())
        made = Records(self.window, self.starts[lacking], self.source)._offset_message_ids()
        places = np.where(lacking, len(ids) + np.cumsum(lacking) - 1, np.arange(len(ids)))
        return pa.concat_arrays([ids, made]).take(pa.array(places))

    def _offset_message_ids(self) -> Any:
        """Upper-case hex of store host (4 or 16 bytes), port (4) and physical offset (8)."""
        wide = (self.fixed["sysFlag"] & STORE_V6) != 0
        made: NDArray[Any] = np.empty(len(self), object)
        for chosen, address_bytes in ((~wide, 4), (wide, 16)):
            picked = np.flatnonzero(chosen)
            raw = np.empty((len(picked), address_bytes + 12), np.uint8)
            host = self._gather(f"V{address_bytes + 4}", self._store_timestamp_at[picked] + 8)
            raw[:, : address_bytes + 4] = host.view(np.uint8).reshape(len(picked), address_bytes + 4)
            offsets = self.fixed["physicalOffset"][picked].astype(">i8")
            raw[:, address_bytes + 4 :] = offsets.view(np.uint8).reshape(len(picked), 8)
            digits = _HEX[raw].view(np.uint8)
            made[picked] = [row.tobytes().decode("ascii") for row in digits]
        return pa.array(made, pa.string())

    def _hosts(self, positions: I64, wide_bit: int) -> Any:
        """The hosts at these positions as `address:port`, IPv6 in brackets."""
        wide = (self.fixed["sysFlag"] & wide_bit) != 0
        encoded = self._spans(positions, positions + np.where(wide, 20, 8)).dictionary_encode()
        shown = [_host(item) for item in encoded.dictionary.to_pylist()]
        return pa.array(shown, pa.string()).take(encoded.indices)

    def _epochs(self) -> Any:
        epochs = np.array([(0, -1), *self.source.epochs], np.int64)
        index = np.searchsorted(epochs[:, 1], self.number("physicalOffset"), "right") - 1
        return pa.array(epochs[index, 0].astype(np.int32), mask=index == 0)


def codec_available(name: str) -> bool:
    """True if pyarrow was built with this codec. Wheels have all three."""
    return bool(pa.Codec.is_available(name))


def _plain(kind: Any, values: NDArray[Any]) -> Any:
    """An array without nulls over the same bytes: pyarrow's own function costs several times as much for a few thousand
    values."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _timestamps(milliseconds: I64) -> Any:
    """Timestamps in microseconds; null where a client sent a time that no timestamp can hold."""
    if not len(milliseconds) or (milliseconds.max() <= TIMESTAMP_MAX_MS and milliseconds.min() >= -TIMESTAMP_MAX_MS):
        return _plain(TIMESTAMP, milliseconds * 1000)
    outside = (milliseconds > TIMESTAMP_MAX_MS) | (milliseconds < -TIMESTAMP_MAX_MS)
    return pa.array(np.where(outside, 0, milliseconds) * 1000, mask=outside).cast(TIMESTAMP)


def _host(stored: bytes) -> str:
    address, port = ipaddress.ip_address(stored[:-4]), int.from_bytes(stored[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
