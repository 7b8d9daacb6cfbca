"""Planted bugs: each undoes one rule of the production code, and the simulation must find it.

`find(name, seeds)` returns the first seed that does. test_mutations.py replays the seeds known to find them, which is
also the proof that a checker can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from controller import requests as controller_requests
from controller.decisions import elect_master
from controller.decisions.elect_master import ElectedMaster, Electorate, choose, elected, electorate
from controller.decisions.sync_state_set import alter_sync_state_set
from controller.elections import election as controller_elections
from controller.state.answers import flag as controller_flag
from nameserver.route_info import RouteTable
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.replication.waiter import Waiter
from rmqha.broker.requests import send
from rmqha.broker.requests.consumer_requests import ConsumerRequests
from rmqha.broker.requests.pull import PullProcessor
from rmqha.broker.requests.request import Channel
from rmqha.broker.services import transaction_service
from rmqha.broker.services.transaction import Reconciliation
from rmqha.broker.services.transaction_service import TransactionService
from rmqha.broker.tables.metadata_leader import MetadataLeader
from rmqha.broker.tables.topics import TopicTable
from rmqha.ha import commit_tracker as commitment
from rmqha.ha.ack import AckQueue
from rmqha.ha.action import AckStatus, Action, Complete
from rmqha.ha.commit_tracker import CommitTracker
from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.group_info import GroupInfo
from rmqha.ha.machine import Promoting
from rmqha.ha.replica import Replica
from rmqha.ha.stream import client as ha_client
from rmqha.ha.stream.alignment import Alignment, AlignmentVerdict, align
from rmqha.ha.stream.client import HaClient
from rmqha.ha.stream.connection import HaConnection
from rmqha.ha.stream.log_sender import ConnectionState
from rmqha.ha.sync_state import Members, SyncStateSet, as_members
from rmqha.ha.sync_state_set_manager import SyncStateSetManager
from rmqha.kernel.batch_kernel import SendResults
from rmqha.model.code import ResponseCode
from rmqha.model.epoch import EpochHistory
from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import HALF_TOPIC, OP_TOPIC
from rmqha.model.offset import BrokerId, Epoch, PhyOffset, QueueOffset, Term
from rmqha.raft.core import Core
from rmqha.raft.quorum import Configuration
from rmqha.store.appender import AppendedBatch, SendSource
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.new_batch import NewBatch
from rmqha.store.log.record import NewMessage
from rmqha.store.queue.consume_queue import ConsumeQueues
from rmqha.store.queue.dispatcher import DispatchedBlock
from rmqha.store.queue.queue_min_offsets import QueueEnd, QueueMinOffsets
from rmqha.store.reader import PullResult
from rmqha.store.store import Store
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.simulation.planted.delay_mutations import DELAY_MUTATIONS, POP_MUTATIONS
from tests.simulation.planted.edits.small import SMALL_MUTATIONS, SMALL_UNSEEN
from tests.simulation.planted.group_mutations import GROUP_MUTATIONS
from tests.simulation.planted.moment_mutations import MOMENT_MUTATIONS, MOMENT_UNSEEN
from tests.simulation.planted.outsider_mutations import OUTSIDER_MUTATIONS, OUTSIDER_UNSEEN
from tests.simulation.planted.rot_mutations import ROT_MUTATIONS
from tests.simulation.planted.rule_mutations import RULE_MUTATIONS, RULE_UNSEEN
from tests.simulation.planted.shell_mutations import SHELL_MUTATIONS, SHELL_UNSEEN
from tests.simulation.planted.state_mutations import (
    GROWTH_MUTATIONS,
    PROMISE_MUTATIONS,
    STATE_MUTATIONS,
    STATE_UNSEEN,
)
from tests.simulation.planted.stop_mutations import DISK_MUTATIONS, STOP_MUTATIONS
from tests.simulation.planted.version_mutations import VERSION_MUTATIONS
from tests.simulation.run import Run

ALTER = "alter_sync_state_set"


def _shrunk_at_once(self: SyncStateSet, members: Members) -> None:
    self.proposed = members
    self.union = members


def _never_a_cut(*args: Any, **kwargs: Any) -> Alignment:
    slave_max: PhyOffset = args[2]
    return Alignment(AlignmentVerdict.FOLLOW, "2-2", slave_max, 0, "planted", 0)


def _one_byte_less(*args: Any, **kwargs: Any) -> Alignment:
    found = align(*args, **kwargs)
    return replace(found, end_offset=PhyOffset(max(args[1], found.end_offset - 1))) if found.cut_bytes else found


_REAL_BECOME = Replica._become_master


def _confirm_at_promotion(self: Replica, *args: Any) -> None:
    _REAL_BECOME(self, *args)
    self._log.set_confirm_offset(self._log.max_phy_offset)


def _anyone(group: Any, fit: Any, election_request: Any, **kwargs: Any) -> Any:
    if group.set_known and election_request.target is None:
        ids = tuple(item for item in group.replicas if item in fit and item != election_request.avoid)
        if ids:
            return Electorate(ids[-1:], election_request.cause)
    return electorate(group, fit, election_request, **kwargs)


def _ack_all(self: HaClient) -> PhyOffset:
    return self._log.max_phy_offset


def _stay(self: HaClient, phy_offset: PhyOffset) -> None:
    raise RemoteProtocolError("planted")


def _largest(current: PhyOffset, acked: Iterable[PhyOffset | None]) -> PhyOffset:
    return max(current, *(offset for offset in acked if offset is not None))


_REAL_ACKS = SyncStateSetManager.member_acks


def _known_acks(self: SyncStateSetManager, *args: Any) -> list[PhyOffset | None]:
    return [ack for ack in _REAL_ACKS(self, *args) if ack is not None]


_REAL_WANTED = SyncStateSetManager._wanted


def _joins_at_once(self: SyncStateSetManager, now_ms: int, connected: Any) -> Members:
    return as_members([*_REAL_WANTED(self, now_ms, connected), *connected])


_REAL_BEGIN = SyncStateSetManager.begin


def _begin_sighted(self: SyncStateSetManager, *args: Any, **kwargs: Any) -> None:
    _REAL_BEGIN(self, *args, **kwargs | {"resumed": False})


def _begin_by_the_confirm_offset(self: SyncStateSetManager, *args: Any, **kwargs: Any) -> None:
    _REAL_BEGIN(self, *args, **kwargs)
    if kwargs["resumed"]:
        self._inherited_end = PhyOffset(0)


_REAL_REPLIED = SyncStateSetManager.replied


def _shrinks_alone(self: SyncStateSetManager, now_ms: int, call_id: int, reply: Any) -> None:
    proposed = self.state.proposed
    _REAL_REPLIED(self, now_ms, call_id, reply)
    if reply is None and proposed is not None:
        self.state.reset(proposed, self.state.set_epoch)


_REAL_MAINTAIN = SyncStateSetManager.maintain


def _alone_unasked(self: SyncStateSetManager, now_ms: int, connections: Iterable[Any]) -> None:
    listed = list(connections)
    _REAL_MAINTAIN(self, now_ms, listed)
    if self._config.total_replicas == 2 and self.unreachable(listed):
        self.state.reset((self._own_id,), self.state.set_epoch)


_REAL_APPLY = Replica._apply


def _old_news_too(self: Replica, now_ms: int, info: GroupInfo, call_id: int = 0) -> None:
    if info.master_id is not None and info.epoch < self.epoch and not self.is_master:
        self._show(replace(self._in, epoch=info.epoch))
    _REAL_APPLY(self, now_ms, info, call_id)


def _epoch_in_memory(self: Store, epoch: Epoch) -> None:
    self._highest_epoch.value = max(self._highest_epoch.value, epoch)


def _cut_without_zeros(self: CommitLog, end_offset: int, used_end: int | None = None) -> int:
    self.end_at(end_offset)
    return 1


def _all_dispatched(self: Store, limit_bytes: int) -> bool:
    return self._dispatch_service.dispatch(self._log.end_offset, limit_bytes)


def _shortest_log(answers: Any, *args: Any, **kwargs: Any) -> ElectedMaster:
    winner = min(answers, key=lambda item: (answers[item].epoch, answers[item].max_offset, item))
    return ElectedMaster(winner, "planted")


def _masters_unknown(answers: Any, *args: Any, **kwargs: Any) -> ElectedMaster:
    return choose({item: replace(end, is_master=False) for item, end in answers.items()}, *args, **kwargs)


def _nobody_survives(*args: Any, **kwargs: Any) -> Any:
    return replace(elected(*args, **kwargs), eligible=())


def _anybody(group: Any, fit: Any, election_request: Any, **kwargs: Any) -> Any:
    found = electorate(group, fit, election_request, **kwargs)
    alive = tuple(item for item in group.counted_ids if item in fit and item != election_request.avoid)
    return (
        Electorate(alive, election_request.cause)
        if group.set_known and alive and election_request.target is None
        else found
    )


def _survivors_of_everybody(group: Any, winner: BrokerId, *args: Any, **kwargs: Any) -> Any:
    alive = args[2]
    event = elected(group, winner, *args, **kwargs)
    return replace(event, eligible=tuple(item for item in group.electable_ids if item != winner and item in alive))


def _set_epoch_unchecked(
    group: Any, master_id: int, master_epoch: int, new_set: Any, set_epoch: int, *rest: Any, **kw: Any
) -> Any:
    return alter_sync_state_set(group, master_id, master_epoch, new_set, group.sync_state_set_epoch, *rest, **kw)


def _nothing_fenced(
    group: Any, master_id: int, master_epoch: int, new_set: Any, set_epoch: int, *rest: Any, **kw: Any
) -> Any:
    master = group.master_id or master_id
    members = sorted({*new_set, master})
    return alter_sync_state_set(group, master, group.master_epoch, members, group.sync_state_set_epoch, *rest, **kw)


def _abandoned_as_done(self: AckQueue) -> list[Complete]:
    done = [Complete(token, AckStatus.OK) for _, _, token in self._waits]
    self._waits.clear()
    return done


def _expired_as_done(self: AckQueue, now_ms: int, status: AckStatus) -> list[Complete]:
    return _REAL_EXPIRE(self, now_ms, AckStatus.OK)


_REAL_EXPIRE = AckQueue.expire


_REAL_BECOME_MASTER = Replica._become_master


def _serves_what_is_on_disk(self: Replica, now_ms: int, info: GroupInfo, own_id: BrokerId) -> None:
    _REAL_BECOME_MASTER(self, now_ms, info, own_id)
    if isinstance(self._in, Promoting):
        self._in = replace(self._in, opens_at=self._in.start_offset)


_REAL_LEARN = QueueMinOffsets.learn


def _learns_nothing(self: QueueMinOffsets, ends: Iterable[QueueEnd]) -> int:
    return _REAL_LEARN(self, [])


_REAL_REPLY = PullProcessor._reply


def _one_further(self: PullProcessor, command: Command, pull: Any, result: PullResult, master: bool) -> Command:
    reply = _REAL_REPLY(self, command, pull, result, master)
    if result.status is ResponseCode.PULL_NOT_FOUND:
        reply.ext["nextBeginOffset"] = str(int(reply.ext["nextBeginOffset"]) + 1)
    return reply


_REAL_TRY_AGAIN = PullProcessor._try_again


def _loaded_one_further(self: PullProcessor, high: QueueOffset, budget: Any, hold: Any) -> bool:
    hold.scanned_to = QueueOffset(hold.scanned_to + 1)
    return _REAL_TRY_AGAIN(self, high, budget, hold)


def _end_of_queue(self: ConsumerRequests, channel: Channel, command: Command) -> Command:
    _, high = self._log.queue_range(command.ext["topic"], int(command.ext["queueId"]))
    return command.reply(ResponseCode.SUCCESS, {"offset": str(high)})


def _leads_alone(self: Configuration, votes: dict[str, bool]) -> bool:
    return True


def _one_vote_is_forgotten(self: Core, term: Term, voted_for: str) -> None:
    self.hard_state = replace(self.hard_state, term=term, voted_for="")
    self.hard_state_changed = True


def _kept_entries(self: EpochHistory, end_offset: PhyOffset) -> EpochHistory:
    return self


_REAL_FIRST = elect_master._first


def _first_come(group: Any, candidates: Any, election_request: Any, total_replicas: int) -> Any:
    return (
        _REAL_FIRST(group, candidates, election_request, min(1, total_replicas))
        if len(candidates)
        else _REAL_FIRST(group, candidates, election_request, total_replicas)
    )


_REAL_APPEND = ReplicaDriver.append


def _append_twice(self: ReplicaDriver, messages: Any) -> Any:
    _REAL_APPEND(self, messages)
    return _REAL_APPEND(self, messages)


_REAL_APPEND_SENDS = ReplicaDriver.append_sends


def _append_sends_twice(self: ReplicaDriver, source: SendSource) -> SendResults | None:
    _REAL_APPEND_SENDS(self, source)
    return _REAL_APPEND_SENDS(self, source)


def _answers_of_the_next(self: ReplicaDriver, source: SendSource) -> SendResults | None:
    taken = _REAL_APPEND_SENDS(self, source)
    if taken is None:
        return None
    parts = []
    for part in taken.parts:
        answers = FrameParser(len(part.answers)).feed(part.answers)
        for answer in answers:
            answer.ext["queueOffset"] = str(int(answer.ext["queueOffset"]) + 1)
        parts.append(part._replace(answers=b"".join(map(encode_frame, answers))))
    return taken._replace(parts=parts)


def _place_of_the_next(self: ReplicaDriver, messages: Any) -> Any:
    done = _REAL_APPEND(self, messages)
    return done._replace(queue_offsets=tuple(offset + 1 for offset in done.queue_offsets))


def _one_place_for_all(self: ReplicaDriver, messages: list[NewMessage] | NewBatch) -> AppendedBatch:
    stored = _REAL_APPEND(self, messages)
    if isinstance(messages, NewBatch):
        self.store._offsets.next[messages.topic, messages.queue_id] = stored.queue_offsets[0] + 1
    return stored


def _one_place_for_all_sends(self: ReplicaDriver, source: SendSource) -> SendResults | None:
    taken = _REAL_APPEND_SENDS(self, source)
    if taken is not None and max(taken.message_counts) > 1:
        for run in taken.runs:
            self.store._offsets.next[run.topic, run.queue_id] = run.first_offset + 1
    return taken


_REAL_TRUNCATE = Store.truncate


class _Mute:
    def event(self, name: str, **fields: Any) -> None:
        """Say nothing."""


def _cut_in_silence(self: Store, end_offset: PhyOffset) -> None:
    with patch.object(self, "_tracer", _Mute()):
        _REAL_TRUNCATE(self, end_offset)


_REAL_COLLECT = ConsumeQueues.collect


def _not_the_second_queue(self: ConsumeQueues, record: Any) -> None:
    if record.queue_id != 1:
        _REAL_COLLECT(self, record)


_REAL_COLLECT_BLOCK = ConsumeQueues.collect_block


def _block_without_the_second_queue(self: ConsumeQueues, block: DispatchedBlock) -> None:
    _REAL_COLLECT_BLOCK(self, block._replace(runs=[run for run in block.runs if run.queue_id != 1]))


@contextmanager
def _unclean_resumes() -> Iterator[None]:
    """Both sides forget it: the controllers do not hear, and the replica does not care."""
    with (
        patch.object(controller_requests, "flag", lambda ext, name: False),
        patch.object(Replica, "_unclean_election", lambda self, info: True),
    ):
        yield


@contextmanager
def _masters_by_memory() -> Iterator[None]:
    """Who was master and restarts goes on as master of its epoch, before it has asked anybody."""
    remembered: dict[str, GroupInfo] = {}

    def become(self: Replica, now_ms: int, info: GroupInfo, own_id: Any) -> None:
        remembered[self._config.address] = info
        _REAL_BECOME(self, now_ms, info, own_id)

    def start(self: Replica, now_ms: int) -> None:
        info = remembered.get(self._config.address)
        if info is not None and info.epoch >= self._log.highest_epoch and info.master_id is not None:
            _REAL_BECOME(self, now_ms, info, info.master_id)
        self.timeout(now_ms)

    with patch.object(Replica, "_become_master", become), patch.object(Replica, "start", start):
        yield


@contextmanager
def _learners_are_replicas() -> Iterator[None]:
    """Neither the master nor the controllers see that a replica is a learner."""

    def connected(self: SyncStateSetManager, connections: Iterable[HaConnection]) -> dict[Any, HaConnection]:
        return {
            item.slave_id: item
            for item in connections
            if item.slave_id is not None and item.state is ConnectionState.TRANSFER
        }

    def flag(ext: Any, name: str) -> bool:
        return name != "asyncLearner" and controller_flag(ext, name)

    with patch.object(SyncStateSetManager, "_connected", connected), patch.object(controller_requests, "flag", flag):
        yield


REAL_OPENED = HaClient.opened


def _with_the_old_parser(self: HaClient, now_ms: int, conn_id: int) -> list[Action]:
    parser = self._parser
    actions = REAL_OPENED(self, now_ms, conn_id)
    self._parser = parser
    return actions


class _ToldAtOnce(Waiter):
    def __init__(self, channel: Channel, replies: list[Command]) -> None:
        super().__init__(channel, [])
        for reply in replies:
            channel.send(reply)


_REAL_STARTED = TransactionService._started


def _started_at_the_end(self: TransactionService) -> Reconciliation:
    if self._state is None:
        state = _REAL_STARTED(self)
        state.next_half = max(state.next_half, self._log.queue_range(HALF_TOPIC, 0)[1])
    return _REAL_STARTED(self)


_REAL_SAFE = TransactionService._are_copies_safe


def _where_the_offsets_say(self: TransactionService) -> tuple[int, int]:
    """As behind the marks of an Apache broker."""
    return self._known(HALF_TOPIC), self._known(OP_TOPIC)


def _copies_are_safe(self: TransactionService) -> bool:
    if self._copies is not None:
        self._copies.is_acked, self._copies.end_offset = True, PhyOffset(0)
    return _REAL_SAFE(self)


_REAL_END = TransactionService._end


def _always_a_commit(self: TransactionService, channel: Channel, command: Command) -> None:
    if command.ext["commitOrRollback"] == "12":
        command.ext["commitOrRollback"] = "8"
    _REAL_END(self, channel, command)


MUTATIONS: dict[str, Callable[[], Any]] = {
    "acks against the shrunk set (ruling 1)": lambda: patch.object(SyncStateSet, "propose", _shrunk_at_once),
    "no majority needed (ruling 1)": lambda: patch.object(CommitTracker, "has_quorum", lambda self: True),
    "the fastest member decides (ruling 1)": lambda: patch.object(commitment, "confirm_offset", _largest),
    "silent members are left out (ruling 1)": lambda: patch.object(SyncStateSetManager, "member_acks", _known_acks),
    "a restarted master trusts the old set (ruling 1)": lambda: patch.object(
        SyncStateSetManager, "begin", _begin_sighted
    ),
    "a restarted master takes members by its old confirm offset (ruling 1)": lambda: patch.object(
        SyncStateSetManager, "begin", _begin_by_the_confirm_offset
    ),
    "waits that end are answered SEND_OK (ruling 1)": lambda: patch.object(AckQueue, "expire", _expired_as_done),
    "no cut at a fork (ruling 2)": lambda: patch.object(ha_client, "align", _never_a_cut),
    "the cut is one byte off (ruling 2)": lambda: patch.object(ha_client, "align", _one_byte_less),
    "the cut leaves the epochs (ruling 2)": lambda: patch.object(EpochHistory, "truncated", _kept_entries),
    "power loss forgotten (ruling 3)": lambda: patch.object(Store, "unclean", property(lambda self: False)),
    "whole again at once (ruling 3)": lambda: patch.object(HaClient, "is_caught_up", property(lambda self: True)),
    "an older master is followed (ruling 4)": lambda: patch.object(Replica, "_apply", _old_news_too),
    "the highest epoch is not on disk (ruling 4)": lambda: patch.object(Store, "accept_epoch", _epoch_in_memory),
    "CP shrinks without the controller (ruling 5)": lambda: patch.object(
        SyncStateSetManager, "replied", _shrinks_alone
    ),
    "CP takes sends without its members (ruling 5)": lambda: patch.object(
        ControllerClient, "is_away", lambda self, now_ms: False
    ),
    "CP takes no sends without controllers (ruling 5)": lambda: patch.object(
        SyncStateSetManager, "unreachable", lambda self, connections: list(self.state.union)
    ),
    "AP waits for the controllers' word (ruling 5)": lambda: patch.object(
        SyncStateSet, "shrink_locally", lambda self, now_ms, members: None
    ),
    "a master starts as master by memory (ruling 5)": _masters_by_memory,
    "one copy is not synced (ruling 6)": lambda: patch.object(
        CommitTracker, "sync_required", lambda self, is_master: self._config.sync_flush
    ),
    "one of two goes on without asking (rulings 6, 7)": lambda: patch.object(
        SyncStateSetManager, "maintain", _alone_unasked
    ),
    "the first to come is elected (ruling 8)": lambda: patch.object(elect_master, "_first", _first_come),
    "the eligible set is forgotten (ruling 9)": lambda: patch.object(controller_elections, "elected", _nobody_survives),
    "whoever lives is elected (ruling 9)": lambda: patch.object(controller_elections, "electorate", _anybody),
    "who leads alone leaves others eligible (ruling 9)": lambda: patch.object(
        controller_elections, "elected", _survivors_of_everybody
    ),
    "waiters at demotion are answered SEND_OK (ruling 13)": lambda: patch.object(
        AckQueue, "abandon", _abandoned_as_done
    ),
    "a slave joins when it connects": lambda: patch.object(SyncStateSetManager, "_wanted", _joins_at_once),
    "confirm raised on one copy": lambda: patch.object(Replica, "_become_master", _confirm_at_promotion),
    "anyone is elected": lambda: patch.object(controller_elections, "electorate", _anyone),
    "a master that still acknowledges is one like others (ruling 8)": lambda: patch.object(
        controller_elections, "choose", _masters_unknown
    ),
    "the shortest log is elected": lambda: patch.object(controller_elections, "choose", _shortest_log),
    "the set epoch is not fenced": lambda: patch.object(controller_requests, ALTER, _set_epoch_unchecked),
    "no epoch is fenced": lambda: patch.object(controller_requests, ALTER, _nothing_fenced),
    "slaves ack what is not synced": lambda: patch.object(HaClient, "_ackable", _ack_all),
    "old files go before they are committed": lambda: patch.object(
        Store, "settled_offset", property(lambda self: self.max_phy_offset)
    ),
    "nobody is copied to again": lambda: patch.object(HaClient, "_check_restart", _stay),
    "sync does nothing": lambda: patch.object(Store, "sync", lambda self: self.max_phy_offset),
    "the tail behind a cut stays (apache/rocketmq 10666)": lambda: patch.object(CommitLog, "cut", _cut_without_zeros),
    "changes are answered before the set holds them (ruling 16)": lambda: patch.object(
        MetadataLeader, "_missing", lambda self, wait: ""
    ),
    "slaves join without the tables (ruling 16)": lambda: patch.object(
        MetadataLeader, "may_join", lambda self, broker_id: True
    ),
    "an old master's tables stay": lambda: patch.object(TopicTable, "replace", lambda self, *args: None),
    "an unclean master resumes (ruling 3)": _unclean_resumes,
    "waits never end (ruling 13)": lambda: patch.multiple(
        AckQueue, expire=lambda self, now_ms, status: [], deadline_ms=lambda self: None
    ),
    "what is cut is not told": lambda: patch.object(Store, "truncate", _cut_in_silence),
    "a queue lacks its records": lambda: patch.multiple(
        ConsumeQueues, collect=_not_the_second_queue, collect_block=_block_without_the_second_queue
    ),
    "a message is stored twice": lambda: patch.multiple(
        ReplicaDriver, append=_append_twice, append_sends=_append_sends_twice
    ),
    "a batch takes one place in its queue": lambda: patch.multiple(
        ReplicaDriver, append=_one_place_for_all, append_sends=_one_place_for_all_sends
    ),
    "another place is told": lambda: patch.multiple(
        ReplicaDriver, append=_place_of_the_next, append_sends=_answers_of_the_next
    ),
    "consumers see the end": lambda: patch.object(Store, "dispatch", _all_dispatched),
    "a master that goes on serves what it has on disk": lambda: patch.object(
        Replica, "_become_master", _serves_what_is_on_disk
    ),
    "idle queues begin at 0 again": lambda: patch.object(QueueMinOffsets, "learn", _learns_nothing),
    "a consumer that waits goes on one further": lambda: patch.object(PullProcessor, "_reply", _one_further),
    "a pull that waited for the disk goes on one further": lambda: patch.object(
        PullProcessor, "_try_again", _loaded_one_further
    ),
    "consumers begin at the end of their queues": lambda: patch.object(
        ConsumerRequests, "_query_offset", _end_of_queue
    ),
    "the queues are not cut": lambda: patch.object(ConsumeQueues, "truncate", lambda self, end: None),
    "learners are replicas like others (ruling 1)": _learners_are_replicas,
    "an old master takes the name back (ruling 14)": lambda: patch.object(
        RouteTable, "_is_stale", lambda self, group, session_id, request: False
    ),
    "what a broken connection began goes on in the next": lambda: patch.object(
        HaClient, "opened", _with_the_old_parser
    ),
    "an end is answered before the set holds it": lambda: patch.object(transaction_service, "Waiter", _ToldAtOnce),
    "a new master asks about nothing that waits": lambda: patch.object(
        TransactionService, "_started", _started_at_the_end
    ),
    "copies of half messages are not waited for": lambda: patch.multiple(
        TransactionService, _are_copies_safe=_copies_are_safe, _waiting_from=_where_the_offsets_say
    ),
    "a rollback is a commit": lambda: patch.object(TransactionService, "_end", _always_a_commit),
    "nobody is asked how a transaction ended": lambda: patch.object(
        TransactionService, "_ask", lambda self, half: None
    ),
    "half messages are seen": lambda: patch.object(send, "to_half", lambda message, mark: message),
    **GROUP_MUTATIONS,
    **DELAY_MUTATIONS,
    **POP_MUTATIONS,
    **MOMENT_MUTATIONS,
    **DISK_MUTATIONS,
    **ROT_MUTATIONS,
    **SHELL_MUTATIONS,
    **VERSION_MUTATIONS,
    **STOP_MUTATIONS,
    **RULE_MUTATIONS,
    **GROWTH_MUTATIONS,
    **OUTSIDER_MUTATIONS,
    **STATE_MUTATIONS,
    **PROMISE_MUTATIONS,
    **SMALL_MUTATIONS,
    "one vote elects a leader (Raft)": lambda: patch.object(Configuration, "won", _leads_alone),
    "votes are forgotten (Raft)": lambda: patch.object(Core, "set_hard_state", _one_vote_is_forgotten),
    "one copy commits (Raft)": lambda: patch.object(
        Configuration, "majority_reached", lambda self, value_of: max(value_of(voter) for voter in self.voters)
    ),
}
"""What is undone, and the patch that undoes it."""
UNSEEN: dict[str, Callable[[], Any]] = {
    **MOMENT_UNSEEN,
    **RULE_UNSEEN,
    **OUTSIDER_UNSEEN,
    **SHELL_UNSEEN,
    **STATE_UNSEEN,
    **SMALL_UNSEEN,
    "marks do not say where to begin": lambda: patch.object(
        transaction_service, "parse_waiting_from", lambda record: None
    ),
}
"""The same, found by no run so far: docs/internals/simulation.md says what else sees them."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    with (MUTATIONS | UNSEEN)[name]():
        yield


_BEHIND_THE_PRODUCT = ("AttributeError:", "NameError:", "TypeError:")


def failure_of(run: Run) -> str:
    """How the run fails, "" if it does not. A patch or a checker that no longer fits what it touches finds nothing: an
    error of ours."""
    failure = run.world().run().failure
    last_line = failure.strip().rpartition("\n")[2]
    assert not any(error in last_line for error in _BEHIND_THE_PRODUCT), f"{run.theme}:{run.seed}: {last_line}"
    return failure


def find(name: str, seeds: Iterable[int], mode: str) -> tuple[int, str] | None:
    """The first of `seeds` whose run fails with the bug planted, and how."""
    with planted(name):
        for seed in seeds:
            failure = failure_of(Run(seed, mode))
            if failure:
                return seed, failure
    return None
