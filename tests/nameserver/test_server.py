"""The name server over real sockets, its files, and the process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nameserver.config import NamesrvConfig, parse_config, read_config
from nameserver.fifo_lock import FifoLock, LockRequest
from nameserver.kv_config import MAX_ENTRY_CHARS, KvConfig
from nameserver.server import OVERRIDES_FILE, open_persistent, run_name_server
from rmqha.host.disk import HostDisk
from rmqha.host.net import network
from rmqha.host.net.remoting import RemotingClient
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import ConfigError, RemoteProtocolError, UsageError
from rmqha.wire.command import Command
from rmqha.wire.config_answer import parse_keys
from rmqha.wire.lenient_json import dumps, loads
from rmqha.wire.registration import SMALL_BYTES
from tests.nameserver.registration import register_broker_request
from tests.support.patience import HANG_MS, HANG_S, until

Ask = Callable[..., Any]


@asynccontextmanager
async def name_server(**keys: Any) -> AsyncIterator[tuple[RemotingClient, str, Ask]]:
    """A running name server, and `ask(code, ext)` to it."""
    tracer = HostTracer(write=lambda _: None)
    async with trio.open_nursery() as nursery, RemotingClient() as client:
        port = await nursery.start(run_name_server, NamesrvConfig(listen_port=0, **keys), tracer)
        address = f"127.0.0.1:{port}"

        async def ask(code: int, ext: dict[str, str] | None = None, version: int = 493) -> Command:
            return await client.call(address, Command(code, ext, version=version), HANG_MS)

        yield client, address, ask
        nursery.cancel_scope.cancel()


def registration(broker_id: int, port: int, epoch: int = 1) -> Command:
    return register_broker_request(
        cluster_name="c",
        broker_name="g",
        broker_id=broker_id,
        address=f"127.0.0.1:{port}",
        ha_address=f"127.0.0.1:{port + 1}",
        topic_config_table={"T": {"perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 3}},
        data_version={"counter": 1, "stateVersion": epoch, "timestamp": 5},
    )


async def test_register_and_ask() -> None:
    async with name_server(order_message_enable=True) as (client, address, ask):
        assert (await client.call(address, registration(0, 1000), HANG_MS)).ext == {}
        slave = await client.call(address, registration(2, 2000), HANG_MS)
        assert slave.ext == {"masterAddr": "127.0.0.1:1000", "haServerAddr": "127.0.0.1:1001"}
        # an old client reads unquoted ids unless it says otherwise, a new one strict JSON
        strict, lenient = b'{"0":"127.0.0.1:1000","2":"127.0.0.1:2000"}', b'{0:"127.0.0.1:1000",2:"127.0.0.1:2000"}'
        for version, ext, form in (
            (493, {}, strict), (401, {}, strict), (400, {}, lenient), (121, {"acceptStandardJsonOnly": "true"}, strict),
        ):  # fmt: skip
            reply = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", **ext}, version)
            assert form in bytes(reply.body), version
        setting = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "g:2"}
        assert (await ask(RequestCode.PUT_KV_CONFIG, setting)).code == ResponseCode.SUCCESS
        assert (await ask(RequestCode.GET_KV_CONFIG, setting)).ext == {"value": "g:2"}
        route = loads((await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body)
        assert route["orderTopicConf"] == "g:2"
        assert route["queueDatas"] == [
            {"brokerName": "g", "perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 3}
        ]
        events = loads((await ask(RequestCode.RMQHA_GET_HISTORY)).body)["events"]
        changes = [event["addresses"] for event in events if event["event"] == "route_changed"]
        assert changes == [{"0": "127.0.0.1:1000"}, {"0": "127.0.0.1:1000", "2": "127.0.0.1:2000"}]
        assert all(event["at_ms"] > 1_700_000_000_000 for event in events)


async def test_clients_from_elsewhere_that_are_told_of_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own connection passes for one from elsewhere."""
    async with name_server(scan_not_active_broker_interval=10) as (client, address, ask):
        await client.call(address, registration(0, 1000), HANG_MS)
        assert loads((await ask(RequestCode.RMQHA_GET_NAMESRV_STATE)).body)["addressProblem"] == ""
    monkeypatch.setattr(network, "is_own_address", lambda host: False)
    monkeypatch.setattr(network, "is_loopback", lambda host: False)
    async with name_server(scan_not_active_broker_interval=10) as (client, address, ask):
        assert loads((await ask(RequestCode.RMQHA_GET_NAMESRV_STATE)).body)["addressProblem"] == ""
        await client.call(address, registration(0, 1000), HANG_MS)
        problem = loads((await ask(RequestCode.RMQHA_GET_NAMESRV_STATE)).body)["addressProblem"]
        assert problem.startswith("brokerIP1 of g: clients elsewhere, as 127.0.0.1:")
        assert problem.endswith("are told 127.0.0.1:1000 and cannot reach it")
        told: list[str] = []
        while not told:
            events = loads((await ask(RequestCode.RMQHA_GET_HISTORY)).body)["events"]
            told = [event["reason"] for event in events if event["event"] == "tells_loopback"]
        assert told == [problem]


