"""Planted bugs of stops in order: files that are saved before the last change that was answered, or not at all. And of
what is made of a disk that has failed (ruling 29), or hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from rmqha.broker.core import BrokerCore
from rmqha.broker.pop.order_table import OrderTable
from rmqha.broker.pop.requests.acks import AckProcessor
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.store import store
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.recovery import Recovery
from rmqha.store.store import Store
from tests.simulation.processes.following import SimPort
from tests.simulation.processes.hung_writes import HungWrites

_UNSAVED, _WRITES, _ACK_IN_ORDER = DelayOffsetTable.unsaved, BrokerCore.writes, AckProcessor._ack_in_order


def _saves_what_follows(self: BrokerCore) -> None:
    for write in self.writes():
        write()


def _saves_before_it_syncs(self: BrokerCore) -> None:
    self.save()
    self.store.sync()
    self.store.dispatch_all()
    self.hand_over()


def _levels_alone(self: DelayOffsetTable) -> Any:
    found = _UNSAVED(self)
    return None if found is None else found._replace(timer=None)


def _knowing_less(self: AckProcessor, *args: Any) -> None:
    with patch.object(self, "_is_recovering", lambda: False):
        _ACK_IN_ORDER(self, *args)


def _no_offsets(self: BrokerCore) -> Iterator[Callable[[], None]]:
    with patch.object(self.offsets, "unsaved", lambda: None):
        yield from _WRITES(self)


def _closes_unsynced(self: Store) -> None:
    self.commit()
    self._boot.stopped()
    self.abandon()


def _only_synced(
    log: CommitLog, start: int, end: int, recovery: Recovery, last_stop: LastStop, *, recorded: bool, failed: bool
) -> None:
    log.sync(start, end)


def _at_once(self: HungWrites, work: Callable[[], None]) -> bool:
    work()
    return True


DISK_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a change of the log holds the event loop": lambda: patch.object(HungWrites, "write", _at_once),
    "what a sync failed on is only synced (ruling 29)": lambda: patch.object(store, "make_durable", _only_synced),
}
STOP_MUTATIONS: dict[str, Callable[[], Any]] = {
    "how far groups are waits for the next dispatch": lambda: patch.object(Store, "dispatch_all", lambda self: None),
    "a stop saves no topics and groups": lambda: patch.object(BrokerCore, "save", _saves_what_follows),
    "a stop saves no offsets": lambda: patch.object(BrokerCore, "writes", _no_offsets),
    "a stop saves before it syncs": lambda: patch.object(BrokerCore, "finish", _saves_before_it_syncs),
    "what was given in order is not saved": lambda: patch.object(OrderTable, "unsaved", lambda self, now_ms: None),
    "how far timers are is not saved": lambda: patch.object(DelayOffsetTable, "unsaved", _levels_alone),
    "a stop comes before a write that was begun": lambda: patch.object(SimPort, "finish_writes", lambda self: None),
    "a clean stop leaves queues and marks behind": lambda: patch.object(Store, "close", _closes_unsynced),
    "a new master takes what is done in order before it knows more": lambda: patch.object(
        AckProcessor, "_ack_in_order", _knowing_less
    ),
}
