"""The requests that real brokers, clients and mqadmin sent to a real name server, answered by ours."""

from __future__ import annotations

import json
from typing import Any

from nameserver.config import NamesrvConfig
from nameserver.kv_config import KvConfig
from nameserver.server import NameServer
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser
from rmqha.wire.lenient_json import loads
from tests.golden.reader import GOLDEN, lines, raw
from tests.support.clock import ManualClock

FILES = ("cluster", "mqadmin", "java-producer", "java-consumer", "java-binary")
"""One run of one cluster. binary-both-sides is another run, and it is replayed alone."""


LEFT_OUT = -1
"""Counts answers about topics whose registration the capture left out."""
SWITCHED = 56
"""Connection of the broker that mqadmin electMaster made master."""


def conversation(files: tuple[str, ...]) -> list[dict[str, Any]]:
    entries = [entry for name in files for entry in lines(f"wire/{name}.jsonl") if entry["conn"].endswith(":namesrv")]
    return sorted(entries, key=lambda entry: float(entry["t"]))


def closings() -> list[tuple[float, int]]:
    """When the brokers' own connections ended, those of killed brokers too."""
    connections: list[dict[str, Any]] = json.loads((GOLDEN / "wire/conns.json").read_text())
    return sorted(
        (float(connection["t1"]), int(connection["id"]))
        for connection in connections
        if connection["role"] == "namesrv" and connection["first"] == "REGISTER_BROKER"
    )


def replay(files: tuple[str, ...], ends: list[tuple[float, int]]) -> dict[int, int]:
    """Compares every answer; returns how many of each request code were compared."""
    clock = ManualClock(0, 0)
    server = NameServer(NamesrvConfig(), HostTracer(clock=clock, write=lambda _: None), clock, KvConfig())
    asked: dict[tuple[str, int], Any] = {}
    compared: dict[int, int] = {}
    registered: dict[int, Command] = {}
    for entry in conversation(files):
        if entry["scenario"] == "mqadmin-getBrokerEpoch2" and SWITCHED in registered:
            # the capture left out how the elected broker registered as master: it is made up from its last one
            switch = registered.pop(SWITCHED)
            switch.ext["brokerId"] = "0"
            server.handle(SWITCHED, switch)
        while ends and ends[0][0] < entry["t"]:
            server.routes.session_closed(ends.pop(0)[1])
        key = (entry["conn"], entry["opaque"])
        [command] = FrameParser(1 << 24).feed(raw(entry))
        if entry["direction"] == "c2s":
            clock.ms = round(entry["t"] * 1000)
            connection = int(entry["conn"].partition(":")[0])
            asked[key] = server.handle(connection, command)
            if command.code == RequestCode.REGISTER_BROKER:
                registered[connection] = command
            continue
        mine, code = asked.pop(key), entry["req_code"]
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC and mine.code == ResponseCode.TOPIC_NOT_EXIST != command.code:
            # the capture left out the registration that brought this topic
            compared[LEFT_OUT] = compared.get(LEFT_OUT, 0) + 1
            continue
        # (whether an answer carries an empty extFields or none is not visible here)
        assert (mine.code, mine.ext, mine.remark) == (command.code, command.ext, command.remark), entry
        body, expected = bytes(mine.body), bytes(command.body)
        if code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            assert set(loads(body)["topicList"]) <= set(loads(expected)["topicList"])
        else:
            assert body == expected, entry
        compared[code] = compared.get(code, 0) + 1
    assert all(reply.code in (0, 17) for reply in asked.values())
    return compared


def test_one_cluster_from_boot_through_failover_to_its_end() -> None:
    compared = replay(FILES, closings())
    assert compared[RequestCode.REGISTER_BROKER] >= 10
    assert compared[RequestCode.GET_BROKER_CLUSTER_INFO] >= 20
    assert compared[RequestCode.GET_ROUTEINFO_BY_TOPIC] >= 70
    assert {100, 104, 206, 216} <= compared.keys()


def test_a_cluster_that_speaks_binary_headers() -> None:
    compared = replay(("binary-both-sides",), [])
    assert compared[RequestCode.REGISTER_BROKER] >= 1
    assert compared[RequestCode.GET_ROUTEINFO_BY_TOPIC] >= 2