async def test_refusals_are_answers() -> None:
    async with name_server() as (client, address, ask):
        cases: list[tuple[int, dict[str, str], int]] = [
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, {}, ResponseCode.SYSTEM_ERROR),
            (RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"}, ResponseCode.QUERY_NOT_FOUND),
            (RequestCode.BROKER_HEARTBEAT, {"brokerName": "g", "brokerAddr": "a:1"}, ResponseCode.SYSTEM_ERROR),
            (RequestCode.REGISTER_BROKER, {"brokerId": "x"}, ResponseCode.SYSTEM_ERROR),
            (RequestCode.SEND_MESSAGE, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            (RequestCode.UNREGISTER_BROKER, {"brokerName": "g", "brokerAddr": "a:1"}, ResponseCode.SUCCESS),
        ]
        for code, ext, expected in cases:
            reply = await ask(code, ext)
            assert reply.code == expected, code
            assert bool(reply.remark) == (expected != ResponseCode.SUCCESS)
        damaged = registration(0, 1000)
        damaged.body = bytes(damaged.body)[:-1]
        assert "CRC-32" in str((await client.call(address, damaged, HANG_MS)).remark)
        compressed = registration(0, 1000)
        compressed.ext["compressed"] = "true"
        assert "cannot be unpacked" in str((await client.call(address, compressed, HANG_MS)).remark)


async def test_large_registrations_take_turns_and_one_whose_connection_ends_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited, acquire = list[LockRequest](), FifoLock.acquire

    def noted(lock: FifoLock, owner: int, size_bytes: int) -> LockRequest | None:
        turn = acquire(lock, owner, size_bytes)
        if turn is not None:
            waited.append(turn)
        return turn

    def large(group: str) -> Command:
        rows = {f"{group}-{number:06d}": {"perm": 6} for number in range(20_000)}
        command = register_broker_request(
            cluster_name="c", broker_name=group, broker_id=0, address=f"{group}:1", ha_address="",
            topic_config_table=rows, data_version={"counter": 1, "stateVersion": 1, "timestamp": 1},
        )  # fmt: skip
        assert len(command.body) > SMALL_BYTES
        return command

    async def register(address: str, group: str) -> None:
        async with RemotingClient() as client:
            answer = await client.call(address, large(group), HANG_MS)
            route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": f"{group}-019999"})
            answers.extend((answer, await client.call(address, route, HANG_MS)))

    monkeypatch.setattr(FifoLock, "acquire", noted)
    answers: list[Command] = []
    async with name_server() as (_, address, _):
        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                gone = trio.CancelScope()

                async def leave_while_waiting() -> None:
                    with gone:
                        await register(address, "gone")

                for group in ("first", "second"):
                    nursery.start_soon(register, address, group)
                nursery.start_soon(leave_while_waiting)
                while not waited:
                    await trio.lowlevel.checkpoint()
                gone.cancel()
            assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 4


async def test_a_silent_broker_goes() -> None:
    async with name_server(lite_heartbeat_timeout_millis=200, scan_not_active_broker_interval=20) as (client, to, ask):
        await client.call(to, registration(0, 1000), HANG_MS)
        ext = {"clusterName": "c", "brokerName": "g", "brokerAddr": "127.0.0.1:1000"}
        await client.oneway(to, Command(RequestCode.BROKER_HEARTBEAT, ext))
        assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == ResponseCode.SUCCESS
        with trio.fail_after(HANG_S):
            while (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == ResponseCode.SUCCESS:
                await trio.lowlevel.checkpoint()


async def test_a_broker_without_lite_heartbeats_goes_with_its_connection() -> None:
    async with name_server() as (_, address, ask):
        async with RemotingClient() as broker:
            await broker.call(address, registration(0, 1000), HANG_MS)
            assert loads((await ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body) == {"topicList": ["T"]}
        with trio.fail_after(HANG_S):
            while loads((await ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body)["topicList"]:
                await trio.lowlevel.checkpoint()


def open_settings(path: str) -> KvConfig:
    return open_persistent(NamesrvConfig(kv_config_path=path), HostTracer(write=lambda _: None))[0]


def test_settings_survive(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "kv.json")
    open_settings(path).put("n", "k", "wörd")
    assert open_settings(path).get("n", "k") == "wörd"
    assert open_settings(path).namespace("n") == {"k": "wörd"}
    assert open_settings("").get("n", "k") is None


def test_a_directory_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / OVERRIDES_FILE).mkdir()
    with pytest.raises(UsageError, match=f"{OVERRIDES_FILE}: Is a directory"):
        open_settings(str(tmp_path / "kv.json"))


async def test_keys_changed_at_run_time(tmp_path: Path) -> None:
    path = str(tmp_path / "kv.json")
    async with name_server(kv_config_path=path) as (client, address, ask):
        update = Command(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\n")
        assert (await client.call(address, update, HANG_MS)).ext == {"kept": "true"}
        for body, words in (
            (b"listenPort=1\norderMessageEnable=false\n", "listenPort: restart needed"),
            (b"orderMesageEnable=false\n", "the nearest known key is orderMessageEnable"),
            (b"scanNotActiveBrokerInterval=1\n", "must lie between"),
            (b"\xff", "UTF-8"),
        ):
            refused = await client.call(address, Command(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body), HANG_MS)
            assert refused.code == ResponseCode.SYSTEM_ERROR and words in str(refused.remark)
    assert (tmp_path / OVERRIDES_FILE).read_text() == "orderMessageEnable=true\n"
    async with name_server(kv_config_path=path) as (client, address, ask):
        told = parse_keys(await ask(RequestCode.GET_NAMESRV_CONFIG), address)
        assert told.values["orderMessageEnable"] == "true" and told.live is not None
        assert (told.overridden, "orderMessageEnable" in told.live) == (frozenset({"orderMessageEnable"}), True)
        assert told.changed is not None and told.changed["orderMessageEnable"] == "false"
    async with name_server() as (client, address, _):
        update = Command(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\n")
        assert (await client.call(address, update, HANG_MS)).ext == {"kept": "false"}


async def test_a_shorter_time_counts_at_once() -> None:
    keys = {"scan_not_active_broker_interval": 20, "lite_heartbeat_timeout_millis": 600_000}
    async with name_server(**keys) as (client, to, ask):
        await client.call(to, registration(0, 1000), HANG_MS)
        ext = {"clusterName": "c", "brokerName": "g", "brokerAddr": "127.0.0.1:1000"}
        await client.oneway(to, Command(RequestCode.BROKER_HEARTBEAT, ext))
        update = Command(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"liteHeartbeatTimeoutMillis=200\n")
        assert (await client.call(to, update, HANG_MS)).code == ResponseCode.SUCCESS
        with trio.fail_after(HANG_S):
            while (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == ResponseCode.SUCCESS:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"configTable":[]}', b'{"configTable":{"n":"v"}}', b"{}"])
def test_settings_that_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kv.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"kv\.json is not a file of key-value settings"):
        KvConfig(HostDisk(str(tmp_path)), "kv.json")


def test_settings_are_bounded() -> None:
    with pytest.raises(RemoteProtocolError):
        KvConfig().put("n", "k", "v" * MAX_ENTRY_CHARS)


def test_settings_in_a_place_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="kvConfigPath"):
        open_settings(str(tmp_path / "file" / "kv.json"))


def test_configuration() -> None:
    config, controller = parse_config("listenPort = 19876\nliteHeartbeatTimeoutMillis=3000\n", "f")
    assert (config.listen_port, config.lite_heartbeat_timeout_millis, controller) == (19876, 3000, None)
    assert read_config(None) == (NamesrvConfig(), None)


def test_silent_brokers_are_looked_for_often_enough() -> None:
    """RocketMQ's own scanNotActiveBrokerInterval is as long as the time after which a broker counts as silent here."""
    for text, expected_ms in (
        ("", 500),
        ("scanNotActiveBrokerInterval=5000", 500),
        ("liteHeartbeatTimeoutMillis=100", 10),
    ):
        assert parse_config(text, "f")[0].scan_ms == expected_ms


def test_one_file_configures_the_embedded_controller_too() -> None:
    config, controller = parse_config(
        "enableControllerInNamesrv=true\nlistenAddress=127.0.0.2\ncontrollerDLegerSelfId=n1\n"
        "controllerDLegerPeers=n1-127.0.0.2:9878\n",
        "f",
    )
    assert controller is not None
    assert (config.listen_address, controller.listen_address) == ("127.0.0.2", "127.0.0.2")
    assert controller.controller_dleger_self_id == "n1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listenPrt=1", "unknown key listenPrt; the nearest known key is listenPort"),
        ("controllerDLegerSelfId=n0", "set enableControllerInNamesrv=true or remove the line"),
        ("enableControllerInNamesrv=true\ncontrollerDLegerSlfId=n0", "nearest known key is controllerDLegerSelfId"),
        ("listenPort=70000", "listenPort = 70000 must lie between"),
        ("listenPort=x", "must be a whole number"),
    ],
)
def test_wrong_configuration(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(text, "namesrv.conf")


def test_no_configuration_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the configuration .*none\.conf"):
        read_config(str(tmp_path / "none.conf"))


RUN = [sys.executable, "-c", "from nameserver.cli import namesrv; namesrv()"]


def wait_for(log: Path, word: str) -> str:
    return until(lambda: text if log.exists() and word in (text := log.read_text()) else "")


def open_files(pid: int) -> set[Path]:
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in this moment
            found.add(each.readlink())
    return found


def test_the_process_serves_reopens_its_log_and_stops(tmp_path: Path) -> None:
    log = tmp_path / "ns.log"
    (tmp_path / "ns.conf").write_text(f"listenPort=0\nlogFile={log}\n")
    with subprocess.Popen([*RUN, "-c", str(tmp_path / "ns.conf")], stderr=subprocess.PIPE) as process:
        try:
            assert "address=127.0.0.1 port=" in wait_for(log, "name_server_started")
            log.rename(tmp_path / "old.log")
            os.kill(process.pid, signal.SIGHUP)
            # two signals at once may come in either order
            until(lambda: tmp_path / "old.log" not in open_files(process.pid))
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(timeout=HANG_S) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert "name_server_stopping" in log.read_text()


def test_a_name_server_alone_loads_no_controller() -> None:
    code = "import sys, nameserver.cli, nameserver.server; nameserver.config.read_config(None); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {name.partition(".")[0] for name in loaded} & {"controller", "rich", "pyspark", "numpy"}


def test_the_process_with_an_embedded_controller(tmp_path: Path) -> None:
    log = tmp_path / "ns.log"
    (tmp_path / "ns.conf").write_text(
        f"listenPort=0\nlogFile={log}\nenableControllerInNamesrv=true\n"
        f"controllerDLegerPeers=n0-127.0.0.1:0\ncontrollerStorePath={tmp_path / 'controller'}\n"
    )
    with subprocess.Popen([*RUN, "-c", str(tmp_path / "ns.conf")], stderr=subprocess.PIPE) as process:
        try:
            started = wait_for(log, "controller_started")
            [line] = [line for line in started.splitlines() if "controller_started" in line]
            port = int(line.rpartition("port=")[2])
            trio.run(ask_for_the_leader, port)
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(timeout=HANG_S) == 0
        finally:
            process.kill()


async def ask_for_the_leader(port: int) -> None:
    address = f"127.0.0.1:{port}"
    async with RemotingClient() as client:
        with trio.fail_after(HANG_S):
            leader = ""
            while not leader:
                reply = await client.call(address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO), HANG_MS)
                leader = reply.ext.get("controllerLeaderAddress", "")
    assert leader == address


