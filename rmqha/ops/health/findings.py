"""Faults of a cluster, each with what to do about it, from what its nodes say. Pure.

The controllers' word on a group is that of their leader, else of whoever has seen the highest epoch. What the
controllers say, what each replica says of itself and where clients are routed must fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rmqha.host.access.security_watch import RENEW, SOON_MS, expiry_words
from rmqha.model.identity import is_loopback
from rmqha.ops.cluster_view import DAMAGE_FIX, copy_words, damage_words, outside_words
from rmqha.ops.health.agreement import LEADERS, Agreement, View, groups_of, views
from rmqha.ops.health.survey import NodeReport, ServerKind

LONG_WAIT_MS = 500
UNCLEAN_CAUSES = ("UNCLEAN_BY_OPERATOR", "UNCLEAN_AUTOMATIC")


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """`where` a node or a group, `what` is wrong there, `fix` what to do; `note`: nothing is wrong."""

    where: str
    what: str
    fix: str = ""
    note: bool = False

    @property
    def sentence(self) -> str:
        return f"{self.where}: {self.what}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True)
class Health:
    findings: list[HealthFinding]
    views: list[View]
    answered: int
    """Nodes that answered."""

    @property
    def reasons(self) -> list[HealthFinding]:
        return [item for item in self.findings if not item.note]

    @property
    def healthy(self) -> bool:
        return self.answered > 0 and not self.reasons


def judge(words: list[NodeReport], groups: list[str]) -> Health:
    """`groups`: those to look at, which need not be known to anybody."""
    seen = [view for group in groups for view in views(words, group)]
    absent = maintained(words)
    found = [*_silent(words, absent), *_quorum(words), *_security(words)]
    if not any(word.kind is ServerKind.BROKER for word in words):
        found += _without_groups(words)
    for group in groups:
        found += _Group(words, group).findings()
    for view in seen:
        if view.agreement is Agreement.DIVERGENT:
            told = "; ".join(f"{title} says {sentence}" for title, sentence in view.says.items())
            fix = (
                f"if it stays so for more than some seconds see rmqha explain {view.group} and the logs of those nodes"
            )
            found.append(HealthFinding(view.group, f"its {view.about} do not agree: {told}", fix))
    announced = {word.title for word in words if word.address in absent and word.state.get("role") not in LEADERS}
    found = [replace(item, note=True) if item.where in announced else item for item in found]
    return Health(found, seen, sum(word.answers for word in words))


def is_unsettled(words: list[NodeReport]) -> bool:
    """Something may be a moment's difference only: it takes a second look to tell."""
    behind = any(
        word.state.get("role") in LEADERS and word.state["confirmOffset"] < word.state["maxPhyOffset"] for word in words
    )
    return behind or bool(judge(words, groups_of(words)).reasons)


def maintained(words: list[NodeReport]) -> set[str]:
    """Addresses of replicas whose absence an operator has announced (`rmqha maintenance on`)."""
    found = set()
    for word in words:
        for row in word.state.get("groups", {}).values() if word.kind is ServerKind.CONTROLLER else ():
            found |= {item["address"] for item in row["replicas"] if item.get("inMaintenance")}
    return found


# --- nodes ------------------------------------------------------------------------------------------------------------
def _silent(words: list[NodeReport], absent: set[str]) -> Iterator[HealthFinding]:
    """One finding per node that does not answer."""
    told = set[str]()
    for word in words:
        if word.answers or word.name in told:
            continue
        where = word.name or f"{word.kind.value} {word.address}"
        if word.kind is ServerKind.BROKER and word.address in absent:
            continue  # `_registered` tells that it is in maintenance
        if word.name:
            told.add(word.name)
        if word.runs is False:
            yield HealthFinding(where, "does not run", f"rmqha start {word.name}")
        elif word.runs:
            what = f"its process lives and its {word.kind.value} does not answer: {word.error}"
            yield HealthFinding(
                where, what, f"see rmqha logs {word.name}; a frozen one is ended by rmqha kill {word.name}"
            )
        else:
            fix = "start it, or if it is gone for good take it out of the configuration of the others"
            if word.kind is ServerKind.BROKER:
                fix = "start it, or if it is gone for good clean it from the controllers (rmqha remove)"
            yield HealthFinding(where, f"does not answer: {word.error}", fix)


