"""Metrics of a name server, read from its tables for each scrape. RocketMQ's name server has none. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nameserver.route_info import RouteTable
from rmqha.model.offset import MASTER_ID
from rmqha.model.series import Collecting, MetricFamilies, MetricKind, Series, put_remoting

MAX_GROUPS = 1000
GROUPS_PER_STEP = 50

BROKERS = Series("rmqha_namesrv_brokers", MetricKind.GAUGE, "Registered brokers of a group", ("cluster", "broker_set"))
MASTERS = Series(
    "rmqha_namesrv_group_has_master", MetricKind.GAUGE, "1 if clients are told a master", ("cluster", "broker_set")
)
TOPICS = Series("rmqha_namesrv_topics", MetricKind.GAUGE, "Topics that routes are known for")
SUSPECTS = Series(
    "rmqha_namesrv_suspects_itself",
    MetricKind.GAUGE,
    "1 while most heartbeats are missing: it is probably cut off itself",
)
GROUPS_LEFT_OUT = Series("rmqha_namesrv_groups_left_out", MetricKind.GAUGE, f"Groups beyond {MAX_GROUPS}")
EVENT_INDEX = Series(
    "rmqha_namesrv_election_index", MetricKind.GAUGE, "Version of the controllers' elections that it routes by"
)


def collect(address: str, routes: RouteTable, election_index: int | None, remoting: Mapping[str, int]) -> Collecting:
    """Metrics in steps. `remoting`: counts of `rmqha.host.net.remoting.Statistics`."""
    families = MetricFamilies({"node_type": "namesrv", "node_id": address})
    groups = routes.groups()
    for place, group in enumerate(groups[:MAX_GROUPS], 1):
        if place % GROUPS_PER_STEP == 0:
            yield
        families.put(BROKERS, len(group.addresses), group.cluster_name, group.broker_name)
        families.put(MASTERS, MASTER_ID in group.addresses, group.cluster_name, group.broker_name)
    families.put(GROUPS_LEFT_OUT, max(0, len(groups) - MAX_GROUPS))
    families.put(TOPICS, routes.topic_count)
    families.put(SUSPECTS, routes.suspects_itself)
    if election_index is not None:
        families.put(EVENT_INDEX, election_index)
    put_remoting(families, remoting)
    return families


SERIES = tuple(item for item in list(globals().values()) if isinstance(item, Series))
