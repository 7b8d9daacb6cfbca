"""The boundary at which an exception that nobody foresaw ends: at the session whose request met it. Shell.

The line is drawn by what may be half changed. Parsing, looking up and answering change nothing that others rely on: an
exception there closes one session, is traced with its traceback, counted, and ends nothing else. Tables of a server are
changed entry by entry and may miss one such change, as if the request had not come: it was not answered. The machines
(`rmqha.ha`, `rmqha.raft`, the controller's) and the log are changed in steps that belong together: what interrupts one
of those leaves by `rmqha.model.error.whole` as BrokenInvariantError and ends the process, and so does a StoreError, for
the log is unusable then. A restart finds what is on the disk; nothing else is known to be true.
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
"""An exception at the same line is counted, and not traced again for so long: who can cause one can cause many."""
MAX_KIND_COUNT = 64


def ends_process(error: Exception) -> bool:
    """True if nobody may go on after it."""
    if isinstance(error, ExceptionGroup):
        return any(ends_process(part) for part in error.exceptions)
    return isinstance(error, StoreError | BrokenInvariantError)


class Boundary:
    """The boundary of one server's sessions."""

    def __init__(self, statistics: Statistics, tracer: Tracer) -> None:
        self._statistics = statistics
        self._tracer = tracer
        self._full_at_s: float | None = None
        self._traced_at_s: dict[tuple[str, str, int], float] = {}
        """By the exception's type, and the file and line where it was raised."""

    def failed(self, error: Exception, peer: str, codes: Iterable[int] = (), request: str = "") -> None:
        """A request of `peer` met `error`; its session is the caller's to close. `request`: what HTTP has instead of a
        code. Raises `error` if it ends more."""
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
        """A connection was refused, and counted: `room` others are served. It is traced once in REPEAT_S."""
        now_s = trio.current_time()
        if self._full_at_s is None or now_s >= self._full_at_s + REPEAT_S:
            self._full_at_s = now_s
            refused_count = self._statistics.refused_count
            self._tracer.event("connections_refused", connections=room, refused_count=refused_count, advice=advice)


def _kind(error: Exception) -> tuple[str, str, int]:
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = (frames[0].filename, frames[0].lineno or 0) if frames else ("", 0)
    return (type(error).__name__, *place)
