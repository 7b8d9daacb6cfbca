"""Restart of nodes one by one: the order, and what keeps a node from being stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio.testing

from rmqha.cli.local.restart import require_done
from rmqha.host.asking.shell import open_client
from rmqha.model.error import RmqhaError
from rmqha.ops.cluster_view import ClusterView, GroupView, NodeView
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.local.supervisor import start_stamp
from rmqha.ops.membership.rolling_restart import (
    Observation,
    RestartResult,
    RollingRestart,
    observe,
    restart_order,
    troubles,
)
from rmqha.wire.state.controller_state import ControllerState, GroupState, RaftState, RegisteredReplica
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.state.replica_state import AckRule, ReplicaState

GROUP = "broker-a"
PORTS = {"ctl-1": 1, "ctl-2": 2, "ns-1": 3, "ns-2": 4, "broker-a-1": 5, "broker-a-2": 6, "broker-a-3": 7}
BROKERS = [name for name in PORTS if name.startswith("broker")]


def record(name: str) -> NodeRecord:
    kind = {"c": "controller", "n": "namesrv", "b": "broker"}[name[0]]
    address = f"127.0.0.1:{PORTS[name]}"
    return NodeRecord(name, kind, address, address if name[0] == "c" else "", GROUP if name[0] == "b" else "")


class FakeNodes:
    """A cluster of two controllers, two name servers and one group, whose nodes are well at once after a start."""

    def __init__(self, total: int = 3, mode: str = "cp") -> None:
        self.alive = set(PORTS)
        self.leader, self.master = "ctl-1", "broker-a-1"
        self.total, self.mode, self.is_static = total, mode, False
        self.drained: set[str] = set()
        self.maintained: set[str] = set()
        self.unrouted: set[str] = set()
        self.quorum: dict[str, str] = {}
        self.stubborn: set[str] = set()
        self.rule: AckRule | None = None
        self.restarted: list[str] = []
        self.observed = 0
        self.is_locked = False
        self.at_restart: Callable[[str], None] = lambda name: None
        self.at_observation: Callable[[], None] = lambda: None

    @contextmanager
    def locked(self) -> Iterator[None]:
        assert not self.is_locked
        self.is_locked = True
        yield
        self.is_locked = False

    def restart(self, name: str) -> bool:
        assert self.is_locked
        self.restarted.append(name)
        if name == self.leader:
            self.leader = "ctl-2"
        others = [item for item in BROKERS if item in self.alive and item != name and item not in self.drained]
        if name == self.master and others:
            self.master = others[0]
        self.at_restart(name)
        return name in self.stubborn

    def last_log_line(self, name: str) -> str:
        return f"words of {name}"

    async def observe(self) -> Observation:
        self.observed += 1
        self.at_observation()
        return Observation(self.view(), self.quorum)

    def view(self) -> ClusterView:
        records = {name: record(name) for name in PORTS}
        members = [name for name in BROKERS if name in self.alive and name not in self.drained]
        told = GroupState(
            master_broker_id=int(self.master[-1]),
            master_address=records[self.master].address,
            master_epoch=3,
            sync_state_set=[int(name[-1]) for name in members],
            sync_state_set_epoch=1,
            drained_ids=[int(name[-1]) for name in self.drained],
            total_replicas=self.total,
            ha_mode=self.mode,
            replicas=[
                RegisteredReplica(
                    broker_id=int(name[-1]),
                    address=records[name].address,
                    is_master=name == self.master,
                    in_sync_state_set=name in members,
                    drained=name in self.drained,
                    in_maintenance=name in self.maintained,
                    alive=name in self.alive,
                )
                for name in BROKERS
            ],
        )
        routes = {GROUP: {0: records[self.master].address}}
        nodes = {name: self._node(records[name], routes) for name in PORTS}
        state = ClusterState(Path("/nowhere"), "c", self.mode, "c.toml", records)
        return ClusterView(state, nodes, {GROUP: GroupView(GROUP, None if self.is_static else told, routes[GROUP])})

    def _node(self, node: NodeRecord, routes: dict[str, dict[int, str]]) -> NodeView:
        name = node.name
        if name not in self.alive:
            return NodeView(node, alive=False)
        if node.kind == "controller":
            raft = RaftState(term=1)
            return NodeView(node, True, controller=ControllerState(leading=name == self.leader, raft=raft))
        if node.kind == "namesrv":
            server = NameServerState.from_json({})
            return NodeView(node, True, name_server=server, routes={} if name in self.unrouted else routes)
        leads = name == self.master
        replica = ReplicaState(
            broker_id=int(name[-1]),
            role="MASTER" if leads else "SLAVE",
            follow_state="following",
            ha_mode="static" if self.is_static else self.mode,
            epoch=3,
            max_phy_offset=0,
            confirm_offset=0,
            writable=leads,
            ack_rule=self.rule if leads else None,
        )
        return NodeView(node, True, replica)


async def run(nodes: FakeNodes, *names: str, timeout_s: float = 60.0) -> tuple[RestartResult, str]:
    """The result, and the sentence with which the command ends, "" if all is well."""
    told: list[str] = []
    result = await RollingRestart(nodes, timeout_s, lambda name, view: told.append(name), lambda steps: None).run(names)
    assert told == result.restarted
    try:
        require_done(result)
    except RmqhaError as error:
        return result, str(error)
    return result, ""


async def test_all_are_restarted_in_the_order_of_an_upgrade() -> None:
    nodes = FakeNodes()
    order = ["ctl-2", "ctl-1", "ns-1", "ns-2", "broker-a-2", "broker-a-3", "broker-a-1"]
    assert restart_order(nodes.view(), set(PORTS)) == order
    result, sentence = await run(nodes)
    assert (nodes.restarted, result.restarted, result.left, sentence) == (order, order, [], "")


async def test_a_node_that_dies_ends_the_run_before_the_next_stop() -> None:
    nodes = FakeNodes()
    nodes.at_restart = lambda name: nodes.alive.discard("broker-a-3") if name == "ns-1" else None
    result, sentence = await run(nodes)
    assert nodes.restarted == ["ctl-2", "ctl-1", "ns-1"]
    assert sentence.startswith("broker-a-3 has ended, at the turn of ns-1: words of broker-a-3; no other node")
    assert sentence.endswith("not restarted: ns-2, broker-a-2, broker-a-3, broker-a-1")
    assert list(result.failed) == ["ns-1"]


async def test_a_node_that_dies_after_the_others_were_well_is_seen_under_the_lock() -> None:
    nodes = FakeNodes()

    def die() -> None:
        if nodes.is_locked and nodes.restarted == ["broker-a-2"]:
            nodes.alive.discard("broker-a-1")

    nodes.at_observation = die
    _, sentence = await run(nodes, "broker-a-2", "broker-a-3")
    assert nodes.restarted == ["broker-a-2"] and "broker-a-1 has ended, at the turn of broker-a-3" in sentence


async def test_a_node_in_maintenance_that_dies_counts_too() -> None:
    nodes = FakeNodes()
    nodes.maintained = {"broker-a-3"}
    nodes.at_restart = lambda name: nodes.alive.discard("broker-a-3")
    _, sentence = await run(nodes, "ns-1", "ns-2")
    assert nodes.restarted == ["ns-1"] and "broker-a-3 has ended" in sentence


async def test_the_restarted_node_that_ends_is_told_with_its_last_words() -> None:
    nodes = FakeNodes()
    nodes.at_restart = nodes.alive.discard
    result, sentence = await run(nodes, "broker-a-2", "broker-a-3")
    assert sentence == "broker-a-2 has ended: words of broker-a-2; not restarted: broker-a-3"
    assert (result.restarted, list(result.failed)) == ([], ["broker-a-2"])


@pytest.mark.parametrize("total", [2, 3])
async def test_nothing_begins_while_something_is_not_well(total: int) -> None:
    nodes = FakeNodes(total)
    nodes.alive.discard("broker-a-2")
    result, sentence = await run(nodes)
    assert nodes.restarted == [] and len(result.left) == len(PORTS) - 1
    assert sentence == "broker-a-2 is not well: not running; see rmqha health; nothing was restarted"
    nodes = FakeNodes(total)
    nodes.quorum = {"ctl-2": "is still catching up and has no vote yet"}
    _, sentence = await run(nodes, "broker-a-2")
    assert nodes.restarted == [] and "ctl-2 is not well: is still catching up" in sentence
    nodes.alive.clear()
    with pytest.raises(RmqhaError, match="no node runs"):
        await run(nodes)


@pytest.mark.parametrize("way", ["drained", "maintained"])
@pytest.mark.parametrize(
    ("total", "mode", "refuses"), [(3, "cp", True), (5, "cp", True), (2, "cp", False), (3, "ap", False)]
)
async def test_a_stopped_replica_that_is_no_fault_counts_as_away(
    total: int, mode: str, refuses: bool, way: str
) -> None:
    nodes = FakeNodes(total, mode)
    getattr(nodes, way).add("broker-a-3")
    nodes.alive.discard("broker-a-3")
    result, sentence = await run(nodes)
    if refuses:
        assert nodes.restarted == [], "refused before the first stop"
        assert (
            "without broker-a-2 1 replica is in the SyncStateSet of broker-a, and it takes messages with " in sentence
        )
        assert list(result.failed) == ["broker-a-2"]
    else:
        assert sentence == "" and nodes.restarted[-2:] == ["broker-a-2", "broker-a-1"]


async def test_a_replica_drained_during_the_run_is_counted_before_the_next_stop() -> None:
    nodes = FakeNodes()
    nodes.at_restart = lambda name: nodes.drained.add("broker-a-3")
    _, sentence = await run(nodes, "broker-a-2", "broker-a-1")
    assert nodes.restarted == ["broker-a-2"] and "without broker-a-1 1 replica is in the SyncStateSet" in sentence


async def test_in_ap_the_key_says_how_many_are_needed() -> None:
    nodes = FakeNodes(3, "ap")
    nodes.rule = AckRule(whole_set=False, needed=3, in_sync_replicas=3)
    _, sentence = await run(nodes, "broker-a-2")
    assert nodes.restarted == [] and "and it takes messages with 3" in sentence
    nodes.rule = AckRule(whole_set=True, needed=3, min_in_sync_replicas=2)
    assert (await run(nodes, "broker-a-2"))[1] == ""


async def test_a_master_is_stopped_only_if_another_may_lead() -> None:
    nodes = FakeNodes()
    nodes.maintained = {"broker-a-2", "broker-a-3"}
    assert (await run(nodes, "broker-a-2"))[1] == ""
    _, sentence = await run(nodes, "broker-a-1")
    assert nodes.restarted == ["broker-a-2"] and "leads broker-a and no other replica may" in sentence


async def test_a_group_of_one_replica_and_a_static_group_pause() -> None:
    single = FakeNodes(1)
    single.alive -= {"broker-a-2", "broker-a-3"}
    single.maintained = {"broker-a-2", "broker-a-3"}
    assert (await run(single, "broker-a-1"))[1] == ""
    static = FakeNodes()
    static.is_static = True
    assert (await run(static, "broker-a-1"))[1] == "" and static.restarted == ["broker-a-1"]


async def test_a_name_server_is_well_once_it_names_every_master(autojump_clock: trio.testing.MockClock) -> None:
    nodes = FakeNodes()
    assert troubles(Observation(nodes.view()), list(PORTS)) == {}

    def restarted(name: str) -> None:
        nodes.unrouted = {name}
        since = nodes.observed

        def registered() -> None:
            if nodes.observed > since + 3:
                nodes.unrouted = set()

        nodes.at_observation = registered

    nodes.at_restart = restarted
    assert (await run(nodes, "ns-1", "ns-2"))[1] == ""
    assert nodes.observed >= 8, "each was waited for"
    nodes = FakeNodes()
    nodes.at_restart = nodes.unrouted.add
    _, sentence = await run(nodes, "ns-1", "ns-2", timeout_s=0)
    assert sentence == ("ns-1 is not well after 0 s: does not name the master of broker-a yet; not restarted: ns-2")


async def test_a_node_that_had_to_be_killed_ends_the_run_once_it_is_well() -> None:
    nodes = FakeNodes()
    nodes.stubborn = {"broker-a-2"}
    result, sentence = await run(nodes, "broker-a-2", "broker-a-3")
    assert (result.restarted, result.killed, result.failed) == (["broker-a-2"], ["broker-a-2"], {})
    assert sentence == ("broker-a-2 did not stop within 15 s and had to be killed; not restarted: broker-a-3")


async def test_controllers_that_are_away_are_a_trouble_without_advice_on_addresses(tmp_path: Path) -> None:
    """Lines of progress tell that an operator waits for them."""
    own = NodeRecord(
        "ctl-1", NodeKind.CONTROLLER.value, "127.0.0.1:9", "127.0.0.1:9", pid=os.getpid(),
        process_start=start_stamp(os.getpid()) or "",
    )  # fmt: skip
    async with open_client() as client:
        seen = await observe(client, ClusterState(tmp_path, "c", "cp", "", {"ctl-1": own}))
    away = "no controller answers: cannot connect to 127.0.0.1:9: Connection refused"
    assert seen.quorum == {"the controllers": away}
