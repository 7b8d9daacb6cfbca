"""The shell on real sockets and files: a group's life, restart, and what a user may do wrong."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from controller.config import ControllerConfig
from controller.quorum.raft_peer_filter import RaftPeerFilter
from controller.server import OVERRIDES_FILE, ControllerServer, read_config, run_controller
from rmqha.cli.main import first_error
from rmqha.host.access.security import NO_SECURITY
from rmqha.host.disk import HostAppendFile
from rmqha.host.net.poller import Poller
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import BrokenInvariantError, RemoteError, UnreachableError, UsageError
from rmqha.model.offset import Buffer
from rmqha.wire.command import Command
from rmqha.wire.config_answer import parse_keys
from rmqha.wire.frame import encode_frame
from tests.controller.harness import CLUSTER, GROUP, Broker
from tests.support.patience import HANG_MS, HANG_S

MAX_FRAME = 1024 * 1024


def quiet() -> HostTracer:
    return HostTracer(write=lambda _: None)


def sole(path: Path, **keys: object) -> ControllerConfig:
    return ControllerConfig(
        controller_dleger_peers="n0-127.0.0.1:0",
        controller_store_path=str(path),
        **keys,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def running(config: ControllerConfig, tracer: HostTracer | None = None) -> AsyncIterator[str]:
    """The controller's address; SIGTERM's way out at the end."""
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[int]) -> None:
            await run_controller(config, tracer or quiet(), stopping=stopping, task_status=task_status)

        port: int = await nursery.start(run)
        yield f"127.0.0.1:{port}"
        stopping.set()


class BrokerPort:
    """What a broker listens on: answers 1007, keeps notices."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.notices: list[Command] = []

    def opened(self, session: Session) -> None:
        session.attachment = self

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            if command.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
                self.notices.append(command)
            else:
                answer = self.broker.epoch_cache()
                session.send(command.reply(body=answer.body))

    def closed(self, session: Session) -> None:
        session.attachment = None


async def ask(client: RemotingClient, address: str, code: RequestCode, ext: dict[str, str] | None = None) -> Command:
    answer = await client.call(address, Command(code, ext), HANG_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError(answer.code, answer.remark or "", address)
    return answer


async def boot(client: RemotingClient, controller: str, broker: Broker, port: int) -> Command:
    ids = {"clusterName": CLUSTER, "brokerName": GROUP}
    issued = await ask(client, controller, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ids)
    broker.broker_id = int(issued.ext["nextBrokerId"])
    applied = {"appliedBrokerId": str(broker.broker_id), "registerCheckCode": f"127.0.0.1:{port};1"}
    await ask(client, controller, RequestCode.CONTROLLER_APPLY_BROKER_ID, ids | applied)
    register = {
        "brokerId": str(broker.broker_id),
        "brokerAddress": f"127.0.0.1:{port}",
        "invokeTime": "0",
        "totalReplicas": "2",
        "haMode": "ap",
    }
    await ask(client, controller, RequestCode.CONTROLLER_REGISTER_BROKER, ids | register)
    return await ask(client, controller, RequestCode.BROKER_HEARTBEAT, broker.beat().ext)


async def eventually(holds: Callable[[], bool]) -> None:
    """Poll for what no event tells."""
    with trio.fail_after(HANG_S):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.005)


async def until_master(client: RemotingClient, controller: str, master_id: str) -> Command:
    with trio.fail_after(HANG_S):
        while True:
            answer = await ask(client, controller, RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP})
            if answer.ext.get("masterBrokerId") == master_id:
                return answer
            await trio.sleep(0.005)


async def test_a_group_boots_and_fails_over_on_real_sockets(tmp_path: Path) -> None:
    tracer = quiet()
    async with (
        running(sole(tmp_path / "store"), tracer) as controller,
        RemotingClient() as first,
        RemotingClient() as second,
        trio.open_nursery() as nursery,
    ):
        ports: list[BrokerPort] = []
        scopes: list[trio.CancelScope] = []
        for client in (first, second):
            service = BrokerPort(Broker(0, timeout_ms=2 * HANG_MS))
            scope = trio.CancelScope()

            async def listen(
                service: BrokerPort = service,
                scope: trio.CancelScope = scope,
                *,
                task_status: trio.TaskStatus[int],
            ) -> None:
                with scope:
                    await serve(service, "127.0.0.1:0", max_frame_bytes=MAX_FRAME, task_status=task_status)

            port: int = await nursery.start(listen)
            await boot(client, controller, service.broker, port)
            ports.append(service)
            scopes.append(scope)
        await until_master(second, controller, "1")
        body = b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}'
        alter = {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}
        command = Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, alter, body)
        assert (await first.call(controller, command, HANG_MS)).code == 0

        scopes[0].cancel()  # the master dies: its port refuses, its connection closes
        first.close(controller)
        answer = await until_master(second, controller, "2")  # found by the closed connection, not by the time-out
        assert (answer.ext["masterEpoch"], bytes(answer.body)) == ("2", b'{"syncStateSet":[2],"syncStateSetEpoch":3}')
        await eventually(lambda: any(notice.ext["masterBrokerId"] == "2" for notice in ports[1].notices))
        history = json.loads(bytes((await ask(second, controller, RequestCode.RMQHA_GET_HISTORY)).body))
        failover = [event["event"] for event in history["events"] if event["event"].startswith("master_")]
        assert failover == ["master_elected", "master_suspected", "master_dead", "master_elected"]
        nursery.cancel_scope.cancel()
    assert "raft_role_changed" in {event["event"] for event in tracer.history()}


