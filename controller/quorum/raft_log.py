"""The durable side of a Raft node: log, hard state and snapshot over the Disk port. Control plane.

Files below PATH, all big-endian:

    segment-<number>   header: "RQRL" | version i16 | length of node id i16 | incarnation u64 | CRC32 i32 | node id
                       frames: "RQRF" | payload length i32 | CRC32 i32 | payload
    end                how far segments were written (`rmqha.store.meta.end_mark`): the last one's number << 32 | bytes
    snapshot           "RQRS" | version i16 | 0 i16 | index i64 | term i64 | configuration length i32 |
                       data length i64 | CRC32 i32 | configuration | data

The incarnation is drawn when the directory is made; with the node id it is the node's identity (raft/quorum.py). The
CRC of a header covers all of it but itself and "RQRL", that of the snapshot everything but itself and "RQRS".

A frame holds what one Ready asks to persist, so one append and one sync make it durable as a whole. Its payload is the
CBOR array [version, term, voted for, reset, base index, [entries], announced]. Its entries replace everything above the
base index; with `reset` everything below goes too (a snapshot replaces it). `announced` is the index of a leader's
snapshot that is about to be written, else 0: no other snapshot may reach beyond the log. Segments are never rewritten.
The CRC covers the frame's position, so that bytes inside an entry cannot pass for a frame.

Only the last frame of the last segment can be torn by a crash, and never the first of a segment. It is cut if a part of
it is missing: the file ends inside it, or a sector of it reads as zeros. Anything else is damage, and a start could
forget a vote or a committed entry: StoreError. So is anything missing below `end`, which is raised once a frame is
durable and before it is reported: no such frame is torn, whatever it contains (ruling 29). The mark itself is not
synced: a kill keeps it, a loss of power may leave an older one.

After a failed sync the kernel marks pages clean that the disk does not have: each start writes the last segment anew.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import pairwise
from typing import Any
from zlib import crc32

import cbor2

from rmqha.model.error import NoRoomError, RemoteProtocolError, StoreError
from rmqha.model.offset import RaftIndex, Term
from rmqha.port import AppendFile, Disk, Prng, Tracer
from rmqha.raft.log import StoredState
from rmqha.raft.node import Ready
from rmqha.raft.quorum import Configuration, identity
from rmqha.store.meta.end_mark import EndMark
from rmqha.store.meta.problem import is_no_room, os_sentence
from rmqha.wire.raft_codec import decode_entry, encode_entry
from rmqha.wire.raft_message import ZERO_INDEX, Entry, EntryKind, HardState, Snapshot

PATH = "raft"
VERSION = 2
"""Version of segments and the snapshot. Version 1, without incarnation, was in no release."""
FRAME_VERSION = 1
SEGMENT_BYTES = 16 * 1024 * 1024
TEMPORARY_SNAPSHOT = "snapshot.new"
END_MARK = "end"
WRITE_BYTES = 1024 * 1024
SECTOR_BYTES = 512
_PLACES = 1 << 32
"""Factor of a segment number in a position; no segment has as many bytes."""

_SEGMENT_NAME = re.compile(r"segment-[0-9]{10}")
_SEGMENT_HEAD = struct.Struct(">4shhQI")
_SEGMENT_MAGIC = b"RQRL"
_FRAME_HEAD = struct.Struct(">4siI")
_FRAME_MAGIC = b"RQRF"
_SNAPSHOT_HEAD = struct.Struct(">4shhqqiqI")
_SNAPSHOT_MAGIC = b"RQRS"


@dataclass(slots=True)
class _Segment:
    name: str
    last_index: RaftIndex = field(default=RaftIndex(0))
    """Highest index in any of its frames: the segment may go when a snapshot covers it."""


@dataclass(slots=True)
class _Replay:
    """The log after the frames read so far. entries[0] has index first_index."""

    hard_state: HardState = field(default_factory=HardState)
    first_index: RaftIndex = field(default=RaftIndex(1))
    entries: list[Entry] = field(default_factory=list)
    announced: RaftIndex = ZERO_INDEX

    @property
    def last_index(self) -> RaftIndex:
        return RaftIndex(self.first_index + len(self.entries) - 1)

    def apply(self, frame: _Frame) -> None:
        """Add a frame. Raises ValueError if it does not follow the log."""
        if frame.hard_state.term < self.hard_state.term:
            raise ValueError(f"term {frame.hard_state.term} after term {self.hard_state.term}")
        self.hard_state, self.announced = frame.hard_state, frame.announced
        if frame.reset or frame.base_index < self.first_index:
            self.entries.clear()
            self.first_index = RaftIndex(frame.base_index + 1)
        if frame.base_index > self.last_index:
            if self.entries:
                raise ValueError(f"entries {self.last_index + 1} to {frame.base_index} are missing before it")
            self.first_index = RaftIndex(frame.base_index + 1)
        del self.entries[frame.base_index + 1 - self.first_index :]
        for entry in frame.entries:
            if entry.index != self.last_index + 1:
                raise ValueError(f"entry {entry.index} follows entry {self.last_index}")
            self.entries.append(entry)


@dataclass(frozen=True, slots=True)
class _Frame:
    hard_state: HardState
    reset: bool
    base_index: RaftIndex
    entries: tuple[Entry, ...] = ()
    announced: RaftIndex = ZERO_INDEX

    def encode(self, position: int) -> bytes:
        """Bytes of the whole frame at `position` of its segment."""
        entries = [encode_entry(entry) for entry in self.entries]
        state = self.hard_state
        values = [FRAME_VERSION, state.term, state.voted_for, self.reset, self.base_index, entries, self.announced]
        payload = cbor2.dumps(values)
        return _FRAME_HEAD.pack(_FRAME_MAGIC, len(payload), _frame_crc(payload, position)) + payload

    @classmethod
    def decode(cls, payload: bytes) -> _Frame:
        """Frame of a payload. Raises ValueError with the fault."""
        try:
            values: Any = cbor2.loads(payload)
            version, term, voted_for, reset, base_index, raw_entries, announced = values
            if version != FRAME_VERSION:
                raise ValueError(f"a frame of version {version!r}; this release reads {FRAME_VERSION}")
            hard_state = HardState(Term(int(term)), str(voted_for))
            entries = tuple(map(decode_entry, raw_entries))
            return cls(hard_state, bool(reset), RaftIndex(int(base_index)), entries, RaftIndex(int(announced)))
        except (cbor2.CBORDecodeError, TypeError, OverflowError, RemoteProtocolError) as error:
            raise ValueError(f"a frame that cannot be read ({error})") from None


def _segment_crc(size_bytes: int, incarnation: int, node_id: bytes) -> int:
    return crc32(node_id, crc32(struct.pack(">hhQ", VERSION, size_bytes, incarnation)))


def _snapshot_crc(snapshot: Snapshot) -> int:
    sizes = (len(snapshot.configuration), len(snapshot.data))
    head = struct.pack(">hhqqiq", VERSION, 0, snapshot.index, snapshot.term, *sizes)
    return crc32(snapshot.data, crc32(snapshot.configuration, crc32(head)))


def _frame_crc(payload: bytes, position: int) -> int:
    return crc32(payload, crc32(position.to_bytes(8, "big")))


class DurableRaftLog:
    """Files of one node. `stored` is the start state of `RaftNode`, `identity` the node's, `recovery_lines` one
    sentence for each finding."""

    def __init__(
        self,
        disk: Disk,
        node_id: str,
        tracer: Tracer,
        prng: Prng,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Read all files and cut a torn tail. Raises StoreError for files that are damaged, newer than this release or
        another node's; OSError from the disk."""
        self._disk, self._node_id, self._tracer = disk, node_id, tracer
        self._segment_bytes = segment_bytes
        self.recovery_lines: list[str] = []
        disk.make_dirs(PATH)
        self._mark = EndMark(disk, f"{PATH}/{END_MARK}")
        self.recovery_lines += self._mark.load()
        self._replay = _Replay()
        self._incarnation: int | None = None
        self._segments: list[_Segment] = []
        snapshot = self._read_snapshot()
        names = [name for name in disk.list(PATH) if _SEGMENT_NAME.fullmatch(name)]
        if snapshot is not None and not names:
            raise self._fail("snapshot", 0, "a state without the segments that hold this node's vote")
        for older, newer in pairwise(names):
            if _number(newer) != _number(older) + 1:
                raise self._fail(older, 0, f"a segment whose successor is missing: the next one is {newer}")
        end = 0
        for name in names:
            end = self._read_segment(name, is_last=name == names[-1])
        if end < (self._mark.offset or 0):
            raise self._fail(names[-1] if names else END_MARK, end % _PLACES, "the log's end, and more was written")
        if self._incarnation is None:
            self._incarnation = prng.below(2**32) << 32 | prng.below(2**32)
        self.identity = identity(node_id, f"{self._incarnation:016x}")
        replay = self._replay
        self._announced = replay.announced
        self._hard_state, self._last_index = replay.hard_state, replay.last_index
        self._snapshot_index = snapshot.index if snapshot else RaftIndex(0)
        discarded = self._reconcile(snapshot)
        self._file: AppendFile = self._open_last_segment()
        self._mark.settle(_place(self._segments[-1].name, self._file.size_bytes))
        if discarded:
            self._append(_Frame(self._hard_state, True, self._snapshot_index))
        start = self._snapshot_index + 1 - replay.first_index
        self.stored = StoredState(
            replay.hard_state.term, replay.hard_state.voted_for, snapshot, tuple(replay.entries[max(start, 0) :])
        )
        replay.entries = []
        for line in self.recovery_lines:
            tracer.event("raft_log_recovery", node=node_id, finding=line)

    def persist(self, ready: Ready) -> None:
        """Make the content of `ready` durable; blocks. After an OSError or a StoreError the node must end: the durable
        state is unknown until the files are read again."""
        for step in self.steps(ready):
            step()

    def steps(self, ready: Ready) -> Iterator[Callable[[], None]]:
        """The durable changes that `ready` asks for; each blocks. One that raises NoRoomError has changed nothing, and
        is to be repeated when there is room; after any other error the node must end, as for `persist`."""
        self._hard_state = ready.hard_state or self._hard_state
        base_index = self._last_index
        if ready.snapshot is not None:
            # the durable term must never be lower than the snapshot's, whenever the machine stops
            yield partial(
                self._append, _Frame(self._hard_state, False, self._last_index, announced=ready.snapshot.index)
            )
            yield partial(self.write_snapshot, ready.snapshot)
            base_index = ready.snapshot.index
        elif ready.truncate_from is not None:
            base_index = RaftIndex(ready.truncate_from - 1)
        if ready.hard_state or ready.snapshot or ready.entries or ready.truncate_from is not None:
            yield partial(self._append, _Frame(self._hard_state, ready.snapshot is not None, base_index, ready.entries))
        if ready.compaction is not None:
            yield partial(self.write_snapshot, ready.compaction)
        if ready.snapshot is not None or ready.compaction is not None:
            yield self._drop_covered_segments

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """Make a snapshot durable; blocks. Does nothing if this one or a newer one has been written. May be called
        before the Ready that compacts the log, from another thread than a `persist` without snapshot. NoRoomError: as
        for `steps`."""
        if snapshot.index <= self._snapshot_index:
            return
        head = _SNAPSHOT_HEAD.pack(
            _SNAPSHOT_MAGIC,
            VERSION,
            0,
            snapshot.index,
            snapshot.term,
            len(snapshot.configuration),
            len(snapshot.data),
            _snapshot_crc(snapshot),
        )
        with self._room_errors():
            try:
                self._write_new_snapshot(head + snapshot.configuration, memoryview(snapshot.data))
            except OSError as error:
                if is_no_room(error):
                    self._drop_new_snapshot()  # a part of it would hold the room that the log's frames need
                raise
        self._snapshot_index = snapshot.index

    def _write_new_snapshot(self, head: bytes, data: memoryview) -> None:
        self._drop_new_snapshot()
        temporary = f"{PATH}/{TEMPORARY_SNAPSHOT}"
        file = self._disk.open_append(temporary)
        try:
            file.append(head)
            # in parts, so that other threads do not wait for one copy of all of it
            for start in range(0, len(data), WRITE_BYTES):
                file.append(data[start : start + WRITE_BYTES])
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, f"{PATH}/snapshot")

    def _drop_new_snapshot(self) -> None:
        temporary = f"{PATH}/{TEMPORARY_SNAPSHOT}"
        if self._disk.exists(temporary):
            self._disk.remove(temporary)

    def close(self) -> None:
        self._file.close()
        self._mark.close()

    # --- writing ----------------------------------------------------------------------------------------------------

    def _append(self, frame: _Frame) -> None:
        with self._room_errors():
            if self._file.size_bytes >= self._segment_bytes:
                self._file.close()
                self._create_segment(_number(self._segments[-1].name) + 1)
                self._file = self._disk.open_append(f"{PATH}/{self._segments[-1].name}")
            size_bytes = self._file.size_bytes
            try:
                self._file.append(frame.encode(size_bytes))
            except OSError:
                self._cut_part_frame(size_bytes)
                raise
        self._file.sync()
        self._mark.raise_to(_place(self._segments[-1].name, self._file.size_bytes))
        self._announced = frame.announced
        self._last_index = frame.entries[-1].index if frame.entries else frame.base_index
        segment = self._segments[-1]
        segment.last_index = max(segment.last_index, self._last_index)

    def _cut_part_frame(self, size_bytes: int) -> None:
        """Cut what had room of a frame that had none. Raises StoreError, no NoRoomError, if the cut has none either: a
        frame behind such a part could not be read again."""
        try:
            self._file.truncate(size_bytes)
        except OSError as error:
            if is_no_room(error):
                doing = "cut a part of a frame from the controllers' log"
                raise StoreError(os_sentence(self._disk, PATH, doing, error)) from error
            raise

    @contextmanager
    def _room_errors(self) -> Iterator[None]:
        """An OSError for want of room becomes a NoRoomError: what the block has begun does not count."""
        try:
            yield
        except OSError as error:
            if is_no_room(error):
                raise NoRoomError(os_sentence(self._disk, PATH, "write the controllers' log", error)) from error
            raise

    def _create_segment(self, number: int) -> None:
        """Create a segment that begins with a frame of the whole hard state, so that older segments may go."""
        name = f"segment-{number:010d}"
        node_id = self._node_id.encode()
        assert self._incarnation is not None
        crc = _segment_crc(len(node_id), self._incarnation, node_id)
        head = _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, VERSION, len(node_id), self._incarnation, crc) + node_id
        frame = _Frame(self._hard_state, False, self._last_index, announced=self._announced)
        self._disk.write_atomic(f"{PATH}/{name}", head + frame.encode(len(head)))
        self._segments.append(_Segment(name, self._last_index))

    def _open_last_segment(self) -> AppendFile:
        if self._segments:
            # an earlier process's bytes may be in the page cache only, and be marked clean there
            path = f"{PATH}/{self._segments[-1].name}"
            self._disk.write_atomic(path, self._disk.read(path))
        else:
            self._create_segment(1)
        return self._disk.open_append(f"{PATH}/{self._segments[-1].name}")

    def _drop_covered_segments(self) -> None:
        while len(self._segments) > 1 and self._segments[0].last_index <= self._snapshot_index:
            self._disk.remove(f"{PATH}/{self._segments.pop(0).name}")

    # --- reading ----------------------------------------------------------------------------------------------------

    def _fail(self, name: str, position: int, problem: str) -> StoreError:
        return StoreError(
            f"{self._disk.label}/{PATH}/{name} at byte {position} holds {problem}; move the "
            "directory away, start the controller, and tell the others: rmqha quorum remove, then add"
        )

    def _fail_version(self, name: str, version: int) -> StoreError:
        """StoreError of an unknown version, distinct from damage: the advice for damage, followed on each node of a
        rolling upgrade, would lose all groups."""
        return StoreError(
            f"{self._disk.label}/{PATH}/{name} at byte 4 holds version {version}; this release reads {VERSION}; "
            "start this controller with the release that wrote it"
        )

    def _read_snapshot(self) -> Snapshot | None:
        path = f"{PATH}/snapshot"
        if not self._disk.exists(path):
            return None
        content = self._disk.read(path)
        if len(content) < _SNAPSHOT_HEAD.size:
            raise self._fail("snapshot", 0, f"{len(content)} bytes, no whole snapshot header")
        magic, version, zero, index, term, configuration_bytes, size_bytes, crc = _SNAPSHOT_HEAD.unpack_from(content)
        if magic != _SNAPSHOT_MAGIC:
            raise self._fail("snapshot", 0, f"{magic!r} where a Raft snapshot begins with {_SNAPSHOT_MAGIC!r}")
        if version != VERSION:
            raise self._fail_version("snapshot", version)
        start = _SNAPSHOT_HEAD.size + max(configuration_bytes, 0)
        found = Snapshot(RaftIndex(index), Term(term), content[start:], content[_SNAPSHOT_HEAD.size : start])
        sizes = (len(found.configuration), len(found.data), 0)
        if sizes != (configuration_bytes, size_bytes, zero) or _snapshot_crc(found) != crc:
            raise self._fail("snapshot", _SNAPSHOT_HEAD.size, "data that does not match its length and checksum")
        if found.configuration:
            self._check_configuration("snapshot", _SNAPSHOT_HEAD.size, found.configuration)
        return found

    def _read_segment(self, name: str, *, is_last: bool) -> int:
        """Read a segment. Returns the position of its end."""
        content = self._disk.read(f"{PATH}/{name}")
        segment = _Segment(name)
        first_position = position = self._read_segment_head(name, content)
        while position < len(content) or position == first_position:
            payload = _frame_at(content, position)
            if payload is None:
                if position == first_position:
                    raise self._fail(name, position, "no first frame, which was written with the header")
                if not is_last or _has_frame_after(content, position + 1):
                    raise self._fail(name, position, "a damaged frame with sound ones after it")
                if _place(name, position) < (self._mark.offset or 0):
                    raise self._fail(name, position, "a last frame that was written whole, and is not: no torn write")
                if not _is_torn(content, position):
                    problem = "a last frame with nothing missing that does not match its checksum: no torn write"
                    raise self._fail(name, position, problem)
                self._cut(name, content, position)
                break
            try:
                frame = _Frame.decode(payload)
                self._replay.apply(frame)
            except ValueError as error:
                raise self._fail(name, position, str(error)) from None
            for entry in frame.entries:
                if entry.kind is EntryKind.CONFIGURATION:
                    self._check_configuration(name, position, entry.data)
            segment.last_index = max(segment.last_index, self._replay.last_index)
            position += _FRAME_HEAD.size + len(payload)
        self._segments.append(segment)
        return _place(name, position)

    def _read_segment_head(self, name: str, content: bytes) -> int:
        if len(content) < _SEGMENT_HEAD.size:
            raise self._fail(name, 0, f"{len(content)} bytes, no whole segment header")
        magic, version, size_bytes, incarnation, crc = _SEGMENT_HEAD.unpack_from(content)
        if magic != _SEGMENT_MAGIC:
            raise self._fail(name, 0, f"{magic!r} where a Raft segment begins with {_SEGMENT_MAGIC!r}")
        if version != VERSION:
            raise self._fail_version(name, version)
        end = _SEGMENT_HEAD.size + max(size_bytes, 0)
        node_id = content[_SEGMENT_HEAD.size : end]
        if len(node_id) != size_bytes or _segment_crc(size_bytes, incarnation, node_id) != crc:
            raise self._fail(name, 6, "a header that does not match its checksum")
        owner = node_id.decode(errors="replace")
        if owner != self._node_id:
            raise StoreError(
                f"{self._disk.label}/{PATH} belongs to controller node {owner!r}, this is {self._node_id!r}; "
                "give each node its own directory"
            )
        if self._incarnation not in (None, incarnation):
            raise self._fail(name, 8, f"incarnation {incarnation:016x} after segments of {self._incarnation:016x}")
        self._incarnation = incarnation
        return int(end)

    def _check_configuration(self, name: str, position: int, data: bytes) -> None:
        try:
            Configuration.decode(data)
        except RemoteProtocolError as error:
            raise self._fail(name, position, f"what is no configuration ({error})") from None

    def _cut(self, name: str, content: bytes, position: int) -> None:
        file = self._disk.open_append(f"{PATH}/{name}")
        file.truncate(position)
        file.sync()
        file.close()
        self.recovery_lines.append(
            f"{PATH}/{name}: cut a torn frame of {len(content) - position} bytes at byte {position}"
        )

    def _reconcile(self, snapshot: Snapshot | None) -> bool:
        """Match log and snapshot; True if the snapshot replaces the whole log. That is so after a crash between the two
        writes of an installed snapshot that contradicted the log."""
        replay = self._replay
        index = snapshot.index if snapshot else RaftIndex(0)
        if replay.first_index > index + 1:
            raise self._fail("snapshot", 0, f"a state up to entry {index}, but the log begins at {replay.first_index}")
        if snapshot is None or replay.first_index == index + 1:
            return False
        held = replay.entries[index - replay.first_index] if index <= replay.last_index else None
        if held is not None and held.term == snapshot.term:
            return False
        if replay.announced != index:
            problem = f"a state up to entry {index} of term {snapshot.term}, which the log does not have"
            raise self._fail("snapshot", 0, problem)
        replay.entries.clear()
        replay.first_index = RaftIndex(index + 1)
        self.recovery_lines.append(f"{PATH}: the log gives way to the leader's snapshot up to entry {index}")
        return True


