"""A snapshot that arrives at a follower in chunks of bounded size. Pure."""

from __future__ import annotations

from rmqha.wire.raft_message import Snapshot, SnapshotChunk


class SnapshotAssembly:
    """Chunks of one snapshot of one leader's term, added in order; repeated and later ones are ignored."""

    __slots__ = ("_data", "_first")

    def __init__(self, chunk: SnapshotChunk) -> None:
        self._first = chunk
        self._data = bytearray()

    def fits(self, chunk: SnapshotChunk) -> bool:
        """True if `chunk` belongs to the same snapshot."""
        first = self._first
        return (chunk.term, chunk.index, chunk.snapshot_term, chunk.total_bytes, chunk.configuration) == (
            first.term,
            first.index,
            first.snapshot_term,
            first.total_bytes,
            first.configuration,
        )

    def add(self, chunk: SnapshotChunk) -> Snapshot | None:
        """Add a chunk; returns the whole snapshot once its last byte has arrived. The snapshot then owns the bytes, and
        this object is not used any more."""
        if chunk.offset == len(self._data) and len(self._data) + len(chunk.data) <= chunk.total_bytes:
            self._data += chunk.data
        if len(self._data) < chunk.total_bytes:
            return None
        return Snapshot(chunk.index, chunk.snapshot_term, self._data, chunk.configuration)

    @property
    def next_offset(self) -> int:
        return len(self._data)
