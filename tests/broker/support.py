"""A broker without sockets: a core on a temporary directory, made master by a scripted controller."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqha.broker.core import BrokerCore
from rmqha.broker.identity import BrokerIdentity
from rmqha.broker.loops import BrokerLoops
from rmqha.broker.requests.consumer_calls import Call, Done
from rmqha.broker.requests.request import Channel, Steps
from rmqha.broker.shell import HostFacts
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.ha.action import CallController, RoleChanged
from rmqha.host.disk import HostDisk
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.port import Clock, Disk
from rmqha.store.config import StoreConfig
from rmqha.store.meta.identity_file import IdentityFile
from rmqha.store.store import Store
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser
from rmqha.wire.ha_stream import SlaveAck, SlaveHandshake
from tests.support.clock import ManualClock
from tests.support.controller import ScriptedController
from tests.support.tracer import RecordingTracer

GOLDEN = Path(__file__).parents[1] / "golden"
MAX_FRAME_BYTES = 16 * 1024 * 1024
START = PhyOffset(0)


@dataclass
class FakeLog:
    """As far as tables look at the log."""

    max_phy_offset: PhyOffset = START
    synced_offset: PhyOffset = START


class FakeChannel:
    def __init__(self, peer: str = "127.0.0.1:50000") -> None:
        self.peer = peer
        self.waited_ms = 0
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def mark_verified(self) -> None:
        """As of a session."""

    def charge_to(self, owner: str) -> None:
        """As of a session."""

    send_at_once = send

    def send_frames(self, frames: bytes, count: int) -> None:
        commands = FrameParser(len(frames)).feed(frames)
        assert len(commands) == count
        self.sent += commands

    def work(self, steps: Steps) -> None:
        """A pause ends the call; the rest is done when it is over."""
        for pause in steps:
            if pause is not None:
                pause.when_over(lambda: self.work(steps))
                return

    def fail(self, error: Exception, commands: Sequence[Command]) -> None:
        raise error

    def take(self) -> list[Command]:
        sent, self.sent = self.sent, []
        return sent

    def one(self) -> Command:
        """The only thing sent since the last time."""
        (command,) = self.take()
        return command


class _Ports:
    """Performs the driver's actions: controllers answer at once, HA actions are noted."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.ha_actions: list[tuple[Any, ...]] = []

    def call(self, action: CallController) -> None:
        reply = self._broker.controller.answer(action.command)
        self._broker.core.driver.controller_replied(action.call_id, reply)

    def open(self, conn_id: int, address: str) -> None:
        self.ha_actions.append(("open", conn_id, address))

    def send(self, conn_id: int, data: bytes, *, may_wait: bool) -> None:
        self.ha_actions.append(("send", conn_id, data))

    def send_log(self, conn_id: int, header: bytes, phy_offset: PhyOffset, size_bytes: int) -> None:
        self.ha_actions.append(("log", conn_id, phy_offset, size_bytes))

    def resolve(self, names: tuple[str, ...]) -> None:
        raise AssertionError(f"all replicas of these tests have numbers, not {names}")

    def close(self, conn_id: int) -> None:
        self.ha_actions.append(("close", conn_id))


