"""Broker processes' shells on real sockets and files, against a scripted controller that is also the name server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from rmqha.broker.server import Ports, _close, run_broker
from rmqha.broker.tables import config_table
from rmqha.host.access import security
from rmqha.host.net import network, remoting
from rmqha.host.net.remoting import RemotingClient
from rmqha.host.net.session import Session
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RmqhaError, StoreError, UnreachableError
from rmqha.model.message import encode_properties
from rmqha.store.log.record import decode
from rmqha.store.meta.boot_file import LastStop
from rmqha.wire.command import Command
from tests.broker.support import MAX_FRAME_BYTES, Broker, pull_command, send_command
from tests.host.access.test_peer_filter import sharing
from tests.support.controller import ScriptedController
from tests.support.patience import HANG_MS, HANG_S


class Registry:
    """One group's controller and name server. `masters` decides; brokers get their ids in order of asking."""

    def __init__(self) -> None:
        self.controller = ScriptedController()
        self.addresses = self.controller.addresses
        self.ha_addresses: dict[int, str] = {}
        self.registered: dict[str, int] = {}
        self.requests: list[Command] = []
        self.port = 0

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.requests.append(command)
            reply = self._reply(command)
            if not command.is_oneway:
                session.send(reply)

    def _reply(self, command: Command) -> Command:
        ext, controller = command.ext, self.controller
        match command.code:
            case RequestCode.REGISTER_BROKER:
                self.registered[ext["brokerAddr"]] = int(ext["brokerId"])
                return command.reply(0, {})
            case RequestCode.UNREGISTER_BROKER:
                self.registered.pop(ext["brokerAddr"], None)
                return command.reply(0, {})
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                self.addresses[int(ext["brokerId"])] = ext["brokerAddress"]
                self.ha_addresses[int(ext["brokerId"])] = ext["haAddress"]
                if controller.master is None:
                    self.elect(int(ext["brokerId"]))
        reply = controller.answer(command)
        assert reply is not None
        if controller.master is not None and "masterAddress" in reply.ext:
            reply.ext["masterHaAddress"] = self.ha_addresses.get(controller.master, "")
        return reply

    def elect(self, broker_id: int) -> None:
        self.controller.elect(broker_id)

    def codes(self) -> set[int]:
        return {command.code for command in self.requests}


class SlowNames(Registry):
    """A name server that keeps registrations waiting while `slow`."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.waiting: list[tuple[Session, Command]] = []

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            if self.slow and command.code == RequestCode.REGISTER_BROKER:
                self.waiting.append((session, command))
            else:
                super().received(session, [command])

    def go_on(self) -> None:
        self.slow = False
        for session, command in self.waiting:
            super().received(session, [command])


class Running:
    """A broker in a nursery."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.stopping = trio.Event()
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        self.lines: list[str] = []
        self.tracer = HostTracer(write=self.lines.append)
        self.ports = Ports(0, 0, 0)

    async def run(self, task_status: trio.TaskStatus[Ports]) -> None:
        with self.scope:
            await run_broker(self.config, self.tracer, self.stopping, task_status=task_status)
        self.ended.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports.listen}"

    async def stop(self) -> None:
        self.stopping.set()
        with trio.fail_after(HANG_S):
            await self.ended.wait()


