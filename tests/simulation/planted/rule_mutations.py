"""Planted bugs as somebody plants them who reads the product and not the tests: one rule of a module is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from controller.decisions import elect_master
from controller.elections import election
from controller.state import replicas_info
from controller.state.event import MemberRemoved, SyncStateSetAltered
from controller.state.replicas_info import BrokerGroup
from rmqha.broker.replication.waiter import Waiter
from rmqha.broker.requests.pull import PullProcessor
from rmqha.ha.ack import AckQueue
from rmqha.ha.action import AckStatus
from rmqha.ha.commit_tracker import CommitTracker
from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.hand_over import HandOver
from rmqha.ha.machine import Promoting
from rmqha.ha.replica import Replica
from rmqha.ha.stream import client
from rmqha.ha.stream.client import HaClient
from rmqha.ha.stream.slaves import Slaves
from rmqha.kernel.batch_kernel import SendResults
from rmqha.model.epoch import EpochEntry
from rmqha.model.offset import PhyOffset
from rmqha.raft import leader as raft_leader
from rmqha.raft.log import RaftLog
from rmqha.store.appender import Appender, SendSource
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.boot_file import BootFile
from rmqha.store.meta.end_mark import EndMark
from rmqha.store.meta.epoch_file import EpochFile
from rmqha.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
from rmqha.store.queue.dispatch_service import QueueOffsets
from rmqha.store.store import Store


def _in_the_cache(undone: Callable[..., Any], disk_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """`undone` without any sync of a file."""

    def planted(self: Any, *args: Any, **kwargs: Any) -> Any:
        with patch.object(disk_of(self), "sync_file", lambda file: None):
            return undone(self, *args, **kwargs)

    return planted


def _open_undispatched(self: Replica, promoting: Promoting) -> None:
    if self._log.confirm_offset >= promoting.opens_at:
        self._enter(promoting.opened())
        self._tracer.event("serving", epoch=self.epoch, max_phy_offset=self._log.max_phy_offset)


def _give_up_as_clean(self: HaClient, phy_offset: PhyOffset) -> None:
    self._log.restart_at(phy_offset)


_HEARTBEAT_VALUES, _CANDIDACY = Replica._heartbeat_values, Replica._candidacy


def _well_at_once(self: Replica) -> Any:
    return _HEARTBEAT_VALUES(self)._replace(unclean=False)


def _stood_cleanly(self: Replica) -> tuple[bool, bool]:
    return False, _CANDIDACY(self)[1]


_FINISH = Waiter.finish


def _any_end_is_good(self: Waiter, status: AckStatus) -> None:
    _FINISH(self, AckStatus.OK)


_ELECTED = elect_master.elected


def _next_of_the_known_epoch(group: Any, winner: Any, cause: Any, known_epochs: Any, *args: Any, **kw: Any) -> Any:
    return _ELECTED(group, winner, cause, (), *args, **kw)


_DROP = replicas_info._drop_members


def _drop_in_the_same_epoch(group: BrokerGroup, *args: Any) -> None:
    set_epoch = group.sync_state_set_epoch
    _DROP(group, *args)
    group.sync_state_set_epoch = set_epoch


_ALTERED = replicas_info._sync_state_set_altered


def _eligible_for_ever(group: BrokerGroup, event: Any) -> None:
    before = group.eligible
    _ALTERED(group, event)
    group.eligible = tuple(item for item in before if item not in group.sync_state_set)


@contextmanager
def _eligible_without_end() -> Iterator[None]:
    """Neither a change of the set nor its size ends it: either alone does in CP, and in AP nobody is eligible."""
    with _applied({SyncStateSetAltered: _eligible_for_ever}), patch.object(replicas_info, "_end_eligibility", _no_end):
        yield


def _no_end(group: BrokerGroup) -> None:
    """Who is eligible stays so."""


def _applied(planted: dict[Any, Any]) -> Any:
    return patch.dict(replicas_info._APPLY, planted)


_APPEND = Appender.append


def _time_as_it_is(self: Appender, message: Any, wall_ms: int) -> Any:
    self._offsets.last_store_timestamp_ms = 0
    return _APPEND(self, message, wall_ms)


_APPEND_SENDS = Appender.append_sends


def _sends_time_as_it_is(self: Appender, source: SendSource, wall_ms: int) -> SendResults | None:
    self._offsets.last_store_timestamp_ms = 0
    return _APPEND_SENDS(self, source, wall_ms)


def _queue_offsets_stay(self: QueueOffsets, covered: int) -> None:
    self.covered = self._base = covered


_CUT_TO = ConsumeQueue.cut_to


def _one_entry_stays(self: ConsumeQueue, max_offset: int) -> None:
    _CUT_TO(self, min(max_offset + 1, self.max_offset))


def _moves_consumers(self: PullProcessor, channel: Any, command: Any, pull: Any) -> None:
    channel.send(self._reply(command, pull, self._read(pull, pull.offset), True))


def _commits_any_term(core: Any, role: Any) -> None:
    def match_index(voter: str) -> int:
        return int(core.log.durable_index if voter == core.node_id else role.progress[voter].match_index)

    reached = core.configuration.majority_reached(match_index)
    if reached > core.log.commit_index:
        core.log.commit_to(reached)


def _one_copy_is_durable(core: Any, role: Any) -> None:
    """A leader counts entries of its own that its disk does not hold yet."""
    log, durable_index = core.log, core.log.durable_index
    log.durable_index = log.last_index
    _COUNT_COMMITS(core, role)
    log.durable_index = durable_index


_COUNT_COMMITS = raft_leader.count_commits
_RELEASE = AckQueue.release


def _one_more_is_released(self: AckQueue, now_ms: int, acked_offset: PhyOffset) -> Any:
    if self._waits and self._waits[0][0] <= acked_offset and len(self._waits) > 1:
        acked_offset = max(acked_offset, self._waits[1][0])
    return _RELEASE(self, now_ms, acked_offset)


_ADVANCE, _DEADLINE = HandOver.advance, HandOver.deadline_ms


def _refuses_for_ever(self: HandOver, now_ms: int, *args: Any) -> Any:
    return [] if self._waiting is not None and self._waiting.is_answered else _ADVANCE(self, now_ms, *args)


def _no_deadline_once_told(self: HandOver) -> int | None:
    return None if self._waiting is None or self._waiting.is_answered else _DEADLINE(self)


def _alone_in_memory(self: Store, epoch: Any, start_offset: PhyOffset) -> bool:
    """An epoch's entry is written once the next one comes."""
    history = self._epochs.history.appended(EpochEntry(epoch, start_offset))
    if history is not None:
        EpochFile._write_copy(self._epochs, history)
        self._epochs.history = history
    return history is not None