class FakeShell:
    """Does at once what a test does not take over (`saves_tables`, `searches`, `notifies`), and notes the rest."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.loops: BrokerLoops | None = None
        self.roles: list[RoleChanged] = []
        self.topic_changes = 0
        self.woken: Counter[str] = Counter()
        self.saves_tables = self.searches = self.notifies = True
        self.disk_hangs = False
        self.hung_change: Callable[[], None] | None = None
        self.turn: list[Callable[[], None]] | None = None
        self.holds = False
        self.held: list[Command] = []
        self.client_call: Call = _nobody_is_called
        self.asked: list[tuple[Command, Done]] = []

    def role_changed(self, action: RoleChanged) -> None:
        self.roles.append(action)

    def stepped(self) -> None:
        if self.loops is not None:
            self.loops.stepped()

    def at_turn_end(self, work: Callable[[], None]) -> bool:
        if self.turn is not None:
            self.turn.append(work)
        return self.turn is not None

    def end_turn(self) -> None:
        """Of the connections that are served together since `turn` was set."""
        works, self.turn = self.turn or [], None
        for work in works:
            work()

    def wake_dispatch(self) -> None:
        self.woken["dispatch"] += 1
        if self.loops is not None:
            self.loops.wake_dispatch()

    def wake_flush(self) -> None:
        if self.loops is not None:
            self.loops.wake_flush()

    def write(self, work: Callable[[], None]) -> bool:
        if self.disk_hangs:
            self.hung_change = work
            return False
        work()
        return True

    def end_change(self) -> None:
        """The disk goes on."""
        work, self.hung_change, self.disk_hangs = self.hung_change, None, False
        assert work is not None, "no change of the log waits for the disk"
        work()
        self._broker.core.driver.log_written()

    def wake_schedule(self) -> None:
        self.woken["schedule"] += 1
        if self.loops is not None:
            self.loops.wake_schedule()

    def wake_schedule_soon(self) -> None:
        self.woken["schedule"] += 1
        if self.loops is not None:
            self.loops.wake_schedule_soon()

    def wake_transactions(self) -> None:
        self.woken["transactions"] += 1

    def wake_retention(self) -> None:
        self.woken["retention"] += 1

    def wake_notices(self) -> None:
        self.woken["notices"] += 1
        if self.loops is not None:
            self.loops.wake_notices()
        while self.notifies and self._broker.core.notices.step():
            pass

    def wake_cold_reads(self) -> None:
        self.woken["cold_reads"] += 1
        if self.loops is not None:
            self.loops.wake_cold_reads()

    def wake_searches(self) -> None:
        self.woken["searches"] += 1
        while self.searches and self._broker.core.queries.step():
            pass

    def save_offsets_soon(self) -> None:
        if self.loops is not None:
            self.loops.save_offsets_soon()

    def save_tables_soon(self) -> None:
        if self.loops is not None:
            self.loops.save_tables_soon()
        elif self.saves_tables:
            self._broker.core.save_tables()

    def topics_changed(self) -> None:
        self.topic_changes += 1

    def when_routed(self, done: Callable[[], None]) -> None:
        done()

    def is_holding(self, channel: Channel) -> bool:
        return self.holds

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        if self.holds:
            self.held += commands
        return self.holds

    def call_client(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        self.client_call(channel, command, timeout_ms, done)

    def ask_name_server(self, command: Command, done: Done) -> None:
        self.asked.append((command, done))

    def address_problem(self) -> str:
        return ""


def _nobody_is_called(channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
    raise AssertionError(f"no client of this test answers {command.code}")


class TableListener:
    """`table` None: nobody is told of the changes. Else it is written at once."""

    def __init__(self) -> None:
        self.table: TopicTable | GroupTable | None = None
        self.topic_changes = 0

    def table_changed(self) -> None:
        """Nobody follows."""

    def save_tables_soon(self) -> None:
        if self.table is not None:
            self.table.save()

    def topics_changed(self) -> None:
        self.topic_changes += 1

    def batch_topics_changed(self, topics: set[str]) -> None:
        """Nobody stores."""


def topic_table(disk: Disk, config: BrokerConfig, clock: Clock, **keys: Any) -> TopicTable:
    """Each change is on the disk at once."""
    listener = TableListener()
    listener.table = table = TopicTable(disk, config, clock, listener, **keys)
    return table


def group_table(disk: Disk, clock: Clock, config: BrokerConfig | None = None, **keys: Any) -> GroupTable:
    """Each change is on the disk at once."""
    listener = TableListener()
    listener.table = table = GroupTable(disk, clock, config or BrokerConfig(), listener, **keys)
    return table


class RoomyDisk(HostDisk):
    """Other programs may have filled the machine's disk."""

    def space(self, path: str = "") -> tuple[int, int]:
        return 60, 40


