"""Restart of nodes one after the other, each only while all others are well, so that sends go on. Control plane."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from rmqha.host.asking.shell import Caller, now_s, sleep
from rmqha.model.error import RmqhaError
from rmqha.ops.asking import NoControllerError
from rmqha.ops.cluster_view import ClusterView, NodeView, ask_cluster, faults
from rmqha.ops.health.upgrade import rank
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.membership.group import needed_in_cp
from rmqha.ops.membership.quorum import ask_quorum, node_titles
from rmqha.ops.snapshot import ServerKind
from rmqha.wire.state.controller_state import GroupState, RegisteredReplica
from rmqha.wire.state.replica_state import AckRule

POLL_INTERVAL_S = 0.2
CONTROLLERS = "the controllers"


@dataclass(frozen=True, slots=True)
class Observation:
    """A cluster at one moment. `quorum`: problems of the controllers' own group by node, as `rmqha quorum` has them."""

    view: ClusterView
    quorum: Mapping[str, str] = field(default_factory=dict)


class NodePort(Protocol):
    """Nodes that can be restarted. Each call reads anew which processes run them."""

    def locked(self) -> AbstractContextManager[object]:
        """Keep other rmqha commands from starting and stopping nodes. Raises RmqhaError."""
        ...

    async def observe(self) -> Observation: ...

    def restart(self, name: str) -> bool:
        """Stop a node in order and start it; True if it had to be killed. Called while locked. Raises RmqhaError."""
        ...

    def last_log_line(self, name: str) -> str:
        """The last line that a node logged or printed."""
        ...


@dataclass(slots=True)
class RestartResult:
    """Result of a run. `failed`: the node at whose turn the run ended, by the reason; `left`: nodes that were not
    restarted."""

    restarted: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


# --- judged: pure -----------------------------------------------------------------------------------------------------
def restart_order(view: ClusterView, names: Collection[str]) -> list[str]:
    """The nodes in the order of an upgrade: those with a controller, then name servers, then brokers; of each kind
    whoever leads last, so that each group changes its leader once."""
    return sorted(names, key=lambda name: (_rank(view.nodes[name]), name))


def _rank(node: NodeView) -> tuple[int, bool]:
    if node.node.is_broker:
        return rank([ServerKind.BROKER.value], node.replica is not None and node.replica.leads)
    kind = ServerKind.CONTROLLER if node.node.controller_address else ServerKind.NAME_SERVER
    return rank([kind.value], node.controller is not None and node.controller.leading)


def ended(view: ClusterView, running: Collection[str]) -> list[str]:
    """The nodes of `running` that do not run any more."""
    return [name for name in running if name not in view.nodes or not view.nodes[name].alive]


def troubles(seen: Observation, running: Collection[str]) -> dict[str, str]:
    """Reasons to stop no node now, by node or group: nodes of `running` that have ended, also in maintenance; the
    faults of `rmqha status`; problems of the controllers' group; name servers that do not name every master yet."""
    found = dict.fromkeys(ended(seen.view, running), "has ended")
    for others in (faults(seen.view), seen.quorum, _unrouted(seen.view)):
        found |= {name: words for name, words in others.items() if name not in found}
    return found


def _unrouted(view: ClusterView) -> dict[str, str]:
    masters = {
        node.node.group: node.node.address
        for node in view.nodes.values()
        if node.replica is not None and node.replica.leads
    }
    return {
        name: f"does not name the master of {group} yet"
        for name, node in view.nodes.items()
        if node.alive and node.node.kind == NodeKind.NAMESRV.value
        for group, address in masters.items()
        if node.routes.get(group, {}).get(0) != address
    }


def refuse_to_stop(view: ClusterView, name: str) -> None:
    """Raise RmqhaError if the node's group would take no messages without it. A replica that is drained, or stopped in
    maintenance, counts as away, as it does for the master. A group of one replica and a static group pause anyway."""
    node = view.nodes[name].node
    told = view.groups[node.group].reported if node.is_broker else None
    if told is None or max(told.total_replicas, told.next_total_replicas or 0) == 1:
        return
    own = next((item for item in told.replicas if item.address == node.address), None)
    others = [item for item in told.replicas if item.in_sync_state_set and item.alive and item is not own]
    needed = _needed(told, _ack_rule(view, node.group))
    if len(others) < needed:
        raise RmqhaError(
            f"without {name} {len(others)} {'replica is' if len(others) == 1 else 'replicas are'} in the SyncStateSet "
            f"of {node.group}, and it takes messages with {needed}: start the others or take them back first; if it "
            f"may pause, type rmqha stop {name} and rmqha start {name}"
        )
    if own is not None and own.is_master and not any(map(_may_lead, others)):
        raise RmqhaError(
            f"{name} leads {node.group} and no other replica may: see rmqha explain {node.group}, and end the others' "
            "maintenance first"
        )


def _needed(told: GroupState, rule: AckRule | None) -> int:
    """Members of the SyncStateSet with which the group takes messages, the master included."""
    if told.ha_mode == "cp":
        return max(needed_in_cp(total) for total in (told.total_replicas, told.next_total_replicas) if total)
    if rule is None:
        return 1
    return max(rule.min_in_sync_replicas, 1 if rule.whole_set or rule.adaptive else rule.needed)


