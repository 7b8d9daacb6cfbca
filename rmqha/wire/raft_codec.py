"""CBOR form of Raft messages, entries and their parts: body of request 52002 and payload of the durable log.

A message is the array [version, kind, sender, to, term, fields…]. All sizes that a peer sends are bounded; bytes that
are not the protocol raise RemoteProtocolError. Entries in an AppendRequest have no index: they follow prev_index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cbor2

from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import RaftIndex, Term
from rmqha.wire import raft_message
from rmqha.wire.raft_message import AnyMessage, Entry, EntryKind

VERSION = 1
MAX_MESSAGE_BYTES = 12 * 1024 * 1024
MAX_ENTRY_BYTES = 8 * 1024 * 1024
MAX_ENTRY_COUNT = 4096
MAX_CHUNK_BYTES = 1024 * 1024
MAX_SNAPSHOT_BYTES = 1024 * 1024 * 1024
MAX_NODE_ID_CHARS = 255
MAX_CONFIGURATION_BYTES = 64 * 1024

_Check = Callable[[Any], Any]


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("a number out of range")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("a flag that is neither true nor false")
    return value


def _node_id(value: Any) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_NODE_ID_CHARS:
        raise ValueError("a node id that is no short text")
    return value


def _chunk(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > MAX_CHUNK_BYTES:
        raise ValueError(f"a snapshot chunk over {MAX_CHUNK_BYTES} bytes")
    return value


def _configuration(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > MAX_CONFIGURATION_BYTES:
        raise ValueError(f"a configuration over {MAX_CONFIGURATION_BYTES} bytes")
    return value


def _total(value: Any) -> int:
    if _integer(value) > MAX_SNAPSHOT_BYTES:
        raise ValueError(f"a snapshot over {MAX_SNAPSHOT_BYTES} bytes")
    return int(value)


def _raw_entries(value: Any) -> list[Any]:
    if type(value) is not list or len(value) > MAX_ENTRY_COUNT:
        raise ValueError(f"no list of at most {MAX_ENTRY_COUNT} entries")
    return value


# Numbers are on the wire and never reused. Fields are in the order of the dataclass, after sender, to and term.
_LAYOUTS: dict[int, tuple[type[AnyMessage], tuple[_Check, ...]]] = {
    1: (raft_message.PreVoteRequest, (_integer, _integer)),
    2: (raft_message.PreVoteReply, (_flag,)),
    3: (raft_message.VoteRequest, (_integer, _integer, _flag)),
    4: (raft_message.VoteReply, (_flag,)),
    5: (raft_message.AppendRequest, (_integer, _integer, _integer, _raw_entries)),
    6: (raft_message.AppendReply, (_integer,)),
    7: (raft_message.AppendReject, (_integer, _integer, _integer)),
    8: (raft_message.Heartbeat, (_integer, _integer)),
    9: (raft_message.HeartbeatReply, (_integer,)),
    10: (raft_message.SnapshotChunk, (_integer, _integer, _total, _integer, _chunk, _configuration)),
    11: (raft_message.SnapshotReply, (_integer, _integer)),
    12: (raft_message.TimeoutNow, ()),
}
_KINDS = {cls: kind for kind, (cls, _) in _LAYOUTS.items()}
_HEAD: tuple[_Check, ...] = (_node_id, _node_id, _integer)


def encode_message(message: AnyMessage) -> bytes:
    """Bytes for request 52002."""
    values = [getattr(message, name) for name in _field_names(type(message))]
    if isinstance(message, raft_message.AppendRequest):
        values[-1] = [[entry.term, int(entry.kind), entry.data] for entry in message.entries]
    return cbor2.dumps([VERSION, _KINDS[type(message)], *values])


def decode_message(data: bytes) -> AnyMessage:
    """Decode a message of request 52002. Raises RemoteProtocolError."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise RemoteProtocolError(f"Raft message of {len(data)} bytes exceeds {MAX_MESSAGE_BYTES}")
    values = _load(data)
    if type(values) is not list or len(values) < 2 + len(_HEAD):
        raise RemoteProtocolError("Raft message is no CBOR array of version, kind, sender, receiver, term and fields")
    version, kind = values[0], values[1]
    if version != VERSION:
        raise RemoteProtocolError(f"Raft message of version {version!r}; this release understands {VERSION}")
    layout = _LAYOUTS.get(kind) if type(kind) is int else None
    if layout is None:
        raise RemoteProtocolError(f"Raft message of unknown kind {kind!r}")
    cls, tail = layout
    checks = (*_HEAD, *tail)
    if len(values) != 2 + len(checks):
        raise RemoteProtocolError(f"Raft {cls.__name__} has {len(values) - 2} fields; expected {len(checks)}")
    try:
        fields = [check(value) for check, value in zip(checks, values[2:], strict=True)]
        if cls is raft_message.AppendRequest:
            fields[-1] = _entries(fields)
        return cls(*fields)
    except ValueError as error:
        raise RemoteProtocolError(f"Raft {cls.__name__} holds {error}") from None


def _entries(fields: list[Any]) -> tuple[Entry, ...]:
    _, _, leader_term, prev_index, prev_term, _, raw_entries = fields
    entries: list[Entry] = []
    for offset, raw in enumerate(raw_entries):
        if type(raw) is not list or len(raw) != 3:
            raise ValueError("an entry that is no array of term, kind and data")
        entry = _entry(RaftIndex(prev_index + 1 + offset), raw)
        if not prev_term <= entry.term <= leader_term:
            raise ValueError(f"entry {entry.index} of term {entry.term} between terms {prev_term} and {leader_term}")
        prev_term = entry.term
        entries.append(entry)
    return tuple(entries)


def _entry(index: RaftIndex, raw: list[Any]) -> Entry:
    term, kind, data = raw
    if type(data) is not bytes or len(data) > MAX_ENTRY_BYTES:
        raise ValueError(f"entry {index} whose data is not at most {MAX_ENTRY_BYTES} bytes")
    return Entry(index, Term(_integer(term)), data, EntryKind(_integer(kind)))


def encode_entry(entry: Entry) -> bytes:
    """One entry by itself, for the durable log: [version, index, term, kind, data]."""
    return cbor2.dumps([VERSION, entry.index, entry.term, int(entry.kind), entry.data])


def decode_entry(data: bytes) -> Entry:
    """Decode an entry of the durable log. Raises RemoteProtocolError, of which the log makes a StoreError with the
    place."""
    values = _load(data)
    if type(values) is not list or len(values) != 5:
        raise RemoteProtocolError("Raft entry is no CBOR array of version, index, term, kind and data")
    if values[0] != VERSION:
        raise RemoteProtocolError(f"Raft entry of version {values[0]!r}; this release understands {VERSION}")
    try:
        return _entry(RaftIndex(_integer(values[1])), values[2:])
    except ValueError as error:
        raise RemoteProtocolError(f"Raft entry holds {error}") from None


def _load(data: bytes) -> Any:
    try:
        return cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RemoteProtocolError(f"Raft bytes are not CBOR: {error}") from None


def _field_names(cls: type[AnyMessage]) -> tuple[str, ...]:
    return tuple(cls.__dataclass_fields__)