async def test_a_restarted_controller_remembers(tmp_path: Path) -> None:
    config = sole(tmp_path / "store")
    async with running(config) as controller, RemotingClient() as client:
        await boot(client, controller, Broker(0), 10911)
        update = Command(RequestCode.CONTROLLER_UPDATE_CONFIG, {}, b"enableElectUncleanMaster=true\n")
        assert (await client.call(controller, update, HANG_MS)).code == 0
        assert (tmp_path / "store" / OVERRIDES_FILE).exists()
    async with running(config) as controller, RemotingClient() as client:
        ids = {"clusterName": CLUSTER, "brokerName": GROUP}
        issued = await ask(client, controller, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ids)
        assert issued.ext["nextBrokerId"] == "2"
        text = str((await ask(client, controller, RequestCode.CONTROLLER_GET_CONFIG)).body, "utf-8")
        assert "enableElectUncleanMaster=true\n" in text


async def test_a_changed_key_that_cannot_be_kept_is_said_and_ends_nothing(tmp_path: Path) -> None:
    async with running(sole(tmp_path / "store")) as controller, RemotingClient() as client:
        (tmp_path / "store" / OVERRIDES_FILE).mkdir()
        update = Command(RequestCode.CONTROLLER_UPDATE_CONFIG, {}, b"enableElectUncleanMaster=true\n")
        reply = await client.call(controller, update, HANG_MS)
        assert reply.code == ResponseCode.SYSTEM_ERROR and "in force until a restart" in (reply.remark or "")
        told = await ask(client, controller, RequestCode.CONTROLLER_GET_CONFIG)
        assert parse_keys(told, "n0").overridden == frozenset({"enableElectUncleanMaster"})


