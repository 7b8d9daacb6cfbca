"""State that only the leading controller has: liveness of brokers, running elections, pending proposals. Pure.

It exists from the moment its node leads and has applied everything committed before, until the node leads no more. One
change of a group runs at a time. Requests that would change the group wait for its end, so every decision is made on
applied state. `reconcile` is level-triggered: it compares what a group has with what it should have, at every change of
the group's state or liveness, and periodically while the group has no live master.

A mastership ends in three ways, which all lead to `reconcile`:
    session closed or heartbeat late → master_suspected → probe → master_dead → candidates → master_elected
    stopping=true in a heartbeat                                              → candidates → master_elected
    unclean boot, operator's clean   → vacated by the event                   → candidates → master_elected
    operator's target, failed disk,
    drained, preferred replica back  → hand-over: the master waits for the target → candidates → master_elected
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from controller.config import ControllerConfig
from controller.decisions.elect_master import ElectionRequest, is_stable, preferred_master
from controller.decisions.membership import finished
from controller.decisions.refusal import Refusal
from controller.elections.election import (
    HANDED_OVER,
    LEAVES_A_LIVE_MASTER,
    MAX_REASON_CHARS,
    Elections,
    Probes,
    log_end,
)
from controller.elections.heartbeat import BrokerKey, BrokerLiveInfo, HeartbeatTable
from controller.state.action import Action, Notify, Reply
from controller.state.answers import master_ext, set_body
from controller.state.event import (
    BrokersCleaned,
    Cause,
    Event,
    MaintenanceSet,
    MasterElected,
    MasterVacated,
    MemberRemoved,
    ReplicaDrained,
)
from controller.state.proposal import PendingRequest, Proposal
from controller.state.replicas_info import BrokerGroup, ReplicasInfo
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId
from rmqha.port import Tracer
from rmqha.wire.command import FLAG_ONEWAY, Command

MAX_WAITING_COUNT = 1000
"""Requests that wait for one group's change; more are answered SYSTEM_BUSY."""
HAND_OVER_RETRY_MS = 10_000
"""A hand-over of our own accord that failed is tried again after so long: each try stops sends for a while."""
NOT_REPORTED = "it has not reported to this leader"


def _is_registration(pending: PendingRequest) -> bool:
    return pending.command.code == RequestCode.CONTROLLER_REGISTER_BROKER


def _is_healthy(broker: BrokerLiveInfo | None) -> bool:
    return broker is not None and broker.is_available and not broker.suspect and not broker.disk_problem