_KEEP = ControllerClient._send_periodic_requests


def _keeps_in_touch_unclean(self: ControllerClient, now_ms: int) -> None:
    heartbeat_values = self._heartbeat_values
    with patch.object(self, "_heartbeat_values", lambda: heartbeat_values()._replace(unclean=False)):
        _KEEP(self, now_ms)


RULE_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a master serves before its queues are there": lambda: patch.object(Replica, "_open", _open_undispatched),
    "who lost power reports as well (ruling 3)": lambda: patch.multiple(
        Replica, _heartbeat_values=_well_at_once, _candidacy=_stood_cleanly
    ),
    "a send is taken while too few replicas are there (ruling 1)": lambda: patch.object(
        CommitTracker, "shortage", lambda self, now_ms, connections: ""
    ),
    "a time-out is answered SEND_OK": lambda: patch.object(Waiter, "finish", _any_end_is_good),
    "the send behind the last one is answered too": lambda: patch.object(AckQueue, "release", _one_more_is_released),
    "a hand-over that nobody takes up never ends": lambda: patch.multiple(
        HandOver, advance=_refuses_for_ever, deadline_ms=_no_deadline_once_told
    ),
    "a set without a member keeps its epoch": lambda: patch.object(
        replicas_info, "_drop_members", _drop_in_the_same_epoch
    ),
    "who lost power stays in the set (ruling 3)": lambda: _applied({MemberRemoved: lambda group, event: None}),
    "queue offsets outlive a cut (apache/rocketmq 7689)": lambda: patch.object(
        QueueOffsets, "dispatched", _queue_offsets_stay
    ),
    "store times follow the clock (ruling 18)": lambda: patch.multiple(
        Appender, append=_time_as_it_is, append_sends=_sends_time_as_it_is
    ),
    "a start leaves no trace": lambda: patch.object(BootFile, "running", lambda self, process_id: self._write()),
    "an epoch's entry is in its copy alone": lambda: patch.object(Store, "append_epoch", _alone_in_memory),
    "an unclean replica sends heartbeats (ruling 3)": lambda: patch.object(
        ControllerClient, "_send_periodic_requests", _keeps_in_touch_unclean
    ),
    "who misses entries may lead (Raft)": lambda: patch.object(RaftLog, "is_up_to_date", lambda self, *args: True),
    "a slave moves consumers": lambda: patch.object(PullProcessor, "_process_as_slave", _moves_consumers),
    "a cut is not synced": lambda: patch.object(CommitLog, "cut", _in_the_cache(CommitLog.cut, lambda log: log.disk)),
    "a new epoch is the next one that the controllers know": lambda: patch.object(
        election, "elected", _next_of_the_known_epoch
    ),
    "the mark of the end stands still": lambda: patch.object(EndMark, "raise_to", lambda self, offset: None),
    "queues are not synced": lambda: patch.object(ConsumeQueues, "sync", lambda self: None),
    "a cut leaves a queue's last entry": lambda: patch.object(ConsumeQueue, "cut_to", _one_entry_stays),
    "an older connection of a slave stays": lambda: patch.object(Slaves, "_supersede", lambda self, admitted: None),
    "who gives up its log stays electable (ruling 3)": lambda: patch.object(
        HaClient, "_give_up_log", _give_up_as_clean
    ),
    "who was eligible stays so (ruling 9)": _eligible_without_end,
    "a master who is demoted keeps its slaves": lambda: patch.object(Slaves, "close", lambda self, reason: None),
    "half a record stays where a master begins": lambda: patch.object(
        Store, "record_end_offset", property(lambda self: self.max_phy_offset)
    ),
    "a replica gives way to a master elected uncleanly (ruling 4)": lambda: patch.object(
        client, "refuse_loss", lambda found, *rest: found
    ),
    "a leader counts itself before its disk (Raft)": lambda: patch.object(
        raft_leader, "count_commits", _one_copy_is_durable
    ),
    "who was asked in a former life is not waited for (ruling 1)": lambda: patch.object(
        CommitTracker,
        "has_quorum",
        lambda self: len(self._set.state.confirmed) >= self._set.majority or self.is_sole_copy(),
    ),
    "entries of older terms are committed by count (Raft)": lambda: patch.object(
        raft_leader, "count_commits", _commits_any_term
    ),
}

RULE_UNSEEN: dict[str, Callable[[], Any]] = {
    "a smaller number of replicas binds at once (ruling 15)": lambda: patch.object(
        BrokerGroup,
        "binding_total_replicas",
        property(lambda self: self.next_total_replicas or self.total_replicas),
    ),
}
"""Found by no run so far (docs/internals/simulation.md)."""
