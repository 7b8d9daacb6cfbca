"""Servers at moments at which their state requests answer differently: the answer of each as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rmqha.ha.replica import Replica
from rmqha.ha.static_replica import StaticReplica
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.support import Broker
from tests.controller.harness import Cluster, group_of
from tests.ha.group import started
from tests.ha.stream.test_copy import left_behind
from tests.ha.test_static_group import Pair
from tests.support.steps import done


def _of(replica: Replica | StaticReplica, now_ms: int) -> bytes:
    return dumps(replica.state(now_ms).to_json())


def _group() -> dict[str, bytes]:
    group = started()
    found = {"master": _of(group[1].replica, group.now_ms), "slave": _of(group[2].replica, group.now_ms)}
    group.cut |= {(3, 1)}
    group.send(1)
    group.run(500)
    found["waiting"] = _of(group[1].replica, group.now_ms)
    group.cut |= {(2, 1)}
    group.run(5000)
    found["after a shrink"] = _of(group[1].replica, group.now_ms)
    group.kill(1)
    group.restart(1)
    return found | {"alone again": _of(group[1].replica, group.now_ms)}


def _copying() -> dict[str, bytes]:
    group = left_behind(ha_transfer_bytes_per_second=100_000)
    node = group.restart(3)
    group.run(1500)
    return {"copying": _of(node.replica, group.now_ms), "beside a copy": _of(group[1].replica, group.now_ms)}


def _static() -> dict[str, bytes]:
    pair = Pair(broker_role="SYNC_MASTER")
    alone = _of(pair.slave.replica, pair.now_ms)
    pair.connect()
    pair.master.add(pair.now_ms, "a")
    pair.run(100)
    return {
        "static slave alone": alone,
        "static master": _of(pair.master.replica, pair.now_ms),
        "static slave": _of(pair.slave.replica, pair.now_ms),
    }


def _controllers() -> dict[str, bytes]:
    def of(cluster: Cluster, index: int) -> bytes:
        nodes = [cluster.leader, *(node for node in cluster.nodes.values() if node is not cluster.leader)]
        return done(nodes[index].machine.state(cluster.now_ms))

    cluster, brokers = group_of(3, node_count=3)
    found = {"leader": of(cluster, 0), "follower": of(cluster, 1)}
    cluster.crash(brokers[0])
    cluster.run(5000)
    explained = cluster.call(RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": "broker-a"})
    return found | {"after a failover": of(cluster, 0), "explained": bytes(explained.body)}


def scenarios() -> dict[str, bytes]:
    return _group() | _copying() | _static() | _controllers()


def broker_answer(make_broker: Callable[..., Broker]) -> bytes:
    """The whole of 52000, as a master tells it."""
    return bytes(make_broker().start().ask(Command(RequestCode.RMQHA_GET_REPLICA_STATE)).body)


GOLDEN = Path(__file__).parents[1] / "golden" / "node_state.json"


def golden() -> dict[str, str]:
    """Answers that were recorded, byte for byte."""
    found: dict[str, str] = json.loads(GOLDEN.read_text())
    return found
