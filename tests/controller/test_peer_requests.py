"""Who may speak as a broker to a controller that asks for no accounts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from controller.config import ControllerConfig
from controller.peer_requests import is_sent_by_replica, needs_cluster_secret
from controller.requests import LEADER_CODES
from controller.server import run_controller
from rmqha.host.access import security
from rmqha.host.access.security import NO_SECURITY, Security
from rmqha.host.net.poller import Poller
from rmqha.host.net.remoting import RemotingClient
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import ConfigError
from rmqha.wire.auth.acl_needs import ANY_ACCOUNT
from rmqha.wire.command import Command
from tests.host.access.test_peer_filter import sharing
from tests.support.patience import HANG_MS

OPERATORS = {
    RequestCode.CONTROLLER_CLEAN_BROKER_METADATA,
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.RMQHA_RESIZE_GROUP,
    RequestCode.RMQHA_DRAIN_REPLICA,
    RequestCode.RMQHA_SET_MAINTENANCE,
}
"""What operators change."""
LOOKS = {
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    RequestCode.RMQHA_FOLLOW_GROUPS,
    *(LEADER_CODES & ANY_ACCOUNT),
}


def test_a_request_to_the_leader_is_a_look_an_operators_or_a_replicas() -> None:
    """A code that is added falls into one of three."""
    replicas = {code for code in LEADER_CODES if is_sent_by_replica(Command(code))} - {
        RequestCode.CONTROLLER_ELECT_MASTER
    }
    assert replicas | OPERATORS | LOOKS == set(LEADER_CODES)
    assert not replicas & OPERATORS and not replicas & LOOKS


def test_only_a_designated_election_is_an_operators() -> None:
    elect = partial(Command, RequestCode.CONTROLLER_ELECT_MASTER)
    assert is_sent_by_replica(elect({})) and is_sent_by_replica(elect({"designateElect": "false"}))
    assert not is_sent_by_replica(elect({"designateElect": "TRUE"}))


def made(**keys: Any) -> ControllerConfig:
    return ControllerConfig.from_properties({"controllerDLegerPeers": "n0-127.0.0.1:0", **keys}, "test")


@pytest.mark.parametrize(
    ("keys", "heartbeats"),
    [
        ({}, False),
        ({"haSecretFile": "f"}, True),
        ({"haSecretFile": "f", "haSecurity": "enforcing"}, True),
        ({"haSecretFile": "f", "haSecurity": "open"}, False),
        ({"haSecretFile": "f", "haSecurity": "permissive"}, False),
        ({"haSecretFile": "f", "haSecurity": "disabled"}, False),
    ],
)
def test_raft_messages_always_take_the_secret_heartbeats_unless_opened(keys: dict[str, str], heartbeats: bool) -> None:
    refuses = needs_cluster_secret(made(**keys))
    assert refuses(Command(RequestCode.RMQHA_RAFT_MESSAGE))
    assert refuses(Command(RequestCode.BROKER_HEARTBEAT)) is heartbeats
    assert not refuses(Command(RequestCode.RMQHA_RESIZE_GROUP))


def test_what_it_risks_is_said() -> None:
    beyond = {"listenAddress": "0.0.0.0", "aclEnable": "false"}
    for keys in ({}, {"haSecretFile": "f", "haSecurity": "open"}, {"haSecretFile": "f", "haSecurity": "permissive"}):
        assert any("may register replicas" in line for line in made(**beyond, **keys).warnings()), keys
        assert not any("may register replicas" in line for line in made(**keys).warnings()), "loopback"
    for closed in ({"haSecretFile": "f"}, {"aclEnable": "true"}):
        assert not any("may register replicas" in line for line in made(**(beyond | closed)).warnings())
    with pytest.raises(ConfigError, match="must be auto, open, permissive or enforcing"):
        made(haSecurity="on")
    with pytest.raises(ConfigError, match="enforcing needs haSecretFile or aclEnable=true"):
        made(haSecurity="enforcing")


@asynccontextmanager
async def running(tmp_path: Path, lines: list[str], **keys: str) -> AsyncIterator[str]:
    config = made(controllerStorePath=str(tmp_path / "store"), **keys)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(partial(run_controller, config, HostTracer(write=lines.append)))
        yield f"127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


def applied(number: int) -> Command:
    ext = {"clusterName": "c", "brokerName": "g", "appliedBrokerId": str(number), "registerCheckCode": f"x;{number}"}
    return Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext)


async def asked(address: str, command: Command, secured: Security | None) -> Command:
    async with RemotingClient(security=secured) as client:
        return await client.call(address, command, HANG_MS)


async def test_a_stranger_registers_no_replica(tmp_path: Path) -> None:
    secured, lines = sharing(tmp_path), list[str]()
    security.ambient.set(secured)
    async with running(tmp_path, lines, haSecretFile=str(tmp_path / "s")) as address:
        register = Command(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            {"clusterName": "c", "brokerName": "g", "brokerId": "1", "brokerAddress": "127.0.0.1:1"},
        )
        for command in (applied(1), register, Command(RequestCode.BROKER_HEARTBEAT, dict(register.ext))):
            answer = await asked(address, command, NO_SECURITY)
            assert answer.code == ResponseCode.NO_PERMISSION and "haSecretFile" in (answer.remark or "")
        assert sum("replica_refused" in line for line in lines) == 1, "told once"
        assert (await asked(address, applied(1), secured.signing_with_secret())).code == 0
        assert (await asked(address, applied(2), sharing(tmp_path, "t" * 32).signing_with_secret())).code == 16
        look = Command(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, {"clusterName": "c", "brokerName": "g"})
        assert (await asked(address, look, NO_SECURITY)).ext["nextBrokerId"] == "2"


@pytest.mark.parametrize(("signs", "hurries"), [(True, 1), (False, 0)])
async def test_a_brokers_connection_does_not_stand_in_line(
    tmp_path: Path, signs: bool, hurries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried: list[int] = []
    monkeypatch.setattr(Poller, "prioritize", lambda poller, handle: hurried.append(handle))
    secured, lines = sharing(tmp_path), list[str]()
    security.ambient.set(secured)
    beat = Command(RequestCode.BROKER_HEARTBEAT, {"clusterName": "c", "brokerName": "g", "brokerId": "1"})
    async with running(tmp_path, lines, haSecretFile=str(tmp_path / "s")) as address:
        await asked(address, beat, secured.signing_with_secret() if signs else NO_SECURITY)
    assert len(set(hurried)) == hurries


async def test_an_open_controller_takes_apaches_brokers_and_ours(tmp_path: Path) -> None:
    secured, lines = sharing(tmp_path), list[str]()
    security.ambient.set(secured)
    async with running(tmp_path, lines, haSecretFile=str(tmp_path / "s"), haSecurity="open") as address:
        assert (await asked(address, applied(1), NO_SECURITY)).code == 0
        assert (await asked(address, applied(2), secured.signing_with_secret())).code == 0


async def test_a_broker_with_the_secret_speaks_to_a_controller_without(tmp_path: Path) -> None:
    """An earlier release, Apache's, or one that has not been given the file yet: nothing is signed then."""
    asking, lines = sharing(tmp_path).signing_with_secret(), list[str]()
    security.ambient.set(NO_SECURITY)
    async with running(tmp_path, lines) as address:
        command = applied(1)
        assert (await asked(address, command, asking)).code == 0
        assert "Signature" not in command.ext and "AccessKey" not in command.ext
