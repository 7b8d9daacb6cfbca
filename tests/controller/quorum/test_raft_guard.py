"""Whose Raft messages a controller takes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import trio

from controller.config import ControllerConfig
from controller.quorum.raft_guard import RaftGuard, raft_security
from controller.server import run_controller
from rmqha.host.access import security
from rmqha.host.access.security import NO_SECURITY, Security, from_config
from rmqha.host.net.remoting import RemotingClient
from rmqha.host.net.session import Session
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import ServerConfig
from rmqha.ops.local.preflight import free_ports
from rmqha.wire.auth.session_signature import SessionSigner
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.host.access.test_security import secret_file


class Peer:
    def __init__(self, host: str) -> None:
        self.peer = f"{host}:4711"


def message() -> Command:
    return Command(RequestCode.RMQHA_RAFT_MESSAGE, {"address": "10.0.0.2:1"}, b"vote")


def sharing(tmp_path: Path, text: str = "s" * 32) -> Security:
    return from_config(ServerConfig(ha_secret_file=secret_file(tmp_path / text[:1], text)))


def test_without_a_secret_the_host_must_be_a_controllers() -> None:
    guard = RaftGuard(NO_SECURITY)
    near, far = cast(Session, Peer("10.0.0.2")), cast(Session, Peer("10.9.9.9"))
    assert guard.refusal(near, message(), {"10.0.0.2"}.__contains__) == ""
    assert "no controller is known at 10.9.9.9" in guard.refusal(far, message(), {"10.0.0.2"}.__contains__)


def test_with_a_secret_a_message_must_be_signed_on_this_connection(tmp_path: Path) -> None:
    secured = sharing(tmp_path)
    guard, peer = RaftGuard(secured), cast(Session, Peer("10.0.0.2"))
    assert "is not signed" in guard.refusal(peer, message(), lambda host: True)
    nonce = guard.open(peer, Command(RequestCode.RMQHA_OPEN_SESSION)).ext["nonce"]
    asking = raft_security(secured)
    assert asking is not None and asking.credentials is not None
    signed = message()
    SessionSigner(nonce).sign(signed, asking.credentials)
    assert guard.refusal(peer, signed, lambda host: True) == ""
    assert guard.refusal(peer, signed, lambda host: True), "a message counts once"
    other = raft_security(sharing(tmp_path, "t" * 32))
    assert other is not None and other.credentials is not None
    forged = message()
    SessionSigner(nonce).sign(forged, other.credentials)
    assert guard.refusal(peer, forged, lambda host: True)


async def test_three_controllers_elect_behind_the_secret_and_hear_no_stranger(tmp_path: Path) -> None:
    base = free_ports(3)
    ports = [base, base + 1, base + 2]
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    security.ambient.set(sharing(tmp_path))
    refused = trio.Event()

    def write(line: str) -> None:
        if "raft_refused" in line and "haSecretFile" in line:
            refused.set()

    async with trio.open_nursery() as nursery, RemotingClient(security=NO_SECURITY) as client:
        for number in range(3):
            keys: dict[str, Any] = {
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": f"n{number}",
                "controllerStorePath": str(tmp_path / f"n{number}.store"),
            }
            config = ControllerConfig.from_properties(keys, "test")
            await nursery.start(partial(run_controller, config, HostTracer(write=write)))
        address, leader = f"127.0.0.1:{ports[0]}", ""
        with trio.fail_after(15):
            while not leader:
                answer = await client.call(address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO), 2000)
                leader = answer.ext.get("controllerLeaderAddress", "")
                await trio.sleep(0.05)
        await client.oneway(address, message())
        with trio.fail_after(5):
            await refused.wait()
        answer = await client.call(address, Command(RequestCode.RMQHA_GET_CONTROLLER_STATE), 2000)
        assert answer.code == 0 and loads(bytes(answer.body))
        nursery.cancel_scope.cancel()
