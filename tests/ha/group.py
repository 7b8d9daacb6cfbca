"""A whole group in memory: replicas, a scripted controller, HA links. Time moves by hand, nothing is random."""

from __future__ import annotations

from typing import Any

from rmqha.ha.action import (
    AckStatus,
    CallController,
    CloseHa,
    Complete,
    HandedOver,
    OpenHa,
    ResolveHosts,
    RoleChanged,
    SendHa,
    SendLog,
)
from rmqha.ha.replica import Replica
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import Role
from rmqha.model.offset import PhyOffset
from tests.ha.memory_log import MemoryIdentity, MemoryLog
from tests.support.controller import ScriptedController
from tests.support.tracer import RecordingTracer


class Node:
    def __init__(self, group: Group, number: int, log: MemoryLog | None = None, identity: int | None = None) -> None:
        self.group = group
        self.number = number
        self.log = log or MemoryLog()
        self.trace = RecordingTracer()
        self.config = BrokerConfig(listen_port=10901 + 10 * number, **group.options)
        self.identity = MemoryIdentity(identity)
        self.replica = Replica(
            self.config, self.log, self.identity, self.trace, group.may_join, lambda: group.table_waits
        )
        self.done: dict[Any, AckStatus] = {}
        self.handed_over: dict[Any, str] = {}
        self.roles: list[RoleChanged] = []
        self.links: dict[int, tuple[Node, int]] = {}
        self.next_accept = 1
        self.alive = True


class Group:
    def __init__(self, count: int = 3, **options: Any) -> None:
        self.options = {"total_replicas": count, "ha_mode": "cp", **options}
        self.now_ms = 1000
        self.controller = ScriptedController()
        self.nodes: dict[int, Node] = {}
        self.cut: set[tuple[int, int]] = set()
        self.auto_sync = True
        self.table_waits = 0
        self.kept_out: set[int] = set()
        """Slaves whose tables are behind, say."""
        for number in range(1, count + 1):
            self.add(number)

    def add(self, number: int, log: MemoryLog | None = None, identity: int | None = None) -> Node:
        node = Node(self, number, log, identity)
        self.nodes[number] = node
        node.replica.start(self.now_ms)
        self.settle()
        return node

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def may_join(self, broker_id: int) -> bool:
        return broker_id not in self.kept_out

    # --- time and messages ---------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Perform actions until nobody has any."""
        busy = True
        while busy:
            busy = False
            for _, node in sorted(self.nodes.items()):
                if not node.alive:
                    continue
                if self.auto_sync and node.log.synced < node.log.max_phy_offset:
                    node.log.sync()
                    node.replica.synced(self.now_ms)
                if node.log.dispatched < node.log.confirm:
                    node.log.dispatch(1 << 30)
                    node.replica.dispatched(self.now_ms)
                for action in node.replica.actions():
                    busy = True
                    self.perform(node, action)

    def perform(self, node: Node, action: Any) -> None:
        match action:
            case CallController() if self.controller.silent:
                pass
            case CallController(call_id, command, _):
                node.replica.controller_replied(self.now_ms, call_id, self.controller.answer(command))
            case OpenHa(conn_id, address):
                self.dial(node, conn_id, address)
            case SendHa(conn_id, data):
                self.deliver(node, conn_id, data)
            case SendLog(conn_id, header, phy_offset, size_bytes):
                self.deliver(node, conn_id, header + bytes(node.log.view(phy_offset, size_bytes)))
                node.replica.ha_sent(self.now_ms, conn_id)
            case CloseHa(conn_id, _):
                self.close(node, conn_id)
            case Complete(token, status):
                node.done[token] = status
            case HandedOver(token, refusal, _):
                node.handed_over[token] = refusal
            case ResolveHosts(names):
                numbers = {name: self.controller.names.get(name, ()) for name in names}
                node.replica.ha_resolved(self.now_ms, numbers)
            case RoleChanged():
                node.roles.append(action)

    def dial(self, node: Node, conn_id: int, address: str) -> None:
        for peer in self.nodes.values():
            reachable = (node.number, peer.number) not in self.cut and peer.alive
            if peer.config.ha_address == address and reachable:
                accepted = peer.next_accept
                peer.next_accept += 1
                node.links[conn_id] = (peer, accepted)
                peer.links[accepted] = (node, conn_id)
                peer.replica.ha_accepted(self.now_ms, accepted, node.config.address)
                node.replica.ha_opened(self.now_ms, conn_id)
                return
        node.replica.ha_closed(self.now_ms, conn_id)

    def deliver(self, node: Node, conn_id: int, data: bytes) -> None:
        if conn_id in node.links:
            peer, other = node.links[conn_id]
            if (node.number, peer.number) not in self.cut:
                peer.replica.ha_received(self.now_ms, other, data)

    def close(self, node: Node, conn_id: int) -> None:
        if conn_id in node.links:
            peer, other = node.links.pop(conn_id)
            peer.links.pop(other, None)
            if peer.alive:
                peer.replica.ha_closed(self.now_ms, other)

    def run(self, duration_ms: int) -> None:
        """Advance the clock in steps of 10 ms, firing due timers."""
        for _ in range(0, duration_ms, 10):
            self.now_ms += 10
            for _, node in sorted(self.nodes.items()):
                due = node.replica.deadline_ms()
                if node.alive and due is not None and due <= self.now_ms:
                    node.replica.timeout(self.now_ms)
            self.settle()
            for _, node in sorted(self.nodes.items()):
                due = node.replica.deadline_ms()
                spins = node.alive and due is not None and due <= self.now_ms
                assert not spins, f"replica {node.number} wants to be called again at once: {due} at {self.now_ms}"

    # --- the story's verbs ------------------------------------------------------------------------------------------
    def elect(self, number: int, *, tell: tuple[int, ...] | None = None) -> None:
        notice = self.controller.elect(number)
        for each in self.nodes if tell is None else tell:
            if self.nodes[each].alive:
                self.nodes[each].replica.role_notified(self.now_ms, notice)
        self.settle()

    def send(self, number: int, data: bytes = b"x" * 100) -> str:
        """Append on a master and wait; returns the token."""
        node = self.nodes[number]
        code, remark = node.replica.admission(self.now_ms)
        assert code == ResponseCode.SUCCESS, remark
        node.log.data += data
        token = f"{number}@{node.log.max_phy_offset}"
        node.replica.wait(self.now_ms, PhyOffset(node.log.max_phy_offset), token)
        node.replica.appended(self.now_ms)
        return token

    def kill(self, number: int) -> None:
        node = self.nodes[number]
        node.alive = False
        for conn_id in list(node.links):
            self.close(node, conn_id)
        self.settle()

    def restart(self, number: int) -> Node:
        old = self.nodes[number]
        return self.add(number, old.log, old.identity.id)

    def master_is(self, number: int) -> bool:
        return self.nodes[number].replica.role is Role.MASTER


def started(count: int = 3, **options: object) -> Group:
    """A whole group under master 1."""
    group = Group(count, **options)
    group.elect(1)
    group.run(200)
    return group
