"""Counters of the sessions of one server or client."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqha.host.net.large_frames import LargeFrames
from rmqha.host.net.slow_readers import SlowReaders
from rmqha.host.net.unverified_sessions import PartialFrames


@dataclass(slots=True)
class Statistics:
    """Counts since start, of one server or client."""

    session_count: int = 0
    opened_count: int = 0
    refused_count: int = 0
    received_count: int = 0
    received_bytes: int = 0
    sent_count: int = 0
    sent_bytes: int = 0
    queued_bytes: int = 0
    """Replies that wait for their readers now."""
    bad_frame_count: int = 0
    idle_closed_count: int = 0
    slow_reader_count: int = 0
    denied_count: int = 0
    failed_request_count: int = 0
    """Requests that met an exception which nobody foresaw; each closed its session."""
    quota_refused_count: int = 0
    timeout_count: int = 0
    pushed_out_count: int = 0
    """Connections that had not sent a request yet and were closed for newer ones."""
    shed_count: int = 0
    """Connections closed because half frames took too much memory."""
    large_frames: LargeFrames = field(default_factory=LargeFrames)
    partial_frames: PartialFrames = field(default_factory=PartialFrames)
    slow_readers: SlowReaders = field(default_factory=SlowReaders)

    def as_dict(self) -> dict[str, int]:
        counts = {name: value for name in self.__slots__ if isinstance(value := getattr(self, name), int)}
        return counts | {"half_frame_bytes": self.partial_frames.total_bytes}
