"""Running elections on the leading controller: candidates, their answers, the winner. Pure.

begin → hand-over: the master refuses messages until the target has its whole log (ruling 18) → candidates
begin → candidates: they are asked for the ends of their logs → MasterElected is proposed, or the election fails
candidates → candidates: a silent candidate reported a longer log than the best answer: it is asked again, for longer
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush

from controller.config import ControllerConfig
from controller.decisions.elect_master import (
    ElectionRequest,
    Electorate,
    LogEnd,
    bytes_at_stake,
    choose,
    elected,
    electorate,
)
from controller.decisions.refusal import Refusal
from controller.elections.heartbeat import BrokerKey, HeartbeatTable
from controller.state.action import Action, Notify, Probe, Reply
from controller.state.answers import elect_answer, is_plausible, parse_log_end
from controller.state.event import ACCEPTS_LOSS, Cause
from controller.state.proposal import PendingRequest, Proposal
from controller.state.replicas_info import BrokerGroup
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.port import Tracer
from rmqha.wire.command import FLAG_ONEWAY, Command

MAX_REASON_CHARS = 255
HANDED_OVER = frozenset({Cause.DESIGNATED, Cause.DISK_FAILED, Cause.DRAINED, Cause.MAINTENANCE, Cause.PREFERRED})
"""Causes of elections that begin with a hand-over if the old master is alive and runs rmqha."""
SWITCH_TIMEOUT_FACTOR = 10
"""Factor of probeTimeoutMs for the answer in a switch with a live master: a busy Java broker needs over 50 ms."""
LONGER_LOG_WAIT_MS = 1000
"""Time (ms) to wait for a silent candidate that reported a longer log than any answer (ruling 8)."""
LEAVES_A_LIVE_MASTER = frozenset({Cause.DISK_FAILED, Cause.DRAINED, Cause.MAINTENANCE})
"""Causes without an operator's order that move the mastership only to a healthy replica."""


@dataclass(slots=True)
class CandidateProbe:
    """Election whose candidates are asked for the ends of their logs."""

    group: BrokerGroup
    election_request: ElectionRequest
    electorate: Electorate
    pending: tuple[PendingRequest, ...]
    waiting: dict[int, BrokerId] = field(default_factory=dict)
    """Candidates that have not answered, by probe id."""
    answers: dict[BrokerId, LogEnd] = field(default_factory=dict)
    handed_over: bool = False
    """True if the master may refuse messages for this election."""
    timeout_ms: int = 0
    """Time (ms) that candidates have to answer."""
    retry_until_ms: int = 0
    retried_ids: tuple[BrokerId, ...] = ()
    """Silent candidates that reported a longer log and were asked a second time."""


@dataclass(frozen=True, slots=True)
class PendingHandOver:
    """Election whose old master refuses messages until `election_request.target` has its whole log (ruling 18)."""

    group: BrokerGroup
    election_request: ElectionRequest
    pending: tuple[PendingRequest, ...]


def log_end(reply: Command | None, broker_name: str, broker_id: BrokerId) -> LogEnd | None:
    """End of the log in an answer to request 1007; None for no answer, a malformed one, or one of another replica.

    rmqha's brokers name themselves in `replicaId`. The id in the body is 0 for a master, and missing after a lost
    disk."""
    if reply is None or reply.code != ResponseCode.SUCCESS:
        return None
    if reply.ext.get("replicaId", str(broker_id)) != str(broker_id):
        return None
    return parse_log_end(reply.body, broker_name, broker_id)


def _position(end: LogEnd) -> tuple[Epoch, PhyOffset]:
    return end.epoch, end.max_offset