def _security(words: list[NodeReport]) -> Iterator[HealthFinding]:
    """Files of certificates and accounts that are not in force, once for a process with two servers."""
    told = set[tuple[str, str]]()
    for word in words:
        for row in word.security:
            place = (word.name or word.address, str(row["file"]))
            if place in told:
                continue
            told.add(place)
            if row["problem"]:
                what = f"{row['key']}: {row['problem']}; what it held before is in force"
                yield HealthFinding(word.title, what, "mend that file; it is read again by itself")
            left_ms = row["expiresInMs"]
            if left_ms is not None and left_ms < SOON_MS:
                yield HealthFinding(word.title, expiry_words(row["key"], row["file"], left_ms), RENEW, note=left_ms > 0)


def _without_groups(words: list[NodeReport]) -> Iterator[HealthFinding]:
    """Nobody serves a message, though nobody fails to answer: the brokers have gone from the name servers' tables."""
    for word in words:
        if word.answers and word.kind is ServerKind.NAME_SERVER:
            yield HealthFinding(word.title, "knows no broker", "start the brokers, or check their namesrvAddr")


def _quorum(words: list[NodeReport]) -> Iterator[HealthFinding]:
    """The controllers' own group."""
    answering = [word for word in words if word.kind is ServerKind.CONTROLLER and word.answers]
    if not answering or any(not word.is_ours for word in answering):
        if answering and not any(word.leads for word in answering):
            yield HealthFinding("controllers", "none of those that answer leads", "start the others")
        return
    leading = sorted((word for word in answering if word.leads), key=lambda word: -word.state["raft"]["term"])
    if not leading:
        voters = max((word.state["raft"]["voters"] for word in answering), key=len)
        needed = len(voters) // 2 + 1
        told = f"{len(answering)} of {len(voters)} answer and {needed} must" if voters else "their group is not formed"
        yield HealthFinding(
            "controllers", f"none of them leads: {told}", "start the others, then see rmqha quorum show; no election "
            "and no change of a set is possible until then"
        )  # fmt: skip
    elif len(leading) > 1 and leading[0].state["raft"]["term"] == leading[1].state["raft"]["term"]:
        names = " and ".join(word.title for word in leading)
        yield HealthFinding(
            "controllers", f"{names} both lead term {leading[0].state['raft']['term']}", "report this bug"
        )
    for member in leading[0].state["raft"]["members"] if leading else ():
        if member["kind"] == "JOINING":
            what = f"{member['node']} is still catching up and has no vote yet"
            yield HealthFinding("controllers", what, "wait; see rmqha quorum show", note=True)


