"""Boundary for unexpected exceptions: each ends only the session whose request caused it. Shell.

It depends on what may be half changed. Parsing, lookups and answers change no shared state: an exception there closes
one session, is traced with its traceback and counted, and ends nothing else. Tables of a server are changed entry by
entry and may lack one such change, as if the request had not come: it was not answered. Changes of the machines
(`rmqha.ha`, `rmqha.raft`, the controller's) and of the log have steps that belong together: an exception between them
becomes BrokenInvariantError (`rmqha.model.error.whole`) and ends the process. So does a StoreError, after which the log
is unusable. A restart reads the disk; nothing else is known to be true.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING

import trio

from rmqha.model.error import BrokenInvariantError, StoreError
from rmqha.port import Tracer

if TYPE_CHECKING:
    from rmqha.host.net.statistics import Statistics

MAX_TRACED_CHARS = 4000
MAX_FRAME_COUNT = 12
MAX_CODE_COUNT = 8
MAX_REQUEST_CHARS = 200
REPEAT_S = 60.0
"""Time (s) for which further exceptions at the same line are counted, not traced: a peer can cause many."""
MAX_KIND_COUNT = 64


def ends_process(error: Exception) -> bool:
    """True if the process must end after it."""
    if isinstance(error, ExceptionGroup):
        return any(ends_process(part) for part in error.exceptions)
    return isinstance(error, StoreError | BrokenInvariantError)


class Boundary:
    """Boundary of one server's sessions."""

    def __init__(self, statistics: Statistics, tracer: Tracer) -> None:
        self._statistics = statistics
        self._tracer = tracer
        self._full_at_s: float | None = None
        self._traced_at_s: dict[tuple[str, str, int], float] = {}
        """Time (s) of the last trace by type of the exception, file and line."""

    def failed(self, error: Exception, peer: str, codes: Iterable[int] = (), request: str = "") -> None:
        """Trace and count an exception of a peer's request; the caller closes the session. `request`: name of an HTTP
        request without code. Raises `error` if the process must end."""
        if ends_process(error):
            raise error
        self._statistics.failed_request_count += 1
        now_s, kind = trio.current_time(), _kind(error)
        if now_s < self._traced_at_s.get(kind, now_s - REPEAT_S) + REPEAT_S:
            return
        if len(self._traced_at_s) >= MAX_KIND_COUNT:
            self._traced_at_s.clear()
        self._traced_at_s[kind] = now_s
        named = {"request": request[:MAX_REQUEST_CHARS]} if request else {}
        lines = traceback.format_exception(error, limit=-MAX_FRAME_COUNT)
        self._tracer.event(
            "request_failed",
            peer=peer,
            codes=list(dict.fromkeys(codes))[:MAX_CODE_COUNT],
            **named,
            failed_count=self._statistics.failed_request_count,
            traceback="".join(lines)[-MAX_TRACED_CHARS:],
        )

    def full(self, room: int, advice: str) -> None:
        """Trace, once in REPEAT_S, that connections are refused because `room` others are served."""
        now_s = trio.current_time()
        if self._full_at_s is None or now_s >= self._full_at_s + REPEAT_S:
            self._full_at_s = now_s
            refused_count = self._statistics.refused_count
            self._tracer.event("connections_refused", connections=room, refused_count=refused_count, advice=advice)


def _kind(error: Exception) -> tuple[str, str, int]:
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = (frames[0].filename, frames[0].lineno or 0) if frames else ("", 0)
    return (type(error).__name__, *place)
