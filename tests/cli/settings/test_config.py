"""`rmqha config` against a real name server, scripted brokers and controllers, and Apache's."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from click.shell_completion import ShellComplete

from controller.config import ControllerConfig
from nameserver.config import NamesrvConfig
from nameserver.server import run_name_server
from rmqha.cli.main import cli
from rmqha.cli.settings.command import _set, properties_lines
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode as Code
from rmqha.model.config.base import parse_properties
from rmqha.model.config.servers import BrokerConfig, Config
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.description.server_keys import ConfigCodes, Server, find_key, key_table, plan_changes
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE
from rmqha.ops.local.supervisor import start_stamp
from rmqha.wire.command import Command
from rmqha.wire.config_answer import config_body, config_ext, parse_keys
from tests.client.test_admin import peers
from tests.support.command import rmqha

CP = BrokerConfig(ha_mode="cp", total_replicas=3, flush_interval_commit_log=200)


def server(config: Config, kind: ConfigCodes = ConfigCodes.BROKER, address: str = "127.0.0.1:1", *set_: str) -> Server:
    keys = parse_keys(Command(0, config_ext(config, set_), config_body(config.to_properties())), "here")
    return Server("node-1", kind, address, keys)


@asynccontextmanager
async def name_server(directory: Path) -> AsyncIterator[str]:
    config = NamesrvConfig(listen_port=0, kv_config_path=str(directory / "kv.json"))
    async with trio.open_nursery() as nursery:
        tracer = HostTracer(write=lambda _: None)
        port = await nursery.start(lambda task_status: run_name_server(config, tracer, task_status=task_status))
        yield f"127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


def test_each_key_tells_where_its_value_comes_from() -> None:
    found = {item.key: item for item in key_table(server(CP, ConfigCodes.BROKER, "a:1", "slaveReadEnable"))}
    assert (found["flushIntervalCommitLog"].source, found["flushIntervalCommitLog"].default) == ("file", "500")
    assert (found["brokerRole"].value, found["brokerRole"].source) == ("SYNC_MASTER", "preset haMode=cp")
    assert (found["minInSyncReplicas"].value, found["slaveReadEnable"].source) == ("2", "config set")
    assert (found["listenPort"].source, found["listenPort"].is_live) == ("default", False)
    assert found["flushIntervalCommitLog"].is_live


def test_what_is_shown_is_a_properties_file() -> None:
    changed = BrokerConfig(ha_mode="cp", broker_name="a=b #1", flush_interval_commit_log=200)
    shown = server(changed, ConfigCodes.BROKER, "a:1", "slaveReadEnable")
    lines = properties_lines(shown, key_table(shown))
    assert parse_properties("\n".join(lines), "shown") == {key.key: key.value for key in key_table(shown)}
    at = lines.index("flushIntervalCommitLog=200")
    assert lines[at - 1] == "# file, default 500, live"
    assert properties_lines(shown, []) == ["# node-1: broker at a:1", "# every key has its default"]


def test_of_two_servers_in_one_process_each_has_its_keys() -> None:
    both = [
        server(NamesrvConfig(), ConfigCodes.NAME_SERVER, "a:1"),
        server(ControllerConfig(), ConfigCodes.CONTROLLER),
    ]
    plan = plan_changes(both, {"orderMessageEnable": "true", "totalReplicas": "3", "snapshotAfterEntries": "10000"})
    assert [(item.kind, changes) for item, changes in plan] == [
        (ConfigCodes.NAME_SERVER, {"orderMessageEnable": "true"}),
        (ConfigCodes.CONTROLLER, {"totalReplicas": "3"}),
    ]
    with pytest.raises(UsageError, match="the nearest is orderMessageEnable"):
        find_key(both, "orderMesageEnable")


def test_one_key_that_needs_a_restart_refuses_all() -> None:
    with pytest.raises(RmqhaError, match="listenPort of node-1 cannot be changed while it runs, so nothing was"):
        plan_changes([server(CP)], {"slaveReadEnable": "false", "listenPort": "1"})
    assert plan_changes([server(CP)], {"listenPort": "10911"}) == []


async def asked(*arguments: str, code: int = 0) -> Any:
    done = await rmqha("config", *arguments, "-o", "json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


async def test_a_key_is_changed_and_kept(tmp_path: Path) -> None:
    async with name_server(tmp_path) as address:
        assert await asked("get", address, "orderMessageEnable") == {"orderMessageEnable": "false"}
        row = {"key": "orderMessageEnable", "before": "false", "after": "true", "kept": True}
        assert await asked("set", address, "orderMessageEnable=true") == [row]
        refused = await rmqha("config", "set", address, "orderMessageEnable=false", "listenPort=1")
        assert (refused.returncode, "restart" in refused.stderr) == (1, True)
        unknown = await rmqha("config", "set", address, "orderMesageEnable=false")
        assert (unknown.returncode, "nearest is orderMessageEnable" in unknown.stderr) == (2, True)
    async with name_server(tmp_path) as address:
        (told,) = await asked("show", address)
        assert (told["kind"], told["address"]) == ("name server", address)
        sources = {item["key"]: item["source"] for item in told["keys"]}
        assert sources == {"kvConfigPath": "file", "listenPort": "file", "orderMessageEnable": "config set"}


async def test_a_key_of_many_nodes_is_changed_at_all_or_at_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with name_server(tmp_path / "a") as one, name_server(tmp_path / "b") as other:
        told = await _set([one, other], {"orderMessageEnable": "true"}, None, 3.0)
        assert {name: [row["after"] for row in rows] for name, rows in told.items()} == {one: ["true"], other: ["true"]}
        with pytest.raises(RmqhaError, match=r"127\.0\.0\.1:9:"):
            await _set([one, "127.0.0.1:9"], {"orderMessageEnable": "false"}, None, 3.0)
        (again,) = (await _set([one], {"orderMessageEnable": "true"}, None, 3.0)).values()
        assert again[0]["before"] == "true"


async def test_keys_are_completed_by_asking_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By address, by name, and by group, whose dead replicas are passed over."""

    async def offered(*words: str) -> set[str]:
        complete = ShellComplete(cli, {}, "rmqha", "_RMQHA_COMPLETE")
        found = await trio.to_thread.run_sync(complete.get_completions, ["config", *words[:-1]], words[-1])
        return {item.value for item in found}

    async with peers(1) as (broker,):
        broker.replies[Code.GET_BROKER_CONFIG] = (0, config_ext(CP, ()), config_body(CP.to_properties()))
        place = {"address": broker.address, "kind": "broker", "group": "broker-a"}
        nodes = [
            {"name": "broker-a-1", **place, "pid": 0},
            {"name": "broker-a-2", **place, "pid": os.getpid(), "process_start": start_stamp(os.getpid())},
        ]
        document = {"version": 1, "name": "c", "haMode": "cp", "clusterFile": "c.toml", "nodes": nodes}
        (tmp_path / "cluster.json").write_text(json.dumps(document))
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
        for node in (broker.address, "broker-a-2"):
            assert await offered("get", node, "listen") == {"listenAddress", "listenPort"}
            assert await offered("get", node, "listenPort", "flushIntervalC") == {"flushIntervalCommitLog"}
        assert await offered("set", "broker-a", "flushIntervalC") == {"flushIntervalCommitLog="}
        assert await offered("set", "broker-a", "listenP") == set(), "a key that needs a restart is not changed so"
        assert await offered("get", "127.0.0.1:9", "") == await offered("get", "nobody", "") == set()


