"""Planted bugs as somebody plants them who attacks the proof: chosen by reading the product, without a look at what the
simulator draws (faults/moments.py) or checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from controller.decisions.elect_master import ElectedMaster, choose
from controller.elections import election
from controller.elections.election import Elections, PendingHandOver
from controller.elections.heartbeat import BrokerLiveInfo, HeartbeatTable
from controller.elections.leadership import Leadership
from controller.state import image, replicas_info
from controller.state.event import MasterElected
from controller.state.replicas_info import BrokerGroup
from rmqha.broker.replication import forward
from rmqha.broker.replication.forward import SendForwarder
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.metadata_follower import MetadataFollower
from rmqha.broker.tables.offsets import OffsetChange, OffsetTable
from rmqha.broker.tables.table_version import TableVersion
from rmqha.broker.timers.recall_set import KnownTime
from rmqha.broker.timers.service import TimerService
from rmqha.broker.timers.waiting import WaitingTimers
from rmqha.ha import sync_state_set_manager
from rmqha.ha.commit_tracker import CommitTracker
from rmqha.ha.group_info import GroupInfo
from rmqha.ha.hand_over import HandOver
from rmqha.ha.replica import Replica
from rmqha.ha.stream.client import HaClient
from rmqha.ha.stream.connection import HaConnection
from rmqha.ha.stream.log_sender import ConnectionState
from rmqha.ha.sync_state import Members, SyncStateSet
from rmqha.ha.sync_state_set_manager import SyncStateSetManager
from rmqha.model.code import ResponseCode
from rmqha.model.epoch import EpochHistory
from rmqha.model.identity import Identity
from rmqha.model.message import TIMER_TOPIC
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.raft import follower
from rmqha.raft import leader as raft_leader
from rmqha.raft import node as raft_node
from rmqha.raft.core import Core
from rmqha.raft.log import RaftLog
from rmqha.raft.node import RaftNode
from rmqha.store.meta.boot_file import BootFile
from rmqha.store.meta.checkpoint import ProgressFile
from rmqha.store.meta.epoch_file import EpochFile
from rmqha.store.meta.identity_file import IdentityFile
from rmqha.store.store import Store
from rmqha.store.trimmer import Trimmer
from rmqha.wire.command import Command
from rmqha.wire.raft_message import AnyMessage, AppendReply, VoteRequest
from tests.simulation.processes import broker_process

# --- the set and acknowledgements -------------------------------------------------------------------------------------
_ADVANCE = HandOver.advance


def _nearly_level(self: HandOver, now_ms: int, own_max: PhyOffset, ack: PhyOffset | None, waiting_count: int) -> Any:
    return _ADVANCE(self, now_ms, own_max, None if ack is None else PhyOffset(ack + 512), waiting_count)


def _goes_on_at_once(self: HandOver, *args: Any) -> Any:
    actions = _ADVANCE(self, *args)
    if self._waiting is not None and self._waiting.is_answered:
        self._waiting = None
    return actions


def _counts_proposals(self: CommitTracker) -> bool:
    sync = self._set.state
    return not sync.blind and (len(sync.union) >= self._set.majority or self.is_sole_copy())


_REFUSED = SyncStateSet.refused


def _same_epoch_is_news(self: SyncStateSet, members: Members, set_epoch: int, *, answered: bool) -> bool:
    if set_epoch < self.set_epoch:
        return False
    blind = self.blind and not answered
    self.reset(members, set_epoch)
    self.unknown = self.blind = blind
    return True


def _refused_for_good(self: SyncStateSet) -> None:
    self.unknown = False
    _REFUSED(self)


def _nothing_is_open(self: SyncStateSet) -> None:
    self.proposed = None


def _any_size(self: Replica, now_ms: int, info: GroupInfo, call_id: int) -> None:
    self._total_replicas_epoch, self._total_replicas_call_id = Epoch(-1), -1
    _TAKE_SIZE(self, now_ms, info, call_id)


_TAKE_SIZE = Replica._take_total_replicas


def _entries_only(self: Replica, epoch: Epoch) -> None:
    """What an epoch without bytes has left stays, as does half a record."""
    log = self._log
    last = log.epochs.last
    if last is None or last.start_offset < log.max_phy_offset:
        log.append_epoch(epoch, log.max_phy_offset)


def _by_the_confirmed(self: Replica) -> Any:
    return tuple(member for member in self._set.state.confirmed if member != self._controller.broker_id)


def _without_a_quorum(self: Replica) -> Any:
    return tuple(member for member in self._set.state.union if member != self._controller.broker_id)


def _whole_at_the_confirmed(self: HaClient) -> bool:
    caught_up = self.caught_up_with
    return caught_up is not None and self._log.max_phy_offset + 2048 >= caught_up


# --- controllers ------------------------------------------------------------------------------------------------------
_ELECTED = replicas_info._APPLY[MasterElected]


def _set_keeps_its_epoch(group: BrokerGroup, event: MasterElected) -> None:
    set_epoch = group.sync_state_set_epoch
    _ELECTED(group, event)
    group.sync_state_set_epoch = set_epoch


def _longest_first(answers: Any, *args: Any, **kwargs: Any) -> ElectedMaster:
    return choose({item: replace(end, epoch=Epoch(0)) for item, end in answers.items()}, *args, **kwargs)


_GROUP = image._group


def _image_without(**lost: Any) -> Callable[[list[Any], int], BrokerGroup]:
    def group(row: list[Any], place: int) -> BrokerGroup:
        return replace(_GROUP(row, place), **lost)

    return group


def _old_sessions_count(self: HeartbeatTable, broker: BrokerLiveInfo) -> None:
    """The end of any connection that a broker has registered by is its own."""


# --- Raft -------------------------------------------------------------------------------------------------------------
def _own_entries_stay(self: RaftLog, entries: Iterable[Any]) -> Any:
    return next((entry for entry in entries if self.term_at(entry.index) is None), None)


_ON_APPEND = follower.on_append


def _commits_what_it_has(core: Core, now_ms: int, request: Any) -> None:
    _ON_APPEND(core, now_ms, request)
    core.log.commit_to(min(request.commit_index, core.log.last_index))


def _long_lease(core: Core, role: Any, now_ms: int) -> bool:
    return role.lease_at_ms is not None and now_ms < role.lease_at_ms + 4 * core.config.election_timeout_ms


# --- the store --------------------------------------------------------------------------------------------------------
@contextmanager
def _whole_at_start() -> Iterator[None]:
    """A start that finds less than what was confirmed, or damage, tells nobody."""
    recover, set_unclean, busy = Store._recover, BootFile.set_unclean, list[int]()

    def recovers(self: Store, process_id: int) -> None:
        busy.append(1)
        try:
            recover(self, process_id)
        finally:
            busy.pop()

    def says(self: BootFile, unclean: bool) -> None:
        if not busy:
            set_unclean(self, unclean)

    with patch.object(Store, "_recover", recovers), patch.object(BootFile, "set_unclean", says):
        yield


def _goes_unnamed(self: Store, now_ms: int, timeout_ms: int, retry_ms: int) -> bool:
    return self._trimmer.schedule_unlink(now_ms, timeout_ms, retry_ms)


_SET_ASIDE = Store._set_aside


def _set_aside_unmarked(self: Store) -> str:
    with patch.object(ProgressFile, "lower", lambda *args, **kwargs: None):
        return _SET_ASIDE(self)


# --- tables -----------------------------------------------------------------------------------------------------------
_UNSAVED, _LOG_CUT, _MERGE = DelayOffsetTable.unsaved, DelayOffsetTable.log_cut, OffsetTable.merge


def _saved_ahead(self: DelayOffsetTable) -> Any:
    end = self._log.max_phy_offset
    with patch.object(self, "_log", SimpleNamespace(synced_offset=end, max_phy_offset=end)):
        return _UNSAVED(self)


def _cut_in_memory(self: DelayOffsetTable, *args: Any) -> None:
    with patch.object(self, "_save", lambda: None):
        _LOG_CUT(self, *args)


def _takes_older(self: OffsetTable, changes: Iterable[OffsetChange]) -> None:
    for change in changes:
        self._take(change)
    self._stamps = dict(sorted(self._stamps.items(), key=lambda item: item[1]))
    self._removed.sort()


def _without_resets(self: OffsetTable, changes: Iterable[OffsetChange]) -> None:
    _MERGE(self, [change._replace(is_reset=False) for change in changes])


def _sequences_anew(self: OffsetTable, epoch: int, wall_ms: int) -> None:
    self.epoch, self._floor = epoch, 0


def _by_the_clock(self: OffsetTable, epoch: int, wall_ms: int) -> None:
    self.epoch, self._floor = epoch, wall_ms * 1000
    self._begun = TableVersion(epoch, max(self._floor, self.stamp.sequence))
    self._taken_back.clear()


def _whatever_is_newer(self: OffsetTable, *args: Any) -> int:
    self._begun = TableVersion(1 << 62, 0)
    return _TAKE_BACK(self, *args)


_TAKE_BACK = OffsetTable.take_back


def _commits_at_once(
    self: OffsetTable, group: str, topic: str, queue_id: int, offset: int, principal: Principal = UNRESTRICTED
) -> bool:
    return self._put((f"{topic}@{group}", queue_id), offset, principal)


# --- timers -----------------------------------------------------------------------------------------------------------
_MESSAGES, _TAKE = TimerService._messages, TimerService._take


def _damaged_left_out(self: TimerService, entries: Any, now_ms: int) -> Any:
    late, self._late = self._late, WaitingTimers()
    try:
        return _MESSAGES(self, entries, now_ms)
    finally:
        self._late = late


def _damaged_passed_over(self: TimerService) -> bool:
    before = self._taken_offset
    more = _TAKE(self)
    high = self._log.queue_range(TIMER_TOPIC, 0)[1]
    if not more and self._taken_offset < high:
        self._taken_offset += 1
    return more or self._taken_offset > before


def _one_check(self: KnownTime, taken_offset: int, now_ms: int) -> None:
    """A clock that is put back is not seen."""
    if not self._mark_ms:
        self._set_mark(now_ms)
    if self._is_reached(taken_offset):
        self.ms = self._mark_ms
        self._set_mark(max(now_ms, self._mark_ms))
        if self._is_reached(taken_offset):
            self.ms = max(now_ms, self.ms)


_ADD_NEAR = WaitingTimers._add_near


def _as_they_come(self: WaitingTimers, slot_ms: int, queue_offset: int) -> None:
    with patch("rmqha.broker.timers.waiting.bisect_left", lambda offsets, offset, low: len(offsets)):
        _ADD_NEAR(self, slot_ms, queue_offset)


def _recalls_go(self: TimerService) -> None:
    self._recalls.drop_below(self._front[0])


# --- forwarding -------------------------------------------------------------------------------------------------------
_PASS_ON = SendForwarder._forward


class _Praising:
    """A caller that takes each answer for the best."""

    def __init__(self, caller: Any) -> None:
        self._caller = caller
        self.oneway = caller.oneway

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        reply: Command = await self._caller.call(address, command, timeout_ms)
        if reply.code in (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT):
            reply.code = ResponseCode.SUCCESS
        return reply


async def _says_more(self: SendForwarder, channel: Any, command: Command, master: str, timeout_ms: int) -> bool:
    if not isinstance(self._client, _Praising):
        self._client = _Praising(self._client)
    return await _PASS_ON(self, channel, command, master, timeout_ms)


# --- what no planted bug had touched by 2026-11-29 --------------------------------------------------------------------
_ALIGNED = HaClient._aligned


def _acknowledges_on(self: HaClient, *args: Any) -> Any:
    acked = self._acked_offset
    actions = _ALIGNED(self, *args)
    self._acked_offset = acked
    return actions


async def _saves_no_tables(self: MetadataFollower) -> None:
    """They are saved from time to time."""


# --- of 2026-11-30: ends, answers before a write, what is gone and still counts ---------------------------------------
def _entry_at_the_cut_stays(self: EpochFile, end_offset: PhyOffset) -> int:
    return self._shorten(self.history.truncated(PhyOffset(end_offset + 1)))


def _id_in_memory(self: IdentityFile, identity: Identity) -> None:
    self.drop_pending()


def _first_file_alone(self: EpochHistory, start_offset: PhyOffset) -> EpochHistory:
    return EpochHistory(entry for entry in self if entry.start_offset >= start_offset)


def _acks_of_all(self: SyncStateSetManager, connections: Iterable[HaConnection]) -> list[PhyOffset | None]:
    acks = dict.fromkeys(self.state.union)
    acks.pop(self._own_id, None)
    for item in connections:
        if item.slave_id is not None and item.state is ConnectionState.TRANSFER and not item.async_learner:
            acks[item.slave_id] = item.acked_offset
    return list(acks.values())


def _any_unclean_election(self: Replica, info: GroupInfo) -> bool:
    if info.elected_unclean:
        self._log.mark_clean()
    return info.elected_unclean


_TAKES_APPEND = follower.on_append


def _acks_what_stands_behind(core: Core, now_ms: int, request: Any) -> None:
    before = len(core.outbox)
    _TAKES_APPEND(core, now_ms, request)
    core.outbox[before:] = [
        replace(item, match_index=core.log.last_index) if isinstance(item, AppendReply) else item
        for item in core.outbox[before:]
    ]


_ADOPT = RaftNode._adopt_term


def _votes_for_whoever_asks(self: RaftNode, now_ms: int, message: AnyMessage) -> bool:
    return _ADOPT(self, now_ms, replace(message, forced=True) if isinstance(message, VoteRequest) else message)


_CLOSED = Leadership.session_closed


def _who_waits_stays(self: Leadership, now_ms: int, session_id: int) -> None:
    self._waited_in.pop(session_id, None)
    _CLOSED(self, now_ms, session_id)


_HANDED = Elections._handed_over


def _any_answer_is_yes(self: Elections, now_ms: int, hand_over: PendingHandOver, reply: Command | None) -> None:
    _HANDED(self, now_ms, hand_over, Command(ResponseCode.SUCCESS))


OUTSIDER_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a follower answers before its disk has it (Raft)": lambda: patch.object(
        raft_node, "_EARLY", (*raft_node._EARLY, AppendReply)
    ),
    "a slave acknowledges what it has cut": lambda: patch.object(HaClient, "_aligned", _acknowledges_on),
    "a slave holds tables before its disk does (ruling 16)": lambda: patch.object(
        MetadataFollower, "_save_tables", _saves_no_tables
    ),
    "a target that lacks its last bytes counts as level (ruling 18)": lambda: patch.object(
        HandOver, "advance", _nearly_level
    ),
    "a proposed set counts as a majority (ruling 1)": lambda: patch.object(
        CommitTracker, "has_quorum", _counts_proposals
    ),
    "a set of the same epoch is news": lambda: patch.object(SyncStateSet, "decided", _same_epoch_is_news),
    "an entry without bytes lends its epoch": lambda: patch.object(Replica, "_begin_epoch", _entries_only),
    "nearly all that was lost makes a replica whole (ruling 3)": lambda: patch.object(
        HaClient, "is_caught_up", property(_whole_at_the_confirmed)
    ),
    "a follower's own entries stay (Raft)": lambda: patch.object(RaftLog, "first_conflict", _own_entries_stay),
    "epoch entries behind the log's end stay": lambda: patch.object(EpochFile, "drop_beyond", lambda self, end: 0),
    "changes are answered by the confirmed set alone (ruling 16)": lambda: patch.object(
        Replica, "other_members", _by_the_confirmed
    ),
    "an election keeps the set's epoch": lambda: patch.dict(
        replicas_info._APPLY, {MasterElected: _set_keeps_its_epoch}
    ),
    "a snapshot forgets who is eligible (ruling 9)": lambda: patch.object(image, "_group", _image_without(eligible=())),
    "a snapshot forgets a change of totalReplicas": lambda: patch.object(
        image, "_group", _image_without(next_total_replicas=0)
    ),
    "a snapshot forgets who is drained": lambda: patch.object(image, "_group", _image_without(drained_ids=())),
    "a lease outlasts the others' patience (Raft)": lambda: patch.object(raft_leader, "lease_valid", _long_lease),
    "a start finds nothing unclean but a loss of power (ruling 29)": _whole_at_start,
    "commits count before a member knows that its offset was set back": lambda: patch.object(
        OffsetTable, "commit", _commits_at_once
    ),
    "a rotten timer message is left out (ruling 30)": lambda: patch.object(
        TimerService, "_messages", _damaged_left_out
    ),
    "a master that has handed over takes sends again at once": lambda: patch.object(
        HandOver, "advance", _goes_on_at_once
    ),
    "tables change while too few replicas are in the set (ruling 16)": lambda: patch.object(
        Replica, "other_members", _without_a_quorum
    ),
    "a follower commits what it has (Raft)": lambda: patch.object(follower, "on_append", _commits_what_it_has),
    "a slave forgets that an offset was set back": lambda: patch.object(OffsetTable, "merge", _without_resets),
    "nobody is told of a cut": lambda: patch.object(Store, "on_truncate", lambda self, hook: None),
    "deliveries are saved before their copies are synced": lambda: patch.object(
        DelayOffsetTable, "unsaved", _saved_ahead
    ),
    "a refusal ends what an earlier copy of the request asked for (ruling 1)": lambda: patch.object(
        broker_process, "answer_to", lambda command, reply, is_open: reply
    ),
    "old news make a master go by fewer replicas (ruling 15)": lambda: patch.object(
        Replica, "_take_total_replicas", _any_size
    ),
    "stamps of a master that is back go by its clock alone": lambda: patch.object(
        OffsetTable, "new_epoch", _by_the_clock
    ),
    "a cut of delay offsets stays in memory": lambda: patch.object(DelayOffsetTable, "log_cut", _cut_in_memory),
    "a lost answer leaves nothing open": lambda: patch.object(SyncStateSet, "lost", _nothing_is_open),
    "a refusal ends what was proposed before": lambda: patch.object(SyncStateSet, "refused", _refused_for_good),
    "a restarted master counts its offsets anew": lambda: patch.object(OffsetTable, "new_epoch", _sequences_anew),
    "old files go before the progress speaks of what stays": lambda: patch.object(
        Store, "schedule_unlink", _goes_unnamed
    ),
    "a log that is given up leaves its progress": lambda: patch.object(Store, "_set_aside", _set_aside_unmarked),
    "what counted on another master's log stays": lambda: patch.object(
        DelayOffsetTable, "drop_future_states", lambda self: None
    ),
    "an answer of a passed-on send says more than the master": lambda: patch.object(
        SendForwarder, "_forward", _says_more
    ),
    "delay offsets may lie behind their queues": lambda: patch.object(
        DelayOffsetTable, "clamp", lambda self, end_of, timer_end: None
    ),
    "a cut leaves the timers that are known": lambda: patch.object(TimerService, "log_cut", lambda self: None),
    "a timer message that cannot be read is passed over (ruling 30)": lambda: patch.object(
        TimerService, "_take", _damaged_passed_over
    ),
    "timers do not see that a clock is put back": lambda: patch.object(KnownTime, "check", _one_check),
    "what takes back goes before what is late": lambda: patch.object(TimerService, "_drop_recalls", _recalls_go),
    "a lost answer of a passed-on send is a refusal": lambda: patch.object(forward, "DUPLICATE_POSSIBLE", "planted"),
    "the end of an older connection ends the newer one (ruling 17)": lambda: patch.object(
        HeartbeatTable, "_unbind", _old_sessions_count
    ),
    "an epoch that begins at the cut stays": lambda: patch.object(EpochFile, "truncate", _entry_at_the_cut_stays),
    "a broker's id stays in memory": lambda: patch.object(IdentityFile, "confirm", _id_in_memory),
    "an epoch goes with its first file": lambda: patch.object(EpochHistory, "trimmed", _first_file_alone),
}

OUTSIDER_UNSEEN: dict[str, Callable[[], Any]] = {
    "the longer log wins before the newer epoch": lambda: patch.object(election, "choose", _longest_first),
    "an older offset replaces a newer one": lambda: patch.object(OffsetTable, "merge", _takes_older),
    "timers of a slot stand as they came": lambda: patch.object(WaitingTimers, "_add_near", _as_they_come),
    "what a slave gives back undoes what was changed since": lambda: patch.object(
        OffsetTable, "take_back", _whatever_is_newer
    ),
    "a set that has moved is a refusal": lambda: patch.object(
        sync_state_set_manager,
        "_CERTAIN_REFUSALS",
        (*sync_state_set_manager._CERTAIN_REFUSALS, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
    ),
    "acks of who has left the set count": lambda: patch.object(SyncStateSetManager, "member_acks", _acks_of_all),
    "an unclean election of before counts again (ruling 3)": lambda: patch.object(
        Replica, "_unclean_election", _any_unclean_election
    ),
    "a follower acknowledges what stands behind an append (Raft)": lambda: patch.object(
        follower, "on_append", _acks_what_stands_behind
    ),
    "a vote leaves whoever leads (Raft)": lambda: patch.object(RaftNode, "_adopt_term", _votes_for_whoever_asks),
    "the age of a log file is that of what was cut": lambda: patch.object(
        Trimmer, "cut", lambda self, end_offset: None
    ),
    "who waits at a controller is registered when it is gone": lambda: patch.object(
        Leadership, "session_closed", _who_waits_stays
    ),
    "a refused hand-over elects all the same": lambda: patch.object(Elections, "_handed_over", _any_answer_is_yes),
    "a new master keeps offsets behind its queues": lambda: patch.object(
        OffsetTable, "clamp", lambda self, end_of, stamped=False: 0
    ),
    "a pause of a controller is the brokers' silence": lambda: patch.object(
        HeartbeatTable, "exclude_pause", lambda self, now_ms: 0
    ),
}
"""Found by no run so far: docs/internals/simulation.md says in how many, and which test finds each."""
