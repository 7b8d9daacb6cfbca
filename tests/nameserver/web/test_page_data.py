"""What the page shows, from the words of nodes: live ones, silent ones, Apache's and odd ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameserver.web.page_data import (
    MAX_GROUPS,
    ClusterPageData,
    GroupDetails,
    cluster_document,
    cluster_page_data,
    controller_name,
    group_document,
)
from rmqha.ops.snapshot import ApacheEpochs, NodeReport, ServerKind
from rmqha.wire.state.explained_state import ExplainedGroup
from rmqha.wire.state.history import parse_history
from rmqha.wire.state.name_server_state import NameServerFacts
from rmqha.wire.state.replica_state import ReplicaState
from tests.cli.health.reports import (
    broker,
    cluster,
    group_row,
    name_server,
    replica_row,
    silent,
    snapshot_of,
    tell,
    tell_group,
    told_by_a_broker,
)
from tests.ha.group import Group, started

OWN = "127.0.0.1:9861"


def page_data(words: list[NodeReport], details: dict[str, GroupDetails] | None = None) -> ClusterPageData:
    return cluster_page_data(snapshot_of(words), NameServerFacts(address=OWN), OWN, details or {})


def document(words: list[NodeReport]) -> dict[str, Any]:
    """As the browser gets it."""
    found: dict[str, Any] = json.loads(json.dumps(cluster_document(page_data(words))))
    return found


def group_page(words: list[NodeReport], details: GroupDetails | None = None, name: str = "broker-a") -> dict[str, Any]:
    given_ = {name: details} if details is not None else {}
    found: dict[str, Any] = json.loads(json.dumps(group_document(page_data(words, given_), name)))
    return found


def machine_words(group: Group) -> list[NodeReport]:
    """The words of real machines, with a name server that routes to them."""
    words = []
    for number, node in sorted(group.nodes.items()):
        state = ReplicaState.from_json(json.loads(json.dumps(node.replica.state(group.now_ms).to_json())))
        keys = {**node.config.to_properties(), "brokerName": "broker-a"}
        address = f"127.0.0.1:1091{number}"
        words.append(NodeReport(ServerKind.BROKER, address, groups=frozenset({"broker-a"}), keys=keys, replica=state))
    routes = {"broker-a": {0: "127.0.0.1:10911", 2: "127.0.0.1:10912", 3: "127.0.0.1:10913"}}
    return [NodeReport(ServerKind.NAME_SERVER, OWN, routes=routes), *words]


@pytest.mark.parametrize(
    ("node_id", "embedded", "name"),
    [
        ("n1", False, "ctl-1"),
        ("n1", True, "ns-1"),
        ("n12", False, "ctl-12"),
        ("raft-a", False, "raft-a"),
        ("n", True, "n"),
    ],
)
def test_controllers_go_by_the_names_of_their_nodes(node_id: str, embedded: bool, name: str) -> None:
    assert controller_name(node_id, embedded=embedded) == name


def test_a_well_cluster() -> None:
    found = document(list(cluster().values()))
    assert found["health"]["healthy"]
    (group,) = found["groups"]
    assert (group["name"], group["masterId"], group["epoch"], group["writable"]) == ("broker-a", 1, 4, True)
    assert [(row["id"], row["role"], row["inSet"]) for row in group["replicas"]] == [
        (1, "MASTER", True),
        (2, "SLAVE", True),
        (3, "SLAVE", True),
    ]
    assert len(found["controllers"]) == 3
    assert found["health"]["views"] == []


def test_a_silent_node_is_one_sentence_and_the_rest_is_shown() -> None:
    words = cluster()
    words["broker-a-3"] = silent(words["broker-a-3"])
    words["ctl-1"] = silent(words["ctl-1"])
    found = document(list(words.values()))
    row = found["groups"][0]["replicas"][2]
    assert (row["id"], row["role"], row["inSet"]) == (3, "DOWN", True)
    assert "did not answer" in row["error"]
    registered = [item for item in found["health"]["findings"] if "broker-a-3" in item["where"]]
    assert len(registered) == 1
    assert registered[0]["fix"]
    assert [item["error"] is None for item in found["controllers"]] == [False, True, True]


def test_a_group_without_a_master_says_so_and_why() -> None:
    words = cluster()
    for name in ("ctl-1", "ctl-2", "ctl-3"):
        why = "no member of the set is alive"
        tell_group(words[name], masterBrokerId=None, whyNoMaster=why, syncStateSet=[1])
    words["broker-a-1"] = silent(words["broker-a-1"])
    found = document(list(words.values()))["groups"][0]
    assert (found["writable"], found["masterId"], found["set"]) == (False, None, [1])
    assert found["whyNotWritable"] == "no member of the set is alive"


def test_a_group_of_which_only_the_controllers_know() -> None:
    words = [report for name, report in cluster().items() if name.startswith("ctl")]
    assert document(words)["groups"] == []
    found = document([*words, silent(broker(1))])
    assert found["groups"][0]["replicas"][0]["role"] == "DOWN"


def test_apaches_broker_is_called_that() -> None:
    report = NodeReport(ServerKind.BROKER, "127.0.0.1:10911", groups=frozenset({"broker-a"}), is_ours=False)
    found = document([report, name_server(1)])
    assert found["groups"][0]["replicas"][0]["role"] == "APACHE"
    assert found["groups"][0]["masterAddress"] == "127.0.0.1:10911"


def test_nothing_known_is_no_error() -> None:
    found = document([])
    assert (found["groups"], found["controllers"]) == ([], [])
    assert not found["health"]["healthy"]


def test_hostile_names_are_made_visible() -> None:
    report = replace(broker(1, brokerName="a\u202eb<script>"), groups=frozenset())
    found = document([report])
    assert found["groups"][0]["name"] == "a\\u{202e}b<script>"


def test_the_group_page_of_real_machines() -> None:
    group = started()
    group.send(1)
    group.run(100)
    found = group_page(machine_words(group))
    assert found["error"] is None
    assert found["logs"]["reference"] == "replica 1"
    assert [lane["forkBytes"] for lane in found["logs"]["lanes"]] == [0, 0, 0]
    assert found["waits"][0].startswith("broker-a: no send waits")
    assert found["promise"]["kind"] == "CP"
    assert found["elections"] == []


def test_elections_and_cuts_are_told() -> None:
    elections = [
        {"masterEpoch": 1, "brokerId": 1, "atMs": 5, "causeText": "first election of the group", "reason": ""},
        {"masterEpoch": 2, "brokerId": 2, "atMs": 0, "causeText": "the master died", "reason": "longest log"},
    ]
    cut = {"at_ms": 9, "event": "log_truncated", "end_offset": 100, "cut_bytes": 40, "epochs_dropped": 1}
    noise = {"at_ms": 9, "event": "listening", "port": 1}
    replicas = [replica_row(3) | {"address": "127.0.0.1:10913", "notElectable": "not alive"}]
    registered = group_row(elections=elections, replicas=replicas) | {"answer": "replica 2 is master"}
    details = GroupDetails(
        explained=ExplainedGroup.from_json(registered),
        events={"127.0.0.1:10913": parse_history({"events": [cut, noise, {"event": "writable"}]})},
    )
    group = started()
    group.send(1)
    group.run(100)
    found = group_page(machine_words(group), details)
    assert [(item["epoch"], item["cause"], item["atMs"]) for item in found["elections"]] == [
        (2, "the master died", None),
        (1, "first election of the group", 5),
    ]
    assert [event["event"] for event in found["events"]] == ["log_truncated"]
    cuts = [part for part in found["logs"]["lanes"][2]["parts"] if part["kind"] == "cut"]
    assert [(part["start"], part["end"]) for part in cuts] == [(100, 140)]
    assert "cannot become master: not alive" in found["group"]["replicas"][2]["notes"]


def test_apaches_epochs_are_drawn_by_request_1007() -> None:
    report = NodeReport(ServerKind.BROKER, "127.0.0.1:10911", groups=frozenset({"broker-a"}), is_ours=False)
    epochs = {"epochList": [{"epoch": 3, "startOffset": 10, "endOffset": 99}], "maxOffset": 50}
    found = group_page([report], GroupDetails(epochs={report.address: ApacheEpochs.from_json(epochs)}))
    assert [part["end"] for part in found["logs"]["lanes"][0]["parts"]] == [50]


def test_an_unknown_group_is_a_sentence_that_names_the_known() -> None:
    found = group_page(list(cluster().values()), name="broker-z")
    assert "knows a group 'broker-z'; known: broker-a" in found["error"]


def test_a_node_of_another_release_does_not_take_the_page_away() -> None:
    words = cluster()
    tell(words, "broker-a-1", epochs=[["x"]])
    found = document(list(words.values()))
    assert [item["where"] for item in found["health"]["findings"]] == ["broker-a-1"]
    assert found["groups"][0]["replicas"][1]["role"] == "SLAVE"
    page = group_page(list(words.values()))
    assert page["error"] is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*sorted(told_by_a_broker()), "epochs", "slaves", "syncStateSet", "copy"]), VALUES)
def test_an_odd_field_of_a_broker_is_survived(field: str, value: Any) -> None:
    words = cluster()
    tell(words, "broker-a-1", **{field: value})
    found = document(list(words.values()))
    assert len(found["groups"][0]["replicas"]) == 3 or field == "brokerName"
    group_page(list(words.values()))


def test_many_groups_are_bounded_and_those_in_trouble_come_first() -> None:
    words = []
    for number in range(MAX_GROUPS + 5):
        name = f"g{number:04}"
        report = broker(1, brokerName=name, writable=number != MAX_GROUPS + 2)
        words.append(replace(report, address=f"10.0.0.1:{20_000 + number}", groups=frozenset({name})))
    found = document(words)
    assert (len(found["groups"]), found["groupsLeftOut"]) == (MAX_GROUPS, 5)
    assert found["groups"][0]["name"] == f"g{MAX_GROUPS + 2:04}"
