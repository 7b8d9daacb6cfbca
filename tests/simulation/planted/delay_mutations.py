"""Planted bugs of delayed, timer and popped messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any
from unittest.mock import patch

from rmqha.broker.pop.checkpoint import REVIVE_GROUP, CheckPoint
from rmqha.broker.pop.offset_rollback import PopOffsetRollback
from rmqha.broker.pop.order_info import OrderInfo
from rmqha.broker.pop.order_table import OrderTable
from rmqha.broker.pop.positions import PopPositions, PopQueue
from rmqha.broker.pop.recovery import PopRecovery
from rmqha.broker.pop.requests.acks import AckProcessor, _Acked
from rmqha.broker.pop.requests.finder import PopFinder
from rmqha.broker.pop.requests.polls import PendingPop
from rmqha.broker.pop.revive import ReviveService
from rmqha.broker.pop.revive_queue import ReviveQueue
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.replication.waiter import Answer
from rmqha.broker.tables import metadata_leader
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.metadata_follower import MetadataFollower
from rmqha.broker.tables.offsets import _SET_BACK, OffsetChange, OffsetTable, to_body
from rmqha.broker.timers import message
from rmqha.broker.timers.recall import RecallProcessor
from rmqha.broker.timers.recall_set import KnownTime
from rmqha.broker.timers.service import TimerService
from rmqha.broker.timers.snapshot import TimerSnapshot
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.broker.timers.waiting import WaitingTimers
from rmqha.ha.action import AckStatus

_get, _add = DelayOffsetTable.get, DelayOffsetTable._add
_begin, _progress_now = TimerService._begin, TimerService._progress_now
_follow = TimerService._follow
_finished, _append, _add_timer = TimerService.finished, TimerService._append, TimerService._add
_restore, _messages = TimerService.restore, TimerService._messages
_take, _recall, _check = TimerService._take, RecallProcessor._recall, KnownTime.check


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
    _check(self, taken_offset, now_ms)
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
    "timers come before all that may take them back is known": lambda: patch.object(KnownTime, "check", _known_at_once),
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
    "a snapshot of timers counts for any log": lambda: patch.object(TimerService, "_has", lambda self, kept: True),
    "a snapshot of timers counts though less is delivered": lambda: patch.object(
        TimerService, "restore", _restore_whatever_is_delivered
    ),
}

# --- pops -------------------------------------------------------------------------------------------------------------
_store_waiting = ReplicaDriver.store_waiting
_ack_store, _change = AckProcessor._store, AckProcessor._change
_take_due, _settle, _read = ReviveQueue.take_due, ReviveService._settle, ReviveQueue.read
_done, _copies_of, _add_point = OrderInfo.done, ReviveService._copies_of, ReviveQueue._add
_find_new, _pull = PopFinder.find_new, PopFinder.pull
_row_makers = vars(OffsetTable)["_row_makers"]


def _answered_at_once(kind: type[Answer]) -> Any:
    """Such a one waits for nothing, and slaves get its records with the next ones."""

    def store(self: ReplicaDriver, messages: Any, stored: Callable[[int], None], answer: Answer) -> None:
        if not isinstance(answer, kind):
            _store_waiting(self, messages, stored, answer)
            return
        stored(self._append_waiting(messages).end_offset)
        answer.finish(AckStatus.OK)

    return patch.object(ReplicaDriver, "store_waiting", store)


def _nothing_to_look_at(self: PopRecovery) -> bool:
    self.is_done = True
    return False


def _settled_by_the_clock(self: ReviveService) -> None:
    _settle(self)
    self.settled_ms = self._clock.wall_ms()


def _committed_as_read(self: ReviveService) -> None:
    for queue_id, queue in enumerate(self._queues or ()):
        self._offsets.commit(REVIVE_GROUP, self.revive_topic, queue_id, queue.read_offset - 1)


def _all_due(self: ReviveQueue, until_ms: int, is_waited_for: Any, *readable: Any) -> Any:
    """What is settled lies timerPrecisionMs, a second, behind the clock."""
    return _take_due(self, until_ms + 1500, (), *readable)  # type: ignore[arg-type]


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


def _keep_void(self: PopPositions) -> None:
    self._set_back_count = self._offsets.set_back_count


def _without_times(changes: Sequence[OffsetChange]) -> dict[str, Any]:
    return to_body([change._replace(set_back_ms=0) for change in changes])


def _written_without_times(self: OffsetTable) -> dict[str, Callable[[str], Any]]:
    return {**_row_makers.fget(self), _SET_BACK: lambda key: None}


def _whenever_it_was_given(self: OrderTable, place: PopQueue) -> OrderInfo | None:
    return self._infos.get(place)


def _loaded_one_further(self: PopFinder, pop: Any, place: PopQueue, offset: int, *given: Any, **keys: Any) -> Any:
    read = self.reads.get((place, offset))
    return _pull(self, pop, place, offset + (read is not None and read.load_count > 0), *given, **keys)


def _done_of_any_pop(self: OrderInfo, queue_offset: int, pop_ms: int) -> int:
    return _done(self, queue_offset, self.pop_ms)


def _whatever_is_in_front(self: PopFinder, pop: Any, records: Any) -> Any:
    firsts: dict[PopQueue, int] = {}
    for record in records:
        firsts.setdefault(PopQueue(record.topic, pop.group, record.queue_id), record.queue_offset)
    with patch.object(self._positions, "next_offset", firsts.get):
        return _find_new(self, pop, records)


async def _here_at_once(self: MetadataFollower, master: Any, log_end: int) -> bool:
    return True


POP_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a pop is answered before the group holds its checkpoint (apache/rocketmq 4806)": lambda: _answered_at_once(
        PendingPop
    ),
    "an acknowledgement is answered before the group holds it": lambda: _answered_at_once(_Acked),
    "a new master looks through no checkpoints": lambda: patch.object(PopRecovery, "step", _nothing_to_look_at),
    "what waits is settled by the clock": lambda: patch.object(ReviveService, "_settle", _settled_by_the_clock),
    "revive entries count as worked off once they are read": lambda: patch.object(
        ReviveService, "_commit", _committed_as_read
    ),
    "messages come again half a second early": lambda: patch.object(ReviveQueue, "take_due", _all_due),
    "another time leaves the old checkpoint": lambda: patch.object(AckProcessor, "_change", _change_and_leave),
    "another time is an acknowledgement alone": lambda: patch.object(AckProcessor, "_change", _change_and_forget),
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
    "the file does not say when a group was set back": lambda: patch.object(
        OffsetTable, "_row_makers", property(_written_without_times)
    ),
    "an acknowledgement in order that is said again is answered at once": lambda: patch.object(
        PopPositions, "is_settled", lambda self, place, offset: True
    ),
    "a cut leaves the offsets of pops": lambda: patch.object(
        PopOffsetRollback, "roll_back", lambda self, end_offset: False
    ),
    "a pop that waits takes a new message before those in front": lambda: patch.object(
        PopFinder, "find_new", _whatever_is_in_front
    ),
    "a pop that waited for the disk goes on one further": lambda: patch.object(PopFinder, "pull", _loaded_one_further),
    "what is taken before its queue has it is forgotten": lambda: patch.object(
        PopPositions, "under_way_offset", lambda self, place: 0
    ),
    "offsets count before the log that they count on": lambda: patch.object(
        MetadataFollower, "_reaches", _here_at_once
    ),
    "slaves do not hear when a group was set back": lambda: patch.object(metadata_leader, "to_body", _without_times),
    "a pop may have the time of a set-back": lambda: patch.object(OffsetTable, "pop_ms", lambda self, wall_ms: wall_ms),
    "another time counts when the old one is over": lambda: patch.object(
        ReviveService, "is_spent", lambda *args: False
    ),
    "a set-back has the time of the clock alone": lambda: patch.object(
        OffsetTable, "_set_back_ms", lambda self: self._log_ms()
    ),
    "an acknowledgement in order is of any pop": lambda: patch.object(OrderInfo, "done", _done_of_any_pop),
    "pops under way move a group that was set back": lambda: patch.object(PopPositions, "_forget_void", _keep_void),
    "a set-back leaves what was given in order": lambda: patch.object(OrderTable, "get", _whenever_it_was_given),
}
