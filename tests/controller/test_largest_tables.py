"""The loop's time for each code of a controller that keeps a thousand groups, a code of tomorrow included."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from functools import partial

import pytest

from controller.requests import LEADER_CODES
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.controller.harness import GROUP, Cluster, group_of
from tests.support.machine_speed import cpu_ms, reference_ms

_C = RequestCode
LIMIT_MS = 80
"""CPU time of a request on the reference machine."""
GROUP_COUNT = 1_000
FIELDS = {
    "appliedBrokerId": "9",
    "brokerAddress": "127.0.0.1:9",
    "brokerId": "1",
    "brokerName": GROUP,
    "clusterName": "c",
    "enabled": "true",
    "index": "0",
    "invokeTime": "0",
    "masterBrokerId": "1",
    "masterEpoch": "1",
    "registerCheckCode": "x;1",
    "totalReplicas": "5",
}
CODES = sorted(LEADER_CODES | {_C.CONTROLLER_GET_METADATA_INFO, _C.CONTROLLER_GET_CONFIG})


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    cluster, _ = group_of(3)
    group, info = cluster.group(), cluster.leader.machine.info
    for number in range(1, GROUP_COUNT):
        name = f"group-{number}"
        info.groups[name] = replace(group, broker_name=name, place=number, replicas=dict(group.replicas))
    gc.collect()
    return cluster


@pytest.mark.parametrize("code", CODES)
def test_each_code_with_as_many_groups(cluster: Cluster, code: int) -> None:
    names = [*cluster.leader.machine.info.groups] if code == _C.CONTROLLER_GET_SYNC_STATE_DATA else []
    command = Command(code, FIELDS, dumps(names) if names else b"")
    assert reference_ms(partial(cpu_ms, partial(cluster.send, command)), LIMIT_MS) < LIMIT_MS


def test_the_state_of_all_groups_is_told_in_steps(cluster: Cluster) -> None:
    """Any account may ask for it, and it took 67 to 107 ms of one turn."""

    def longest_ms() -> float:
        longest_ms, steps = 0.0, cluster.leader.machine.state(cluster.now_ms)
        while True:
            began = time.thread_time()
            try:
                next(steps)
            except StopIteration as end:
                assert len(loads(end.value)["groups"]) == GROUP_COUNT
                return longest_ms
            finally:
                longest_ms = max(longest_ms, (time.thread_time() - began) * 1000)

    assert reference_ms(longest_ms, LIMIT_MS / 2) < LIMIT_MS / 2
