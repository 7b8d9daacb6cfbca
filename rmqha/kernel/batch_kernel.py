"""Port of a batch kernel: functions over buffers that do the work of many messages in one call, no object for each.

A kernel holds no state: whatever may change between two calls (queue offsets, topics, rights, where the log ends) is
given with each. It does what is plain and stops in front of the first message that is not, which goes the usual way: so
every rule stands in one place. `PythonKernel` is the reference.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

MAX_BATCH_COUNT: Final = 2048
"""Messages of a plain batch at most: a header takes their ids, with any unique key."""


class SendRules(NamedTuple):
    """Rules of a broker's configuration on sends."""

    max_frame_bytes: int
    max_body_bytes: int
    max_properties_bytes: int
    own_properties: bytes
    """Stored behind each message's own, encoded."""
    special_texts: tuple[bytes, ...]
    """A message with one of these in its properties is not plain: it asks for something, or says what the broker
    says. Nor is one without a unique key: the broker makes it."""
    store_address: bytes
    store_port: int
    answer_fields: tuple[tuple[str, str], ...]
    """Fields of each answer between queueOffset and transactionId."""


class SendPart(NamedTuple):
    """Frames of one connection, [start, end) of the bytes that it stands in."""

    start: int
    end: int
    max_count: int
    """Frames to take at most."""
    born_address: bytes
    born_port: int


class SendRead(NamedTuple):
    """Frames that reads of some connections have brought, one part behind the other."""

    data: bytes
    parts: Sequence[SendPart]


class QueueSlot(NamedTuple):
    """A queue that takes plain sends."""

    topic: str
    field: bytes
    """The topic with its length in front, as a record holds it."""
    magic: int
    """The magic of records with such a field."""
    next_offset: int


class SendContext(NamedTuple):
    """The log's end and the queues, as they are at the call."""

    phy_offset: int
    room_end: int
    """The highest offset at which a record of the active file may end."""
    store_timestamp_ms: int
    slot: Callable[[bytes, int], QueueSlot | None]
    """Asked once in a call for each topic and queue id that occurs; None: a send to it is not plain."""
    is_keyed: bool = True
    """False: nobody asks for entries of the index."""


class QueueRun(NamedTuple):
    """Entries of one queue, consecutive from `first_offset` on, as its file holds them."""

    topic: str
    queue_id: int
    first_offset: int
    unit_count: int
    units: bytes


class PartResult(NamedTuple):
    """The plain sends at the front of a part."""

    frame_count: int
    end: int
    """Index behind the last frame that was taken; where the part begins if none was."""
    answers: bytes
    """A frame for each that was taken, saying SUCCESS."""


class SendResults(NamedTuple):
    """Plain sends made to records, answers and what is derived from the log: of each part as many as stand in front of
    its first frame that is not plain."""

    parts: list[PartResult]
    """One for each part of the read."""
    records: bytes
    """To be appended at `phy_offset` as one piece."""
    bounds: list[int]
    """Offset at which the first record of each frame begins in the log, and the end of the last one."""
    runs: list[QueueRun]
    entries: bytes
    """Entries of the index, a `NEW_ENTRY` for each key of each record."""
    topics: list[str]
    """Topic of each frame."""
    tail_starts: list[int]
    """Index among the records where the properties of the first record of each frame begin, with their length in
    front, two bytes."""
    tail_ends: list[int]
    """Index behind them."""
    message_counts: list[int]
    """Records of each frame: one, or those of a batch."""

    @property
    def taken_count(self) -> int:
        """Frames of all parts."""
        return len(self.message_counts)

    @property
    def record_count(self) -> int:
        """Records of all frames."""
        return sum(self.message_counts)

    def frames(self) -> Iterator[tuple[str, int, int]]:
        """Topic, number of its records and their bytes, of each frame."""
        for number, (topic, count) in enumerate(zip(self.topics, self.message_counts, strict=True)):
            yield topic, count, self.bounds[number + 1] - self.bounds[number]

    def tails(self) -> Iterator[bytes]:
        """Properties of the first record of each frame."""
        for start, end in zip(self.tail_starts, self.tail_ends, strict=True):
            yield self.records[start:end]


class SignedSend(NamedTuple):
    """A send that says whose it is; nobody has looked at the signature. Without one (b"") it is of whoever has proved
    himself on its connection."""

    end: int
    """Index behind its frame."""
    code: int
    topic: str
    access_key: str
    number: int
    """SignatureCount in rmqha's own form; 0 in Apache's."""
    signature: bytes
    message: bytes
    """Bytes that the signature is to be of."""
    size_bytes: int
    """Bytes of its body and of the values of its fields."""


class LogBlock(NamedTuple):
    """Bytes of the log from the beginning of a record on; the last record need not be whole."""

    data: bytes
    phy_offset: int
    max_count: int
    """Records to take at most."""
    max_run_count: int
    """Queues that they may belong to at most."""
    is_keyed: bool = True
    """False: nobody asks for entries of the index."""


