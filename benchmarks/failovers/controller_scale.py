"""Three controllers in one process that hold many replicas, on the real clock: how long until another leader serves,
and the longest time that one input kept a node.

    python -m benchmarks.failovers.controller_scale REPLICAS ROUNDS      prints one JSON object

The state is made here and given to each node as its stored snapshot; groups have three replicas. Messages between the
nodes take no time. `slice` is CPU time of the one thread, so that a busy machine does not count.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from controller.config import ControllerConfig
from controller.machine import ControllerMachine
from controller.state.action import Reply, SendRaft, WriteSnapshot
from controller.state.event import (
    BrokerIdApplied,
    BrokerRegistered,
    Cause,
    GroupSized,
    MasterElected,
    SyncStateSetAltered,
)
from controller.state.image import decode_image, encode_image
from controller.state.replicas_info import ReplicasInfo
from rmqha.host.prng import HostPrng
from rmqha.host.process import freeze_loaded_objects
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId, Epoch, RaftIndex, Term
from rmqha.raft.config import RaftConfig
from rmqha.raft.log import StoredState
from rmqha.raft.node import RaftNode
from rmqha.raft.quorum import Configuration
from rmqha.wire.command import Command
from rmqha.wire.raft_message import Snapshot
from tests.support.memory import anonymous_rss_bytes
from tests.support.tracer import SilentTracer

NODES = ("n0", "n1", "n2")
SETTLED_S = 3.0
SNAPSHOT_ENTRIES = 40
ASK_EVERY_S = 0.002


def make_state(replicas: int) -> ReplicasInfo:
    """Groups of three, each elected once, all in the set."""
    info = ReplicasInfo()
    ids = tuple(map(BrokerId, (1, 2, 3)))
    for number in range(-(-replicas // 3)):
        name, host = f"broker-{number:07d}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        for broker_id in ids:
            address = f"{host}:{10900 + broker_id * 10}"
            info.apply(BrokerIdApplied("DefaultCluster", name, broker_id, address, f"{address};1780000000000"))
            info.apply(BrokerRegistered(name, broker_id, address, f"{host}:{10901 + broker_id * 10}", 3, "cp"))
        info.apply(GroupSized(name, 3))
        reason = "there was no master; lowest id among equals"
        info.apply(MasterElected(name, ids[0], Epoch(1), (), Cause.FIRST_ELECTION, 1780000000000, reason))
        info.apply(SyncStateSetAltered(name, Epoch(1), 2, ids, ()))
    return info


@dataclass
class Node:
    machine: ControllerMachine
    inbox: deque[Command] = field(default_factory=deque)
    cut: bool = False
    replies: list[Command] = field(default_factory=list)


class Quorum:
    def __init__(self, image: bytes) -> None:
        peers = ";".join(f"{name}-127.0.0.1:{9878 + number}" for number, name in enumerate(NODES))
        self.nodes: dict[str, Node] = {}
        self.slices: dict[str, float] = {}
        self.started = time.monotonic()
        for name in NODES:
            config = ControllerConfig(
                controller_dleger_peers=peers,
                controller_dleger_self_id=name,
                default_heartbeat_timeout_mills=600_000,
                snapshot_after_entries=10_000_000,
            )
            snapshot = Snapshot(RaftIndex(1000), Term(1), image)
            stored = StoredState(Term(1), "", snapshot, ())
            raft = RaftNode(name, Configuration(NODES), stored, RaftConfig(), HostPrng(), SilentTracer(), self.now_ms)
            self.nodes[name] = Node(ControllerMachine(config, raft, image, SilentTracer()))
        for node in self.nodes.values():
            node.machine.start(self.now_ms)

    @property
    def now_ms(self) -> int:
        return round((time.monotonic() - self.started) * 1000)

    def timed(self, what: str, call: Any, *arguments: Any) -> Any:
        began = time.thread_time()
        result = call(*arguments)
        taken = (time.thread_time() - began) * 1000
        if taken > self.slices.get(what, 0.0):
            self.slices[what] = taken
        return result

    def perform(self, name: str, node: Node) -> None:
        for action in node.machine.actions():
            if isinstance(action, SendRaft) and not node.cut and not self.nodes[action.peer].cut:
                message = Command(RequestCode.RMQHA_RAFT_MESSAGE, {"address": action.sender_address}, action.data)
                self.nodes[action.peer].inbox.append(message)
            elif isinstance(action, Reply):
                node.replies.append(action.command)
            elif isinstance(action, WriteSnapshot):
                self.timed("snapshot written", node.machine.snapshot_written, self.now_ms, action.snapshot)

    def step(self) -> None:
        """One round over all nodes: due timers, messages, what became ready."""
        for name, node in self.nodes.items():
            machine = node.machine
            deadline_ms = machine.deadline_ms()
            if deadline_ms is not None and self.now_ms >= deadline_ms:
                self.timed("timeout", machine.timeout, self.now_ms)
            while node.inbox:
                self.timed("message", machine.request, self.now_ms, 0, None, node.inbox.popleft())
            self.perform(name, node)
            while (ready := self.timed("ready", machine.ready, self.now_ms)) is not None:
                self.timed("advance", machine.advance, self.now_ms, ready)
                self.perform(name, node)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()
            time.sleep(0.0005)

    def ask(self, node: Node) -> bool:
        """Ask one; True if it answers as a leader does."""
        node.replies.clear()
        command = Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "broker-0000000"})
        self.timed("request", node.machine.request, self.now_ms, 1, "token", command)
        name = next(name for name, item in self.nodes.items() if item is node)
        self.perform(name, node)
        return any(reply.code == ResponseCode.SUCCESS for reply in node.replies)

    def wait_leader(self) -> str:
        """Step until a node that is not cut off serves; its name."""
        asked = 0.0
        while True:
            self.step()
            if time.monotonic() - asked >= ASK_EVERY_S:
                asked = time.monotonic()
                for name, node in self.nodes.items():
                    if not node.cut and self.ask(node):
                        return name

    def failover_ms(self) -> float:
        """Cut the leader off, until another one serves; then heal."""
        old = self.wait_leader()
        self.nodes[old].cut = True
        began = time.monotonic()
        self.wait_leader()
        taken = (time.monotonic() - began) * 1000
        self.nodes[old].cut = False
        self.run(SETTLED_S)
        return taken

    def snapshot_s(self) -> float:
        """Every node writes a snapshot of everything; until all have."""
        for node in self.nodes.values():
            update = Command(RequestCode.CONTROLLER_UPDATE_CONFIG, {}, b"snapshotAfterEntries=16")
            node.machine.request(self.now_ms, 1, "token", update)
        leader = self.nodes[self.wait_leader()]
        began = time.monotonic()
        for number in range(SNAPSHOT_ENTRIES):
            ids = {"clusterName": "c", "brokerName": f"new-{number}"}
            ext = {**ids, "appliedBrokerId": "1", "registerCheckCode": f"127.0.0.1:{number + 1};1"}
            leader.machine.request(self.now_ms, 1, "token", Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext))
            self.step()
        while any(node.machine._raft.snapshot_index <= 1000 for node in self.nodes.values()):
            self.step()
        return time.monotonic() - began


def main() -> None:
    replicas, rounds = int(sys.argv[1]), int(sys.argv[2])
    image = encode_image(make_state(replicas))
    gc.collect()
    before = anonymous_rss_bytes(os.getpid()) or 0
    began = time.perf_counter()
    kept = decode_image(image)
    load_s = time.perf_counter() - began
    gc.collect()
    held = (anonymous_rss_bytes(os.getpid()) or 0) - before
    del kept
    quorum = Quorum(image)
    freeze_loaded_objects()
    quorum.wait_leader()
    quorum.run(SETTLED_S)
    taken = [quorum.failover_ms() for _ in range(rounds)]
    failover_slices = dict(quorum.slices)
    quorum.slices.clear()
    snapshot_s = quorum.snapshot_s()
    print(
        json.dumps(
            {
                "replicas": replicas,
                "failover_ms": taken,
                "failover_slices_ms": failover_slices,
                "snapshot_slices_ms": quorum.slices,
                "snapshot_s": snapshot_s,
                "image_bytes": len(image),
                "load_s": load_s,
                "bytes_per_replica": held / replicas,
            }
        )
    )


if __name__ == "__main__":
    main()