class Leadership:
    """State and decisions of one leadership.

    `serve` handles a request that had to wait; `emit` takes actions; `probe_ids` never repeat in this process; `now_ms
    + wall_offset_ms()` is the wall time of elections."""

    def __init__(
        self,
        now_ms: int,
        info: ReplicasInfo,
        config: Callable[[], ControllerConfig],
        tracer: Tracer,
        emit: Callable[[Action], None],
        serve: Callable[[int, PendingRequest], None],
        probe_ids: Iterator[int],
        wall_offset_ms: Callable[[], int],
    ) -> None:
        self.table = HeartbeatTable(now_ms, config().default_heartbeat_timeout_mills, config().suspect_heartbeats)
        self.batch: list[Proposal] = []
        """Proposals of the current input; the machine proposes all of them as one entry."""
        self._info = info
        self._config = config
        self._tracer = tracer
        self._emit = emit
        self._serve = serve
        self._wall_offset_ms = wall_offset_ms
        self._busy: dict[str, deque[PendingRequest]] = {}
        """Groups with an election or a proposal under way, and the requests that wait for its end."""
        self._waited_in: dict[int, dict[str, None]] = {}
        """Groups in which a request of a session waits or has waited, by session id."""
        self._suspect_probes: dict[int, BrokerKey] = {}
        self._probes = Probes(emit, probe_ids)
        self._elections = Elections(
            self.table, self._probes, config, tracer, emit, self.propose, self._election_failed, wall_offset_ms
        )
        self._schedule = GroupCheckSchedule(now_ms, info.names, self.table.grace_until_ms)
        self._why_no_master: dict[str, str] = {}
        self._stable_since_ms: dict[str, int] = {}
        """Monotonic time (ms) since which the preferred replica of a group could take the mastership back, by group."""
        self._rebalances = config().preferred_master_rebalance

    # --- time -------------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int | None:
        deadlines = [
            deadline
            for deadline in (
                self.table.deadline_ms(),
                self._schedule.deadline_ms(),
                self._probes.deadline_ms(),
            )
            if deadline is not None
        ]
        return min(deadlines, default=None)

    def timeout(self, now_ms: int) -> None:
        for probe_id in self._probes.expired(now_ms):
            self.probe_replied(now_ms, probe_id, None, refused=False)
        if paused_ms := self.table.exclude_pause(now_ms):
            self._tracer.event("controller_paused", paused_ms=paused_ms)
        for broker in self.table.due(now_ms):
            if self.table.is_timed_out(broker, now_ms):
                self._mark_suspect(broker, "heartbeat time-out")
                self._declare_dead(now_ms, broker, "heartbeat time-out")
            else:
                self._mark_suspect(broker, "heartbeat late")
                self._probe_suspect(now_ms, broker)
        if self._rebalances != self._config().preferred_master_rebalance:
            self._rebalances = not self._rebalances
            self._schedule.repeat_pass(now_ms, self._info.names)
        names, must_have_reported = self._schedule.next_pass(now_ms)
        for broker_name in names:
            self._check_in_pass(now_ms, broker_name, must_have_reported=must_have_reported)
        for broker_name in self._schedule.due(now_ms, self._config().scan_not_active_broker_interval):
            self.reconcile(now_ms, broker_name)

    def _check_in_pass(self, now_ms: int, broker_name: str, *, must_have_reported: bool) -> None:
        """Check a group in a pass over all groups: this node has begun to lead, or preferredMasterRebalance was turned
        on."""
        group = self._info.groups[broker_name]
        if group.master_id is None:
            if group.replicas and not must_have_reported:
                self.reconcile(now_ms, broker_name)
        elif must_have_reported and self.table.get(key := BrokerKey(broker_name, group.master_id)) is None:
            self._trace("dead", key, why=NOT_REPORTED)
            self.reconcile(now_ms, broker_name, urgent=True)
        elif must_have_reported and self._rebalances:
            self.reconcile(now_ms, broker_name)

    # --- liveness ---------------------------------------------------------------------------------------------------

    def is_alive(self, now_ms: int, group: BrokerGroup, broker_id: BrokerId) -> bool:
        return self.table.is_alive(now_ms, BrokerKey(group.broker_name, broker_id))

    def has_live_master(self, now_ms: int, group: BrokerGroup) -> bool:
        return group.master_id is not None and self.is_alive(now_ms, group, group.master_id)

    def session_closed(self, now_ms: int, session_id: int) -> None:
        """Probe the brokers of a closed session and drop its waiting registrations: each would count as a sign of
        life."""
        for broker_name in self._waited_in.pop(session_id, ()):
            if waiting := self._busy.get(broker_name):
                self._busy[broker_name] = deque(
                    item for item in waiting if item.session_id != session_id or not _is_registration(item)
                )
        for broker in self.table.session_closed(session_id):
            self._mark_suspect(broker, "session closed")
            if broker.unclean:
                self._declare_dead(now_ms, broker, "session closed")
            else:
                self._probe_suspect(now_ms, broker)

    def _is_master(self, key: BrokerKey) -> bool:
        group = self._info.group(key.broker_name)
        return group is not None and group.master_id == key.broker_id

    def _trace(self, what: str, key: BrokerKey, **fields: object) -> None:
        subject = "master" if self._is_master(key) else "broker"
        self._tracer.event(f"{subject}_{what}", group=key.broker_name, broker_id=key.broker_id, **fields)

    def _mark_suspect(self, broker: BrokerLiveInfo, why: str) -> None:
        if not broker.suspect:
            broker.suspect = True
            self._trace("suspected", broker.key, why=why)

    def _probe_suspect(self, now_ms: int, broker: BrokerLiveInfo) -> None:
        group = self._info.group(broker.key.broker_name)
        if broker.probe_id is not None or group is None or broker.key.broker_id not in group.replicas:
            return
        address, timeout_ms = group.replicas[broker.key.broker_id].address, self._config().probe_timeout_ms
        broker.probe_id = self._probes.send(now_ms, address, Command(RequestCode.GET_BROKER_EPOCH_CACHE), timeout_ms)
        self._suspect_probes[broker.probe_id] = broker.key

    def probe_replied(self, now_ms: int, probe_id: int, reply: Command | None, *, refused: bool) -> None:
        """Take the end of a probe. A probe that was reported before, or of an earlier leadership, has no effect."""
        if (key := self._suspect_probes.pop(probe_id, None)) is not None:
            self._suspect_probe_replied(now_ms, probe_id, key, reply, refused=refused)
        else:
            self._elections.probe_replied(now_ms, probe_id, reply)

    def _suspect_probe_replied(
        self, now_ms: int, probe_id: int, key: BrokerKey, reply: Command | None, *, refused: bool
    ) -> None:
        broker = self.table.get(key)
        if broker is None or broker.probe_id != probe_id:
            return  # it has spoken for itself meanwhile
        broker.probe_id = None
        if log_end(reply, key.broker_name, key.broker_id) is not None:
            broker.session_lost = False
            self._trace("answers", key)
        elif refused or broker.session_lost:
            self._declare_dead(now_ms, broker, "probe failed")

    def _declare_dead(self, now_ms: int, broker: BrokerLiveInfo, why: str) -> None:
        self._trace("dead", broker.key, why=why, silent_ms=self.table.silent_ms(broker, now_ms))
        self.table.mark_dead(broker, why)
        self.reconcile(now_ms, broker.key.broker_name, urgent=True)

    # --- changes of a group -----------------------------------------------------------------------------------------

    def must_wait(self, broker_name: str, pending: PendingRequest) -> bool:
        """True if a change of the group is under way. `pending` is then served after it, or refused if too many
        wait."""
        queue = self._busy.get(broker_name)
        if queue is None:
            return False
        if len(queue) < MAX_WAITING_COUNT:
            queue.append(pending)
            self._waited_in.setdefault(pending.session_id, {})[broker_name] = None
        else:
            self.answer(pending, pending.command.reply(ResponseCode.SYSTEM_BUSY, remark=f"{broker_name} is busy"))
        return True

    def answer(self, pending: PendingRequest, reply: Command) -> None:
        if not pending.command.is_oneway:
            self._emit(Reply(pending.token, reply))

    def propose(self, proposal: Proposal) -> None:
        self._busy.setdefault(proposal.broker_name, deque())
        self.batch.append(proposal)

    def applied(self, now_ms: int, proposals: Sequence[Proposal]) -> None:
        """Take note of an entry whose proposals have been applied and whose requests have been answered."""
        for proposal in proposals:
            for event in proposal.events:
                self._event_applied(event)
        for proposal in proposals:
            self._end_change(now_ms, proposal.broker_name, urgent=True)

    def _event_applied(self, event: Event) -> None:
        match event:
            case MasterElected():
                self._why_no_master.pop(event.broker_name, None)
                self._tracer.event(
                    "master_elected",
                    group=event.broker_name,
                    broker_id=event.broker_id,
                    epoch=event.master_epoch,
                    cause=event.cause.name,
                )
                if self._config().notify_broker_role_changed:
                    self._notify(event.broker_name)
            case MasterVacated():
                self._tracer.event("group_masterless", group=event.broker_name, why=event.cause.name)
            case ReplicaDrained():
                what = "replica_drained" if event.drained else "replica_back"
                self._tracer.event(what, group=event.broker_name, broker_id=event.broker_id)
                self._notify(event.broker_name)
            case MaintenanceSet():
                what = "maintenance_begins" if event.on else "maintenance_ends"
                self._tracer.event(what, group=event.broker_name, broker_id=event.broker_id)
            case MemberRemoved():
                self._tracer.event("member_removed", group=event.broker_name, broker_id=event.broker_id)
            case BrokersCleaned():
                for broker_id in event.broker_ids:
                    self.table.forget(BrokerKey(event.broker_name, broker_id))
            case _:
                pass

    def _notify(self, broker_name: str) -> None:
        """Request 1008 to every live replica, the old master included."""
        group = self._info.group(broker_name)
        if group is None or group.master_id is None:
            return
        for broker_id, replica in group.replicas.items():
            broker = self.table.get(BrokerKey(broker_name, broker_id))
            if broker is not None and broker.alive:
                notice = Command(
                    RequestCode.NOTIFY_BROKER_ROLE_CHANGED, master_ext(group), set_body(group), flag=FLAG_ONEWAY
                )
                self._emit(Notify(replica.address, notice))

    def _end_change(self, now_ms: int, broker_name: str, *, urgent: bool) -> None:
        """End the change of a group: check the group, then serve the requests that waited for the end."""
        waiting = self._busy.pop(broker_name, deque())
        self.reconcile(now_ms, broker_name, urgent=urgent)
        while waiting:
            pending = waiting.popleft()
            if broker_name in self._busy:
                self._busy[broker_name].append(pending)
            else:
                self._serve(now_ms, pending)

    def proposals_dropped(self, now_ms: int, proposals: Sequence[Proposal]) -> None:
        """Take back proposals that the log refused because the node transfers its leadership. Their requests were
        answered."""
        for proposal in proposals:
            for pending in self._busy.pop(proposal.broker_name, ()):
                self._serve(now_ms, pending)
            self._schedule.postpone(proposal.broker_name, now_ms + self._config().scan_not_active_broker_interval)

    def resign(self) -> list[PendingRequest]:
        """End the leadership. Returns the requests without a proposal, for the new leader to decide."""
        pending = [item for queue in self._busy.values() for item in queue]
        pending += self._elections.pending
        pending += [item for proposal in self.batch for item in proposal.pending]
        return pending

    def why_no_master(self, broker_name: str) -> str | None:
        """Sentence that says why the last election of the group chose nobody, None if there was no such election."""
        return self._why_no_master.get(broker_name)

    # --- elections --------------------------------------------------------------------------------------------------

    def reconcile(self, now_ms: int, broker_name: str, *, urgent: bool = False) -> None:
        """Give the group a live master if it has none and can have one. `urgent`: something has changed, so the pause
        after a failed election is skipped."""
        group = self._info.group(broker_name)
        if group is None:
            self._schedule.drop(broker_name)
            return
        if broker_name in self._busy:
            return
        election_request = self._wanted_election(now_ms, group)
        if election_request is None:
            self._why_no_master.pop(broker_name, None)
            self._finish_resize(group)
            if broker_name not in self._busy:
                self._rebalance(now_ms, group)
            return
        self._stable_since_ms.pop(broker_name, None)
        not_before_ms = self._schedule.watch(now_ms, broker_name, self._config().scan_not_active_broker_interval)
        if not urgent and now_ms < not_before_ms:
            return
        refusal = self.elect(now_ms, group, election_request)
        if refusal is not None:
            self._no_master_found(now_ms, group, refusal)

    def _wanted_election(self, now_ms: int, group: BrokerGroup) -> ElectionRequest | None:
        """The election that the group needs; None if its master may stay."""
        if group.master_id is None:
            return ElectionRequest(Cause.MEMBER_RETURNED, why="there was no master")
        master_id, master = group.master_id, self.table.get(BrokerKey(group.broker_name, group.master_id))
        if not self.has_live_master(now_ms, group):
            why = master.death_reason if master is not None else NOT_REPORTED
            return ElectionRequest(Cause.MASTER_DEAD, why=f"master {group.label(master_id)} is dead: {why}")
        if master is not None and master.stopping:
            return ElectionRequest(
                Cause.CONTROLLED_SHUTDOWN, avoid=master_id, why=f"master {group.label(master_id)} is stopping"
            )
        if master is not None and master.disk_problem:
            return ElectionRequest(
                Cause.DISK_FAILED,
                avoid=master_id,
                why=f"disk of master {group.label(master_id)}: {master.disk_problem}",
            )
        if master_id in group.drained_ids:
            return ElectionRequest(Cause.DRAINED, avoid=master_id, why=f"master {group.label(master_id)} is drained")
        if master_id in group.maintenance_ids:
            election_request = ElectionRequest(
                Cause.MAINTENANCE, avoid=master_id, why=f"master {group.label(master_id)} is in maintenance"
            )
            # a master that nobody can take over from leads on, and its group is as it should be
            return (
                None if isinstance(self._elections.electorate(group, election_request), Refusal) else election_request
            )
        return None

    def preferred(self, group: BrokerGroup) -> BrokerId | None:
        """The replica that the group prefers as master; None if that is not known yet."""
        return preferred_master(group, {item: live.traits for item, live in self._reported(group).items()})

    def _reported(self, group: BrokerGroup) -> dict[BrokerId, BrokerLiveInfo]:
        live = ((item, self.table.get(BrokerKey(group.broker_name, item))) for item in group.replicas)
        return {item: broker for item, broker in live if broker is not None}

    def _rebalance(self, now_ms: int, group: BrokerGroup) -> None:
        """Return the mastership to the preferred replica (preferredMasterRebalance) of a group with a live master.

        That needs preferredMasterAfterMs during which the group was stable; the same time passes before the next
        attempt."""
        name, config = group.broker_name, self._config()
        target = self.preferred(group) if config.preferred_master_rebalance else None
        if target is None or target == group.master_id:
            self._schedule.drop(name)
            self._stable_since_ms.pop(name, None)
            return
        self._schedule.watch(now_ms, name, config.scan_not_active_broker_interval)
        reported = self._reported(group)
        ends = {item: broker.log_end for item, broker in reported.items()}
        if not is_stable(group, target, ends, lambda item: _is_healthy(reported.get(item))):
            self._stable_since_ms.pop(name, None)
            return
        since_ms = self._stable_since_ms.setdefault(name, now_ms)
        if now_ms - since_ms < config.preferred_master_after_ms:
            return
        del self._stable_since_ms[name]
        why = f"{group.label(target)} is preferred and has been caught up for {now_ms - since_ms} ms"
        refusal = self.elect(now_ms, group, ElectionRequest(Cause.PREFERRED, target=target, why=why))
        if refusal is not None:
            self._tracer.event("hand_over_failed", group=name, why=refusal.remark)

    def _finish_resize(self, group: BrokerGroup) -> None:
        """End a change of totalReplicas if the live master of the group uses the new number."""
        assert group.master_id is not None
        master = self.table.get(BrokerKey(group.broker_name, group.master_id))
        is_apache_broker = not group.replicas[group.master_id].ha_mode
        in_use = 0 if is_apache_broker else 1
        # what it reported before it took this epoch, it may have been told to lower since
        if in_use and master is not None and master.log_end.epoch == group.master_epoch:
            in_use = max(1, master.total_replicas)
        event = finished(group, in_use)
        if event is not None:
            self.propose(Proposal(group.broker_name, (event,)))

    def _no_master_found(self, now_ms: int, group: BrokerGroup, refusal: Refusal) -> None:
        """Report that an election without an operator's order chose nobody, and vacate the mastership of a dead
        master."""
        name = group.broker_name
        if name in self._schedule:
            self._schedule.postpone(name, now_ms + self._config().scan_not_active_broker_interval)
        if self._why_no_master.get(name) != refusal.remark:
            self._why_no_master[name] = refusal.remark
            if group.set_known:
                self._tracer.event("election_failed", group=name, why=refusal.remark)
        if group.master_id is not None and not self.has_live_master(now_ms, group):
            at_ms = now_ms + self._wall_offset_ms()
            reason = refusal.remark[:MAX_REASON_CHARS]
            self.propose(
                Proposal(name, (MasterVacated(name, group.master_epoch, Cause.NO_LIVE_MEMBER, at_ms, reason),))
            )

    def is_released(self, now_ms: int, group: BrokerGroup, broker_id: BrokerId) -> bool:
        """True if a stopping broker may end: it is not the master, or no replica can take over."""
        if group.master_id != broker_id:
            return True
        return group.broker_name not in self._busy and group.broker_name in self._why_no_master

    def elect(
        self,
        now_ms: int,
        group: BrokerGroup,
        election_request: ElectionRequest,
        pending: tuple[PendingRequest, ...] = (),
    ) -> Refusal | None:
        """Begin an election; `pending` are answered when it ends. A refusal is returned for the caller to answer."""
        candidates = self._elections.electorate(group, election_request)
        if isinstance(candidates, Refusal):
            return candidates
        self._busy[group.broker_name] = deque()
        self._elections.begin(now_ms, group, election_request, candidates, pending)
        return None

    def _election_failed(
        self, now_ms: int, group: BrokerGroup, election_request: ElectionRequest, refusal: Refusal
    ) -> None:
        """Handle the end of an election that chose nobody and whose requests have been answered."""
        name = group.broker_name
        waiting = self._busy.pop(name)
        died = election_request.cause in HANDED_OVER and not self.has_live_master(now_ms, group)
        if election_request.cause in LEAVES_A_LIVE_MASTER and not died:
            self._schedule.postpone(name, now_ms + HAND_OVER_RETRY_MS)
        elif election_request.target is None and not died:
            self._no_master_found(now_ms, group, refusal)
        queue = self._busy.get(name)
        if queue is not None:
            queue.extend(waiting)
            return
        self._busy[name] = waiting
        # a master that died instead of handing over needs a successor at once
        self._end_change(now_ms, name, urgent=died)