def _ack_rule(view: ClusterView, group: str) -> AckRule | None:
    masters = (item.replica for item in view.replicas(group) if item.replica is not None and item.replica.leads)
    return next((state.ack_rule for state in masters), None)


def _may_lead(replica: RegisteredReplica) -> bool:
    away = replica.in_maintenance or replica.drained or replica.stopping or replica.unclean or replica.async_learner
    return not (away or replica.disk_problem)


# --- asked ------------------------------------------------------------------------------------------------------------
async def observe(client: Caller, state: ClusterState) -> Observation:
    """Ask all nodes that run, and the controllers about their own group. Never raises for a node that does not
    answer."""
    view = await ask_cluster(client, state)
    controllers = [node.controller_address for node in state.nodes.values() if node.controller_address and node.alive]
    if not controllers:
        return Observation(view)
    try:
        quorum = await ask_quorum(client, controllers)
    except RmqhaError as error:
        return Observation(view, {CONTROLLERS: error.why if isinstance(error, NoControllerError) else str(error)})
    titles = {"": CONTROLLERS} | node_titles(quorum.answer.addresses, state)
    return Observation(view, {titles.get(node, node): words for node, words in quorum.problems().items()})


class RollingRestart:
    """Restart of nodes one by one. `tell` is called for each node that is well again; `show` takes the steps of nodes
    that are waited for. `timeout_s`: until all is well again, for each node."""

    def __init__(
        self,
        nodes: NodePort,
        timeout_s: float,
        tell: Callable[[str, ClusterView], None],
        show: Callable[[dict[str, str]], None],
    ) -> None:
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._tell = tell
        self._show = show
        self._running: list[str] = []

    async def run(self, names: Sequence[str]) -> RestartResult:
        """Restart the nodes, all that run if none is given. The run ends at the first that fails or must be killed;
        nothing is stopped if something is not well before. Raises RmqhaError if no node runs."""
        seen = await self._nodes.observe()
        # computed once: who runs now must run all the time
        self._running = [name for name, node in seen.view.nodes.items() if node.alive]
        if not self._running:
            raise RmqhaError("no node runs; start them with rmqha up")
        view = seen.view
        result = RestartResult(left=restart_order(view, dict.fromkeys(names) or self._running))
        for name, why in self._refusals(seen, result.left):
            result.failed[name] = why
            return result
        while result.left and not result.killed:
            name = restart_order(view, result.left)[0]
            try:
                if await self._restart_when_healthy(name):
                    result.killed.append(name)
                result.left.remove(name)
                view = await self._until_healthy(name)
            except RmqhaError as error:
                result.failed[name] = str(error)
                break
            result.restarted.append(name)
            self._tell(name, view)
        return result

    def _refusals(self, seen: Observation, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Reasons not to begin, by the node whose turn it would be."""
        for name, trouble in troubles(seen, self._running).items():
            yield names[0], f"{name} is not well: {trouble}; see rmqha health"
        for name in names:
            try:
                refuse_to_stop(seen.view, name)
            except RmqhaError as error:
                yield name, str(error)

    async def _restart_when_healthy(self, name: str) -> bool:
        """Restart the node in a moment in which all is well. Returns True if it had to be killed."""
        deadline_s = now_s() + self._timeout_s
        while True:
            with self._nodes.locked():
                seen = await self._nodes.observe()
                self._require_running(seen.view, name)
                wrong = troubles(seen, self._running)
                if not wrong:
                    refuse_to_stop(seen.view, name)
                    self._show({name: "stopping"})
                    return self._nodes.restart(name)
            self._require_time(deadline_s, wrong)
            await sleep(POLL_INTERVAL_S)

    async def _until_healthy(self, name: str) -> ClusterView:
        deadline_s = now_s() + self._timeout_s
        shown = {name: "starting"}
        while True:
            seen = await self._nodes.observe()
            self._require_running(seen.view, name)
            wrong = troubles(seen, self._running)
            shown = {item: wrong.get(item, "well") for item in (*shown, *wrong)}
            self._show(shown | ({} if seen.view.nodes[name].answers else {name: "starting"}))
            if not wrong:
                return seen.view
            self._require_time(deadline_s, wrong)
            await sleep(POLL_INTERVAL_S)

    def _require_running(self, view: ClusterView, name: str) -> None:
        for other in ended(view, self._running):
            if other == name:
                raise RmqhaError(f"{name} has ended: {self._nodes.last_log_line(name)}")
            raise RmqhaError(
                f"{other} has ended, at the turn of {name}: {self._nodes.last_log_line(other)}; no other node is "
                f"stopped before it runs: see rmqha logs {other}"
            )

    def _require_time(self, deadline_s: float, wrong: Mapping[str, str]) -> None:
        if now_s() >= deadline_s:
            name, trouble = next(iter(wrong.items()))
            raise RmqhaError(f"{name} is not well after {self._timeout_s:g} s: {trouble}")
