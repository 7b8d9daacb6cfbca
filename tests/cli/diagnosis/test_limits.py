"""`rmqha doctor` on the limits of control groups, beside what a node may take by its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.cli.diagnosis.checks.limits import MIB, check_limits, needed_bytes
from rmqha.cli.diagnosis.checks.node_under_test import NodeUnderTest
from rmqha.host.limits.control_group import ResourceLimits
from rmqha.model.config.servers import BrokerConfig
from rmqha.ops.finding import Verdict
from rmqha.ops.local.node_kind import NodeKind


def node(**keys: Any) -> NodeUnderTest:
    return NodeUnderTest("b", NodeKind.BROKER, "b.conf", None, {}, broker=BrokerConfig(**keys))


def test_without_limits_nothing_is_said() -> None:
    assert list(check_limits(node(), ResourceLimits(None, None))) == []


def test_a_limit_of_memory_below_what_a_node_may_take_is_a_warning() -> None:
    needed = needed_bytes(node())
    (low,) = check_limits(node(), ResourceLimits(needed - 1, None))
    assert low.verdict is Verdict.WARN
    assert f"but it may take {needed // MIB} MiB under load: the kernel may kill it" in low.sentence
    assert low.fix.startswith(f"raise it to {needed // MIB} MiB or more")
    (high,) = check_limits(node(), ResourceLimits(needed, 2.0))
    assert high.verdict is Verdict.OK


def test_what_waits_for_the_log_in_memory_counts() -> None:
    pool = node(transient_store_pool_enable=True, transient_store_pool_size=1000, commit_commit_log_least_pages=100)
    assert needed_bytes(pool) == needed_bytes(node()) + 1000 * 100 * 4096
    other = NodeUnderTest("ns", NodeKind.NAMESRV, "ns.conf", None, {})
    assert needed_bytes(other) < needed_bytes(node())


@pytest.mark.parametrize(("cpus", "said"), [(0.25, True), (1.0, False), (None, False)])
def test_less_than_a_processor_is_a_warning(cpus: float | None, said: bool) -> None:
    found = list(check_limits(node(), ResourceLimits(None, cpus)))
    assert [finding.verdict for finding in found] == [Verdict.WARN] * said
    assert not said or found[0].sentence.startswith("it may use 0.25 of a processor")