async def test_apaches_broker_and_ours_are_compared() -> None:
    async with peers(2) as (apache, ours):
        apache.replies[Code.GET_BROKER_CONFIG] = (0, {}, b"brokerRole=SYNC_MASTER\nlistenPort=1\nslaveTimeout=3000\n")
        ours.replies[Code.GET_BROKER_CONFIG] = (0, config_ext(CP, ()), config_body(CP.to_properties()))
        found = await asked("diff", apache.address, ours.address, code=1)
        assert "brokerRole" not in found and "slaveTimeout" not in found and "listenPort" not in found
        assert found["flushIntervalCommitLog"] == {apache.address: None, ours.address: "200"}
        assert "listenPort" in await asked("diff", apache.address, ours.address, "--all", code=1)
        assert await asked("diff", ours.address, ours.address) == {}
        apache.replies[Code.UPDATE_BROKER_CONFIG] = (0, {}, b"")
        done = await rmqha("config", "set", apache.address, "slaveTimeout=4000")
        assert (done.returncode, "still says slaveTimeout=3000" in done.stderr) == (1, True)
        assert bytes(apache.asked[-2].body) == b"slaveTimeout=4000\n"


@pytest.mark.parametrize("arguments", [("set", "127.0.0.1:1", "a"), ("set", "127.0.0.1:1", "a=1", "a=2")])
async def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = await rmqha("config", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nothing was changed" in done.stderr