class Broker:
    """`start` makes it what `controller` says. `run` does what loops do: timers, flush, dispatch."""

    def __init__(self, directory: Path, *, memory_bytes: int = 0, **keys: Any) -> None:
        self.directory = directory
        self.open = True
        self.clock = ManualClock()
        self.tracer = RecordingTracer()
        self.controller = ScriptedController.of(1)
        defaults = {
            "metadata_sync": "periodic",
            "listen_port": 20911,
            "mapped_file_size_commit_log": 1024 * 1024,
            "max_message_size": 100_000,
        }
        self.config = BrokerConfig(**{**defaults, "mapped_file_size_consume_queue": 6000, **keys})
        disk = RoomyDisk(directory)
        self.store = Store.open(
            disk,
            StoreConfig(
                mapped_file_size_commit_log=self.config.mapped_file_size_commit_log,
                mapped_file_size_consume_queue=self.config.mapped_file_size_consume_queue,
                mapper_file_size_batch_consume_queue=self.config.mapper_file_size_batch_consume_queue,
                transient_store_pool_enable=self.config.transient_store_pool_enable,
                max_hash_slot_num=self.config.max_hash_slot_num,
                max_index_num=self.config.max_index_num,
            ),
            self.tracer,
        )
        identity = BrokerIdentity(IdentityFile(disk), self.config.broker_cluster_name, self.config.broker_name)
        self.shell = FakeShell(self)
        self.core = BrokerCore(
            self.config,
            disk,
            self.store,
            identity,
            self.clock,
            self.tracer,
            (b"\x7f\0\0\1", self.config.listen_port),
            self.shell,
            PythonKernel(),
            host=HostFacts(
                process={"pid": 1, "dataDirectory": str(directory)},
                disk_usage=lambda: (110, 60, 40),
                history=self.tracer.history,
                memory_bytes=memory_bytes,
            ),
        )
        self.ports = _Ports(self)
        self.core.driver.ha = self.ports
        self.core.driver.controller = self.ports

    def start(self) -> Broker:
        self.core.driver.start()
        self.run()
        return self

    def run(self, ms: int = 0) -> None:
        """Let time pass and do all work that is due."""
        self.clock.ms += ms
        driver = self.core.driver
        deadline_ms = self.core.replica.deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.clock.ms:
            driver.timeout()
        if driver.flush_due:
            driver.flush_begins()
            self.store.sync()
            driver.synced()
        while driver.dispatch_due and driver.dispatch():
            pass
        self.core.deliver()
        while self.core.transactions.step():
            pass
        while driver.dispatch_due and driver.dispatch():
            pass
        self.core.pull.timeout()
        self.core.pops.timeout()

    def join_slave(self, broker_id: int, at: int = 0) -> None:
        """HA connection 1: a slave shakes hands and acks a log that ends at `at`."""
        self.core.driver.ha_accepted(1, "127.0.0.1:9")
        self.core.driver.ha_received(1, SlaveHandshake(BrokerId(broker_id)).encode())
        self.core.driver.ha_received(1, SlaveAck(PhyOffset(at)).encode())

    def ask(self, command: Command, channel: FakeChannel | None = None) -> Command:
        """Process one request, do the work that is due, and give its only answer."""
        channel = FakeChannel() if channel is None else channel
        self.core.processor.received(channel, [command])
        self.run()
        return channel.one()

    def close(self) -> None:
        self.open = False
        self.core.close()


def send_command(topic: str = "T", queue_id: int = 0, body: bytes = b"x", **ext: Any) -> Command:
    """Request 310 as the Java client writes it."""
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0"}
    return Command(RequestCode.SEND_MESSAGE_V2, {**fields, "i": "", "j": "0", "k": "false", "m": "false", **ext}, body)


def pull_command(topic: str = "T", queue_id: int = 0, offset: int = 0, **ext: Any) -> Command:
    """Request 11 with its own subscription; sysFlag 4 does not wait, 6 does."""
    fields = {"consumerGroup": "G", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset)}
    more = {"maxMsgNums": "32", "sysFlag": "4", "subscription": "*", "suspendTimeoutMillis": "15000"}
    return Command(RequestCode.PULL_MESSAGE, {**fields, **more, **ext})


def golden_frames(name: str) -> Iterator[tuple[dict[str, Any], Command]]:
    """(facts, command) of each whole frame of a capture, in order."""
    with (GOLDEN / "wire" / f"{name}.jsonl").open() as lines:
        for line in lines:
            facts = json.loads(line)
            commands = FrameParser(MAX_FRAME_BYTES).feed(base64.b64decode(facts["raw_b64"]))
            if commands:
                yield facts, commands[0]


def ack(broker: Broker) -> None:
    """The slave has everything."""
    broker.core.driver.ha_sent(1)
    broker.core.driver.ha_received(1, SlaveAck(PhyOffset(broker.store.max_phy_offset)).encode())
    broker.run()
