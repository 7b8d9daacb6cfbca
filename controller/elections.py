"""Elections under way, as the leading controller holds them: who is asked, who has answered, who becomes master. Pure.

begin → hand-over: the master refuses messages until the target holds all it has (ruling 18) → ballot
begin → ballot: candidates are asked for their log's end → MasterElected proposed, or given up
ballot → ballot: a silent candidate has reported more than the best that answered: it is asked once more, for longer
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from controller.action import Action, Notify, Reply
from controller.answers import elect_answer, parse_log_end
from controller.change import Asked, Change
from controller.config import ControllerConfig
from controller.decisions.at_stake import bytes_at_stake
from controller.decisions.elect_master import Electorate, LogEnd, Wish, choose, elected, electorate
from controller.decisions.refusal import Refusal
from controller.event import ACCEPTS_LOSS, Cause
from controller.heartbeat import BrokerKey, HeartbeatTable
from controller.probes import Probes
from controller.replicas_info import Group
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.port import Tracer
from rmqha.wire.command import FLAG_ONEWAY, Command

MAX_REASON_CHARS = 255
HANDED_OVER = frozenset({Cause.DESIGNATED, Cause.DISK_FAILED, Cause.DRAINED, Cause.MAINTENANCE, Cause.PREFERRED})
"""Elections ahead of which a live master of ours hands over."""
SWITCH_PATIENCE = 10
"""So many times probeTimeoutMs may the target of a switch take: on a busy machine a Java broker needs over 50 ms."""
SILENT_WITH_MORE_MS = 1000
"""So long an election waits for a candidate that has reported more than any that answers (ruling 8)."""
LEAVES_A_LIVE_MASTER = frozenset({Cause.DISK_FAILED, Cause.DRAINED, Cause.MAINTENANCE})
"""Of our own accord, and only for a replica that is well."""


@dataclass(slots=True)
class Ballot:
    """Candidates being asked for their log's end."""

    group: Group
    wish: Wish
    electorate: Electorate
    asked: tuple[Asked, ...]
    waiting: dict[int, BrokerId] = field(default_factory=dict)
    """By probe id."""
    answers: dict[BrokerId, LogEnd] = field(default_factory=dict)
    handed_over: bool = False
    """The master refuses messages because of it."""
    timeout_ms: int = 0
    """What candidates are given to answer."""
    patient_until_ms: int = 0
    asked_again: tuple[BrokerId, ...] = ()
    """Silent candidates that must hold more."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The master has been asked to refuse messages until `wish.target` holds all it has (ruling 18)."""

    group: Group
    wish: Wish
    asked: tuple[Asked, ...]


def log_end(reply: Command | None, broker_name: str, broker_id: BrokerId) -> LogEnd | None:
    """What an answer to request 1007 says; None for silence or nonsense, and for one of ours that is not that replica:
    a master calls itself 0 in the body, and who has lost its disk has no id yet, so an own field says it."""
    if reply is None or reply.code != ResponseCode.SUCCESS:
        return None
    if reply.ext.get("replicaId", str(broker_id)) != str(broker_id):
        return None
    return parse_log_end(reply.body, broker_name, broker_id)


def _reach(end: LogEnd) -> tuple[Epoch, PhyOffset]:
    return end.epoch, end.max_offset


