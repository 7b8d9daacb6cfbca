"""Planted bugs of the shells around the machines: what only a run that draws them reveals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from rmqha.broker.replication import forward
from rmqha.broker.replication.forward import SendForwarder
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.replication.waiter import HandOverWaiter
from rmqha.broker.requests.request import UNWRITTEN, Channel
from rmqha.ha import static_replica
from rmqha.ha.action import Action
from rmqha.ha.static_replica import StaticReplica
from rmqha.ha.stream.client import HaClient
from rmqha.ha.stream.legacy_client import LegacyHaClient
from rmqha.inspect import migration
from rmqha.kernel.batch_kernel import NEW_ENTRY
from rmqha.model.code import ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.model.offset import BrokerId, Epoch
from rmqha.raft import reconfiguration
from rmqha.store import appender
from rmqha.store.index.index import Index
from rmqha.store.log.mapped_file import MappedFile
from rmqha.store.queue import batch_consume_queue
from rmqha.store.queue.batch_consume_queue import UNIT_BYTES, BatchConsumeQueue, BatchConsumeQueues
from rmqha.store.queue.dispatcher import DispatchedBlock
from rmqha.store.store import Store
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import MasterFrame, Transfer

REAL_COMMIT = Store.commit
REAL_SETTLE = SendForwarder._handle
COLLECT_BLOCK = Index.collect_block


class _RefusedIsUnwritten:
    """A caller to whom every answer 14 says that nothing is written."""

    def __init__(self, caller: forward.RemoteCaller) -> None:
        self._caller = caller
        self.oneway = caller.oneway

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        reply = await self._caller.call(address, command, timeout_ms)
        if reply.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            reply.ext[UNWRITTEN] = "true"
        return reply


async def _settle_believing(self: SendForwarder, channel: Channel, command: Command, deadline_ms: int) -> None:
    if not isinstance(self._client, _RefusedIsUnwritten):
        self._client = _RefusedIsUnwritten(self._client)
    await REAL_SETTLE(self, channel, command, deadline_ms)


class _TellsItsEnd(LegacyHaClient):
    """Reports as under ASYNC_FLUSH, whatever the configuration says."""

    def report(self, now_ms: int) -> list[Action]:
        config, self._config = self._config, replace(self._config, flush_disk_type="ASYNC_FLUSH")
        try:
            return super().report(now_ms)
        finally:
            self._config = config


def _trimmed_more(self: BatchConsumeQueue, log_min: int) -> list[MappedFile]:
    """The unit in front of the log's first goes too, and one behind it."""
    self._min_seen_for = -1
    return self.files.detach_below((self.index_at(log_min) + 1) * UNIT_BYTES)


def _committed_if_much(self: Store, *, everything: bool = True) -> bool:
    return REAL_COMMIT(self, everything=False)


def _hands_over_the_log_alone(
    self: ReplicaDriver, epoch: Epoch, target: BrokerId | None, timeout_ms: int, waiter: HandOverWaiter
) -> None:
    self.replica.hand_over(self._clock.now_ms(), epoch, target, timeout_ms, waiter)
    self._perform()


def _discarded_bytes_alone(self: Store) -> None:
    self._log.discard()
    self._offsets.covered = self._log.write_offset


def _due_if_much(self: ReplicaDriver) -> bool:
    """A slave waits for a piece that is worth it."""
    least_bytes = 0 if self.replica.is_master else 1024
    return self.is_log_free and self.store.dispatch_behind_bytes > least_bytes


def _no_index_of_the_last(self: Index, block: DispatchedBlock) -> None:
    COLLECT_BLOCK(self, block._replace(entries=block.entries[: -NEW_ENTRY.size]))


def _keep_views(self: HaClient, now_ms: int, frames: Iterable[MasterFrame]) -> list[Action]:
    for frame in frames:
        self._kept_bytes += len(frame.data) if isinstance(frame, Transfer) else 0
        self._kept.append(frame)
    return []


SHELL_MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "what has no answer is passed on again": lambda: patch.object(forward, "NotSentError", UnreachableError),
    "a refusal after the write is passed on again": lambda: patch.object(SendForwarder, "_handle", _settle_believing),
    "a removed leader leads on (Raft)": lambda: patch.object(
        reconfiguration, "step_down_if_removed", lambda core, role, now_ms: False
    ),
    "a SYNC_MASTER without a controller waits for nobody": lambda: patch.object(StaticReplica, "_needed_slaves", 0),
    "a static slave reports what is not synced": lambda: patch.object(static_replica, "LegacyHaClient", _TellsItsEnd),
    "a shorter log may be the first after a static time": lambda: patch.object(
        migration, "_elected_short", lambda member, reference: []
    ),
    "a store that was not stopped in order may be converted": lambda: patch.object(
        migration, "_problems", lambda member, reference: []
    ),
    "batch queues are not cut": lambda: patch.object(BatchConsumeQueues, "truncate", lambda self, end_offset: None),
    "a batch takes one place of a batch queue": lambda: patch.object(
        batch_consume_queue, "message_count", lambda sys_flag, properties: 1
    ),
    "an inner batch takes one queue offset": lambda: patch.object(appender, "message_count", lambda flag, text: 1),
    "a batch is found by its first message alone": lambda: patch.object(
        BatchConsumeQueue, "index_of", lambda self, offset: self._first_with(lambda unit: unit.base_offset >= offset)
    ),
    "files of batch queues stay": lambda: patch.object(BatchConsumeQueues, "trim", lambda self, log_min: []),
    "files of batch queues go with their last units": lambda: patch.object(BatchConsumeQueue, "trim", _trimmed_more),
    "who waits waits for a full pool": lambda: patch.object(Store, "commit", _committed_if_much),
    "what is collected stays in memory": lambda: patch.object(ReplicaDriver, "commit", lambda self: None),
    "a hand-over leaves what is collected": lambda: patch.object(ReplicaDriver, "hand_over", _hands_over_the_log_alone),
    "a slave keeps what it collected as master": lambda: patch.object(Store, "discard_uncommitted", lambda self: None),
    "queue offsets of what was dropped stay": lambda: patch.object(
        Store, "discard_uncommitted", _discarded_bytes_alone
    ),
    "a slave leaves the last bytes of its log out of the queues": lambda: patch.object(
        ReplicaDriver, "dispatch_due", property(_due_if_much)
    ),
    "the last record of a block is not indexed": lambda: patch.object(Index, "collect_block", _no_index_of_the_last),
    "what was indexed before a stop is indexed again": lambda: patch.object(
        Index, "_without_known", lambda self, entries: entries
    ),
    "what waits for the disk is a view of the read buffer": lambda: patch.object(HaClient, "_keep", _keep_views),
}
SHELL_UNSEEN: dict[str, Callable[[], AbstractContextManager[Any]]] = {}
