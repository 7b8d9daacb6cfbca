"""Requests about the controllers' own group: a fourth controller comes, one goes, the leadership moves."""

from __future__ import annotations

import json
from typing import Any

from controller.state.image import encode_image
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.state.controller_state import QuorumState
from tests.controller.harness import Cluster, Node, group_of


def view(cluster: Cluster, node: Node | None = None) -> dict[str, Any]:
    answer = cluster.call(RequestCode.RMQHA_GET_QUORUM, {"version": "1"}, node=node)
    assert answer.code == ResponseCode.SUCCESS
    document: dict[str, Any] = json.loads(bytes(answer.body))
    assert QuorumState.from_json(document).to_json() == document, "who asks reads all of it"
    return document


def kinds(cluster: Cluster) -> dict[str, str]:
    return {member["node"]: member["kind"] for member in view(cluster)["members"]}


def add(number: int, incarnation: str, **more: str) -> dict[str, str]:
    address = f"127.0.0.1:{9878 + number}"
    return {"version": "1", "node": f"n{number}", "incarnation": incarnation, "address": address} | more


def test_a_fourth_controller_becomes_a_voter_and_holds_the_same_state() -> None:
    cluster, _ = group_of(3, node_count=3)
    fourth = cluster.add_spare(3, "77")
    answer = cluster.call(RequestCode.RMQHA_ADD_CONTROLLER, add(3, "77"))
    assert answer.code == ResponseCode.SUCCESS and int(answer.ext["index"]) > 0
    cluster.run(500)
    assert kinds(cluster) == {"n0": "VOTER", "n1": "VOTER", "n2": "VOTER", "n3": "VOTER"}
    assert encode_image(fourth.machine.info) == encode_image(cluster.leader.machine.info)
    metadata = cluster.call(RequestCode.CONTROLLER_GET_METADATA_INFO, node=fourth)
    assert metadata.ext["peers"] == "n0:127.0.0.1:9878;n1:127.0.0.1:9879;n2:127.0.0.1:9880;n3:127.0.0.1:9881;"
    assert metadata.ext["controllerLeaderAddress"] == cluster.leader.config.self_address


def test_four_controllers_bear_the_loss_of_a_leader_and_three_of_them_of_another() -> None:
    cluster, _ = group_of(3, node_count=3)
    cluster.add_spare(3, "77")
    assert cluster.call(RequestCode.RMQHA_ADD_CONTROLLER, add(3, "77")).code == 0
    cluster.run(500)
    first = cluster.leader
    cluster.kill(first)
    cluster.run(3000, until=cluster.has_leader)
    cluster.run(300)
    assert cluster.call(RequestCode.RMQHA_REMOVE_CONTROLLER, {"node": first.node_id}).code == 0
    cluster.kill(cluster.leader)
    cluster.run(3000, until=cluster.has_leader)
    assert cluster.alter([1, 2]).code == 0


def test_a_learner_stays_one() -> None:
    cluster, _ = group_of(3, node_count=3)
    cluster.add_spare(3, "77")
    assert cluster.call(RequestCode.RMQHA_ADD_CONTROLLER, add(3, "77", learner="true")).code == 0
    cluster.run(1000)
    assert kinds(cluster)["n3"] == "LEARNER"


def test_what_cannot_be_is_refused_with_a_sentence() -> None:
    cluster, _ = group_of(3, node_count=3)
    refused = (
        (RequestCode.RMQHA_ADD_CONTROLLER, add(0, "99"), "the group knows n0 with another disk; remove it first"),
        (RequestCode.RMQHA_ADD_CONTROLLER, add(3, "7#7"), "incarnation = '7#7' must be a short text without '#'"),
        (RequestCode.RMQHA_ADD_CONTROLLER, add(3, "7") | {"address": "nowhere"}, "is not an address of the form"),
        (RequestCode.RMQHA_ADD_CONTROLLER, {"node": "n3"}, "the request lacks the field incarnation"),
        (RequestCode.RMQHA_REMOVE_CONTROLLER, {"node": "n9"}, "the group has no node n9; it has n0, n1, n2"),
        (RequestCode.RMQHA_TRANSFER_LEADERSHIP, {"node": "n9"}, "the group has no node n9"),
        (RequestCode.RMQHA_GET_QUORUM, {"version": "2"}, "version '2' of the request; this controller understands 1"),
    )
    before = view(cluster)["configurationIndex"]
    for code, ext, sentence in refused:
        answer = cluster.call(code, ext)
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert sentence in (answer.remark or "")
    assert view(cluster)["configurationIndex"] == before


def test_a_follower_redirects_changes_and_shows_itself() -> None:
    cluster, _ = group_of(3, node_count=3)
    follower = next(node for node in cluster.nodes.values() if node is not cluster.leader)
    for code in (RequestCode.RMQHA_REMOVE_CONTROLLER, RequestCode.RMQHA_TRANSFER_LEADERSHIP):
        answer = cluster.call(code, {"node": "n0"}, node=follower)
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert answer.ext == {"controllerLeaderAddress": cluster.leader.config.self_address}
    shown = view(cluster, follower)
    assert (shown["role"], shown["node"], "followers" in shown) == ("FOLLOWER", follower.node_id, False)


def test_the_leadership_moves_to_whom_the_operator_says() -> None:
    cluster, _ = group_of(3, node_count=3)
    for node_id in ("n0", "n1", "n2", "n2"):
        assert cluster.call(RequestCode.RMQHA_TRANSFER_LEADERSHIP, {"node": node_id}).ext == {"node": node_id}
        cluster.run(400)
        assert cluster.leader.node_id == node_id
    assert cluster.call(RequestCode.RMQHA_TRANSFER_LEADERSHIP).ext["node"] in ("n0", "n1")


def test_a_snapshot_is_taken_on_demand() -> None:
    cluster, _ = group_of(3, node_count=3)
    node = cluster.leader
    assert view(cluster, node)["snapshotIndex"] == 0
    reached = int(cluster.call(RequestCode.RMQHA_TAKE_SNAPSHOT, node=node).ext["snapshotIndex"])
    cluster.run(100)
    assert node.snapshot is not None and node.snapshot.index == reached == view(cluster, node)["snapshotIndex"]


def test_a_change_whose_entry_is_overtaken_is_answered_as_without_effect() -> None:
    cluster, _ = group_of(3, node_count=3)
    old = cluster.leader
    cluster.cut = {old.node_id}
    follower = next(node for node in cluster.nodes.values() if node is not old)
    command = Command(RequestCode.RMQHA_REMOVE_CONTROLLER, {"node": follower.node_id})
    token = cluster.send(command, node=old)
    cluster.run(3000, until=cluster.has_leader)
    assert cluster.alter([1, 2]).code == 0
    assert token not in cluster.replies
    cluster.cut = set()
    cluster.run(1000)
    assert cluster.replies[token].code == ResponseCode.CONTROLLER_NOT_LEADER
    assert len(kinds(cluster)) == 3