async def test_a_controller_waits_for_room_on_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, tracer, is_full = HostAppendFile.append, quiet(), True

    def append_part(file: HostAppendFile, data: Buffer) -> None:
        append(file, memoryview(data)[: len(data) // 2] if is_full else data)
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("controller.server.ROOM_CHECK_MS", 10)
    async with running(sole(tmp_path / "store"), tracer) as controller, RemotingClient() as client:
        ids = {"clusterName": CLUSTER, "brokerName": GROUP}
        applied = {**ids, "appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}
        await ask(client, controller, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ids)
        monkeypatch.setattr(HostAppendFile, "append", append_part)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, client, controller, RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)
            told = list[object]()
            with trio.fail_after(HANG_S):
                while not told:
                    told = [event["reason"] for event in tracer.history() if event["event"] == "log_lacks_room"]
                    await trio.sleep(0.005)
            state = await ask(client, controller, RequestCode.RMQHA_GET_CONTROLLER_STATE)
            assert "No space left on device; free some space on that disk" in str(told)
            assert json.loads(bytes(state.body))["raft"]["unsavedMs"] >= 0, "it answers meanwhile"
            is_full = False
    async with running(sole(tmp_path / "store")) as controller, RemotingClient() as client:
        issued = await ask(client, controller, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ids)
        assert issued.ext["nextBrokerId"] == "2", "what waited for room was written once"


async def test_a_controller_that_waits_for_room_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: HostAppendFile, data: Buffer) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    tracer = quiet()
    with trio.fail_after(HANG_S):
        async with running(sole(tmp_path / "store"), tracer) as controller, RemotingClient() as client:
            ids = {"clusterName": CLUSTER, "brokerName": GROUP}
            await ask(client, controller, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ids)
            monkeypatch.setattr(HostAppendFile, "append", refuse)
            applied = {**ids, "appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}
            with pytest.raises(UnreachableError):
                command = Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)
                await client.call(controller, command, 500)
            assert "log_lacks_room" in {event["event"] for event in tracer.history()}


async def test_three_controllers_elect_a_leader_and_hand_over(tmp_path: Path) -> None:
    async with RemotingClient() as client:
        ports = []
        async with trio.open_nursery() as nursery:  # three free ports
            for _ in range(3):
                ports.append(await nursery.start(_reserve))
            nursery.cancel_scope.cancel()
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        stops = [trio.Event() for _ in ports]
        async with trio.open_nursery() as nursery:
            for number, stop in enumerate(stops):
                config = ControllerConfig(
                    controller_dleger_peers=peers,
                    controller_dleger_self_id=f"n{number}",
                    controller_store_path=str(tmp_path / f"n{number}"),
                )
                tracer = quiet()

                async def run(
                    config: ControllerConfig = config,
                    tracer: HostTracer = tracer,
                    stop: trio.Event = stop,
                    *,
                    task_status: trio.TaskStatus[int],
                ) -> None:
                    await run_controller(config, tracer, stopping=stop, task_status=task_status)

                await nursery.start(run)
            addresses = [f"127.0.0.1:{port}" for port in ports]
            leader = await _agreed_leader(client, addresses)
            stops[addresses.index(leader)].set()
            rest = [address for address in addresses if address != leader]
            assert await _agreed_leader(client, rest) != leader
            for stop in stops:
                stop.set()


async def _reserve(task_status: trio.TaskStatus[int]) -> None:
    await serve(BrokerPort(Broker(0)), "127.0.0.1:0", max_frame_bytes=MAX_FRAME, task_status=task_status)


async def _agreed_leader(client: RemotingClient, addresses: list[str]) -> str:
    """The leader that all of `addresses` name and that is one of them."""
    with trio.fail_after(HANG_S):
        while True:
            named = set()
            for address in addresses:
                try:
                    answer = await ask(client, address, RequestCode.CONTROLLER_GET_METADATA_INFO)
                    named.add(answer.ext["controllerLeaderAddress"])
                except UnreachableError:
                    named.add("")
            if len(named) == 1 and (leader := named.pop()) in addresses:
                return leader
            await trio.sleep(0.02)


async def fails_with(config: ControllerConfig) -> str:
    """The one sentence that the user reads."""
    try:
        await run_controller(config, quiet())
    except BaseExceptionGroup as group:
        error = first_error(group)
    except UsageError as usage:
        error = usage
    assert isinstance(error, UsageError)
    return str(error)


async def test_a_port_in_use_leaves_no_trace(tmp_path: Path) -> None:
    async with running(sole(tmp_path / "first")) as address:
        port = address.rpartition(":")[2]
        config = ControllerConfig(
            controller_dleger_peers=f"n0-127.0.0.1:{port}", controller_store_path=str(tmp_path / "second")
        )
        assert f"port {port} in use on 127.0.0.1" in await fails_with(config)
        assert not (tmp_path / "second").exists()


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async with running(sole(tmp_path / "store")):
        assert "is in use by another controller" in await fails_with(sole(tmp_path / "store"))


async def test_a_directory_of_another_controller_is_refused_and_untouched(tmp_path: Path) -> None:
    async with running(sole(tmp_path / "store")):
        pass
    before = {path: path.read_bytes() for path in sorted((tmp_path / "store").rglob("*")) if path.is_file()}
    config = ControllerConfig(
        controller_dleger_peers="n7-127.0.0.1:0",
        controller_dleger_self_id="n7",
        controller_store_path=str(tmp_path / "store"),
    )
    assert "belongs to controller node 'n0', this is 'n7'" in await fails_with(config)
    assert {path: path.read_bytes() for path in sorted((tmp_path / "store").rglob("*")) if path.is_file()} == before


async def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "cannot use controllerStorePath" in await fails_with(sole(tmp_path / "file"))


async def test_a_spoilt_file_of_changed_keys_is_one_sentence(tmp_path: Path) -> None:
    foreign, directory = tmp_path / "foreign" / OVERRIDES_FILE, tmp_path / "directory" / OVERRIDES_FILE
    foreign.parent.mkdir()
    foreign.write_bytes(b"snapshotAfterEntries=\xff\n")
    assert await fails_with(sole(foreign.parent)) == f"{foreign} is not UTF-8 text; restore it or remove it"
    directory.mkdir(parents=True)
    said = await fails_with(sole(directory.parent))
    assert said == f"cannot use controllerStorePath {directory}: Is a directory"


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the configuration .*: No such file"):
        read_config(str(tmp_path / "none.conf"))
    (tmp_path / "bad.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is not UTF-8 text"):
        read_config(str(tmp_path / "bad.conf"))
    (tmp_path / "good.conf").write_text("controllerStorePath=/x\n")
    assert read_config(str(tmp_path / "good.conf")).controller_store_path == "/x"


FRAME = encode_frame(Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
FOREIGN = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "oversized": struct.pack(">iI", 2**30, 8),
    "negative length": struct.pack(">iI", -5, 8),
    "header longer than the frame": struct.pack(">iI", 12, 4000) + bytes(8),
    "unknown header codec": struct.pack(">iI", 12, 9 << 24 | 8) + bytes(8),
    "header that is no JSON": struct.pack(">iI", 12, 8) + b"{{{{{{{{",
    "Raft message of a stranger": encode_frame(Command(RequestCode.RMQHA_RAFT_MESSAGE, body=b"\xff\x00")),
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN.keys())
async def test_foreign_bytes_close_the_connection_and_change_nothing(tmp_path: Path, data: bytes) -> None:
    async with running(sole(tmp_path / "store")) as controller, RemotingClient() as client:
        await boot(client, controller, Broker(0), 10911)
        before = await groups(client, controller)
        host, _, port = controller.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            await stream.send_all(FRAME + data)
            with trio.fail_after(HANG_S):
                while await stream.receive_some():
                    pass
        assert await groups(client, controller) == before


async def test_a_truncated_request_changes_nothing(tmp_path: Path) -> None:
    async with running(sole(tmp_path / "store")) as controller, RemotingClient() as client:
        await boot(client, controller, Broker(0), 10911)
        before = await groups(client, controller)
        ids = {
            "clusterName": CLUSTER,
            "brokerName": GROUP,
            "brokerControllerIdsToClean": "1",
            "isCleanLivingBroker": "true",
        }
        whole = encode_frame(Command(RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, ids))
        host, _, port = controller.rpartition(":")
        for size_bytes in (1, 7, 20, len(whole) - 1):
            stream = await trio.open_tcp_stream(host, int(port))
            async with stream:
                await stream.send_all(whole[:size_bytes])
        assert await groups(client, controller) == before


async def test_unknown_codes_duplicate_ids_and_wrong_clusters_are_refused(tmp_path: Path) -> None:
    async with running(sole(tmp_path / "store")) as controller, RemotingClient() as client:
        await boot(client, controller, Broker(0), 10911)
        before = await groups(client, controller)
        ids = {"clusterName": CLUSTER, "brokerName": GROUP, "appliedBrokerId": "1", "registerCheckCode": "x;1"}
        stale = {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "0"}
        body = b'{"syncStateSet":[1],"syncStateSetEpoch":0}'
        for command, code in (
            (Command(31_337), ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            (Command(52_099), ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            (Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, ids), ResponseCode.CONTROLLER_BROKER_ID_INVALID),
            (
                Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, ids | {"clusterName": "other", "appliedBrokerId": "2"}),
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            ),
            (
                Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, stale, body),
                ResponseCode.CONTROLLER_INVALID_MASTER,
            ),
        ):
            answer = await client.call(controller, command, HANG_MS)
            assert answer.code == code and answer.remark
        assert await groups(client, controller) == before