class Shells:
    """What the tests use: a registry, a client, and brokers."""

    def __init__(self, nursery: trio.Nursery, registry: Registry, client: RemotingClient, root: Path) -> None:
        self.nursery = nursery
        self.registry = registry
        self.client = client
        self.root = root

    def config(self, name: str = "a", **keys: Any) -> BrokerConfig:
        address = f"127.0.0.1:{self.registry.port}"
        defaults: dict[str, Any] = {
            "listen_port": 0,
            "controller_addr": address,
            "namesrv_addr": address,
            "store_path_root_dir": str(self.root / name),
            "max_message_size": 100_000,
            "broker_heartbeat_interval": 100,
            "mapped_file_size_commit_log": 1024 * 1024,
            "mapped_file_size_consume_queue": 6000,
            "disk_max_used_space_ratio": 100,
            "disk_space_clean_forcibly_ratio": 100,
            "disk_space_warning_level_ratio": 100,
        }
        return BrokerConfig(**{**defaults, **keys})

    async def start(self, name: str = "a", **keys: Any) -> Running:
        broker = Running(self.config(name, **keys))
        broker.ports = await self.nursery.start(broker.run)
        return broker

    async def call(self, address: str, command: Command) -> Command:
        return await self.client.call(address, command, HANG_MS)

    async def until(self, condition: Callable[[], bool]) -> None:
        async def holds() -> bool:
            return condition()

        await self.eventually(holds)

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Ask until it holds; fail after HANG_S."""
        with trio.fail_after(HANG_S):
            while True:
                if await condition():
                    return
                await trio.sleep(0.01)

    async def until_state(self, broker: Running, **wanted: Any) -> None:
        """Until the broker's own view shows all of `wanted`."""

        async def shows() -> bool:
            state = await self.state(broker)
            return all(state.get(key) == value for key, value in wanted.items())

        await self.eventually(shows)

    async def state(self, broker: Running) -> dict[str, Any]:
        reply = await self.call(broker.address, Command(RequestCode.RMQHA_GET_REPLICA_STATE))
        state: dict[str, Any] = json.loads(bytes(reply.body))
        return state

    async def send(self, broker: Running, body: bytes) -> Command:
        """Send until the broker takes it, as a client with retries."""
        with trio.fail_after(HANG_S):
            while True:
                reply = await self.call(broker.address, send_command(body=body))
                if reply.code not in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR):
                    return reply
                await trio.sleep(0.02)