class Scanned(NamedTuple):
    """Plain records that stand in the log, and what is derived from them. Empty if the first one is not plain: in a
    transaction, an inner batch, delayed, of a topic that has no directory, with TAGS beyond ASCII, or not sound."""

    bounds: list[int]
    """Offset at which each begins in the log, and the end of the last one."""
    runs: list[QueueRun]
    entries: bytes
    """Entries of the index, as in `SendResults`; empty if the block is not keyed."""
    store_timestamps_ms: list[int]
    """Each record's."""


NEW_ENTRY: Final = struct.Struct("=iqq")
"""An entry of the index that is not yet in a file: key hash from 0, physical offset, store timestamp in ms."""


class KeyedRecords(NamedTuple):
    """Records that have keys, or none."""

    topics: list[str]
    tails: list[bytes]
    """Encoded properties of each with their length in front, two bytes."""
    phy_offsets: list[int]
    """One for each record; more may follow."""
    store_timestamps_ms: list[int]

    def add(self, topic: str, tail: bytes, phy_offset: int, store_timestamp_ms: int) -> None:
        """Put a record behind the others."""
        self.topics.append(topic)
        self.tails.append(tail)
        self.phy_offsets.append(phy_offset)
        self.store_timestamps_ms.append(store_timestamp_ms)


class IndexFront(NamedTuple):
    """An index file that takes entries."""

    view: memoryview
    """Header and slots of the file."""
    slot_count: int
    first: int
    """Number of the first new entry."""
    begin_timestamp_ms: int


class PlacedEntries(NamedTuple):
    """The parts of an index file to write, in this order."""

    entries: bytes
    positions: Sequence[int]
    """Places of slots in the file: the order in which new entries first need them."""
    heads: bytes
    """New content of each, four bytes."""
    new_slot_count: int
    """Slots among them that no entry had used."""


class Checked(NamedTuple):
    """A stretch of sound records."""

    end: int
    """Index of the first that is not of the commonest form, or not sound."""
    newest_timestamp_ms: int


class PulledUnits(NamedTuple):
    """Entries of one queue that a pull wants, and its bounds."""

    units: memoryview
    topic: bytes
    queue_id: int
    offset: int
    """Offset of the first entry."""
    max_count: int
    """Records at most."""
    max_bytes: int
    """Bound on bytes, for all but the first record."""
    disk_end: int
    disk_max_count: int
    disk_max_bytes: int
    """Bounds of records that begin below `disk_end`, but for the first."""
    tags_codes: frozenset[int] | None
    """Codes that are wanted; None: all."""


class Collected(NamedTuple):
    """Sound records that entries lead to, as far as they are plain."""

    runs: list[tuple[int, int]]
    """Index in the file, and size, of each run of records that follow each other in it."""
    record_count: int
    unit_count: int
    """Entries that have been looked at; the next one is not plain, if `is_full` is false and there is one."""
    size_bytes: int
    is_full: bool
    """A bound is reached: no more is wanted."""


class BatchKernel(Protocol):
    """Port."""

    scans_in_bulk: bool
    """True if `scan` is faster than NumPy."""

    def sends(self, read: SendRead, rules: SendRules, context: SendContext) -> SendResults:
        """Take the plain sends at the front of `read`. Changes nothing: who appends `records` says so to the queues."""
        ...

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]:
        """Find the signed sends at the front of what a connection has sent, `max_count` at most: whole frames with the
        JSON header that clients write, JSON's only escapes being those of separators. Stop at the first other one.
        `nonce`: the random number of the connection; "": it has none, and no send may be in rmqha's own form. `proven`:
        the access key of the account that the connection has proved to be of, whose sends need no signature; ""
        if it has proved nothing."""
        ...

    def scan(self, block: LogBlock) -> Scanned:
        """Find the plain records at the front of `block`: all lengths are checked, bodies are not."""
        ...

    def index_entries(self, records: KeyedRecords) -> bytes:
        """Make a `NEW_ENTRY` for each key of each record, in RocketMQ's order: UNIQ_KEY, each of KEYS, TAGS."""
        ...

    def index_place(self, front: IndexFront, entries: bytes) -> PlacedEntries:
        """Find the place of new entries, for which the file has room, behind those it has. Writes nothing."""
        ...

    def put_words(self, memory: memoryview, positions: Sequence[int], words: bytes) -> None:
        """Copy four bytes to each index of `memory`, all multiples of four, in this order."""
        ...

    def skip_sound(self, view: memoryview, at: int, phy_offset: int, newest_ms: int) -> Checked:
        """Go past the records of the commonest form from index `at` on whose CRC holds; index 0 is at `phy_offset`. The
        newest store timestamp is `newest_ms` or one of theirs."""
        ...

    def collect(self, view: memoryview, start: int, pulled: PulledUnits) -> Collected:
        """Find the records that the entries lead to in a file of the log, of which `view` shows what is written from
        `start` on; the body of each is checked."""
        ...