def _number(name: str) -> int:
    return int(name.removeprefix("segment-"))


def _place(name: str, position: int) -> int:
    """Position across segments, for the end mark: later ones are larger."""
    return _number(name) * _PLACES + position


def _frame_at(content: bytes, position: int) -> bytes | None:
    """Payload of the frame at `position`, None if there is no valid one."""
    if position + _FRAME_HEAD.size > len(content):
        return None
    magic, size_bytes, crc = _FRAME_HEAD.unpack_from(content, position)
    start = position + _FRAME_HEAD.size
    if magic != _FRAME_MAGIC or size_bytes < 0 or start + size_bytes > len(content):
        return None
    payload = content[start : start + size_bytes]
    return payload if _frame_crc(payload, position) == crc else None


def _is_torn(content: bytes, position: int) -> bool:
    """True if part of the invalid last frame at `position` is missing: its write was interrupted. A complete invalid
    frame is damaged."""
    tail = content[position:]
    for start in range(position - position % SECTOR_BYTES, len(content), SECTOR_BYTES):
        if not any(content[max(start, position) : start + SECTOR_BYTES]):
            return True
    if not tail.startswith(_FRAME_MAGIC[: len(tail)]):
        return False
    if len(tail) < _FRAME_HEAD.size:
        return True
    _, size_bytes, _ = _FRAME_HEAD.unpack_from(tail)
    return size_bytes > len(tail) - _FRAME_HEAD.size and not _is_whole(tail[_FRAME_HEAD.size :])


def _is_whole(payload: bytes) -> bool:
    """True if the bytes are one whole CBOR value. Then a header that declares fewer bytes is wrong itself."""
    stream = BytesIO(payload)
    try:
        cbor2.load(stream)
    except (cbor2.CBORDecodeError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return stream.tell() == len(payload)


def _has_frame_after(content: bytes, position: int) -> bool:
    while (position := content.find(_FRAME_MAGIC, position)) >= 0:
        if _frame_at(content, position) is not None:
            return True
        position += 1
    return False
