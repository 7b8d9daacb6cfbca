"""A snapshot of a cluster: JSON both ways, with a version, and asked for within a bound."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.ops.snapshot import (
    VERSION,
    ApacheGroup,
    ClusterSnapshot,
    NodeReport,
    SecurityFile,
    ServerKind,
    SyncedReplica,
)
from rmqha.ops.survey import BootstrapAddresses, Survey, SurveyScope
from rmqha.wire.command import Command
from rmqha.wire.state.name_server_state import NameServerState
from tests.cli.health.reports import cluster, silent, snapshot_of
from tests.ops.recorded import CASES, RecordedCluster


@pytest.mark.parametrize("extent", SurveyScope)
@pytest.mark.parametrize("case", CASES)
async def test_what_a_cluster_told_is_the_same_after_json(
    case: str, extent: SurveyScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RecordedCluster(case, monkeypatch)
    bootstrap = BootstrapAddresses.of_state(recorded.state)
    found = await Survey(recorded.client, bootstrap, 5.0, extent=extent).run()
    assert found.answered == (7 if case == "well" else 6)
    assert ClusterSnapshot.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_every_kind_of_report_is_the_same_after_json() -> None:
    apache = NodeReport(
        ServerKind.CONTROLLER,
        "10.0.0.1:9878",
        is_ours=False,
        leads=True,
        apache_groups={"g": ApacheGroup(master_epoch=3, in_sync_replicas=(SyncedReplica(broker_id=2),))},
        security=(SecurityFile(key="aclFile", file="f", problem="no YAML"),),
    )
    words = cluster()
    words["broker-a-3"] = silent(words["broker-a-3"], runs=False)
    moved = replace(words["broker-a-1"], before=words["broker-a-2"].replica, routed_id=0)
    told = snapshot_of([apache, moved, *words.values()]).to_json()
    assert ClusterSnapshot.from_json(json.loads(json.dumps(told))).to_json() == told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": VERSION + 1}, f"of version {VERSION + 1}; this release reads up to {VERSION}"),
        ({"nodes": [{"kind": "printer", "address": "a:1"}]}, "nodes: kind: 'printer' is not a valid ServerKind"),
        ({"nodes": [{"kind": "broker"}]}, "nodes: it lacks address"),
        ({"nodes": [{"kind": "broker", "address": "a:1", "routes": {"g": {"x": "b:1"}}}]}, "routes: invalid literal"),
        ({"nodes": {}}, "nodes: it is dict, not list"),
    ],
)
def test_a_snapshot_that_cannot_be_read_is_one_sentence(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ClusterSnapshot.from_json(ClusterSnapshot().to_json() | change)


def test_nothing_in_it_is_changed_in_place() -> None:
    found = snapshot_of(cluster().values())
    with pytest.raises(FrozenInstanceError):
        setattr(found.nodes[0], "error", "it fell silent")  # noqa: B010


def test_a_name_is_one_brokers() -> None:
    """Two files say brokerId=1; the second broker got id 6. Unnamed, it stood in the master's place."""
    words = cluster()
    keys = {"enableControllerMode": "true", "brokerName": "broker-a", "brokerId": "1"}
    master = replace(words["broker-a-1"], name="", keys=keys)
    state = master.replica
    assert state is not None
    second = replace(master, address="127.0.0.1:10916", replica=replace(state, broker_id=6, role="SLAVE"))
    silent_one = replace(master, address="127.0.0.1:10917", replica=None, error="it is silent")

    def titles(*reports: NodeReport) -> list[str]:
        return [node.title for node in ClusterSnapshot.of(reports).nodes]

    assert titles(second) == ["broker-a-1"], "as long as no other has the name"
    assert titles(master, second, silent_one) == ["broker-a-1", "127.0.0.1:10916", "127.0.0.1:10917"]
    assert titles(second, silent_one) == ["127.0.0.1:10916", "127.0.0.1:10917"], "nobody's, rather than a wrong one's"
    named = replace(second, name="broker-a-1")
    assert sorted(titles(master, named)) == ["127.0.0.1:10911", "broker-a-1"], "the cluster directory says whose"


async def test_brokers_that_displace_each_other_are_both_asked() -> None:
    """Two groups of controllers: each broker is the master of its own, and a name server routes to one of them."""

    class NameServerAlone:
        async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
            if address != "127.0.0.1:1":
                raise UnreachableError("nobody is there")
            contested = {"broker-a": ["127.0.0.1:2", "127.0.0.1:3"]}
            told: dict[int, object] = {
                RequestCode.RMQHA_GET_NAMESRV_STATE: NameServerState(contested=contested).to_json(),
                RequestCode.GET_BROKER_CLUSTER_INFO: {"brokerAddrTable": {}, "clusterAddrTable": {}},
                RequestCode.RMQHA_GET_SECURITY_STATE: {"nowMs": 0, "files": []},
            }
            return command.reply(body=json.dumps(told[command.code]).encode())

    found = await Survey(NameServerAlone(), BootstrapAddresses(("127.0.0.1:1",)), 5.0).run()
    assert [(item.address, item.group) for item in found.of_kind(ServerKind.BROKER)] == [
        ("127.0.0.1:2", "broker-a"),
        ("127.0.0.1:3", "broker-a"),
    ]


async def test_a_refusal_is_an_answer() -> None:
    class Busy:
        async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
            return command.reply(ResponseCode.SYSTEM_BUSY, remark="over its quota")

    found = await Survey(Busy(), BootstrapAddresses(brokers=(("127.0.0.1:2", "g"),)), 5.0).run()
    (word,) = found.nodes
    assert (word.refuses, word.answers, word.error) == (True, False, "127.0.0.1:2 answered 2: over its quota")
