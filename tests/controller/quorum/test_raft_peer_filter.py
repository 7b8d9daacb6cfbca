"""Whose Raft messages a controller takes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import trio

from controller.config import ControllerConfig
from controller.quorum.raft_peer_filter import RaftPeerFilter
from controller.server import run_controller
from rmqha.host.access import security
from rmqha.host.access.security import NO_SECURITY
from rmqha.host.net.remoting import RemotingClient
from rmqha.host.net.session import Session
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode
from rmqha.ops.local.preflight import free_ports
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.host.access.test_peer_filter import sharing
from tests.support.patience import HANG_MS, HANG_S


class Peer:
    def __init__(self, host: str) -> None:
        self.peer = f"{host}:4711"


def message() -> Command:
    return Command(RequestCode.RMQHA_RAFT_MESSAGE, {"address": "10.0.0.2:1"}, b"vote")


def test_without_a_secret_the_host_must_be_a_controllers() -> None:
    peer_filter = RaftPeerFilter(NO_SECURITY)
    near, far = cast(Session, Peer("10.0.0.2")), cast(Session, Peer("10.9.9.9"))
    assert peer_filter.refusal(near, {"10.0.0.2"}.__contains__) == ""
    assert "no controller is known at 10.9.9.9" in peer_filter.refusal(far, {"10.0.0.2"}.__contains__)


def test_with_a_secret_the_filter_has_asked_for_its_proof(tmp_path: Path) -> None:
    far = cast(Session, Peer("10.9.9.9"))
    assert RaftPeerFilter(sharing(tmp_path)).refusal(far, lambda host: False) == ""


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
        with trio.fail_after(HANG_S):
            while not leader:
                answer = await client.call(address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO), HANG_MS)
                leader = answer.ext.get("controllerLeaderAddress", "")
                await trio.sleep(0.05)
        await client.oneway(address, message())
        with trio.fail_after(HANG_S):
            await refused.wait()
        answer = await client.call(address, Command(RequestCode.RMQHA_GET_CONTROLLER_STATE), HANG_MS)
        assert answer.code == 0 and loads(bytes(answer.body))
        nursery.cancel_scope.cancel()
