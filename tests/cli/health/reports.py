"""What the nodes of a cluster would say: three controllers, two name servers, a group of three replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rmqha.ops.snapshot import ClusterSnapshot, NodeReport, ServerKind
from rmqha.wire.state.controller_state import ControllerState, GroupState
from rmqha.wire.state.replica_state import ReplicaState

MASTER_ID = 1
EPOCH = 4


def replica_row(broker_id: int, **more: Any) -> dict[str, Any]:
    """A replica as a controller tells it."""
    return {
        "brokerId": broker_id,
        "address": f"127.0.0.1:1091{broker_id}",
        "isMaster": broker_id == MASTER_ID,
        "inSyncStateSet": True,
        "asyncLearner": False,
        "drained": False,
    } | more


def group_row(**more: Any) -> dict[str, Any]:
    """The group as a controller tells it."""
    return {
        "masterBrokerId": MASTER_ID,
        "masterEpoch": EPOCH,
        "syncStateSet": [1, 2, 3],
        "syncStateSetEpoch": 9,
        "totalReplicas": 3,
        "nextTotalReplicas": None,
        "whyNoMaster": None,
        "elections": [],
        "replicas": [replica_row(broker_id) for broker_id in (1, 2, 3)],
    } | more


def controller(number: int, *, leads: bool = False, **more: Any) -> NodeReport:
    """`more` changes the group."""
    raft = {"term": 7, "voters": ["n0", "n1", "n2"], "members": []}
    state = ControllerState.from_json({"leading": leads, "raft": raft, "groups": {"broker-a": group_row(**more)}})
    address = f"127.0.0.1:987{number}"
    return NodeReport(ServerKind.CONTROLLER, address, f"ctl-{number}", runs=True, controller=state, leads=leads)


def name_server(number: int, master: str = "127.0.0.1:10911") -> NodeReport:
    routes = {"broker-a": {0: master, 2: "127.0.0.1:10912", 3: "127.0.0.1:10913"}}
    return NodeReport(ServerKind.NAME_SERVER, f"127.0.0.1:986{number}", f"ns-{number}", runs=True, routes=routes)


def broker(broker_id: int, **more: Any) -> NodeReport:
    """`more` changes its state."""
    is_master = broker_id == MASTER_ID
    state = {
        "brokerName": "broker-a",
        "brokerId": broker_id,
        "role": "MASTER" if is_master else "SLAVE",
        "epoch": EPOCH,
        "masterId": MASTER_ID,
        "maxPhyOffset": 1000,
        "confirmOffset": 1000,
        "writable": is_master,
        "whyNotWritable": "",
        "followState": None if is_master else "following",
        "waits": {"count": 0, "oldestAgeMs": None},
    } | more
    keys = {"enableControllerMode": "true", "brokerName": "broker-a"}
    groups, address = frozenset({"broker-a"}), f"127.0.0.1:1091{broker_id}"
    return NodeReport(
        ServerKind.BROKER,
        address,
        f"broker-a-{broker_id}",
        groups,
        runs=True,
        keys=keys,
        replica=ReplicaState.from_json(state),
    )


def told_by_a_broker(broker_id: int = MASTER_ID) -> dict[str, Any]:
    state = broker(broker_id).replica
    assert state is not None
    return state.to_json()


def tell(words: dict[str, NodeReport], name: str, **more: Any) -> None:
    """Change what a broker says of itself; as in a survey, an answer that cannot be read is none."""
    word = words[name]
    assert word.replica is not None
    try:
        words[name] = replace(word, replica=ReplicaState.from_json(word.replica.to_json() | more))
    except ValueError as error:
        words[name] = replace(word, replica=None, error=f"the answer of {word.address} cannot be read: {error}")


def tell_group(word: NodeReport, **more: Any) -> None:
    """Change what a controller says of the group."""
    assert word.controller is not None
    groups = word.controller.groups
    groups["broker-a"] = GroupState.from_json(groups["broker-a"].to_json() | more)


def snapshot_of(words: Iterable[NodeReport]) -> ClusterSnapshot:
    """In the order in which they are given."""
    return ClusterSnapshot(tuple(words))


def cluster() -> dict[str, NodeReport]:
    """All well, by name."""
    words = [controller(1), controller(2, leads=True), controller(3), name_server(1), name_server(2)]
    words += [broker(1), broker(2), broker(3)]
    return {word.name: word for word in words}


def silent(word: NodeReport, *, runs: bool | None = True) -> NodeReport:
    """The same node, not answering."""
    return NodeReport(
        word.kind, word.address, word.name, word.groups, runs, f"{word.address} did not answer within 1200 ms"
    )