def test_a_port_in_use_is_one_sentence_on_the_terminal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        (tmp_path / "ns.conf").write_text(f"listenPort={port}\n")
        command = [sys.executable, "-c", "from rmqha.cli.main import main; main()", "namesrv", "-c"]
        ended = subprocess.run(
            [*command, str(tmp_path / "ns.conf")], capture_output=True, text=True, timeout=HANG_S, check=False
        )
    assert ended.returncode == 2
    assert f"port {port} in use on 127.0.0.1" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


async def test_settings_are_listed_and_deleted() -> None:
    async with name_server() as (_, _, ask):
        for key in ("a", "b"):
            await ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": key, "value": key.upper()})
        listed = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
        assert loads(listed.body) == {"table": {"a": "A", "b": "B"}}
        for _ in range(2):
            assert (await ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "a"})).code == 0
        assert loads((await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})).body) == {"table": {"b": "B"}}
        reply = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "none"})
        assert (reply.code, reply.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: none")


async def test_what_operators_ask_about_clusters_and_permissions() -> None:
    async with name_server() as (client, address, ask):
        await client.call(address, registration(0, 1000), HANG_MS)
        assert loads((await ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"})).body) == {"topicList": ["T"]}
        system = loads((await ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body)
        assert system == {"brokerAddr": "127.0.0.1:1000", "topicList": ["c", "g"]}
        assert (await ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "g"})).ext == {"wipeTopicCount": "1"}
        route = loads((await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body)
        assert route["queueDatas"][0]["perm"] == 4
        assert (await ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "g"})).ext == {"addTopicCount": "1"}
        assert (await ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "h"})).ext == {"addTopicCount": "0"}


