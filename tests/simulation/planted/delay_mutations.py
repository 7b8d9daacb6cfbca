"""Planted bugs of delayed and timer messages."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.timer_check import TimerProgress
from rmqha.broker.timers.known import KnownTime
from rmqha.broker.timers.recall import RecallProcessor
from rmqha.broker.timers.service import TimerService
from rmqha.broker.timers.snapshot import TimerSnapshot
from rmqha.broker.timers.waiting import WaitingTimers
from rmqha.ha.action import AckStatus

_get, _add = DelayOffsetTable.get, DelayOffsetTable._add
_begin, _progress_now = TimerService._begin, TimerService._progress_now
_follow, _deliver = TimerService._follow, TimerService._deliver
_finished, _append, _add_timer = TimerService.finished, TimerService._append, TimerService._add
_restore, _messages = TimerService.restore, TimerService._messages
_take, _recall, _look = TimerService._take, RecallProcessor._recall, KnownTime.look


def _end_if_unknown(self: DelayOffsetTable, level: int) -> int:
    return _get(self, level) or 1 << 40


def _add_for_any_log(self: DelayOffsetTable, state: Any) -> None:
    _add(self, state._replace(log_end=0))


def _begin_behind(self: TimerService) -> None:
    _begin(self)
    self._taken_offset = self._first_offset = self._progress.taken_offset


def _all_taken(self: TimerService, now_ms: int) -> TimerProgress:
    self._late = WaitingTimers()
    return _progress_now(self, now_ms)._replace(taken_offset=self._taken_offset + 5)


def _follow_and_forget(self: TimerService) -> None:
    before = self._progress
    _follow(self)
    if self._progress != before:
        self._late.clear()
        self._waiting.take(self._progress.read_ms, 1 << 30)


def _deliver_early(self: TimerService) -> None:
    self.rules = replace(self.rules, precision_ms=0)
    _deliver(self)


def _take_all_but_old_recalls(self: TimerService) -> bool:
    """What a start finds."""
    is_first = not self._taken_offset or self._taken_offset == self._progress.first_offset
    known = deepcopy(self._recalls)
    has_more = _take(self)
    if is_first:
        self._recalls = known
    return has_more


def _known_at_once(self: KnownTime, taken_offset: int, now_ms: int) -> None:
    _look(self, taken_offset, now_ms)
    self.ms = now_ms


def _recall_for_nobody(self: RecallProcessor, channel: Any, command: Any) -> None:
    with patch.object(self._appends, "appended", lambda end, waiter: waiter.finish(AckStatus.OK)):
        _recall(self, channel, command)


def _late_is_lost(self: TimerService, delivery: Any, status: AckStatus) -> None:
    if self._pending is delivery and status is not AckStatus.OK:
        self._begin()
    else:
        _finished(self, delivery, status)


def _last_twice(self: TimerService, entries: Any, now_ms: int) -> Any:
    messages = _messages(self, entries, now_ms)
    return [*messages, *messages[-1:]]


def _append_and_move(self: TimerService, messages: Any, progress: TimerProgress) -> None:
    _append(self, messages, progress)
    self._table.put_timer(progress, 0)


def _add_in_order(self: TimerService, slot_ms: int, offset: int, topic: bytes) -> None:
    if (slot_ms, offset) >= self._front:
        _add_timer(self, slot_ms, offset, topic)


def _begin_at_end(self: TimerService) -> None:
    _begin(self)
    self._taken_offset = self._first_offset = self.end_offset


def _restore_whatever_is_delivered(self: TimerService, kept: TimerSnapshot) -> bool:
    with patch.object(TimerProgress, "is_behind", lambda self, other: False):
        return _restore(self, kept)


DELAY_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a master that knows no delay offset begins behind what waits": lambda: patch.object(
        DelayOffsetTable, "get", _end_if_unknown
    ),
    "delay offsets count without the copies": lambda: patch.object(DelayOffsetTable, "_add", _add_for_any_log),
    "a start looks at no timer that came before the last delivery": lambda: patch.object(
        TimerService, "_begin", _begin_behind
    ),
    "timers that come later count as delivered": lambda: patch.object(TimerService, "_progress_now", _all_taken),
    "a slave forgets the rest of the slot that its master delivers": lambda: patch.object(
        TimerService, "_follow", _follow_and_forget
    ),
    "a start forgets what was taken back": lambda: patch.object(TimerService, "_take", _take_all_but_old_recalls),
    "timers come before all that may take them back is known": lambda: patch.object(KnownTime, "look", _known_at_once),
    "a recall is answered before the group holds it": lambda: patch.object(
        RecallProcessor, "_recall", _recall_for_nobody
    ),
    "the last timer of a delivery comes twice": lambda: patch.object(TimerService, "_messages", _last_twice),
    "timers whose slot was worked off are left out": lambda: patch.object(TimerService, "_add", _add_in_order),
    "a new master begins behind what waits": lambda: patch.object(TimerService, "_begin", _begin_at_end),
    "timers come in the slot of their time": lambda: patch.object(TimerService, "_deliver", _deliver_early),
}

DELAY_OPEN: dict[str, Callable[[], Any]] = {
    "copies that are acknowledged late are stored again": lambda: patch.object(TimerService, "finished", _late_is_lost),
    "timers count as delivered before the group holds the copies": lambda: patch.object(
        TimerService, "_append", _append_and_move
    ),
    "a snapshot of timers counts for any log": lambda: patch.object(TimerService, "_has", lambda self, kept: True),
    "a snapshot of timers counts though less is delivered": lambda: patch.object(
        TimerService, "restore", _restore_whatever_is_delivered
    ),
}
"""Looked for in too few runs to call them missed (docs/internals/simulation.md)."""