# --- the leader's schedule of group checks: in slices, so that a million replicas delay no other input ----------------
# A new leader makes two passes over all groups. The first, at once, finds groups without a master. The second, when
# every broker has had the time to report, finds masters that have not. After that only groups without a live master
# are checked, once in each period.

SLICE_GROUPS = 100
"""Groups checked in one input: each check may begin an election."""
PASS_GROUPS = 250
"""Groups checked in one input of the first pass. Most of them have a master, whose check costs very little."""


class GroupCheckSchedule:
    """Times at which the leader checks groups.

    `names` are all groups at the start; groups that are added later need no pass. `grace_until_ms`: begin of the second
    pass."""

    def __init__(self, now_ms: int, names: list[str], grace_until_ms: int) -> None:
        self._names = names
        self._count = len(names)
        self._position = 0
        self._is_second_pass = False
        self._pass_at_ms = now_ms
        self._grace_until_ms = grace_until_ms
        self._not_before_ms: dict[str, int] = {}
        self._scan_at_ms = now_ms
        self._slice_at_ms = now_ms
        self._scan: deque[str] = deque()

    # --- the two passes ---------------------------------------------------------------------------------------------

    def next_pass(self, now_ms: int) -> tuple[list[str], bool]:
        """The next groups of the current pass, and True if masters must have reported by now."""
        if self._position == self._count or now_ms < self._pass_at_ms:
            return [], self._is_second_pass
        second, start = self._is_second_pass, self._position
        self._position = min(start + (SLICE_GROUPS if second else PASS_GROUPS), self._count)
        self._pass_at_ms = now_ms
        if self._position == self._count and not second:
            self._is_second_pass, end = True, self._position
            self._position, self._pass_at_ms = 0, max(now_ms, self._grace_until_ms)
            return self._names[start:end], False
        return self._names[start : self._position], second

    def repeat_pass(self, now_ms: int, names: list[str]) -> None:
        """Schedule one more pass, with all present groups and the rules of the second. A pass under way is not
        repeated."""
        if self._position == self._count:
            self._names, self._count, self._position, self._is_second_pass, self._pass_at_ms = (
                names,
                len(names),
                0,
                True,
                now_ms,
            )

    # --- groups without a live master -------------------------------------------------------------------------------

    def watch(self, now_ms: int, name: str, period_ms: int) -> int:
        """Check the group in each period from now on. Returns the time (ms) before which only a change causes an
        election."""
        if not self._not_before_ms and not self._scan:
            self._scan_at_ms = now_ms + period_ms
        return self._not_before_ms.setdefault(name, now_ms)

    def postpone(self, name: str, until_ms: int) -> None:
        """Watch a group as `watch` does, but not before `until_ms` unless something changes."""
        self._not_before_ms[name] = until_ms

    def drop(self, name: str) -> None:
        self._not_before_ms.pop(name, None)

    def due(self, now_ms: int, period_ms: int) -> list[str]:
        """The next slice of groups whose period is over."""
        if not self._scan and self._not_before_ms and now_ms >= self._scan_at_ms:
            self._scan_at_ms = now_ms + period_ms
            self._scan = deque(self._not_before_ms)
        self._slice_at_ms = now_ms
        return [self._scan.popleft() for _ in range(min(SLICE_GROUPS, len(self._scan)))]

    def __contains__(self, name: str) -> bool:
        return name in self._not_before_ms

    def deadline_ms(self) -> int | None:
        deadlines = []
        if self._position < self._count:
            deadlines.append(self._pass_at_ms)
        if self._scan:
            deadlines.append(self._slice_at_ms)
        elif self._not_before_ms:
            deadlines.append(self._scan_at_ms)
        return min(deadlines, default=None)
