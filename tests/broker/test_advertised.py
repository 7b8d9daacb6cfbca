"""What a broker tells others of its address is refused or told where they cannot use it (ruling 23)."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqha.broker.advertised import HA, LISTEN, AdvertisedAddressCheck, check_advertised, resolved
from rmqha.broker.server import OWN_NAME_TIMEOUT_S, store_host
from rmqha.host.net import network
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError
from rmqha.wire.command import Command
from tests.broker.test_server import refused, shells
from tests.support.tracer import RecordingTracer

FAR = ["10.0.0.9:9876"]
HERE: Mapping[str, Sequence[str]] = {
    "debian": ["127.0.1.1"],
    "near": ["::1"],
    "ns.far": ["10.0.0.9"],
    "two": ["::1", "10.0.0.1"],
}


class LateName(trio.abc.HostnameResolver):
    """A name that is known from a moment on, as that of a pod whose record is not published yet."""

    def __init__(self, known_at_s: float) -> None:
        self._known_at_s = trio.current_time() + known_at_s

    async def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        if trio.current_time() < self._known_at_s:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 0))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        raise NotImplementedError


async def test_a_name_of_its_own_that_is_not_known_yet_is_waited_for(autojump_clock: MockClock) -> None:
    config = BrokerConfig(broker_ip1="pod-0.brokers.svc")
    tracer = RecordingTracer()
    trio.socket.set_custom_hostname_resolver(LateName(5))
    assert await store_host(config, tracer) == (bytes((10, 0, 0, 7)), config.listen_port)
    assert tracer.names() == ["own_name_unknown"]


async def test_a_name_of_its_own_that_nobody_knows_is_refused(autojump_clock: MockClock) -> None:
    trio.socket.set_custom_hostname_resolver(LateName(1000))
    sentence = r"brokerIP1: pod-0 has no address \(Name or service not known\); write it as numbers"
    with pytest.raises(ConfigError, match=sentence):
        await store_host(BrokerConfig(broker_ip1="pod-0"), RecordingTracer())
    assert trio.current_time() >= OWN_NAME_TIMEOUT_S


@pytest.mark.parametrize(
    ("keys", "peers", "wrong"),
    [
        ({"listen_address": "0.0.0.0"}, [], "brokerIP1: clients cannot reach 0.0.0.0"),
        ({"listen_address": "::"}, [], "brokerIP1"),
        ({"listen_address": "0.0.0.0", "broker_ip1": "0.0.0.0"}, [], "brokerIP1"),
        ({"listen_address": "0.0.0.0", "broker_ip1": "10.0.0.1", "broker_ip2": "0.0.0.0"}, [], "brokerIP2"),
        ({"broker_ip1": "127.0.0.1"}, FAR, "brokerIP1: 10.0.0.9:9876 would be told 127.0.0.1 and"),
        (
            {"broker_ip1": "10.0.0.1", "broker_ip2": "127.0.0.1"},
            FAR,
            "brokerIP2: 10.0.0.9:9876 would be told 127.0.0.1",
        ),
        ({"broker_ip1": "localhost"}, FAR, "brokerIP1: 10.0.0.9:9876 would be told localhost and"),
        ({"broker_ip1": "debian"}, FAR, "brokerIP1: 10.0.0.9:9876 would be told debian, which is 127.0.1.1 here,"),
        ({"broker_ip1": "10.0.0.1", "broker_ip2": "near"}, FAR, "brokerIP2: .* would be told near, which is ::1 here"),
        ({"broker_ip1": "127.0.0.1"}, ["ns.far:9876"], "brokerIP1: ns.far:9876 would be told 127.0.0.1"),
        ({"listen_address": "0.0.0.0", "broker_ip1": "10.0.0.1"}, FAR, ""),
        ({"broker_ip1": "two"}, FAR, ""),
        ({"broker_ip1": "debian"}, ["127.0.0.1:9876", "near:9876"], ""),
        ({}, ["127.0.0.1:9876", "localhost:9878", "nobody.knows:9876"], ""),
    ],
)
def test_what_is_advertised(keys: dict[str, str], peers: list[str], wrong: str) -> None:
    config = BrokerConfig(**keys)  # type: ignore[arg-type]
    if wrong:
        with pytest.raises(ConfigError, match=wrong):
            check_advertised(config, peers, HERE)
    else:
        check_advertised(config, peers, HERE)


async def test_names_are_resolved_and_a_slow_one_holds_nobody_up(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(host: str, port: object, **_: object) -> list[tuple[object, ...]]:
        if host == "slow":
            await trio.sleep_forever()
        if host == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", look_up)
    assert await resolved(["debian", "slow", "unknown", "debian"]) == {"debian": ["127.0.1.1"]}


async def test_a_broker_with_a_name_for_loopback_does_not_start(tmp_path: Path) -> None:
    async with shells(tmp_path) as here:
        config = replace(here.config("b"), broker_ip1="localhost", namesrv_addr="10.0.0.9:9876")
        assert "would be told localhost" in await refused(config)
        assert not (tmp_path / "b").exists()


def advertised(monkeypatch: pytest.MonkeyPatch, **keys: str) -> tuple[AdvertisedAddressCheck, HostTracer]:
    """On a machine whose other address is 10.0.0.1."""
    monkeypatch.setattr(network, "is_own_address", lambda host: host == "10.0.0.1")
    tracer = HostTracer.of(BrokerConfig(), "broker", "b")
    return AdvertisedAddressCheck(BrokerConfig(**keys), HERE, tracer), tracer  # type: ignore[arg-type]


def test_a_client_from_elsewhere_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, tracer = advertised(monkeypatch, broker_ip1="127.0.0.1", listen_address="0.0.0.0")
    for peer in ("127.0.0.1:5000", "[::1]:5000", "10.0.0.1:5000", "unknown:0"):
        found.connected(LISTEN, peer)
    assert found.problem == ""
    for peer in ("10.0.0.7:5000", "10.0.0.8:5000"):
        found.connected(LISTEN, peer)
    assert found.problem == ("brokerIP1: clients elsewhere, as 10.0.0.7:5000, are told 127.0.0.1 and cannot reach it")
    (event,) = [item for item in tracer.history() if item["event"] == "advertises_loopback"]
    assert (event["key"], event["told"], event["peer"]) == ("brokerIP1", "127.0.0.1", "10.0.0.7:5000")


def test_a_slave_from_elsewhere_names_the_other_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = advertised(monkeypatch, broker_ip1="10.0.0.1", broker_ip2="debian", listen_address="0.0.0.0")
    found.connected(LISTEN, "10.0.0.7:5000")
    assert found.problem == ""
    found.connected(HA, "10.0.0.7:5001")
    assert found.problem.startswith("brokerIP2: slaves elsewhere, as 10.0.0.7:5001, are told debian")


async def test_the_replica_state_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a machine none of whose addresses is its own."""
    monkeypatch.setattr(network, "is_own_address", lambda host: False)
    monkeypatch.setattr(network, "is_loopback", lambda host: False)
    async with shells(tmp_path) as here:
        broker = await here.start(total_replicas=1)
        reply = await here.call(broker.address, Command(RequestCode.RMQHA_GET_REPLICA_STATE))
        state = json.loads(bytes(reply.body))
        assert state["addressProblem"].startswith("brokerIP1: clients elsewhere, as 127.0.0.1:")
        await broker.stop()
