"""Planted bugs of 2026-11-30, chosen from the product alone: slips of one to three lines. A comparison that is off by
one, what a change of role forgets, two durable writes in the wrong order, a cache that outlives a cut, an exception
that keeps what it holds, a time-out that is taken for a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.decisions import membership
from controller.elections.election import Elections
from controller.elections.heartbeat import HeartbeatTable
from controller.elections.leadership import Leadership
from controller.quorum.raft_log import DurableRaftLog
from controller.state import replicas_info
from controller.state.replicas_info import ReplicasInfo
from nameserver.route_info import RouteTable
from rmqha.broker.pop.order_info import OrderInfo
from rmqha.broker.pop.positions import PopPositions
from rmqha.broker.pop.recovery import PopRecovery
from rmqha.broker.pop.revive import ReviveService
from rmqha.broker.pop.revive_queue import ReviveQueue
from rmqha.broker.replication.forward import SendForwarder
from rmqha.broker.requests.pull import PullProcessor
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.metadata_follower import MetadataFollower
from rmqha.client.producers.producer import Producer
from rmqha.ha.ack import AckQueue
from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.replica import Replica
from rmqha.ha.stream import alignment
from rmqha.ha.stream.client import HaClient
from rmqha.ha.stream.connection import HaConnection
from rmqha.ha.stream.log_sender import LogSender
from rmqha.ha.sync_state_set_manager import SyncStateSetManager
from rmqha.raft import leader as raft_leader
from rmqha.raft.log import RaftLog
from rmqha.raft.node import RaftNode
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.epoch_file import EpochFile
from rmqha.store.queue.consume_queue import ConsumeQueue
from rmqha.store.store import Store
from tests.simulation.planted.edits.edited import edit

HA: dict[str, Callable[[], Any]] = {
    "a new mastership waits for a request of the last": edit(
        SyncStateSetManager, "begin", ("    self._alter_call_id = None\n", "")
    ),
    "members get no time to connect": edit(SyncStateSetManager, "begin", ("dict.fromkeys(members, now_ms)", "{}")),
    "a member leaves for the later of two reasons": edit(
        SyncStateSetManager, "pending_removal", ("min(slow, silent)", "max(slow, silent)")
    ),
    "a slave below the log is sent from where it ends": edit(
        HaConnection, "_ack", ("max(offset, self._log.min_phy_offset)", "offset")
    ),
    "a slave at the oldest file has fallen behind it": edit(
        LogSender, "pump", ("offset < log.min_phy_offset", "offset <= log.min_phy_offset")
    ),
    "a slave that moves counts as level": edit(
        HaConnection, "_note_caught_up", ("self.caught_up_at_ms = self._end_mark[1]", "self.caught_up_at_ms = now_ms")
    ),
    "who is spoken to is never silent": edit(LogSender, "timeout", ("self._last_read_ms + ", "self._last_write_ms + ")),
    "what was kept of a connection outlives it": edit(HaClient, "_forget", ("    self._kept.clear()\n", "")),
    "the first acknowledgement does not wait for the disk": edit(
        HaClient, "ack", ("if first and offset < self._log.max_phy_offset:", "if False:")
    ),
    "an epoch is common wherever it began": edit(
        alignment,
        "consistent_point",
        ("(entry.epoch, entry.start_offset): ", "entry.epoch: "),
        ("master_ends.get((entry.epoch, entry.start_offset))", "master_ends.get(entry.epoch)"),
    ),
    "logs that part where this one begins share nothing": edit(
        alignment, "align", ("point < slave_min", "point <= slave_min")
    ),
    "what an unclean master itself wrote may not go": edit(
        alignment, "refuse_loss", (">= unclean_epoch", "> unclean_epoch")
    ),
    "a hand-over outlives its mastership": edit(
        Replica,
        "_leave_role",
        ('    self._actions += self._hand_over.end("this broker is no longer the master")\n', ""),
    ),
    "news during a change of the log are forgotten": edit(
        Replica, "_apply", ("        self._missed_group_change = True\n", "")
    ),
    "the number of replicas is as new as its answer": edit(
        Replica, "_take_total_replicas", ("info.epoch, self._controller.last_call_id", "info.epoch, call_id")
    ),
    "what changes while a registration is under way is not told (ruling 3)": edit(
        ControllerClient, "_registered", ("self._heartbeat_values().unclean != self._registered_unclean", "False")
    ),
    "controllers are away only after minutes (ruling 5)": edit(
        ControllerClient, "is_away", ("+ AWAY_AFTER_MS", "+ AWAY_AFTER_MS * 1000")
    ),
    "a wait ends after its time, not at it": edit(
        AckQueue, "expire", ("waits[0][1] <= now_ms", "waits[0][1] < now_ms")
    ),
}
CONTROLLERS: dict[str, Callable[[], Any]] = {
    "of three replicas one may acknowledge": edit(
        replicas_info, "min_in_sync_replicas", ("total_replicas <= 2", "total_replicas <= 3")
    ),
    "an accepted epoch without a record counts for nothing": edit(
        Elections, "_reported_epochs", ("(broker.log_end.epoch, broker.accepted_epoch)", "(broker.log_end.epoch,)")
    ),
    "who waits for an election that fails is forgotten": edit(
        Leadership, "_election_failed", ("    self._busy[name] = waiting\n", "    self._busy[name] = deque()\n")
    ),
    "a refused proposal keeps its group busy": edit(
        Leadership,
        "proposals_dropped",
        ("self._busy.pop(proposal.broker_name, ())", "self._busy.get(proposal.broker_name, ())"),
    ),
    "no answer behind a closed connection means nothing": edit(
        HeartbeatTable, "session_closed", ("broker.session_lost = None, True", "broker.session_lost = None, False")
    ),
    "a master's new epoch is no news": edit(
        HeartbeatTable, "heartbeat", ("heartbeat.epoch != broker.log_end.epoch)", "False)")
    ),
    "who is dead keeps its connection (ruling 17)": edit(
        HeartbeatTable, "mark_dead", ("    self._unbind(broker)\n", "")
    ),
    "who lost power stays eligible (ruling 3)": edit(
        replicas_info, "_drop_members", ("    group.eligible = without(group.eligible, *gone)\n", "")
    ),
    "the next id is the last one's and one": edit(
        ReplicasInfo, "_broker_id_applied", ("max(group.next_broker_id, event.broker_id + 1)", "event.broker_id + 1")
    ),
    "an older registration undoes an unclean election": edit(membership, "register", (" and not unaware", "")),
    "a change of totalReplicas never ends": edit(
        membership, "finished", ("in_use < group.binding", "in_use <= group.binding")
    ),
    "a number of before its epoch ends a change of totalReplicas (ruling 15)": edit(
        Leadership, "_finish_resize", (" and master.log_end.epoch == group.master_epoch", "")
    ),
}
RAFT: dict[str, Callable[[], Any]] = {
    "what replaces durable entries is durable (Raft)": edit(
        RaftLog, "replace_from", ("    self.durable_index = min(self.durable_index, RaftIndex(start - 1))\n", "")
    ),
    "a leader decides before it knows what was decided (Raft)": edit(
        RaftNode, "has_caught_up", ("<= self._applied_index", "<= self._core.log.last_index")
    ),
    "a lost probe is not sent again (Raft)": edit(
        raft_leader,
        "on_heartbeat_reply",
        ("progress.probe_sent = progress.chunk_sent = False", "progress.chunk_sent = False"),
    ),
    "an abandoned transfer leaves the term (Raft)": edit(raft_leader, "timed_out", ("if ordered:", "if False:")),
    "a segment goes with one entry that the snapshot lacks (Raft)": edit(
        DurableRaftLog, "_drop_covered_segments", ("<= self._snapshot_index", "<= self._snapshot_index + 1")
    ),
    "a snapshot is not synced (Raft)": edit(DurableRaftLog, "_write_new_snapshot", ("        file.sync()\n", "")),
    "a snapshot goes on behind a broken-off one (Raft)": edit(
        DurableRaftLog, "_write_new_snapshot", ("    self._drop_new_snapshot()\n", "")
    ),
    "a leader's snapshot is not announced (Raft)": edit(
        DurableRaftLog, "steps", (", announced=ready.snapshot.index", "")
    ),
}
STORE: dict[str, Callable[[], Any]] = {
    "a cut to the log's begin takes its only file": edit(
        CommitLog, "_cut", ("        first_removed += self.file_size_bytes", "        pass")
    ),
    "no entry stays in front of those of the log": edit(
        ConsumeQueue, "trim", ("self.min_offset(log_min) - 1", "self.min_offset(log_min)")
    ),
    "what the next save says survives a cut": edit(Store, "truncate", ("        self._set_mark()\n", "")),
    "starts of records outlive a log that is given up": edit(
        Store, "restart_at", ("        self._starts.forget(0)\n", "")
    ),
    "damage outlives a log that is given up": edit(Store, "restart_at", ("        self.damage.cut(0)\n", "")),
    "old files of a log that is given up still go": edit(Store, "restart_at", ("        self._trimmer.forget()\n", "")),
    "a backup outlives a cut of the epochs": edit(
        EpochFile, "_shorten", ("            if self._disk.exists(BACKUP_PATH):", "            if False:")
    ),
}
TABLES: dict[str, Callable[[], Any]] = {
    "deliveries count one record late": edit(
        DelayOffsetTable, "_state_at", ("state.log_end <= log_end", "state.log_end < log_end")
    ),
    "who follows again compares nothing": edit(
        MetadataFollower,
        "follow",
        ("            self._begin()  # it may have been killed and be back, with older tables\n", ""),
    ),
    "removed offsets stay in the file": edit(MetadataFollower, "_save_offsets", (" or change.offset is None", "")),
    "tables of the last master are taken after a switch": edit(
        MetadataFollower,
        "_take",
        ("if changes is None or self._master() != master:", "if changes is None:"),
    ),
}
POPS: dict[str, Callable[[], Any]] = {
    "a pop leaves the order that it follows": edit(
        PopPositions, "raise_by_pop", ("        self._offsets.take_reset(*_of(place))", "        pass")
    ),
    "what stands in front of its checkpoint is worked off": edit(
        ReviveQueue, "worked_off_offset", ("if first < found <= last:", "if False:")
    ),
    "acknowledgements that wait are worked off": edit(
        ReviveQueue, "worked_off_offset", ("(self._points, self._orphans)", "(self._points,)")
    ),
    "nobody says that copies are stored": edit(
        ReviveService, "_revive", ("            if stored_offsets:", "            if False:")
    ),
    "a queue in order is free with its first message": edit(OrderInfo, "free_ms", ("return max(", "return min(")),
    "clients without an attempt share one": edit(OrderInfo, "blocks", ("self.attempt_id is not None and ", "")),
    "another time in order is of any pop": edit(OrderInfo, "delay", ("pop_ms != self.pop_ms or ", "")),
    "a new master gives the last message again": edit(
        PopRecovery, "_raise", ("found.queue_offsets[-1] + 1", "found.queue_offsets[-1]")
    ),
}
CLIENTS: dict[str, Callable[[], Any]] = {
    "a commit of a lost tail counts": edit(
        PullProcessor,
        "process",
        ("if not is_of_lost_tail(self._log, known, pull.topic, pull.queue_id, committed):", "if True:"),
    ),
    "a pull that is due later in its tick waits for ever": edit(
        PullProcessor, "timeout", ("if due == tick and key in self._holds:", "if False:")
    ),
    "pulls that are over still count": edit(PullProcessor, "_forget", ("hold.pull))\n", "hold.pull)[1:])\n")),
    "pulls of a closed connection stay": edit(
        PullProcessor, "closed", ("lambda hold: hold.channel is channel", "lambda hold: False")
    ),
    "a send overtakes those that are held": edit(SendForwarder, "is_holding", ("channel in self._held or ", "")),
    "bytes of held sends are never given back": edit(
        SendForwarder, "_drain", ("give_back_all(uses)", "give_back_all(uses[:1])")
    ),
    "a name server keeps the old epoch of whom it was told": edit(
        RouteTable,
        "elected",
        ("live.version._replace(state_version=max(epoch, live.version.state_version))", "live.version"),
    ),
    "a displaced broker stays alive": edit(
        RouteTable, "_assign_id", ("        del group.live[displaced]", "        pass")
    ),
    "a pause of a name server is the brokers' silence": edit(
        RouteTable, "scan", ("    self._exclude_pause(now_ms)\n", "")
    ),
    "a refusal behind the write leaves no copy": edit(
        Producer, "_judge", ("progress.copies_possible += answer.code not in NOTHING_WRITTEN", "pass")
    ),
    "a weaker answer leaves no copy": edit(
        Producer, "_judge", ("progress.copies_possible += status is not SendStatus.SEND_OK", "pass")
    ),
    "a lost connection leaves no copy": edit(
        Producer,
        "_ask",
        (
            "            progress.failure = error\n            progress.copies_possible += 1\n",
            "            progress.failure = error\n",
        ),
    ),
    "a pinned message goes anywhere": edit(
        Producer, "_choose", ("if outgoing.pinned else", "if outgoing.pinned and not avoid else")
    ),
}

_ALL = {**HA, **CONTROLLERS, **RAFT, **STORE, **TABLES, **POPS, **CLIENTS}
_FOUND = frozenset(
    {
        "a slave below the log is sent from where it ends",
        "a slave at the oldest file has fallen behind it",
        "controllers are away only after minutes (ruling 5)",
        "a wait ends after its time, not at it",
        "of three replicas one may acknowledge",
        "who is dead keeps its connection (ruling 17)",
        "the next id is the last one's and one",
        "an older registration undoes an unclean election",
        "a change of totalReplicas never ends",
        "a number of before its epoch ends a change of totalReplicas (ruling 15)",
        "a snapshot is not synced (Raft)",
        "a cut to the log's begin takes its only file",
        "deliveries count one record late",
        "who follows again compares nothing",
        "a pop leaves the order that it follows",
    }
)
"""Names of those that runs find."""
SMALL_MUTATIONS = {name: mutation for name, mutation in _ALL.items() if name in _FOUND}
SMALL_UNSEEN = {name: mutation for name, mutation in _ALL.items() if name not in _FOUND}
