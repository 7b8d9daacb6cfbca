"""Check of the limits that control groups set: of a container, or of a unit with MemoryMax= or CPUQuota=."""

from __future__ import annotations

from collections.abc import Iterator

from rmqha.broker.tables.clients import MAX_SUBSCRIPTIONS_BYTES
from rmqha.cli.diagnosis.checks.node_under_test import NodeUnderTest
from rmqha.host.limits.control_group import ResourceLimits, resource_limits
from rmqha.host.net.slow_readers import MAX_UNREAD_BYTES
from rmqha.host.net.unverified_sessions import MAX_PARTIAL_BYTES
from rmqha.ops.finding import Finding, ok, warn
from rmqha.store.config import StoreConfig

MIB = 1 << 20
IDLE_BYTES = 32 * MIB
"""Private memory of a server that has nothing to do."""


def check_limits(node_under_test: NodeUnderTest, limits: ResourceLimits | None = None) -> Iterator[Finding]:
    """Compare the limits of the node's process, or of this one while it does not run, with what it may take by its
    configuration. No finding without limits."""
    process = node_under_test.process
    alive = process is not None and process.alive
    if limits is None:
        limits = resource_limits(process.pid if process is not None and alive else None)
    name = node_under_test.name
    if limits.memory_bytes is not None:
        needed, limit = needed_bytes(node_under_test), limits.memory_bytes
        words = f"its memory limit is {limit // MIB:,} MiB"
        if limit < needed:
            sentence = f"{words}, but it may take {needed // MIB:,} MiB under load: the kernel may kill it"
            yield warn(name, "limits", sentence, f"raise it to {-(-needed // MIB)} MiB or more (MemoryMax= of a unit)")
        else:
            yield ok(name, "limits", f"{words}, it may take {needed // MIB:,} MiB, the rest caches its log")
    if limits.cpu_count is not None and limits.cpu_count < 1:
        sentence = f"it may use {limits.cpu_count:.2g} of a processor: heartbeats and acknowledgements wait their turn"
        yield warn(name, "limits", sentence, "allow a whole one or more (CPUQuota=100% of a unit)")


def needed_bytes(node_under_test: NodeUnderTest) -> int:
    """Private memory that the node may take: what an idle one has, and what its connections may keep waiting."""
    config, needed = node_under_test.broker, IDLE_BYTES + MAX_PARTIAL_BYTES + MAX_UNREAD_BYTES
    if config is None:
        return needed
    pool = StoreConfig(
        transient_store_pool_enable=config.transient_store_pool_enable,
        transient_store_pool_size=config.transient_store_pool_size,
        commit_commit_log_least_pages=config.commit_commit_log_least_pages,
    )
    return needed + MAX_SUBSCRIPTIONS_BYTES + pool.pool_bytes
