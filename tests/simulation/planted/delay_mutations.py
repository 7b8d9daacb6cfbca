"""Planted bugs of delayed, timer and popped messages."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any
from unittest.mock import patch

from rmqha.broker.pop.acks import AckProcessor
from rmqha.broker.pop.checkpoint import REVIVE_GROUP, CheckPoint
from rmqha.broker.pop.order_info import OrderInfo
from rmqha.broker.pop.pop import PopProcessor
from rmqha.broker.pop.positions import PopPositions
from rmqha.broker.pop.recovery import PopRecovery
from rmqha.broker.pop.revive import ReviveService
from rmqha.broker.pop.revive_queue import ReviveQueue
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.timer_check import TimerProgress
from rmqha.broker.timers import message
from rmqha.broker.timers.known import KnownTime
from rmqha.broker.timers.recall import RecallProcessor
from rmqha.broker.timers.service import TimerService
from rmqha.broker.timers.snapshot import TimerSnapshot
from rmqha.broker.timers.waiting import WaitingTimers
from rmqha.ha.action import AckStatus

_get, _add = DelayOffsetTable.get, DelayOffsetTable._add
_begin, _progress_now = TimerService._begin, TimerService._progress_now
_follow = TimerService._follow
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


def _take_all_but_old_recalls(self: TimerService) -> bool:
    """What a start finds."""
    is_first = not self._taken_offset or self._taken_offset == self._progress.first_offset
    known = deepcopy(self._recalls)
    has_more = _take(self)
    if is_first:
        self._recalls = known
    return has_more


def _take_by_the_precision_of_now(self: TimerService) -> bool:
    with patch.object(message, "WIDTHS_MS", (self.rules.precision_ms,)):
        return _take(self)


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
    "copies that are acknowledged late are stored again": lambda: patch.object(TimerService, "finished", _late_is_lost),
    "timers come by the precision that is set now": lambda: patch.object(
        TimerService, "_take", _take_by_the_precision_of_now
    ),
    "timers come before their time": lambda: patch.object(message, "_slot_of", lambda wheel_ms, *others: wheel_ms),
    "timers count as delivered before the group holds the copies": lambda: patch.object(
        TimerService, "_append", _append_and_move
    ),
}

DELAY_UNSEEN: dict[str, Callable[[], Any]] = {
    "a snapshot of timers counts for any log": lambda: patch.object(TimerService, "_has", lambda self, kept: True),
    "a snapshot of timers counts though less is delivered": lambda: patch.object(
        TimerService, "restore", _restore_whatever_is_delivered
    ),
}

# --- pops -------------------------------------------------------------------------------------------------------------
_give, _ack_store, _change = PopProcessor._give, AckProcessor._store, AckProcessor._change
_take_due, _settle, _read = ReviveQueue.take_due, ReviveService._settle, ReviveQueue.read
_done, _copies_of, _add_point = OrderInfo.done, ReviveService._copies_of, ReviveQueue._add


def _at_once(self: Any, *, by: Callable[..., None]) -> Callable[..., None]:
    def done(*args: Any, **more: Any) -> None:
        with patch.object(self._appends, "appended", lambda end, waiter: waiter.finish(AckStatus.OK)):
            by(self, *args, **more)

    return done


def _give_at_once(self: PopProcessor, *args: Any, **more: Any) -> None:
    _at_once(self, by=_give)(*args, **more)


def _ack_at_once(self: AckProcessor, *args: Any, **more: Any) -> None:
    _at_once(self, by=_ack_store)(*args, **more)


def _nothing_to_look_at(self: PopRecovery) -> bool:
    self.is_done = True
    return False


def _settled_by_the_clock(self: ReviveService) -> None:
    _settle(self)
    self.settled_ms = self._clock.wall_ms()


def _committed_as_read(self: ReviveService) -> None:
    for queue_id, queue in enumerate(self._queues or ()):
        self._offsets.commit(REVIVE_GROUP, self.revive_topic, queue_id, queue.read_offset - 1)


def _all_due(self: ReviveQueue, until_ms: int, is_waited_for: Any) -> Any:
    """What is settled lies timerPrecisionMs, a second, behind the clock."""
    return _take_due(self, until_ms + 1500, ())  # type: ignore[arg-type]


def _change_and_leave(self: AckProcessor, channel: Any, command: Any) -> None:
    """The old checkpoint stays."""

    def store(channel: Any, command: Any, acks: Any, *more: Any) -> None:
        _ack_store(self, channel, command, [], *more)

    with patch.object(self, "_store", store):
        _change(self, channel, command)


def _change_and_forget(self: AckProcessor, channel: Any, command: Any) -> None:
    """There is no new checkpoint."""

    def store(channel: Any, command: Any, acks: Any, done: Any, first: Any, ext: Any) -> None:
        _ack_store(self, channel, command, acks, done, None, ext)

    with patch.object(self, "_store", store):
        _change(self, channel, command)


def _behind_what_is_done(self: OrderInfo, queue_offset: int, pop_ms: int) -> int:
    found = _done(self, queue_offset, pop_ms)
    return max(found, self.queue_offsets[-1] + 1) if found >= 0 else found


def _read_no_acks_first(self: ReviveQueue, entry: Any, due_ms: int) -> None:
    """An acknowledgement in front of its checkpoint is dropped."""
    _read(self, entry if isinstance(entry, CheckPoint) or entry is None or self.knows(entry.key) else None, due_ms)


def _first_copy_alone(self: ReviveService, queue_id: int, point: Any) -> Any:
    return _copies_of(self, queue_id, point)[:1]


def _forget_what_is_over(self: ReviveQueue, checkpoint: CheckPoint, offset: int) -> None:
    self._over = None
    _add_point(self, checkpoint, offset)


POP_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a pop is answered before the group holds its checkpoint (apache/rocketmq 4806)": lambda: patch.object(
        PopProcessor, "_give", _give_at_once
    ),
    "an acknowledgement is answered before the group holds it": lambda: patch.object(
        AckProcessor, "_store", _ack_at_once
    ),
    "a new master looks through no checkpoints": lambda: patch.object(PopRecovery, "step", _nothing_to_look_at),
    "what waits is settled by the clock": lambda: patch.object(ReviveService, "_settle", _settled_by_the_clock),
    "revive entries count as worked off once they are read": lambda: patch.object(
        ReviveService, "_commit", _committed_as_read
    ),
    "messages come again half a second early": lambda: patch.object(ReviveQueue, "take_due", _all_due),
    "another time leaves the old checkpoint": lambda: patch.object(AckProcessor, "_change", _change_and_leave),
    "another time is an acknowledgement alone": lambda: patch.object(AckProcessor, "_change", _change_and_forget),
    "another time counts when the old one is over": lambda: patch.object(
        ReviveService, "is_spent", lambda *args: False
    ),
    "an acknowledgement in order is one of all that was given": lambda: patch.object(
        OrderInfo, "done", _behind_what_is_done
    ),
    "a queue gives on in order what is not done": lambda: patch.object(OrderInfo, "blocks", lambda *args: False),
    "acknowledgements in front of their checkpoints are dropped": lambda: patch.object(
        ReviveQueue, "read", _read_no_acks_first
    ),
    "of one checkpoint one message comes again": lambda: patch.object(ReviveService, "_copies_of", _first_copy_alone),
    "a checkpoint that timers deliver twice is two": lambda: patch.object(ReviveQueue, "_add", _forget_what_is_over),
    "what was popped before a set-back moves the group": lambda: patch.object(
        PopPositions, "is_void", lambda *args: False
    ),
}
