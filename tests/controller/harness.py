"""Controllers wired in memory on one virtual clock, and brokers that heartbeat and answer probes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from controller.config import ControllerConfig
from controller.machine import ControllerMachine
from controller.operations import OperationCounts
from controller.state.action import Notify, Probe, Reply, SaveConfig, SendRaft, WriteSnapshot
from controller.state.replicas_info import BrokerGroup
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import make_check_code, node_name
from rmqha.model.offset import RaftIndex
from rmqha.raft.config import RaftConfig
from rmqha.raft.log import StoredState
from rmqha.raft.node import RaftNode, Ready
from rmqha.raft.quorum import Configuration, identity
from rmqha.wire.body_bound import body_refusal
from rmqha.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from rmqha.wire.raft_message import Entry, HardState, Snapshot
from tests.support.steps import done
from tests.support.tracer import RecordingTracer

GROUP = "broker-a"
CLUSTER = "DefaultCluster"
SLOW_MS = 300
"""What a Java broker on a busy machine takes to answer a probe."""


class Prng:
    """A small linear congruential generator."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % bound

    def chance(self, numerator: int, denominator: int) -> bool:
        return self.below(denominator) < numerator

    def child(self, name: str) -> Prng:
        return Prng(self._state + sum(name.encode()))


@dataclass
class Broker:
    """`probes`: "answer", "slow", "silent" or "refuse" what request 1007 gets. `hand_over`: the code that a request to
    hand over is answered with, None = never."""

    broker_id: int
    epoch: int = -1
    max_offset: int = 0
    total_replicas: int = 0
    ha_mode: str = ""
    timeout_ms: int = 2000
    priority: int = 2**31 - 1
    name: str = GROUP
    zone: str = ""
    disk_problem: str = ""
    bound_total_replicas: int | None = None
    async_learner: bool = False
    accepted_epoch: int | None = None
    probes: str = "answer"
    hand_over: int | None = 0
    beating: bool = False
    stopping: bool = False
    session_id: int = 0
    last_answer: Command | None = None
    notices: list[Command] = field(default_factory=list)
    hand_overs: list[dict[str, str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{20000 + self.broker_id}"

    def beat(self) -> Command:
        ext = {
            "clusterName": CLUSTER,
            "brokerName": self.name,
            "brokerAddr": self.address,
            "brokerId": str(self.broker_id),
            "epoch": str(self.epoch),
            "maxOffset": str(self.max_offset),
            "confirmOffset": str(self.max_offset),
            "heartbeatTimeoutMills": str(self.timeout_ms),
            "electionPriority": str(self.priority),
            "zone": self.zone,
            "diskProblem": self.disk_problem,
        }
        if self.total_replicas:
            bound = self.total_replicas if self.bound_total_replicas is None else self.bound_total_replicas
            ext["boundTotalReplicas"] = str(bound)
        if self.stopping:
            ext["stopping"] = "true"
        return Command(RequestCode.BROKER_HEARTBEAT, ext)

    def epoch_cache(self) -> Command:
        entries = [{"epoch": self.epoch, "startOffset": 0, "endOffset": 2**63 - 1}] if self.epoch >= 0 else []
        body = {"brokerId": self.broker_id, "brokerName": self.name, "clusterName": CLUSTER, "epochList": entries}
        return Command(0, body=json.dumps({**body, "maxOffset": self.max_offset}).encode(), flag=FLAG_RESPONSE)


FIRST_INCARNATION = "1"


class Node:
    """One controller with a disk that survives `restart`."""

    def __init__(
        self, cluster: Cluster, node_id: str, config: ControllerConfig, incarnation: str = FIRST_INCARNATION
    ) -> None:
        self.cluster, self.node_id, self.config, self.incarnation = cluster, node_id, config, incarnation
        self.hard_state = HardState()
        self.snapshot: Snapshot | None = None
        self.entries: list[Entry] = []
        self.tracer = RecordingTracer()
        self.up = False
        self.persisting = True
        self.start()

    @property
    def _initial(self) -> Configuration:
        """The first controllers know each other already; a spare one knows its list only."""
        static = Configuration.static(self.config.peers)
        if self.incarnation != FIRST_INCARNATION:
            return static
        return static.formed_by(identity(node_id, FIRST_INCARNATION) for node_id in self.config.peers)

    def start(self) -> None:
        stored = StoredState(self.hard_state.term, self.hard_state.voted_for, self.snapshot, tuple(self.entries))
        seed = Prng(7 + int(self.node_id[1:]) * 1000 + self.cluster.now_ms)
        raft = RaftNode(
            identity(self.node_id, self.incarnation),
            self._initial,
            stored,
            RaftConfig(),
            seed,
            self.tracer,
            self.cluster.now_ms,
        )
        image = self.snapshot.data if self.snapshot else b""
        self.watch = OperationCounts(lambda: self.cluster.now_ms * 1000)
        self.machine = ControllerMachine(self.config, raft, image, self.tracer, observer=self.watch)
        self.up = True
        self.machine.start(self.cluster.now_ms)
        self.pump()

    def pump(self) -> None:
        now_ms = self.cluster.now_ms
        self.perform()
        while self.persisting and (ready := self.machine.ready(now_ms)) is not None:
            self.perform()
            self._persist(ready)
            self.machine.advance(now_ms, ready)
            self.perform()

    def _persist(self, ready: Ready) -> None:
        self.hard_state = ready.hard_state or self.hard_state
        if ready.truncate_from is not None:
            self.entries = [item for item in self.entries if item.index < ready.truncate_from]
        if ready.snapshot is not None:
            self.snapshot, self.entries = ready.snapshot, []
        self.entries.extend(ready.entries)
        if ready.compaction is not None:
            self.snapshot = ready.compaction
            self.entries = [item for item in self.entries if item.index > ready.compaction.index]

    def perform(self) -> None:
        cluster = self.cluster
        for action in self.machine.actions():
            match action:
                case Reply(token, command):
                    assert token not in cluster.replies, "a request is answered once"
                    cluster.replies[token] = command
                case Notify(address, command):
                    cluster.notified.append((address, command))
                    cluster.brokers[address].notices.append(command)
                case Probe():
                    cluster.later(1, partial(self._probe, action))
                case SendRaft(peer, _, sender_address, data):
                    if cluster.linked(self.node_id, peer):
                        message = Command(RequestCode.RMQHA_RAFT_MESSAGE, {"address": sender_address}, data)
                        cluster.later(1, partial(cluster.deliver, self.node_id, peer, message))
                case WriteSnapshot(snapshot):
                    self.machine.snapshot_written(cluster.now_ms, snapshot)
                case SaveConfig(properties, token, reply):
                    cluster.saved.append(properties)
                    if reply is not None:
                        cluster.replies[token] = reply

    def _probe(self, probe: Probe) -> None:
        cluster, broker = self.cluster, self.cluster.brokers.get(probe.address)
        if probe.command.code == RequestCode.RMQHA_HAND_OVER:
            assert broker is not None
            broker.hand_overs.append(dict(probe.command.ext))
            code, machine = broker.hand_over, self.machine
            answer = None if code is None else Command(code, flag=FLAG_RESPONSE, remark="replica 3 lacks 7 bytes")
            delay_ms = probe.timeout_ms if answer is None else 1
            cluster.later(delay_ms, lambda: self._probed(machine, probe.probe_id, answer, False))
            return
        assert probe.command.code == RequestCode.GET_BROKER_EPOCH_CACHE
        how = broker.probes if broker is not None else "refuse"
        machine = self.machine
        if how == "silent":
            cluster.later(probe.timeout_ms, lambda: self._probed(machine, probe.probe_id, None, False))
        elif how == "slow":
            assert broker is not None
            reply = broker.epoch_cache() if probe.timeout_ms >= SLOW_MS else None
            cluster.later(min(SLOW_MS, probe.timeout_ms), lambda: self._probed(machine, probe.probe_id, reply, False))
        elif how == "refuse" or broker is None:
            self._probed(machine, probe.probe_id, None, True)
        else:
            self._probed(machine, probe.probe_id, broker.epoch_cache(), False)

    def _probed(self, machine: ControllerMachine, probe_id: int, reply: Command | None, refused: bool) -> None:
        if self.up and machine is self.machine:
            machine.probe_replied(self.cluster.now_ms, probe_id, reply, refused=refused)
            self.pump()


class Cluster:
    def __init__(self, node_count: int = 1, **keys: Any) -> None:
        self.now_ms = 1000
        self.replies: dict[Any, Command] = {}
        self.notified: list[tuple[str, Command]] = []
        self.saved: list[dict[str, str]] = []
        self.brokers: dict[str, Broker] = {}
        self.cut: set[str] = set()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._tokens = count(1)
        self._sessions = count(1)
        peers = ";".join(f"n{number}-127.0.0.1:{9878 + number}" for number in range(node_count))
        self.nodes = {
            f"n{number}": Node(
                self,
                f"n{number}",
                ControllerConfig(controller_dleger_peers=peers, controller_dleger_self_id=f"n{number}", **keys),
            )
            for number in range(node_count)
        }

    # --- time -------------------------------------------------------------------------------------------------------

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        heappush(self._queue, (self.now_ms + delay_ms, next(self._order), call))

    def run(self, duration_ms: int, until: Callable[[], bool] = lambda: False) -> None:
        end_ms = self.now_ms + duration_ms
        while not until():
            deadlines = [
                deadline
                for node in self.nodes.values()
                if node.up and (deadline := node.machine.deadline_ms()) is not None
            ]
            next_ms = min([*deadlines, *(item[0] for item in self._queue[:1])], default=end_ms + 1)
            if next_ms > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms = max(self.now_ms, next_ms)
            while self._queue and self._queue[0][0] <= self.now_ms:
                heappop(self._queue)[2]()
            for node in self.nodes.values():
                deadline = node.machine.deadline_ms()
                if node.up and deadline is not None and deadline <= self.now_ms:
                    node.machine.timeout(self.now_ms)
                    node.pump()

    # --- controllers ------------------------------------------------------------------------------------------------

    def linked(self, *node_ids: str) -> bool:
        return not any(node_id in self.cut for node_id in node_ids)

    def deliver(self, sender: str, to: str, message: Command) -> None:
        node = self.nodes[to]
        if node.up and self.linked(sender, to):
            node.machine.request(self.now_ms, 0, None, message)
            node.pump()

    def add_spare(self, number: int, incarnation: str) -> Node:
        """A controller that nobody's list names, or that has lost its disk."""
        node_id, known = f"n{number}", self.nodes["n0"].config
        peers = dict(known.peers) | {node_id: f"127.0.0.1:{9878 + number}"}
        text = ";".join(f"{name}-{address}" for name, address in peers.items())
        config = replace(known, controller_dleger_peers=text, controller_dleger_self_id=node_id)
        node = self.nodes[node_id] = Node(self, node_id, config, incarnation)
        return node

    @property
    def leader(self) -> Node:
        return next(
            node for node in self.nodes.values() if node.up and node.node_id not in self.cut and node.machine.is_leading
        )

    def has_leader(self) -> bool:
        return any(node.up and node.node_id not in self.cut and node.machine.is_leading for node in self.nodes.values())

    def kill(self, node: Node) -> None:
        node.up = False

    @property
    def tracer(self) -> RecordingTracer:
        return self.leader.tracer

    def group(self, name: str = GROUP) -> BrokerGroup:
        return self.leader.machine.info.groups[name]

    # --- requests ---------------------------------------------------------------------------------------------------

    def send(self, command: Command, session_id: int = 0, node: Node | None = None) -> int:
        node, token = node or self.leader, next(self._tokens)
        if command.code == RequestCode.RMQHA_GET_CONTROLLER_STATE and not body_refusal(command):
            # the server makes it, in steps
            self.replies[token] = command.reply(body=done(node.machine.state(self.now_ms)))
            return token
        node.machine.request(self.now_ms, session_id, token, command)
        node.pump()
        return token

    def call(
        self,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: Any = None,
        *,
        session_id: int = 0,
        node: Node | None = None,
    ) -> Command:
        data = b"" if body is None else json.dumps(body).encode()
        token = self.send(Command(code, ext, data), session_id, node)
        self.run(2000, until=lambda: token in self.replies)
        return self.replies[token]

    def alter(self, members: list[int], **changes: int) -> Command:
        """Request 1001 of the present master; `changes` are master_id, master_epoch, set_epoch."""
        group = self.group()
        ext = {
            "brokerName": GROUP,
            "masterBrokerId": str(changes.get("master_id", group.master_id)),
            "masterEpoch": str(changes.get("master_epoch", group.master_epoch)),
            "invokeTime": "0",
        }
        epoch = changes.get("set_epoch", group.sync_state_set_epoch)
        body = {"syncStateSet": members, "syncStateSetEpoch": epoch}
        return self.call(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)

    def elect(self, broker_id: int | None, *, designated: bool = True, unclean: bool = False) -> Command:
        token = self.send_elect(broker_id, designated=designated, unclean=unclean)
        self.run(3000, until=lambda: token in self.replies)
        return self.replies[token]

    def send_elect(self, broker_id: int | None, *, designated: bool = True, unclean: bool = False) -> int:
        ext = {
            "clusterName": CLUSTER,
            "brokerName": GROUP,
            "brokerId": str(-1 if broker_id is None else broker_id),
            "designateElect": str(designated).lower(),
            "invokeTime": "0",
        }
        if unclean:
            ext["unclean"] = "true"
        return self.send(Command(RequestCode.CONTROLLER_ELECT_MASTER, ext))

    # --- brokers ----------------------------------------------------------------------------------------------------

    def boot(self, broker: Broker, *, unclean: bool = False, beat: bool = True) -> Command:
        """Apply for the id, register over a new session, begin to heartbeat. Returns the answer to 1003."""
        self.brokers[broker.address] = broker
        broker.probes, broker.session_id = "answer", next(self._sessions)
        ids = {"clusterName": CLUSTER, "brokerName": broker.name}
        check_code = make_check_code(broker.address, 1, node_name(broker.name, broker.broker_id))
        self.call(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            {**ids, "appliedBrokerId": str(broker.broker_id), "registerCheckCode": check_code},
        )
        answer = self.register(broker, unclean=unclean)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if beat:
            broker.beating = True
            self._beat(broker, broker.session_id)
        return answer

    def register(self, broker: Broker, *, unclean: bool = False) -> Command:
        ext = {
            "clusterName": CLUSTER,
            "brokerName": broker.name,
            "brokerId": str(broker.broker_id),
            "brokerAddress": broker.address,
            "invokeTime": "0",
        }
        if broker.total_replicas:
            ext |= {
                "totalReplicas": str(broker.total_replicas),
                "haMode": broker.ha_mode,
                "haAddress": broker.address,
                "unclean": str(unclean).lower(),
                "asyncLearner": str(broker.async_learner).lower(),
            }
        if broker.accepted_epoch is not None:
            ext["acceptedEpoch"] = str(broker.accepted_epoch)
        return self.call(RequestCode.CONTROLLER_REGISTER_BROKER, ext, session_id=broker.session_id)

    def _beat(self, broker: Broker, session_id: int) -> None:
        if not broker.beating or broker.session_id != session_id:
            return
        if self.has_leader():
            token = self.send(broker.beat(), session_id)
            self.run(0)
            broker.last_answer = self.replies.get(token)
        self.later(500, lambda: self._beat(broker, session_id))

    def crash(self, broker: Broker) -> None:
        """kill -9: its port refuses, its connections close."""
        broker.beating, broker.probes = False, "refuse"
        self.close_session(broker.session_id)

    def close_session(self, session_id: int) -> None:
        for node in self.nodes.values():
            if node.up:
                node.machine.session_closed(self.now_ms, session_id)
                node.pump()

    def pause(self, broker: Broker) -> None:
        """SIGSTOP: connections stay, nothing is said."""
        broker.beating, broker.probes = False, "silent"


def group_of(count: int, *, ha_mode: str = "ap", node_count: int = 1, **keys: Any) -> tuple[Cluster, list[Broker]]:
    """A group of `count` replicas with broker 1 as master and all in the set."""
    cluster = Cluster(node_count, **keys)
    cluster.run(3000, until=cluster.has_leader)
    brokers = [Broker(number, total_replicas=count, ha_mode=ha_mode) for number in range(1, count + 1)]
    brokers[0].max_offset = 1
    for broker in brokers:
        cluster.boot(broker)
    cluster.run(300)
    assert cluster.group().master_id == 1
    for broker in brokers:
        broker.epoch, broker.max_offset = 1, 1000
    if count > 1:
        assert cluster.alter(list(range(1, count + 1))).code == 0
    cluster.run(600)
    return cluster, brokers


def explained(cluster: Cluster, name: str = GROUP) -> dict[str, Any]:
    """The body of an answer to 52010."""
    body = cluster.call(RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": name}).body
    view: dict[str, Any] = json.loads(bytes(body))
    return view


__all__ = [
    "CLUSTER",
    "FLAG_ONEWAY",
    "GROUP",
    "Broker",
    "Cluster",
    "Node",
    "RaftIndex",
    "explained",
    "group_of",
]
