"""A snapshot arriving at a follower in chunks of bounded size. Pure."""

from __future__ import annotations

from rmqha.wire.raft_message import Snapshot, SnapshotChunk


class SnapshotAssembly:
    """Chunks of one snapshot from one leader's term, taken in order; repeats and gaps change nothing."""

    __slots__ = ("_data", "_first")

    def __init__(self, chunk: SnapshotChunk) -> None:
        self._first = chunk
        self._data = bytearray()

    def fits(self, chunk: SnapshotChunk) -> bool:
        """True if `chunk` is a part of the same snapshot."""
        first = self._first
        return (chunk.term, chunk.index, chunk.snapshot_term, chunk.total_bytes, chunk.configuration) == (
            first.term,
            first.index,
            first.snapshot_term,
            first.total_bytes,
            first.configuration,
        )

    def add(self, chunk: SnapshotChunk) -> Snapshot | None:
        """The whole snapshot once its last byte has arrived; it owns the bytes then, and this is done."""
        if chunk.offset == len(self._data) and len(self._data) + len(chunk.data) <= chunk.total_bytes:
            self._data += chunk.data
        if len(self._data) < chunk.total_bytes:
            return None
        return Snapshot(chunk.index, chunk.snapshot_term, self._data, chunk.configuration)

    @property
    def next_offset(self) -> int:
        return len(self._data)