# --- a group ----------------------------------------------------------------------------------------------------------
class _Group:
    def __init__(self, words: list[NodeReport], name: str) -> None:
        self.name = name
        self.brokers = [word for word in words if word.kind is ServerKind.BROKER and name in word.groups | {word.group}]
        self.ours = [word for word in self.brokers if word.state]
        self.name_servers = [word for word in words if word.kind is ServerKind.NAME_SERVER and word.answers]
        self.controllers = [word for word in words if word.kind is ServerKind.CONTROLLER and word.answers]
        self.info = self._info()
        self.is_static = any(word.keys.get("enableControllerMode") == "false" for word in self.brokers)

    def _info(self) -> Mapping[str, Any] | None:
        """The group as the leading controller has it, else as the controller that knows the highest epoch."""
        told = [word for word in self.controllers if self.name in word.state.get("groups", {})]
        best = max(told, key=lambda word: (word.leads, self._row(word)["masterEpoch"]), default=None)
        return None if best is None else self._row(best)

    def _row(self, word: NodeReport) -> dict[str, Any]:
        row: dict[str, Any] = word.state["groups"][self.name]
        return row

    def findings(self) -> Iterator[HealthFinding]:
        if not self.brokers:
            yield HealthFinding(
                self.name, "nobody knows a replica of it", "start its brokers, or check the group's name"
            )
            return
        if self.is_static:
            yield from self._static()
        elif self.info is not None:
            yield from self._controlled(self.info)
        elif any(word.is_ours for word in self.controllers):
            yield HealthFinding(self.name, "its replicas are registered at no controller", "check their controllerAddr")
        yield from self._two_masters()
        for word in self.ours:
            yield from self._replica(word)
        yield from self._told()
        yield from self._routed()

    # the controllers' word against the replicas'
    def _controlled(self, info: Mapping[str, Any]) -> Iterator[HealthFinding]:
        if info["masterBrokerId"] is None:
            why = f": {info['whyNoMaster']}" if info.get("whyNoMaster") else ""
            yield HealthFinding(self.name, f"has no master{why}", f"see rmqha explain {self.name}")
        known, total = [item for item in info["replicas"] if not item["asyncLearner"]], info["totalReplicas"]
        if len(known) < total:
            what = f"{len(known)} of {total} replicas have registered"
            yield HealthFinding(self.name, what, "start the others, or rmqha group resize if there are no more")
        if info.get("nextTotalReplicas"):
            what = f"totalReplicas is changing from {total} to {info['nextTotalReplicas']}"
            yield HealthFinding(self.name, what, note=True)
        last = info["elections"][-1] if info["elections"] else None
        if last is not None and last["cause"] in UNCLEAN_CAUSES and last["masterEpoch"] == info["masterEpoch"]:
            what = f"epoch {last['masterEpoch']} was elected unclean: messages of earlier epochs may be lost"
            yield HealthFinding(self.name, what, note=True)
        for item in info["replicas"]:
            yield from self._registered(info, item)

    def _registered(self, info: Mapping[str, Any], item: Mapping[str, Any]) -> Iterator[HealthFinding]:
        word = next((word for word in self.brokers if word.address == item["address"]), None)
        where = word.title if word is not None else f"replica {item['brokerId']} at {item['address']}"
        if item.get("inMaintenance"):
            away = "" if word is None or word.answers else f", does not answer ({word.error})"
            away = ", stopped" if word is not None and word.runs is False else away
            yield HealthFinding(where, f"in maintenance{away}", f"end it with rmqha maintenance off {where}", note=True)
        if item["drained"]:
            yield HealthFinding(where, "drained: in no set", f"take it back with rmqha drain {where} --undo", note=True)
        if item["asyncLearner"]:
            yield HealthFinding(where, "a learner: in no set and never elected", note=True)
        if word is None or not word.state:
            return
        state = word.state
        if state.get("brokerId") != item["brokerId"] or state.get("role") == "STARTING":
            return
        if item["isMaster"]:
            if state["role"] not in LEADERS:
                what = f"elected master of epoch {info['masterEpoch']}, its role is still {state['role']}"
                yield HealthFinding(where, what, f"see rmqha logs {where}")
            return
        if state["role"] in LEADERS:
            return
        if state["epoch"] is not None and info["masterBrokerId"] is not None and state["epoch"] < info["masterEpoch"]:
            what = f"its epoch {state['epoch']} is behind the group's {info['masterEpoch']}"
            yield HealthFinding(where, what, "it has not heard of the last election: check its way to the controllers")
        elif info["masterBrokerId"] is None or state.get("diskProblem") or state.get("refusal"):
            return
        elif item["drained"] or item["asyncLearner"]:
            if state.get("followState") != "following":
                yield HealthFinding(where, "does not follow the master", f"see rmqha logs {where}")
        elif not item["inSyncStateSet"]:
            copying = copy_words(state.get("copy"))
            fix = "wait: it comes in when it has all" if copying else f"see rmqha explain-wait {self.name}"
            if state.get("lacksQueueEnds") and not copying:
                fix = f"wait; if it stays so see queue_ends_not_learned in rmqha logs {where}"
            yield HealthFinding(where, copying or outside_words(state), fix)

    def _static(self) -> Iterator[HealthFinding]:
        """A group without a controller: the configured master is there, every slave follows."""
        if self.ours and not any(word.state["role"] in LEADERS for word in self.ours):
            yield HealthFinding(self.name, "no master answers", "start the broker whose brokerRole is no SLAVE")
        for word in self.ours:
            state = word.state
            if state["role"] in LEADERS or state.get("refusal"):
                continue
            if state.get("followState") != "following":
                yield HealthFinding(word.title, "does not follow its master", f"see rmqha logs {word.title}")

    def _two_masters(self) -> Iterator[HealthFinding]:
        masters = sorted(
            (word for word in self.ours if word.state["role"] in LEADERS), key=lambda word: -(word.state["epoch"] or 0)
        )
        for old in masters[1:]:
            new = masters[0]
            what = (
                f"says that it is master of epoch {old.state['epoch']}, but {new.title} is master of epoch "
                f"{new.state['epoch']}"
            )
            yield HealthFinding(old.title, what, "check its way to the controllers, or stop it")

    # each replica's own word
    def _replica(self, word: NodeReport) -> Iterator[HealthFinding]:
        state = word.state
        if state["role"] == "STARTING":
            why = state.get("controllerRefusal") or "the controllers have given it no role yet"
            yield HealthFinding(word.title, f"starting: {why}", f"see rmqha explain {self.name}")
        if state.get("diskProblem"):
            yield HealthFinding(word.title, f"disk: {state['diskProblem']}", "mend or free that disk")
        if damage := damage_words(state):
            yield HealthFinding(word.title, damage, DAMAGE_FIX)
        if state.get("addressProblem"):
            yield HealthFinding(
                word.title, state["addressProblem"], "set that key to its machine's address, then restart it"
            )
        if state.get("refusal"):
            yield HealthFinding(
                word.title, f"follows nobody: {state['refusal']}", "see rmqha epochs diff of the two stores"
            )
        if state.get("unclean"):
            what = "it lost power, so it leads nobody until it has followed a master to its end"
            yield HealthFinding(word.title, what, f"start its master, or rmqha elect {self.name} --unclean")
        if state["role"] not in LEADERS:
            return
        if not state["writable"] and not (state["role"] == "MASTER" and state.get("handsOverTo")):
            why = state.get("whyNotWritable") or "no reason given"
            yield HealthFinding(word.title, f"master, takes no messages: {why}", f"see rmqha explain-wait {self.name}")
        if state.get("oneCopySynced"):
            what = "one copy, synced: it acknowledges alone, each message from its disk, until the other is back"
            yield HealthFinding(word.title, what, note=True)
        yield from self._standing(word)

    def _standing(self, word: NodeReport) -> Iterator[HealthFinding]:
        """Replication that does not move, seen twice."""
        state, before = word.state, word.before
        oldest_ms = (state.get("waits") or {}).get("oldestAgeMs") or 0
        still = (
            before.get("role") == state["role"]
            and before.get("maxPhyOffset", 0) > before.get("confirmOffset", 0)
            and before.get("confirmOffset") == state["confirmOffset"]
        )
        if oldest_ms > LONG_WAIT_MS:
            what = f"a send has waited for {oldest_ms} ms"
        elif still:
            behind = state["maxPhyOffset"] - state["confirmOffset"]
            what = f"its confirm offset stands still at {state['confirmOffset']}, {behind} bytes behind its log"
        else:
            return
        yield HealthFinding(word.title, what, f"rmqha explain-wait {self.name} tells for whom it waits")

    # where clients go
    def _told(self) -> Iterator[HealthFinding]:
        """A name server that others can reach, and brokers that they cannot."""
        for word in self.name_servers:
            if is_loopback(word.address.rpartition(":")[0]):
                continue
            for address in word.routes.get(self.name, {}).values():
                if is_loopback(address.rpartition(":")[0]):
                    what = f"tells clients of {self.name} {address}, which none elsewhere can reach"
                    yield HealthFinding(word.title, what, "set brokerIP1 of that broker to its machine's address")

    def _routed(self) -> Iterator[HealthFinding]:
        masters = [word.address for word in self.ours if word.state["role"] == "MASTER" and word.state["writable"]]
        if len(masters) != 1:
            return
        for word in self.name_servers:
            routed = word.routes.get(self.name, {}).get(0)
            if routed != masters[0]:
                where = f"to {routed}" if routed else "to no master"
                what = f"routes clients of {self.name} {where}, its master is {masters[0]}"
                yield HealthFinding(
                    word.title, what, "check that the master's namesrvAddr names it and that it is reachable"
                )