class Elections:
    """At most one per group. `propose` takes the outcome, `gave_up` hears of an election that found nobody: the group
    is free again; `now_ms + wall_offset_ms` is the wall time of elections."""

    def __init__(
        self,
        table: HeartbeatTable,
        probes: Probes,
        config: Callable[[], ControllerConfig],
        tracer: Tracer,
        emit: Callable[[Action], None],
        propose: Callable[[Change], None],
        gave_up: Callable[[int, Group, Wish, Refusal], None],
        wall_offset_ms: int,
    ) -> None:
        self._table = table
        self._probes = probes
        self._config = config
        self._tracer = tracer
        self._emit = emit
        self._propose = propose
        self._gave_up = gave_up
        self._wall_offset_ms = wall_offset_ms
        self._ballots: dict[str, Ballot] = {}
        """By group: candidates are being asked."""
        self._ballot_probes: dict[int, Ballot] = {}
        self._hand_overs: dict[int, HandOver] = {}
        """By probe id."""

    @property
    def asked(self) -> list[Asked]:
        """Who waits for the end of an election."""
        waiting = [item for ballot in self._ballots.values() for item in ballot.asked]
        return waiting + [item for hand_over in self._hand_overs.values() for item in hand_over.asked]

    def electorate(self, group: Group, wish: Wish) -> Electorate | Refusal:
        """Who may become master, or why nobody can. A replica that is drained or in maintenance, or whose disk is ill,
        is asked only if nobody else can lead: better a master that can still read."""
        name, config = group.broker_name, self._config()
        fit = [item for item in group.replicas if self._table.is_fit(BrokerKey(name, item))]
        withheld = group.withheld_ids
        well = [item for item in fit if not self._table.is_ill(BrokerKey(name, item)) and item not in withheld]
        found: Electorate | Refusal = Refusal(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "")
        for candidates, unclean_allowed in ((well, False), (fit, config.enable_elect_unclean_master)):
            found = electorate(
                group,
                candidates,
                wish,
                total_replicas=max(config.total_replicas, group.total_replicas),
                unclean_allowed=unclean_allowed,
            )
            if isinstance(found, Electorate) or wish.cause in LEAVES_A_LIVE_MASTER:
                break
        return found

    def _choose(self, group: Group, ends: dict[BrokerId, LogEnd]) -> tuple[BrokerId, str]:
        live = ((item, self._table.get(BrokerKey(group.broker_name, item))) for item in ends)
        traits = {item: broker.traits for item, broker in live if broker is not None}
        choice = choose(ends, group.electable_ids, traits, self._config().policy)
        return choice.winner, choice.reason

    def begin(self, now_ms: int, group: Group, wish: Wish, who: Electorate, asked: tuple[Asked, ...] = ()) -> None:
        """`who`: as `electorate` has just found it. The askers are answered when the election ends."""
        if wish.cause in HANDED_OVER and not wish.unclean and self._can_wait(now_ms, group):
            self._hand_over(now_ms, HandOver(group, wish, asked), who)
        else:
            self._hold_ballot(now_ms, Ballot(group, wish, who, asked))

    def probe_replied(self, now_ms: int, probe_id: int, reply: Command | None) -> None:
        """A probe that is not of an election, or was reported before, does nothing."""
        if (ballot := self._ballot_probes.pop(probe_id, None)) is not None:
            broker_id = ballot.waiting.pop(probe_id)
            end = log_end(reply, ballot.group.broker_name, broker_id)
            if end is not None:
                ballot.answers[broker_id] = end
            if not ballot.waiting:
                self._count(now_ms, ballot)
        elif (hand_over := self._hand_overs.pop(probe_id, None)) is not None:
            self._handed_over(now_ms, hand_over, reply)

    def _can_wait(self, now_ms: int, group: Group) -> bool:
        """The group has a live master, one of ours."""
        if group.master_id is None or not self._table.is_alive(now_ms, BrokerKey(group.broker_name, group.master_id)):
            return False
        return bool(group.replicas[group.master_id].ha_mode)

    def _hand_over(self, now_ms: int, hand_over: HandOver, who: Electorate) -> None:
        group, wish, timeout_ms = hand_over.group, hand_over.wish, self._config().hand_over_timeout_ms
        assert group.master_id is not None
        target = wish.target
        if target is None:
            ends = {item: self._reported_end(group, item) for item in who.ids}
            target = self._choose(group, ends)[0]
        ext = {
            "brokerName": group.broker_name,
            "masterEpoch": str(group.master_epoch),
            "targetBrokerId": str(target),
            "timeoutMs": str(timeout_ms),
        }
        self._tracer.event("hand_over_begins", group=group.broker_name, master=group.master_id, target=target)
        command = Command(RequestCode.RMQHA_HAND_OVER, ext)
        # the master answers within its time; what is added is the way there and back
        timeout_ms += self._config().probe_timeout_ms
        probe_id = self._probes.send(now_ms, group.replicas[group.master_id].address, command, timeout_ms)
        self._hand_overs[probe_id] = replace(hand_over, wish=replace(wish, target=target))

    def _handed_over(self, now_ms: int, hand_over: HandOver, reply: Command | None) -> None:
        group, wish = hand_over.group, hand_over.wish
        code = ResponseCode.SYSTEM_ERROR if reply is None else reply.code
        # a master whose answer is lost may refuse messages all the same
        ballot = Ballot(
            group, wish, Electorate((), wish.cause), hand_over.asked, handed_over=reply is None or code == 0
        )
        # An earlier release of ours does not know the request. In CP the target holds whatever was acknowledged, so a
        # disk that keeps its master from answering is left all the same.
        goes_on = code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if not goes_on and not (wish.cause is Cause.DISK_FAILED and group.is_cp):
            told = "it did not answer in time" if reply is None else reply.remark or f"code {code}"
            self._give_up(now_ms, ballot, f"hand-over: {told}")
            return
        who = self.electorate(group, wish)
        if isinstance(who, Refusal):
            self._give_up(now_ms, ballot, who.remark)
        else:
            self._hold_ballot(now_ms, replace(ballot, electorate=who))

    def _hold_ballot(self, now_ms: int, ballot: Ballot) -> None:
        group, who = ballot.group, ballot.electorate
        self._ballots[group.broker_name] = ballot
        if not who.ask:
            ballot.answers = {item: self._reported_end(group, item) for item in who.ids}
            self._count(now_ms, ballot)
            return
        ballot.timeout_ms, ballot.patient_until_ms = self._patience_ms(now_ms, ballot), now_ms + SILENT_WITH_MORE_MS
        self._ask(now_ms, ballot, who.ids, ballot.timeout_ms)

    def _ask(self, now_ms: int, ballot: Ballot, ids: Iterable[BrokerId], timeout_ms: int) -> None:
        for broker_id in ids:
            question = Command(RequestCode.GET_BROKER_EPOCH_CACHE)
            probe_id = self._probes.send(now_ms, ballot.group.replicas[broker_id].address, question, timeout_ms)
            self._ballot_probes[probe_id] = ballot
            ballot.waiting[probe_id] = broker_id

    def _patience_ms(self, now_ms: int, ballot: Ballot) -> int:
        """How long candidates may take to answer: longer where a live master is there meanwhile."""
        group, timeout_ms = ballot.group, self._config().probe_timeout_ms
        if ballot.wish.cause not in HANDED_OVER or group.master_id is None:
            return timeout_ms
        is_led = self._table.is_alive(now_ms, BrokerKey(group.broker_name, group.master_id))
        return timeout_ms * SWITCH_PATIENCE if is_led else timeout_ms

    def _reported_end(self, group: Group, broker_id: BrokerId) -> LogEnd:
        return self._table.log_end(BrokerKey(group.broker_name, broker_id))

    def _reported_epochs(self, group: Group, broker_id: BrokerId) -> tuple[Epoch, ...]:
        """Of its log, and the one that it has accepted: a master of that epoch may have written, and be away."""
        broker = self._table.get(BrokerKey(group.broker_name, broker_id))
        return () if broker is None else (broker.log_end.epoch, broker.accepted_epoch)

    def _silent_with_more(self, ballot: Ballot, answers: Mapping[BrokerId, LogEnd]) -> tuple[BrokerId, ...]:
        """Candidates that have not answered and have reported more than the best that did. What was reported is the
        least that they hold. In CP each member of the set holds what was acknowledged."""
        group, who = ballot.group, ballot.electorate
        if not who.ask or not answers or (group.is_cp and who.cause not in ACCEPTS_LOSS):
            return ()
        best = max(_reach(end) for end in answers.values())
        silent = (item for item in who.ids if item not in ballot.answers and self._may_lead(ballot, item))
        return tuple(item for item in silent if _reach(self._reported_end(group, item)) > best)

    def _may_lead(self, ballot: Ballot, broker_id: BrokerId) -> bool:
        fit = self._table.is_fit(BrokerKey(ballot.group.broker_name, broker_id))
        return fit or ballot.electorate.cause in ACCEPTS_LOSS

    def _count(self, now_ms: int, ballot: Ballot) -> None:
        """Every candidate has answered or had its time."""
        group, who, name = ballot.group, ballot.electorate, ballot.group.broker_name
        answers = {item: end for item, end in ballot.answers.items() if not who.ask or self._may_lead(ballot, item)}
        silent = self._silent_with_more(ballot, answers)
        if silent and not ballot.asked_again and (left_ms := ballot.patient_until_ms - now_ms) > 0:
            ballot.asked_again = silent
            self._tracer.event("election_waits", group=name, broker_ids=list(silent), for_ms=left_ms)
            self._ask(now_ms, ballot, silent, left_ms)
            return
        del self._ballots[name]
        if len(answers) < who.needed_answers:
            told = f"{len(answers)} of the replicas {list(who.ids)} answered request 1007 within {ballot.timeout_ms} ms"
            self._give_up(now_ms, ballot, f"{told}; {who.needed_answers} must")
            return
        live = [item for item in group.replicas if self._table.is_alive(now_ms, BrokerKey(name, item))]
        winner, reason = self._choose(group, answers)
        epochs = [end.epoch for end in answers.values()]
        epochs += [epoch for item in group.replicas for epoch in self._reported_epochs(group, item)]
        reason = f"{ballot.wish.why}; {reason}" if ballot.wish.why else reason
        if silent:
            more = bytes_at_stake(answers[winner], [self._reported_end(group, item) for item in silent])
            ids = ", ".join(map(str, silent))
            reason = f"{reason}; replica {ids}, which does not answer, has reported at least {more} bytes more"
        at_stake = None
        if who.cause in (Cause.UNCLEAN_BY_OPERATOR, Cause.UNCLEAN_AUTOMATIC):
            at_stake = bytes_at_stake(answers[winner], [self._reported_end(group, item) for item in group.replicas])
            reason = f"{reason}; at least {at_stake} bytes at stake"
        at_ms = now_ms + self._wall_offset_ms
        event = elected(group, winner, who.cause, epochs, live, at_ms=at_ms, reason=reason[:MAX_REASON_CHARS])
        if at_stake is not None:
            self._tracer.event(
                "unclean_election",
                group=name,
                broker_id=winner,
                epoch=event.master_epoch,
                bytes_at_stake=at_stake,
            )
        answer = partial(elect_answer, group=group, bytes_at_stake=at_stake)
        self._propose(Change(name, (event,), ballot.asked, answer))

    def _give_up(self, now_ms: int, ballot: Ballot, remark: str) -> None:
        """An election that cannot be held, or that found nobody."""
        group, name = ballot.group, ballot.group.broker_name
        refusal = Refusal(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark)
        for asked in ballot.asked:
            if not asked.command.is_oneway:
                self._emit(Reply(asked.token, asked.command.reply(refusal.code, remark=refusal.remark)))
        if ballot.handed_over and group.master_id is not None:
            ext = {"brokerName": name, "masterEpoch": str(group.master_epoch), "targetBrokerId": "0"}
            notice = Command(RequestCode.RMQHA_HAND_OVER, ext, flag=FLAG_ONEWAY)
            self._emit(Notify(group.replicas[group.master_id].address, notice))
        if ballot.wish.cause in HANDED_OVER:
            self._tracer.event("hand_over_failed", group=name, why=remark)
        self._gave_up(now_ms, group, ballot.wish, refusal)
