"""How an operator may name a controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqha.host.asking.shell import open_client
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UsageError
from rmqha.ops.asking import NoControllerError, ask_leader
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.membership.quorum import member_id, node_titles
from rmqha.wire.command import Command
from tests.client.test_admin import peers
from tests.support.patience import HANG_S

ADDRESSES = {"n0": "127.0.0.1:9878", "n1": "127.0.0.1:9879", "ctl-3": "127.0.0.1:9880"}


def cluster(directory: Path) -> ClusterState:
    nodes = {
        name: NodeRecord(name, NodeKind.CONTROLLER.value, address, address)
        for name, address in (("ctl-1", "127.0.0.1:9878"), ("ctl-2", "127.0.0.1:9879"), ("ctl-3", "127.0.0.1:9879"))
    }
    nodes["broker-a-1"] = NodeRecord("broker-a-1", NodeKind.BROKER.value, "127.0.0.1:10911")
    return ClusterState(directory, "c", "cp", "", nodes)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("n1", "n1"),
        ("ctl-1", "n0"),
        ("ctl-2", "n1"),
        ("127.0.0.1:9879", "n1"),
        ("ctl-3", "ctl-3"),  # an id wins over a node's name
    ],
)
def test_a_controller_is_named_by_id_by_node_or_by_address(tmp_path: Path, given: str, meant: str) -> None:
    assert member_id(given, ADDRESSES, cluster(tmp_path)) == meant


@pytest.mark.parametrize("given", ["broker-a-1", "nobody", "127.0.0.1:1"])
def test_who_is_no_controller_is_told_their_names(tmp_path: Path, given: str) -> None:
    with pytest.raises(UsageError, match=rf"no {given} among them; they are .*ctl-1 \(id n0\)"):
        member_id(given, ADDRESSES, cluster(tmp_path))


def test_without_a_cluster_directory_ids_and_addresses_remain() -> None:
    assert [member_id(given, ADDRESSES, None) for given in ("n0", "127.0.0.1:9880")] == ["n0", "ctl-3"]
    with pytest.raises(UsageError, match="no ctl-1 among them; they are ctl-3, n0, n1"):
        member_id("ctl-1", ADDRESSES, None)


def test_controllers_go_by_the_names_of_their_nodes(tmp_path: Path) -> None:
    """ctl-1 is n1 in clusters of this release, n0 in those of earlier ones."""
    state = cluster(tmp_path)
    assert node_titles({"n1": "127.0.0.1:9878", "n7": "10.0.0.1:1"}, state) == {"n1": "ctl-1"}
    assert node_titles({"n0": "127.0.0.1:9878"}, state) == {"n0": "ctl-1 (id n0)"}


async def test_controllers_without_a_leader_are_told_apart_from_controllers_that_are_away() -> None:
    async with peers(1) as (controller,), open_client() as client:
        controller.replies = {RequestCode.RMQHA_GET_QUORUM: (ResponseCode.CONTROLLER_NOT_LEADER, {}, b"")}
        addresses = ["127.0.0.1:9", controller.address]
        with pytest.raises(NoControllerError) as raised:
            await ask_leader(client, addresses, lambda: Command(RequestCode.RMQHA_GET_QUORUM), HANG_S * 1000)
    assert raised.value.why.startswith(f"no controller leads: {controller.address} knows no leader, and cannot connect")
    assert raised.value.fix == "a majority of them has to run: see rmqha quorum show"