async def groups(client: RemotingClient, controller: str) -> object:
    """What the controller remembers, without what moves by itself."""
    state = json.loads(bytes((await ask(client, controller, RequestCode.RMQHA_GET_CONTROLLER_STATE)).body))
    for group in state["groups"].values():
        for replica in group["replicas"]:
            replica.pop("silentMs", None)
    return state["groups"]


class SlowClient(RemotingClient):
    """Keeps what it is given, and takes a turn of the event loop each time."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[bytes]] = []

    async def oneway(self, address: str, *commands: Command, timeout_ms: int = 0) -> None:
        self.sent.append([bytes(command.body) for command in commands])
        await trio.lowlevel.checkpoint()


async def test_raft_messages_that_come_together_go_out_together() -> None:
    """One a turn was slower than they came: among 6,000 registrations answers came too late for the leader's lease."""
    client = SlowClient()
    async with trio.open_nursery() as nursery:
        server = ControllerServer(quiet(), client, client, RaftPeerFilter(NO_SECURITY), nursery, Poller())
        messages = [str(number).encode() for number in range(100)]
        for message in messages:
            server._queue_raft("n1", "127.0.0.1:1", "127.0.0.1:2", message)
        await eventually(lambda: sum(map(len, client.sent)) == len(messages))
        nursery.cancel_scope.cancel()
    assert client.sent == [messages]


async def test_a_bug_in_one_request_ends_its_session_and_a_broken_machine_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buggy(*arguments: object) -> None:
        raise KeyError("group")

    tracer = quiet()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(sole(tmp_path), tracer) as controller, RemotingClient() as client:
            monkeypatch.setattr("controller.machine.ControllerMachine._leader_request", buggy)
            with pytest.raises(UnreachableError):
                await ask(client, controller, RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "g"})
            monkeypatch.undo()
            answer = await ask(client, controller, RequestCode.CONTROLLER_GET_METADATA_INFO)
            assert answer.ext["isLeader"] == "true"
            assert "request_failed" in [item["event"] for item in tracer.history()]
            monkeypatch.setattr("controller.machine.ControllerMachine._write_image", buggy)
            with trio.fail_after(HANG_S):
                await trio.sleep_forever()
    assert caught.value.subgroup(BrokenInvariantError) is not None
