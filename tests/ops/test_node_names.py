"""Names of replicas in what brokers say, who know ids alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqha.model.identity import name_replicas
from rmqha.ops.node_names import ReplicaNames, with_names
from tests.cli.health.reports import broker, cluster, snapshot_of

NAMES = ReplicaNames({number: f"broker-a-{number}" for number in (1, 2, 3)})


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("replica 2 is about to become master", "broker-a-2 is about to become master"),
        ("replica 2, replica 3 lack it", "broker-a-2, broker-a-3 lack it"),
        ("in-sync replicas not enough: the confirmed set [1] has less than 2 of 3",
         "in-sync replicas not enough: the confirmed set [broker-a-1] has less than 2 of 3"),
        ("replicas [2, 3] are away", "replicas [broker-a-2, broker-a-3] are away"),
        ("replica 9 is not known", "replica 9 is not known"),
        ("2 replicas of 3", "2 replicas of 3"),
    ],
)  # fmt: skip
def test_ids_become_names(told: str, shown: str) -> None:
    assert name_replicas(told, NAMES.of) == shown


def test_a_snapshot_has_names_in_its_brokers_sentences() -> None:
    words = cluster()
    words["broker-a-1"] = broker(1, writable=False, whyNotWritable="replica 2 is about to become master")
    words["broker-a-3"] = broker(3, refusal="replica 1 has another history")
    shown = with_names(snapshot_of(words.values()))
    states = {node.title: node.replica for node in shown.nodes if node.replica is not None}
    assert states["broker-a-1"].why_not_writable == "broker-a-2 is about to become master"
    assert states["broker-a-3"].refusal == "broker-a-1 has another history"
    assert with_names(shown) == shown and replace(states["broker-a-2"]).refusal == words["broker-a-2"].replica.refusal  # type: ignore[union-attr]
