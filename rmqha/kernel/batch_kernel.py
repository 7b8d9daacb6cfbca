"""Port of a batch kernel: functions over buffers that do the work of many messages in one call, without an object for
each.

A kernel has no state: all that may change between two calls (queue offsets, topics, rights, the log's end) is an
argument. It handles plain messages, those that need no special rule, and stops in front of the first other one. That is
handled by the services, so that each special rule is in one place. `PythonKernel` is the reference.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

MAX_BATCH_COUNT: Final = 2048
"""Most messages of a plain batch: their ids, and any unique key, fit into the answer's header."""


class SendRules(NamedTuple):
    """Rules for sends by a broker's configuration."""

    max_frame_bytes: int
    max_body_bytes: int
    max_properties_bytes: int
    own_properties: bytes
    """Encoded properties that the broker appends to each message's own."""
    special_texts: tuple[bytes, ...]
    """Texts in properties with which a message is not plain: it needs a special rule, or has a property that only the
    broker may set. A message without a unique key is not plain either: the broker generates the key."""
    store_address: bytes
    store_port: int
    answer_fields: tuple[tuple[str, str], ...]
    """Fields of each answer between queueOffset and transactionId."""


class SendPart(NamedTuple):
    """Frames of one connection, bytes [start, end) of a read."""

    start: int
    end: int
    max_count: int
    """Most frames to handle."""
    born_address: bytes
    born_port: int


class SendRead(NamedTuple):
    """Frames of several connections, read in one turn; `parts` are in order."""

    data: bytes
    parts: Sequence[SendPart]


class QueueSlot(NamedTuple):
    """A queue that takes plain sends."""

    topic: str
    field: bytes
    """Topic with its length in front, as in a record."""
    magic: int
    """Magic number of records with such a field."""
    next_offset: int


class SendContext(NamedTuple):
    """The log's end and the queues, as they are at the call."""

    phy_offset: int
    room_end: int
    """Highest offset at which a record may end in the active file."""
    store_timestamp_ms: int
    slot: Callable[[bytes, int], QueueSlot | None]
    """Function that is called once for each topic and queue id; None: a send to that queue is not plain."""
    is_keyed: bool = True
    """False if no entries of the index are needed."""


class QueueRun(NamedTuple):
    """Consecutive entries of one queue from `first_offset` on, encoded as in its file."""

    topic: str
    queue_id: int
    first_offset: int
    unit_count: int
    units: bytes


class PartResult(NamedTuple):
    """The plain sends at the front of a part."""

    frame_count: int
    end: int
    """Index behind the last frame that was handled; begin of the part if none was."""
    answers: bytes
    """Response frames (SUCCESS), one for each frame that was handled."""


class SendResults(NamedTuple):
    """Records, answers and derived entries of plain sends. Of each part, the sends in front of its first frame that is
    not plain were handled."""

    parts: list[PartResult]
    """Results of the parts of the read, in order."""
    records: bytes
    """Bytes to append to the log at `phy_offset`."""
    bounds: list[int]
    """Physical offset of the first record of each frame, and the end of the last one."""
    runs: list[QueueRun]
    entries: bytes
    """New entries of the index, a `NEW_ENTRY` for each key of each record."""
    topics: list[str]
    """Topic of each frame."""
    tail_starts: list[int]
    """Index in `records` of the tail of each frame's first record. A tail: the properties with their length, two bytes,
    in front."""
    tail_ends: list[int]
    """Index in `records` behind each of these tails."""
    message_counts: list[int]
    """Number of records of each frame: one, or those of a batch."""

    @property
    def taken_count(self) -> int:
        """Number of frames of all parts."""
        return len(self.message_counts)

    @property
    def record_count(self) -> int:
        """Number of records of all frames."""
        return sum(self.message_counts)

    def frames(self) -> Iterator[tuple[str, int, int]]:
        """Topic, number of records, and bytes of the records, of each frame."""
        for number, (topic, count) in enumerate(zip(self.topics, self.message_counts, strict=True)):
            yield topic, count, self.bounds[number + 1] - self.bounds[number]

    def tails(self) -> Iterator[bytes]:
        """Tail of the first record of each frame."""
        for start, end in zip(self.tail_starts, self.tail_ends, strict=True):
            yield self.records[start:end]


class SignedSend(NamedTuple):
    """A send with the access key of its account; the signature is not checked yet. Without a signature (b"") it belongs
    to the account that its connection has proved."""

    end: int
    """Index behind its frame."""
    code: int
    topic: str
    access_key: str
    number: int
    """SignatureCount of rmqha's own form; 0 for Apache's form."""
    signature: bytes
    message: bytes
    """Bytes that the signature must cover."""
    size_bytes: int
    """Bytes of the body and of the fields' values."""


