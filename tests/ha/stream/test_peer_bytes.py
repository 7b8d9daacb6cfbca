"""A bug in reading a peer's bytes ends that connection, and nothing else (ruling 31)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import Buffer
from rmqha.wire.ha_stream import MasterStreamParser, SlaveStreamParser
from rmqha.wire.legacy_ha import LegacyTransferParser, ReportParser
from tests.ha.group import started
from tests.ha.test_static_group import Pair


def broken(self: Any, data: Buffer) -> list[Any]:
    raise KeyError("nobody foresaw it")


@pytest.mark.parametrize("parser", [SlaveStreamParser, MasterStreamParser])
def test_replicas_go_on_and_connect_again(parser: type) -> None:
    group = started(3)
    master = group[1].replica
    connected = [item["brokerId"] for item in master.state(group.now_ms).to_json()["slaves"]]
    assert sorted(connected) == [2, 3]
    with patch.object(parser, "feed", broken):
        group.run(8000)  # heartbeats are read by both sides
        assert master.is_master and master.state(group.now_ms).to_json()["slaves"] == []
    group.run(8000)
    assert sorted(item["brokerId"] for item in master.state(group.now_ms).to_json()["slaves"]) == [2, 3]


@pytest.mark.parametrize("parser", [ReportParser, LegacyTransferParser])
def test_a_static_pair_goes_on_and_connects_again(parser: type) -> None:
    pair = Pair(broker_role="SYNC_MASTER")
    pair.connect()
    pair.run(1000)
    with patch.object(parser, "feed", broken):
        pair.master.add(pair.now_ms, "one")
        pair.run(30_000)
        assert pair.slave.log.max_phy_offset < pair.master.log.max_phy_offset or parser is ReportParser
    pair.connect()
    pair.run(30_000)
    assert pair.slave.log.max_phy_offset == pair.master.log.max_phy_offset


def test_the_reason_says_what_and_where() -> None:
    with pytest.raises(RemoteProtocolError, match=r"KeyError\('nobody foresaw it'\) at test_peer_bytes.py:\d+"):
        frames_of(lambda data: broken(None, data), b"x")
    with pytest.raises(RemoteProtocolError, match=r"^HA frame of a slave"):
        frames_of(SlaveStreamParser().feed, (9).to_bytes(4, "big") + bytes(40))