class Elections:
    """Running elections, at most one per group. `propose` takes the outcome. `failed` takes an election that chose
    nobody; its group is free again. `now_ms + wall_offset_ms()` is the wall time of elections."""

    def __init__(
        self,
        table: HeartbeatTable,
        probes: Probes,
        config: Callable[[], ControllerConfig],
        tracer: Tracer,
        emit: Callable[[Action], None],
        propose: Callable[[Proposal], None],
        failed: Callable[[int, BrokerGroup, ElectionRequest, Refusal], None],
        wall_offset_ms: Callable[[], int],
    ) -> None:
        self._table = table
        self._probes = probes
        self._config = config
        self._tracer = tracer
        self._emit = emit
        self._propose = propose
        self._failed = failed
        self._wall_offset_ms = wall_offset_ms
        self._candidate_probes: dict[str, CandidateProbe] = {}
        """Elections whose candidates are being asked, by group."""
        self._probe_requests: dict[int, CandidateProbe] = {}
        self._hand_overs: dict[int, PendingHandOver] = {}
        """Elections whose master hands over, by probe id."""

    @property
    def pending(self) -> list[PendingRequest]:
        """Requests that wait for the end of an election."""
        waiting = [item for candidate_probe in self._candidate_probes.values() for item in candidate_probe.pending]
        return waiting + [item for hand_over in self._hand_overs.values() for item in hand_over.pending]

    def electorate(self, group: BrokerGroup, election_request: ElectionRequest) -> Electorate | Refusal:
        """Replicas that may become master, or the reason why there is none. A replica that is drained, in maintenance
        or has a failed disk is a candidate only if no other can lead: its group can at least be read."""
        name, config = group.broker_name, self._config()
        available = [item for item in group.replicas if self._table.is_available(BrokerKey(name, item))]
        withheld = group.withheld_ids
        healthy = [
            item for item in available if not self._table.disk_failed(BrokerKey(name, item)) and item not in withheld
        ]
        found: Electorate | Refusal = Refusal(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "")
        for candidates, unclean_allowed in ((healthy, False), (available, config.enable_elect_unclean_master)):
            found = electorate(
                group,
                candidates,
                election_request,
                total_replicas=max(config.total_replicas, group.total_replicas),
                unclean_allowed=unclean_allowed,
            )
            if isinstance(found, Electorate) or election_request.cause in LEAVES_A_LIVE_MASTER:
                break
        return found

    def _choose(self, group: BrokerGroup, ends: dict[BrokerId, LogEnd]) -> tuple[BrokerId, str]:
        live = ((item, self._table.get(BrokerKey(group.broker_name, item))) for item in ends)
        traits = {item: broker.traits for item, broker in live if broker is not None}
        choice = choose(ends, group.electable_ids, traits, self._config().policy, group.label)
        return choice.winner, choice.reason

    def begin(
        self,
        now_ms: int,
        group: BrokerGroup,
        election_request: ElectionRequest,
        candidates: Electorate,
        pending: tuple[PendingRequest, ...] = (),
    ) -> None:
        """Begin an election among `candidates` (of `electorate`). `pending` are answered when it ends."""
        if (
            election_request.cause in HANDED_OVER
            and not election_request.unclean
            and self._can_hand_over(now_ms, group)
        ):
            self._hand_over(now_ms, PendingHandOver(group, election_request, pending), candidates)
        else:
            self._ask_candidates(now_ms, CandidateProbe(group, election_request, candidates, pending))

    def probe_replied(self, now_ms: int, probe_id: int, reply: Command | None) -> None:
        """Take the answer to a probe. A probe that is unknown or was reported before has no effect."""
        if (candidate_probe := self._probe_requests.pop(probe_id, None)) is not None:
            broker_id = candidate_probe.waiting.pop(probe_id)
            end = log_end(reply, candidate_probe.group.broker_name, broker_id)
            if end is not None and is_plausible(end.epoch, candidate_probe.group.master_epoch):
                candidate_probe.answers[broker_id] = end
            if not candidate_probe.waiting:
                self._decide(now_ms, candidate_probe)
        elif (hand_over := self._hand_overs.pop(probe_id, None)) is not None:
            self._handed_over(now_ms, hand_over, reply)

    def _can_hand_over(self, now_ms: int, group: BrokerGroup) -> bool:
        """True if the group has a live master that runs rmqha."""
        if group.master_id is None or not self._table.is_alive(now_ms, BrokerKey(group.broker_name, group.master_id)):
            return False
        return bool(group.replicas[group.master_id].ha_mode)

    def _hand_over(self, now_ms: int, hand_over: PendingHandOver, candidates: Electorate) -> None:
        group, election_request, timeout_ms = (
            hand_over.group,
            hand_over.election_request,
            self._config().hand_over_timeout_ms,
        )
        assert group.master_id is not None
        target = election_request.target
        if target is None:
            ends = {item: self._reported_end(group, item) for item in candidates.ids}
            target = self._choose(group, ends)[0]
        ext = {
            "brokerName": group.broker_name,
            "masterEpoch": str(group.master_epoch),
            "targetBrokerId": str(target),
            "timeoutMs": str(timeout_ms),
        }
        self._tracer.event("hand_over_begins", group=group.broker_name, master=group.master_id, target=target)
        command = Command(RequestCode.RMQHA_HAND_OVER, ext)
        # the master answers within its time-out; the time of the round trip is added
        timeout_ms += self._config().probe_timeout_ms
        probe_id = self._probes.send(now_ms, group.replicas[group.master_id].address, command, timeout_ms)
        self._hand_overs[probe_id] = replace(hand_over, election_request=replace(election_request, target=target))

    def _handed_over(self, now_ms: int, hand_over: PendingHandOver, reply: Command | None) -> None:
        group, election_request = hand_over.group, hand_over.election_request
        code = ResponseCode.SYSTEM_ERROR if reply is None else reply.code
        # a master whose answer is lost may refuse messages as well
        candidate_probe = CandidateProbe(
            group,
            election_request,
            Electorate((), election_request.cause),
            hand_over.pending,
            handed_over=reply is None or code == 0,
        )
        # An earlier release of rmqha does not know the request. In CP the target holds whatever was acknowledged, so
        # the group leaves a master whose failed disk keeps it from answering.
        goes_on = code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if not goes_on and not (election_request.cause is Cause.DISK_FAILED and group.is_cp):
            told = "it did not answer in time" if reply is None else group.named(reply.remark or f"code {code}")
            self._fail(now_ms, candidate_probe, f"hand-over: {told}")
            return
        candidates = self.electorate(group, election_request)
        if isinstance(candidates, Refusal):
            self._fail(now_ms, candidate_probe, candidates.remark)
        else:
            self._ask_candidates(now_ms, replace(candidate_probe, electorate=candidates))

    def _ask_candidates(self, now_ms: int, candidate_probe: CandidateProbe) -> None:
        group, candidates = candidate_probe.group, candidate_probe.electorate
        self._candidate_probes[group.broker_name] = candidate_probe
        if not candidates.ask:
            candidate_probe.answers = {item: self._reported_end(group, item) for item in candidates.ids}
            self._decide(now_ms, candidate_probe)
            return
        candidate_probe.timeout_ms, candidate_probe.retry_until_ms = (
            self._answer_timeout_ms(now_ms, candidate_probe),
            now_ms + LONGER_LOG_WAIT_MS,
        )
        self._ask(now_ms, candidate_probe, candidates.ids, candidate_probe.timeout_ms)

    def _ask(self, now_ms: int, candidate_probe: CandidateProbe, ids: Iterable[BrokerId], timeout_ms: int) -> None:
        for broker_id in ids:
            question = Command(RequestCode.GET_BROKER_EPOCH_CACHE)
            probe_id = self._probes.send(
                now_ms, candidate_probe.group.replicas[broker_id].address, question, timeout_ms
            )
            self._probe_requests[probe_id] = candidate_probe
            candidate_probe.waiting[probe_id] = broker_id

    def _answer_timeout_ms(self, now_ms: int, candidate_probe: CandidateProbe) -> int:
        """Time (ms) that candidates have to answer: longer if a live master serves the group meanwhile."""
        group, timeout_ms = candidate_probe.group, self._config().probe_timeout_ms
        if candidate_probe.election_request.cause not in HANDED_OVER or group.master_id is None:
            return timeout_ms
        is_led = self._table.is_alive(now_ms, BrokerKey(group.broker_name, group.master_id))
        return timeout_ms * SWITCH_TIMEOUT_FACTOR if is_led else timeout_ms

    def _reported_end(self, group: BrokerGroup, broker_id: BrokerId) -> LogEnd:
        return self._table.log_end(BrokerKey(group.broker_name, broker_id))

    def _reported_epochs(self, group: BrokerGroup, broker_id: BrokerId) -> tuple[Epoch, ...]:
        """Epoch of the replica's last record and the epoch that it has accepted, in which an absent master may have
        written."""
        broker = self._table.get(BrokerKey(group.broker_name, broker_id))
        return () if broker is None else (broker.log_end.epoch, broker.accepted_epoch)

    def _silent_with_longer_log(
        self, candidate_probe: CandidateProbe, answers: Mapping[BrokerId, LogEnd]
    ) -> tuple[BrokerId, ...]:
        """Silent candidates that reported a longer log than the best answer. A reported end is a lower bound. In CP
        each member of the set holds all acknowledged records, so nobody is waited for."""
        group, candidates = candidate_probe.group, candidate_probe.electorate
        if not candidates.ask or not answers or (group.is_cp and candidates.cause not in ACCEPTS_LOSS):
            return ()
        best = max(_position(end) for end in answers.values())
        silent = (
            item
            for item in candidates.ids
            if item not in candidate_probe.answers and self._may_lead(candidate_probe, item)
        )
        return tuple(item for item in silent if _position(self._reported_end(group, item)) > best)

    def _may_lead(self, candidate_probe: CandidateProbe, broker_id: BrokerId) -> bool:
        available = self._table.is_available(BrokerKey(candidate_probe.group.broker_name, broker_id))
        return available or candidate_probe.electorate.cause in ACCEPTS_LOSS

    def _decide(self, now_ms: int, candidate_probe: CandidateProbe) -> None:
        """Choose the winner after every candidate has answered or its time is over."""
        group, candidates, name = candidate_probe.group, candidate_probe.electorate, candidate_probe.group.broker_name
        answers = {
            item: end
            for item, end in candidate_probe.answers.items()
            if not candidates.ask or self._may_lead(candidate_probe, item)
        }
        silent = self._silent_with_longer_log(candidate_probe, answers)
        if silent and not candidate_probe.retried_ids and (left_ms := candidate_probe.retry_until_ms - now_ms) > 0:
            candidate_probe.retried_ids = silent
            self._tracer.event("election_waits", group=name, broker_ids=list(silent), for_ms=left_ms)
            self._ask(now_ms, candidate_probe, silent, left_ms)
            return
        del self._candidate_probes[name]
        if len(answers) < candidates.needed_answers:
            bound = f"within {candidate_probe.timeout_ms} ms"
            told = f"{len(answers)} of {group.labels(candidates.ids)} answered request 1007 {bound}"
            self._fail(now_ms, candidate_probe, f"{told}; {candidates.needed_answers} must")
            return
        live = [item for item in group.replicas if self._table.is_alive(now_ms, BrokerKey(name, item))]
        winner, reason = self._choose(group, answers)
        epochs = [end.epoch for end in answers.values()]
        epochs += [epoch for item in group.replicas for epoch in self._reported_epochs(group, item)]
        reason = f"{candidate_probe.election_request.why}; {reason}" if candidate_probe.election_request.why else reason
        if silent:
            more = bytes_at_stake(answers[winner], [self._reported_end(group, item) for item in silent])
            reason = f"{reason}; {group.labels(silent)}, which does not answer, has reported at least {more} bytes more"
        at_stake = None
        if candidates.cause in (Cause.UNCLEAN_BY_OPERATOR, Cause.UNCLEAN_AUTOMATIC):
            at_stake = bytes_at_stake(answers[winner], [self._reported_end(group, item) for item in group.replicas])
            reason = f"{reason}; at least {at_stake} bytes at stake"
        at_ms = now_ms + self._wall_offset_ms()
        event = elected(group, winner, candidates.cause, epochs, live, at_ms=at_ms, reason=reason[:MAX_REASON_CHARS])
        if at_stake is not None:
            self._tracer.event(
                "unclean_election",
                group=name,
                broker_id=winner,
                epoch=event.master_epoch,
                bytes_at_stake=at_stake,
            )
        answer = partial(elect_answer, group=group, bytes_at_stake=at_stake)
        self._propose(Proposal(name, (event,), candidate_probe.pending, answer))

    def _fail(self, now_ms: int, candidate_probe: CandidateProbe, remark: str) -> None:
        """End an election that cannot be held, or that chose nobody."""
        group, name = candidate_probe.group, candidate_probe.group.broker_name
        refusal = Refusal(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark)
        for pending in candidate_probe.pending:
            if not pending.command.is_oneway:
                self._emit(Reply(pending.token, pending.command.reply(refusal.code, remark=refusal.remark)))
        if candidate_probe.handed_over and group.master_id is not None:
            ext = {"brokerName": name, "masterEpoch": str(group.master_epoch), "targetBrokerId": "0"}
            notice = Command(RequestCode.RMQHA_HAND_OVER, ext, flag=FLAG_ONEWAY)
            self._emit(Notify(group.replicas[group.master_id].address, notice))
        if candidate_probe.election_request.cause in HANDED_OVER:
            self._tracer.event("hand_over_failed", group=name, why=remark)
        self._failed(now_ms, group, candidate_probe.election_request, refusal)


# --- requests that the leading controller sends to brokers, each with a number and a deadline -------------------------

PROBE_EXPIRY_FACTOR = 8
"""Factor of a probe's time-out after which it is dropped if the shell has not reported its end."""


class Probes:
    """Probes under way. `probe_ids` never repeat in this process; `emit` takes actions."""

    def __init__(self, emit: Callable[[Action], None], probe_ids: Iterator[int]) -> None:
        self._emit = emit
        self._probe_ids = probe_ids
        self._deadlines: list[tuple[int, int]] = []
        """Heap of (deadline in ms, probe id)."""

    def send(self, now_ms: int, address: str, command: Command, timeout_ms: int) -> int:
        probe_id = next(self._probe_ids)
        heappush(self._deadlines, (now_ms + PROBE_EXPIRY_FACTOR * timeout_ms, probe_id))
        self._emit(Probe(probe_id, address, command, timeout_ms))
        return probe_id

    def deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now_ms: int) -> list[int]:
        """Ids of the probes whose deadline is over. Probes that were reported in time are among them."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            found.append(heappop(self._deadlines)[1])
        return found