class LogBlock(NamedTuple):
    """Bytes of the log from the start of a record on; the last record may be incomplete."""

    data: bytes
    phy_offset: int
    max_count: int
    """Most records to handle."""
    max_run_count: int
    """Most queues that the records may belong to."""
    is_keyed: bool = True
    """False if no entries of the index are needed."""


class Scanned(NamedTuple):
    """Plain records of the log, and the entries derived from them. Empty if the first record is not plain: in a
    transaction, an inner batch, delayed, of a topic that has no directory, with TAGS beyond ASCII, or damaged."""

    bounds: list[int]
    """Physical offset of each record, and the end of the last one."""
    runs: list[QueueRun]
    entries: bytes
    """New entries of the index, as in `SendResults`; empty if `is_keyed` is False."""
    store_timestamps_ms: list[int]
    """Store timestamp (ms) of each record."""


NEW_ENTRY: Final = struct.Struct("=iqq")
"""Entry of the index that is not yet in a file: key hash (not negative), physical offset, store timestamp (ms)."""


class KeyedRecords(NamedTuple):
    """Records for the index; some may have no keys."""

    topics: list[str]
    tails: list[bytes]
    """Tail of each record: its encoded properties with their length, two bytes, in front."""
    phy_offsets: list[int]
    """Physical offset of each record; more may follow."""
    store_timestamps_ms: list[int]

    def add(self, topic: str, tail: bytes, phy_offset: int, store_timestamp_ms: int) -> None:
        """Append a record."""
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
    """Parts of an index file to write, in the order of the fields."""

    entries: bytes
    positions: Sequence[int]
    """Positions of hash slots in the file, in the order in which new entries first use them."""
    heads: bytes
    """New content of each of these slots, four bytes."""
    new_slot_count: int
    """Number of these slots that were empty before."""


class Checked(NamedTuple):
    """Consecutive undamaged records."""

    end: int
    """Index of the first record that is damaged, or not of the commonest form."""
    newest_timestamp_ms: int


class PulledUnits(NamedTuple):
    """Entries of one queue for a pull, and the pull's bounds."""

    units: memoryview
    topic: bytes
    queue_id: int
    offset: int
    """Offset of the first entry."""
    max_count: int
    """Most records."""
    max_bytes: int
    """Most bytes; the first record may exceed them."""
    disk_end: int
    disk_max_count: int
    disk_max_bytes: int
    """Bounds for records that begin below `disk_end`; the first record may exceed them."""
    tags_codes: frozenset[int] | None
    """Wanted tagsCodes; None: all."""


class Collected(NamedTuple):
    """Undamaged plain records of queue entries, up to the first other one."""

    runs: list[tuple[int, int]]
    """(index in the file, size) of each run of adjacent records."""
    record_count: int
    unit_count: int
    """Number of entries that were handled. If `is_full` is False, the record of the next entry is not plain."""
    size_bytes: int
    is_full: bool
    """True if a bound of the pull is reached."""


class BatchKernel(Protocol):
    """Port of the kernel of the data plane."""

    scans_in_bulk: bool
    """True if `scan` is faster than NumPy."""

    def sends(self, read: SendRead, rules: SendRules, context: SendContext) -> SendResults:
        """Handle the plain sends at the front of each part of `read`. It changes nothing: the caller appends `records`
        and updates the queues."""
        ...

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]:
        """Find the signed sends at the front of a connection's bytes, `max_count` at most: complete frames with the
        JSON header of RocketMQ's clients, in which only property separators are escaped. Stop at the first other frame.
        `nonce`: the random number of the connection; "": it has none, and no send may be in rmqha's own form. `proven`:
        the access key of the account that the connection has proved to be of, whose sends need no signature; ""
        if it has proved nothing."""
        ...

    def scan(self, block: LogBlock) -> Scanned:
        """Find the plain records at the front of `block`. All lengths are checked, CRCs of bodies are not."""
        ...

    def index_entries(self, records: KeyedRecords) -> bytes:
        """Make a `NEW_ENTRY` for each key of each record, in RocketMQ's order: UNIQ_KEY, each of KEYS, TAGS."""
        ...

    def index_place(self, front: IndexFront, entries: bytes) -> PlacedEntries:
        """Compute the places of new entries behind those of the file, which must have room. It writes nothing."""
        ...

    def put_words(self, memory: memoryview, positions: Sequence[int], words: bytes) -> None:
        """Copy four bytes to each index of `memory`, all multiples of four, in this order."""
        ...

    def skip_sound(self, view: memoryview, at: int, phy_offset: int, newest_ms: int) -> Checked:
        """Skip the records of the commonest form from index `at` on whose CRC is right; index 0 is at `phy_offset`. The
        result has the newest store timestamp, `newest_ms` or a later one of theirs."""
        ...

    def collect(self, view: memoryview, start: int, pulled: PulledUnits) -> Collected:
        """Find the records of queue entries in a file of the log and check the CRC of each body. `view`: the written
        bytes of the file, from physical offset `start` on."""
        ...
