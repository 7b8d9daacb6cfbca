"""Topics: which are the users' own. Control plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SYSTEM = frozenset(
    (
        "TBW102",
        "SELF_TEST_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )
)
_SYSTEM_PREFIXES = ("%", "RMQ_SYS_", "rmq_sys_")


def of_users(names: Sequence[str], info: Mapping[str, Any]) -> list[str]:
    """Without the servers' own: retries, dead letters, and one called as each group and cluster of `info`, which is
    `Admin.cluster_info`."""
    servers = {*info["brokers"], *info["clusters"], *_SYSTEM}
    return [name for name in names if name not in servers and not name.startswith(_SYSTEM_PREFIXES)]