async def test_what_apaches_brokers_ask_a_name_server() -> None:
    """Brokers that register topics one by one, and those that ask first if they must register."""
    async with name_server() as (client, address, ask):
        await client.call(address, registration(0, 1000), HANG_MS)
        await client.call(address, registration(2, 2000), HANG_MS)
        body = (await ask(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "c", "brokerName": "g"})).body
        members = b'{0:"127.0.0.1:1000",2:"127.0.0.1:2000"}'
        assert body == b'{"brokerMemberGroup":{"brokerAddrs":' + members + b',"brokerName":"g","cluster":"c"}}'
        nobody = await ask(RequestCode.GET_BROKER_MEMBER_GROUP, {"brokerName": "nobody"})
        assert nobody.body == b'{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"nobody","cluster":""}}'

        async def told(code: int, ext: dict[str, str], value: object) -> Command:
            body = value if isinstance(value, bytes) else dumps(value)
            return await client.call(address, Command(code, ext, body), HANG_MS)

        broker = {"brokerName": "g", "brokerAddr": "127.0.0.1:1000", "clusterName": "c", "brokerId": "0"}
        version = {"counter": 1, "stateVersion": 1, "timestamp": 5}
        code = RequestCode.QUERY_DATA_VERSION
        same = await told(code, broker, version)
        assert (same.ext, loads(same.body)) == ({"changed": "false"}, version)
        for other in (version | {"counter": 2}, b""):
            changed = await told(code, broker, other)
            assert (changed.ext, loads(changed.body)) == ({"changed": "true"}, version)
        stranger = await told(code, broker | {"brokerAddr": "127.0.0.1:9"}, version)
        assert (stranger.ext, stranger.body) == ({"changed": "true"}, b"")
        assert (await told(code, broker, [])).code == ResponseCode.SYSTEM_ERROR

        code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
        queues = {"brokerName": "g", "perm": 6, "readQueueNums": 3, "topicSysFlag": 2, "writeQueueNums": 4}
        assert (await told(code, {"topic": "N"}, {"queueDatas": [queues]})).code == 0
        route = loads((await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "N"})).body)
        assert route["queueDatas"] == [queues]
        wrong: tuple[tuple[str, object], ...] = (
            ("M", {"queueDatas": [queues, queues | {"brokerName": "nobody"}]}),
            ("M", {"queueDatas": [7]}),
            ("M", [7]),
            ("M", {"queueDatas": [queues | {"perm": "x"}]}),
            ("M\n", {"queueDatas": [queues]}),
        )
        for topic, value in wrong:
            refused = await told(code, {"topic": topic}, value)
            assert refused.code == ResponseCode.SYSTEM_ERROR and refused.remark, value
        empty: tuple[object, ...] = (b"", {}, {"queueDatas": []})
        for nothing in empty:
            assert (await told(code, {"topic": "M"}, nothing)).code == 0
        assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "M"})).code == ResponseCode.TOPIC_NOT_EXIST

        assert (await told(code, {"topic": "U"}, {"queueDatas": [queues | {"topicSysFlag": 3}]})).code == 0
        for code, topics in (
            (RequestCode.GET_UNIT_TOPIC_LIST, ["U"]),
            (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, ["N", "U"]),
            (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, ["N"]),
        ):
            assert loads((await ask(code)).body) == {"topicList": topics}
