"""Planted bugs whose state is wrong long before anything comes of it, and mostly nothing does: the members that a
controller goes by, an epoch under which bytes are sent, what a table counts on. So where what nobody needs is
kept, in memory and on the disk, or a group stands still for seconds that no fault explains. And promises that nobody
misses until two more things go wrong: to a leader, to an operator, to those who ask where a broker is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from controller.decisions import membership
from controller.elections import leadership
from controller.elections.heartbeat import BrokerHeartbeat, BrokerKey, BrokerLiveInfo, HeartbeatTable
from controller.state.event import GroupSized
from controller.state.replicas_info import BrokerGroup
from nameserver.route_info import RouteTable
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.requests.pull import PullProcessor
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.message import OP_TOPIC
from rmqha.model.offset import OPEN_END, PhyOffset, RaftIndex
from rmqha.raft import reconfiguration
from rmqha.raft.core import Core, Leader
from rmqha.raft.membership import Membership
from rmqha.raft.quorum import Configuration
from rmqha.raft.snapshot import SnapshotAssembly
from rmqha.store.integrity import incoming
from rmqha.store.integrity.incoming import IncomingRecords
from rmqha.store.integrity.repair import RecordRepair, entry_of
from rmqha.store.queue import queue_check
from rmqha.store.queue.queue_check import SAMPLE_UNITS, UNIT_BYTES
from rmqha.store.trimmer import Trimmer
from rmqha.wire.raft_message import AnyMessage, Heartbeat

_COMPACT = Membership.compact


def _first_members(self: Membership, index: RaftIndex) -> Configuration:
    _COMPACT(self, index)
    return self._initial


def _settled_once_it_leads(core: Core, role: Leader) -> bool:
    return role.noop_index <= core.log.commit_index


def _goes_on(self: EpochHistory, phy_offset: PhyOffset) -> PhyOffset:
    return OPEN_END


_APPEND = ReplicaDriver.append


def _mark_in_front(self: ReplicaDriver, messages: Any, *, are_checked: bool = False) -> Any:
    """Of what commits a half message."""
    if isinstance(messages, list) and len(messages) == 2 and messages[1].topic == OP_TOPIC:
        messages = messages[::-1]
    return _APPEND(self, messages, are_checked=are_checked)


_COMPLETE = IncomingRecords._complete


def _pieces_are_sound(self: IncomingRecords, view: memoryview, checked: int) -> tuple[int, str]:
    with patch.object(incoming, "verify", lambda *args: None):
        return _COMPLETE(self, view, checked)


_REFUSAL = RecordRepair.refusal


def _any_epoch(self: RecordRepair, phy_offset: int, size_bytes: int, data: bytes, entry: EpochEntry | None) -> str:
    return _REFUSAL(self, phy_offset, size_bytes, data, entry_of(self._owner.epochs, phy_offset))


_SEND = Core.send


def _all_is_committed(self: Core, message: AnyMessage) -> None:
    """A heartbeat speaks of what the leader has committed, whatever its follower holds."""
    if isinstance(message, Heartbeat):
        message = replace(message, commit_index=self.log.commit_index)
    _SEND(self, message)


STATE_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a snapshot has the controllers' first members (Raft)": lambda: patch.object(Membership, "compact", _first_members),
    "members stay changed when their entry is cut (Raft)": lambda: patch.object(
        Membership, "truncate", lambda self, start: False
    ),
    "two changes of the members at a time (Raft)": lambda: patch.object(
        reconfiguration, "may_change", _settled_once_it_leads
    ),
    "heartbeats commit what a follower may lack (Raft)": lambda: patch.object(Core, "send", _all_is_committed),
    "a transfer goes on across an epoch's start": lambda: patch.object(EpochHistory, "next_start", _goes_on),
    "a transaction's mark stands in front of its message": lambda: patch.object(
        ReplicaDriver, "append", _mark_in_front
    ),
    "a record that comes in two pieces is not checked (ruling 30)": lambda: patch.object(
        IncomingRecords, "_complete", _pieces_are_sound
    ),
    "a copy of another epoch is written over rot (ruling 30)": lambda: patch.object(
        RecordRepair, "refusal", _any_epoch
    ),
}

_CORE = Core.__init__


def _nothing_is_promised(self: Core, *args: Any) -> None:
    _CORE(self, *args)
    self.promised_until_ms = args[-1]


_BEAT = HeartbeatTable.heartbeat


def _beats_bind(self: HeartbeatTable, now_ms: int, key: BrokerKey, session_id: int, beat: BrokerHeartbeat) -> bool:
    turned = _BEAT(self, now_ms, key, session_id, beat)
    self._bind(self._brokers[key], session_id)
    return turned


def _none_across(count: int) -> list[int]:
    last = (count - 1) * UNIT_BYTES
    return sorted({*range(0, last, SAMPLE_UNITS * UNIT_BYTES), last}) if count else []


def _ends_at_once(group: BrokerGroup, master_goes_by: int | None) -> GroupSized | None:
    return GroupSized(group.broker_name, group.next_total_replicas) if group.next_total_replicas else None


PROMISE_MUTATIONS: dict[str, Callable[[], Any]] = {
    "pieces of any snapshot make one (Raft)": lambda: patch.object(SnapshotAssembly, "fits", lambda self, chunk: True),
    "a start forgets what was promised to a leader (Raft)": lambda: patch.object(
        Core, "__init__", _nothing_is_promised
    ),
    "an older disk stays in the set (ruling 3)": lambda: patch.object(
        membership, "has_forgotten", lambda group, request: False
    ),
    "a drain leaves fewer than a send needs": lambda: patch.object(membership, "members_needed", lambda group: 0),
    "an older connection's heartbeat binds (ruling 17)": lambda: patch.object(HeartbeatTable, "heartbeat", _beats_bind),
    "a name server keeps whose connection has ended": lambda: patch.object(
        RouteTable, "session_closed", lambda self, session_id: None
    ),
    "a change of totalReplicas ends at once (ruling 15)": lambda: patch.object(leadership, "finished", _ends_at_once),
}

STATE_UNSEEN: dict[str, Callable[[], Any]] = {
    "queue entries in two sectors are not looked at": lambda: patch.object(queue_check, "_sampled", _none_across),
}

_TIMEOUT = PullProcessor.timeout


class _Kept(dict[Any, Any]):
    def pop(self, key: Any, *default: Any) -> Any:
        return self.get(key, *default)


def _every_due_time_is_kept(self: PullProcessor) -> None:
    if not isinstance(self._due, _Kept):
        self._due = _Kept(self._due)
    _TIMEOUT(self)


def _late(self: HeartbeatTable, broker: BrokerLiveInfo, now_ms: int) -> bool:
    return self.silent_ms(broker, now_ms) >= 4 * broker.timeout_ms


GROWTH_MUTATIONS: dict[str, Callable[[], Any]] = {
    "who dies is missed after eight seconds": lambda: patch.multiple(
        HeartbeatTable, is_timed_out=_late, session_closed=lambda self, session_id: []
    ),
    "the due times of answered pulls stay": lambda: patch.object(PullProcessor, "timeout", _every_due_time_is_kept),
    "queue files of removed records stay": lambda: patch.object(Trimmer, "trim_derived", lambda self: None),
    "old log files are left on the disk": lambda: patch.object(Trimmer, "schedule_unlink", lambda self, *args: False),
}