@asynccontextmanager
async def shells(root: Path) -> AsyncIterator[Shells]:
    registry = Registry()
    async with trio.open_nursery() as nursery, RemotingClient() as client:
        serve = partial(remoting.serve, registry, "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES)
        registry.port = await nursery.start(serve)
        yield Shells(nursery, registry, client, root)
        nursery.cancel_scope.cancel()


async def test_send_pull_commit_stop_reopen(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start()
        first = await here.send(broker, b"one")
        assert first.code == 0
        fast = f"127.0.0.1:{broker.ports.fast}"
        pulled = await here.call(fast, pull_command())
        assert pulled.code == 0 and b"one" in bytes(pulled.body)
        offset = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
        assert (await here.call(broker.address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, offset))).code == 0
        await here.until(lambda: here.registry.registered.get(broker.address) == 0)
        await here.until(lambda: RequestCode.BROKER_HEARTBEAT in here.registry.codes())
        assert (tmp_path / "a" / "abort").exists()
        await broker.stop()
        assert not (tmp_path / "a" / "abort").exists()
        assert here.registry.registered == {}
        again = await here.start()
        assert (await here.send(again, b"two")).ext["queueOffset"] == "1"
        query = Command(RequestCode.QUERY_CONSUMER_OFFSET, offset)
        assert (await here.call(again.address, query)).ext == {"offset": "1"}
        await again.stop()


async def test_what_waits_comes_though_the_longest_body_is_shorter_by_now(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start()
        await here.send(broker, b"first")
        for more in ("DELAY\x011\x02", "TIMER_DELAY_MS\x01900\x02"):
            late = send_command(body=b"x" * 50_000, i=f"UNIQ_KEY\x01U\x02{more}")
            assert (await here.call(broker.address, late)).code == 0
        await broker.stop()
        again = await here.start(max_message_size=10_000)
        await here.send(again, b"second")
        long = await here.call(again.address, send_command(body=b"x" * 10_001))
        assert long.code == ResponseCode.MESSAGE_ILLEGAL

        async def come() -> bool:
            pulled = await here.call(again.address, pull_command(offset=0))
            return bytes(pulled.body).count(b"x" * 50_000) == 2

        await here.eventually(come)
        await again.stop()


async def test_a_store_that_is_moved_away_is_told_until_it_is_back(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start(disk_probe_interval_millis=20)
        await here.send(broker, b"one")
        (tmp_path / "a").rename(tmp_path / "away")

        async def is_told() -> bool:
            return "it was moved or removed" in (await here.state(broker))["diskProblem"]

        await here.eventually(is_told)
        assert not (tmp_path / "a").exists()
        assert (await here.call(broker.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))).code == 0
        (tmp_path / "away").rename(tmp_path / "a")
        await here.until_state(broker, diskProblem="")
        assert (await here.send(broker, b"two")).code == 0
        await broker.stop()
        assert not (tmp_path / "a" / "abort").exists()


def test_a_stop_that_cannot_write_the_tables_is_not_a_clean_one(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start writes them again before it believes them."""
    broker = make_broker().start()
    broker.ask(send_command())
    broker.core.offsets.commit("G", "T", 0, 1)
    broker.open = False
    with monkeypatch.context() as patches:
        patches.setattr(config_table, "write", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            _close(broker.core, HostTracer(write=lambda line: None), in_order=True)
    assert (broker.directory / "abort").exists()
    with monkeypatch.context() as patches:
        written = Mock(side_effect=config_table.write)
        patches.setattr(config_table, "write", written)
        again = make_broker()
    assert again.store.recovery.last_stop is LastStop.KILLED
    assert [call.args[1] for call in written.call_args_list] == ["topics", "subscriptionGroup"]


async def test_long_polling_over_the_wire(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start()
        await here.send(broker, b"one")
        replies: list[Command] = []

        async def wait_for_the_next() -> None:
            replies.append(await here.call(broker.address, pull_command(offset=1, sysFlag="6")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_the_next)
            await here.until_state(broker, heldPullCount=1)
            await here.send(broker, b"two")
        assert b"two" in bytes(replies[0].body)
        short = await here.call(broker.address, pull_command(offset=2, sysFlag="6", suspendTimeoutMillis="50"))
        assert short.code == ResponseCode.PULL_NOT_FOUND
        await broker.stop()


async def test_the_index_is_built_behind_the_queues(tmp_path: Path) -> None:
    """Without any query asking for it."""
    async with shells(tmp_path) as here:
        broker = await here.start(max_hash_slot_num=8, max_index_num=4, total_replicas=1)
        await here.send(broker, b"zero")

        for number in range(7):
            properties = encode_properties({"KEYS": f"k{number}"}).decode()
            assert (await here.call(broker.address, send_command(i=properties))).code == 0

        async def indexed() -> bool:
            """Each message has its key and the unique key that the broker made."""
            sizes = [path.stat().st_size for path in (tmp_path / "a" / "index").glob("*")]
            return sizes == [40 + 4 * 8 + 20 * 4] * 5

        await here.eventually(indexed)
        fields = {"topic": "T", "key": "k3", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        reply = await here.call(broker.address, Command(RequestCode.QUERY_MESSAGE, fields))
        assert reply.code == 0 and decode(memoryview(bytes(reply.body))).phy_offset > 0
        await broker.stop()


async def test_pipelined_sends_are_all_answered(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start()
        await here.send(broker, b"first")
        replies: list[Command] = []

        async def send_one(number: int) -> None:
            replies.append(await here.call(broker.address, send_command(queue_id=number % 4, body=b"%d" % number)))

        async with trio.open_nursery() as nursery:
            for number in range(400):
                nursery.start_soon(send_one, number)
        assert {reply.code for reply in replies} == {0}
        places = {(reply.ext["queueId"], reply.ext["queueOffset"]) for reply in replies}
        assert len(places) == 400
        await broker.stop()


async def test_group_of_two_replicates_hands_over_and_follows(tmp_path: Path) -> None:
    """Also: SYNC_MASTER with allAck, tables that follow, a slave that is fenced until it is aligned. It refuses sends,
    since forwardSendsMillis lets it pass none on."""
    keys = {
        "total_replicas": 2,
        "broker_role": "SYNC_MASTER",
        "all_ack_in_sync_state_set": True,
        "forward_sends_millis": 0,
    }
    async with shells(tmp_path) as here:
        first = await here.start("a", **keys)
        await here.send(first, b"alone")
        second = await here.start("b", **keys)
        await here.until_state(first, ackUnion=[1, 2])
        assert (await here.send(first, b"both")).code == 0
        state = await here.state(second)
        assert (state["role"], state["maxPhyOffset"]) == ("SLAVE", (await here.state(first))["maxPhyOffset"])
        await here.until(lambda: here.registry.registered.get(second.address) == 2)

        async def knows_the_topic() -> bool:
            asked = Command(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
            return (await here.call(second.address, asked)).code == 0

        await here.eventually(knows_the_topic)
        assert (await here.call(second.address, send_command())).code == ResponseCode.SERVICE_NOT_AVAILABLE
        first.scope.cancel()
        await first.ended.wait()
        here.registry.elect(2)
        third = await here.send(second, b"after")
        assert third.ext["queueOffset"] == "2"
        await here.until(lambda: here.registry.registered.get(second.address) == 0)
        back = await here.start("a", **keys)
        await here.until_state(second, ackUnion=[1, 2])
        assert (await here.send(second, b"again")).code == 0
        ends = [(await here.state(broker))["maxPhyOffset"] for broker in (second, back)]
        assert ends[0] == ends[1]
        await back.stop()
        await second.stop()
    logs = [(tmp_path / name / "commitlog" / f"{0:020}").read_bytes() for name in ("a", "b")]
    assert logs[0] == logs[1]


async def test_probes_of_the_ha_port_do_not_reach_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.broker.replication.ha_service.HANDSHAKE_TIMEOUT_MS", 100)
    async with shells(tmp_path) as here:
        broker = await here.start()
        await here.send(broker, b"x")
        for first in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2" + bytes(12), b"\0\0\0\1"):
            stream = await network.dial(f"127.0.0.1:{broker.ports.ha}")
            async with stream:
                if first:
                    await stream.send_all(first)
                with trio.fail_after(HANG_S):
                    try:
                        assert await stream.receive_some(1) == b""
                    except trio.BrokenResourceError:
                        assert first  # closed with bytes unread: the kernel resets
        assert (await here.state(broker))["slaves"] == []
        assert not any("ha_closed" in line for line in broker.lines)
        await broker.stop()


async def test_stop_answers_held_pulls_and_refuses_sends(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start()
        await here.send(broker, b"x")
        replies: list[Command] = []

        async def wait() -> None:
            replies.append(await here.call(broker.address, pull_command(offset=1, sysFlag="6")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await here.until_state(broker, heldPullCount=1)
            await broker.stop()
        assert replies[0].code == ResponseCode.PULL_NOT_FOUND
        with pytest.raises(UnreachableError):
            await here.client.call(broker.address, send_command(), 500)


async def refused(config: BrokerConfig) -> str:
    """The sentence with which a broker refuses to start."""
    with pytest.raises(BaseException) as caught, trio.fail_after(HANG_S):
        await run_broker(config, HostTracer(write=lambda line: None))
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RmqhaError)
    assert "\n" not in str(error)
    return str(error)


async def test_port_in_use_writes_nothing(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start("a")
        port = broker.ports.listen
        sentence = await refused(replace(here.config("b"), listen_port=port))
        assert f"port {port} in use" in sentence
        assert not (tmp_path / "b").exists()
        await broker.stop()


async def test_directories_of_others_are_refused(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start("a")
        await here.send(broker, b"x")
        assert "in use by another process" in await refused(here.config("a"))
        await broker.stop()
        before = sorted(path.name for path in (tmp_path / "a").iterdir())
        assert "belongs to broker broker-a" in await refused(here.config("a", broker_name="other"))
        assert sorted(path.name for path in (tmp_path / "a").iterdir()) == before
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "diary.txt").write_text("dear")
        assert "diary.txt" in await refused(here.config("c"))
        assert [path.name for path in (tmp_path / "c").iterdir()] == ["diary.txt"]


async def test_a_damaged_table_leaves_nothing_running(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker = await here.start("a")
        await here.send(broker, b"x")
        await broker.stop()
        (tmp_path / "a" / "config" / "topics.json").write_text("{")
        assert "topics.json cannot be read" in await refused(here.config("a"))
        (tmp_path / "a" / "config" / "topics.json").unlink()
        again = await here.start("a")
        assert (await here.send(again, b"y")).ext["queueOffset"] == "1"
        await again.stop()


async def test_a_disk_that_fails_ends_the_broker_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    async with shells(tmp_path) as here:
        broker = Running(here.config("a"))
        with pytest.raises(BaseExceptionGroup) as caught, trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                broker.ports = await nursery.start(broker.run)
                monkeypatch.setattr("rmqha.host.disk.HostRegion.sync", fail)
                await here.send(broker, b"x")
        found = caught.value.subgroup(StoreError)
        assert found is not None
        assert (tmp_path / "a" / "abort").exists()


async def test_bad_addresses_are_a_sentence(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        config = here.config("b")
        assert (await refused(replace(config, controller_addr="nowhere"))).startswith("controllerAddr")
        assert (await refused(replace(config, namesrv_addr=";"))).startswith("namesrvAddr")
        assert not (tmp_path / "b").exists()


class Follower:
    """A controller that does not lead: it names the leader in its refusal, or (as Apache's) only when asked by 1005."""

    def __init__(self, leader: str, *, names_it: bool) -> None:
        self.leader = leader
        self.names_it = names_it
        self.asked: list[int] = []

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.asked.append(command.code)
            named = {"controllerLeaderAddress": self.leader}
            if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
                session.send(command.reply(0, named))
            else:
                ext = named if self.names_it else {}
                session.send(command.reply(ResponseCode.CONTROLLER_NOT_LEADER, ext))


@pytest.mark.parametrize("names_it", [True, False])
async def test_redirects_of_controllers_are_followed(tmp_path: Path, names_it: bool) -> None:
    async with shells(tmp_path) as here:
        follower = Follower(f"127.0.0.1:{here.registry.port}", names_it=names_it)
        serve = partial(remoting.serve, follower, "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES)
        port = await here.nursery.start(serve)
        broker = await here.start("a", controller_addr=f"127.0.0.1:1;127.0.0.1:{port}")
        assert (await here.send(broker, b"x")).code == 0
        looked_up = RequestCode.CONTROLLER_GET_METADATA_INFO in follower.asked
        assert looked_up is not names_it
        asked = [code for code in follower.asked if code != RequestCode.BROKER_HEARTBEAT]
        assert len(asked) <= 2  # after that the leader is known
        await broker.stop()


async def test_a_name_server_that_forgot_is_told_anew(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        names = Registry()
        scope = trio.CancelScope()

        async def serve(address: str, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
            with scope:
                await remoting.serve(names, address, max_frame_bytes=MAX_FRAME_BYTES, task_status=task_status)

        port = await here.nursery.start(serve, "127.0.0.1:0")
        broker = await here.start("a", namesrv_addr=f"127.0.0.1:{port};127.0.0.1:1")
        await here.until(lambda: names.registered.get(broker.address) == 0)
        scope.cancel()
        names.registered.clear()
        await here.until(lambda: any("name_server_unreachable" in line for line in broker.lines))
        scope = trio.CancelScope()
        await here.nursery.start(serve, f"127.0.0.1:{port}")
        await here.until(lambda: names.registered.get(broker.address) == 0)
        await broker.stop()


async def test_a_topic_is_routed_when_its_maker_is_answered(tmp_path: Path) -> None:
    """As Apache's broker does it: who sends then is not told that there is no such topic."""
    async with shells(tmp_path) as here:
        names = SlowNames()
        port = await here.nursery.start(partial(remoting.serve, names, "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES))
        broker = await here.start("a", namesrv_addr=f"127.0.0.1:{port};127.0.0.1:1")
        await here.until(lambda: names.registered.get(broker.address) == 0)
        await here.until(lambda: any("name_server_unreachable" in line for line in broker.lines))
        answers: list[Command] = []

        async def make() -> None:
            answers.append(
                await here.call(broker.address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "New"}))
            )

        names.slow = True
        here.nursery.start_soon(make)
        await here.until(lambda: bool(names.waiting))
        await here.state(broker)  # an answer would have come before this one
        assert answers == []
        names.go_on()
        await here.until(lambda: [answer.code for answer in answers] == [0])
        assert b'"New"' in bytes(names.waiting[-1][1].body)
        await broker.stop()


@pytest.mark.parametrize("mode", ["auto", "open"])
async def test_controllers_words_take_the_secret_where_there_is_one(tmp_path: Path, mode: str) -> None:
    """A notice without it is a reason to ask the controllers: Apache's sign nothing. A hand-over is refused, and a
    replica that says which tables it holds."""
    secured, closed = sharing(tmp_path), mode == "auto"
    security.ambient.set(secured)
    async with shells(tmp_path) as here, RemotingClient(security=secured.signing_with_secret()) as controller:
        broker = await here.start("a", ha_secret_file=str(tmp_path / "s"), ha_security=mode)
        await here.until_state(broker, role="MASTER")

        def asked() -> int:
            return [item.code for item in here.registry.requests].count(RequestCode.CONTROLLER_GET_REPLICA_INFO)

        before, epoch = asked(), here.registry.controller.epoch
        ext = {"masterBrokerId": "7", "masterAddress": "127.0.0.1:1", "masterEpoch": str(epoch + 1)}
        notice = partial(Command, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext, b'{"syncStateSet":[7]}')
        hand_over = Command(RequestCode.RMQHA_HAND_OVER, {"targetBrokerId": "7", "masterEpoch": "99"})
        refused = await here.call(broker.address, hand_over)
        assert (refused.code == ResponseCode.NO_PERMISSION) is closed
        held = dict.fromkeys(("topics", "groups", "offsets", "delays"), "9:9")
        follow = Command(RequestCode.RMQHA_FOLLOW_TABLES, {"version": "1", "masterEpoch": str(epoch), "brokerId": "2"})
        follow.ext |= held
        assert ((await here.call(broker.address, follow)).code == ResponseCode.NO_PERMISSION) is closed
        assert (await controller.call(broker.address, follow, HANG_MS)).code == 0
        await here.call(broker.address, notice())
        if closed:
            await here.until(lambda: asked() > before)
            assert (await here.send(broker, b"x")).code == 0, "it is still the master"
            await controller.call(broker.address, notice(), HANG_MS)
        await here.until_state(broker, role="SLAVE", epoch=epoch + 1)
        await broker.stop()


# --- whom it tells, while it runs -------------------------------------------------------------------------------------
async def another_registry(here: Shells) -> Registry:
    registry = Registry()
    serve = partial(remoting.serve, registry, "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES)
    registry.port = await here.nursery.start(serve)
    return registry


def update(text: str) -> Command:
    return Command(RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode())


async def test_a_name_server_that_is_named_later_is_told_and_the_old_one_no_more(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker, other = await here.start(), await another_registry(here)
        await here.until(lambda: here.registry.registered.get(broker.address) == 0)
        reply = await here.call(broker.address, update(f"namesrvAddr=127.0.0.1:{other.port}"))
        assert reply.code == 0, reply.remark
        await here.until(lambda: other.registered.get(broker.address) == 0)
        beats = [command for command in here.registry.requests if command.code == RequestCode.BROKER_HEARTBEAT]
        to_name_servers = [command for command in beats if "brokerAddr" in command.ext]
        await here.until(lambda: len([1 for command in other.requests if "brokerAddr" in command.ext]) > 3)
        after = [command for command in here.registry.requests if "brokerAddr" in command.ext]
        after = [command for command in after if command.code == RequestCode.BROKER_HEARTBEAT]
        assert len(after) <= len(to_name_servers) + 1, "it forgets by itself"
        reply = await here.call(broker.address, update("namesrvAddr=nowhere"))
        assert reply.code == 1 and "namesrvAddr" in (reply.remark or "")
        await broker.stop()
        assert other.registered == {}
        again = await here.start()
        await here.until(lambda: other.registered.get(again.address) == 0)
        await again.stop()


async def test_controllers_that_are_named_later_are_told(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        broker, other = await here.start(), await another_registry(here)
        await here.until_state(broker, role="MASTER")
        both = f"controllerAddr=127.0.0.1:{here.registry.port};127.0.0.1:{other.port}"
        assert (await here.call(broker.address, update(both))).code == 0
        await here.until(lambda: RequestCode.BROKER_HEARTBEAT in other.codes())
        await broker.stop()


async def test_name_servers_come_from_an_address_server(tmp_path: Path) -> None:
    async def list_page(stream: trio.SocketStream) -> None:
        asked = await stream.receive_some(4096)
        assert asked.startswith(b"GET /rocketmq/nsaddr HTTP/1.1")
        body = f"127.0.0.1:{here.registry.port}\n".encode()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await stream.aclose()

    async with shells(tmp_path) as here:
        listeners = await network.listen("127.0.0.1:0")
        here.nursery.start_soon(trio.serve_listeners, list_page, listeners)
        keys: dict[str, Any] = {
            "namesrv_addr": BrokerConfig.namesrv_addr,
            "fetch_namesrv_addr_by_address_server": True,
            "address_server": f"127.0.0.1:{network.local_port(listeners[0])}/rocketmq/nsaddr",
        }
        broker = await here.start(**keys)
        await here.until(lambda: here.registry.registered.get(broker.address) == 0)
        await broker.stop()
