"""Where the log of a replica that refuses parts from its master's, and when it may be copied anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqha.model.error import RmqhaError, UnreachableError
from rmqha.ops.cluster_view import ClusterView
from rmqha.ops.fork import forks_of, require_repairable, silent_replicas
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.snapshot import ClusterSnapshot
from tests.cli.health.reports import broker, controller

REFUSAL = "following would cut to 900, below the own confirm offset 1200"
EPOCHS = [[1, 0], [4, 900]]


def view(set_: tuple[int, ...] = (1, 2), master: dict[str, Any] | None = None, **refusing: Any) -> ClusterView:
    """Replica 3 has written under epoch 3 from 900 on what its master has not."""
    own = {"epochs": [[1, 0], [3, 900]], "maxPhyOffset": 1200, "confirmOffset": 1200, "refusal": REFUSAL} | refusing
    words = [
        controller(1, leads=True, syncStateSet=list(set_)),
        broker(1, epochs=EPOCHS, **(master or {})),
        broker(2, epochs=EPOCHS),
        broker(3, **own),
    ]
    names = {f"broker-a-{number}": f"127.0.0.1:1091{number}" for number in (1, 2, 3)}
    nodes = {name: NodeRecord(name, NodeKind.BROKER.value, address, "", "broker-a") for name, address in names.items()}
    return ClusterView.of(ClusterState(Path("/nowhere"), "c", "cp", "", nodes), ClusterSnapshot.of(words))


def test_a_fork_is_told_with_what_each_side_has_alone() -> None:
    (item,) = forks_of(view())
    assert (item.node, item.master, item.point, item.own_bytes, item.master_bytes) == (
        "broker-a-3", "broker-a-1", 900, 300, 100,
    )  # fmt: skip
    assert "From byte 900 on it has 300 bytes that broker-a-1" in item.sentence and REFUSAL in item.sentence
    assert require_repairable(view(), "broker-a-3") == item


def test_logs_that_share_nothing_part_at_the_beginning() -> None:
    (item,) = forks_of(view(epochs=[[2, 500]], minPhyOffset=500))
    assert (item.point, item.own_bytes) == (500, 700)


def test_who_did_not_answer_is_named_and_all_of_them_are_an_error() -> None:
    assert silent_replicas(view()) == []
    seen = view()
    for name in ("broker-a-2", "broker-a-3"):
        seen.nodes[name] = replace(seen.nodes[name], replica=None)
    assert silent_replicas(seen) == ["broker-a-2", "broker-a-3"]
    seen.nodes["broker-a-1"] = replace(seen.nodes["broker-a-1"], replica=None)
    with pytest.raises(UnreachableError, match="none of broker-a-1, broker-a-2, broker-a-3 answers"):
        silent_replicas(seen)


@pytest.mark.parametrize(
    ("name", "seen", "words"),
    [
        ("broker-a-2", view(), "refuses nothing"),
        ("broker-a-3", view(set_=(1, 2, 3)), "still count broker-a-3 in the SyncStateSet"),
        ("broker-a-3", view(master={"role": "SLAVE"}), "has no master that answers"),
    ],
)
def test_what_may_not_be_copied_anew_is_refused(name: str, seen: ClusterView, words: str) -> None:
    with pytest.raises(RmqhaError, match=words):
        require_repairable(seen, name)
