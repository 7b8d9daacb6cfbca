"""How a run that may lose nothing ends."""

from __future__ import annotations

from rmqha.drill.audit import AuditResult, audit, check_same_bytes
from rmqha.drill.cluster import BROKERS, Cluster
from rmqha.drill.traffic import DrillTraffic
from tests.chaos.conftest import Tell


async def assert_nothing_lost(
    cluster: Cluster, traffic: DrillTraffic, tell: Tell, *, replica: str = BROKERS[0], more: str = ""
) -> AuditResult:
    """No send has failed, all logs get the same bytes, and that of `replica` holds each acknowledged message where the
    answer said. `more` is told too."""
    end = await cluster.wait_level()
    found = audit(cluster.store(replica), end, traffic.acked)
    tell(f"{len(traffic.acked)} acknowledged, {found.line}{more}")
    assert not traffic.failures
    assert (found.lost, found.misplaced, found.swapped) == ([], [], 0)
    check_same_bytes([cluster.store(name) for name in BROKERS], end)
    return found
