"""A Grafana dashboard over the metrics of docs/operate/metrics.md, as JSON to import. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

SCHEMA_VERSION = 39
_WIDTH, _HEIGHT = 8, 8
_COLUMNS = 24 // _WIDTH
_B = 'cluster=~"$cluster",node_id=~"$group"'
"""Brokers that the user has chosen."""


class Panel(NamedTuple):
    """One panel. `queries` are (PromQL, legend). `unit` is Grafana's name of the unit."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    help: str = ""
    kind: str = "timeseries"


def _quantile(series: str, quantile: float, by: str, chosen: str) -> str:
    return f"histogram_quantile({quantile}, sum by ({by}, le) (rate({series}_bucket{{{chosen}}}[$__rate_interval])))"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is it well",
        (
            Panel(
                "Groups without a master",
                (("max(rmqha_controller_groups_without_master)", "groups"),),
                help="0 is well",
                kind="stat",
            ),
            Panel(
                "Masters that take sends",
                ((f"sum by (node_id) (rocketmq_ha_writable{{{_B}}})", "{{node_id}}"),),
                help="1 for each group is well",
                kind="stat",
            ),
            Panel(
                "Replicas out of sync",
                ((f"rocketmq_ha_total_replicas{{{_B}}} - rocketmq_ha_sync_state_set_size{{{_B}}}", "{{node_id}}"),),
                help="0 is well",
                kind="stat",
            ),
            Panel("Role of each replica", ((f"rocketmq_ha_role{{{_B}}}", "{{node}} {{role}}"),)),
            Panel("Master epoch", ((f"rocketmq_ha_epoch{{{_B}}}", "{{node}}"),), help="Rises with each election"),
            Panel("Disk problems", ((f"rocketmq_ha_disk_problem{{{_B}}}", "{{node}}"),)),
        ),
    ),
    (
        "Replication",
        (
            Panel("Slave lag", ((f"rocketmq_ha_slave_lag_bytes{{{_B}}}", "{{node_id}} replica {{slave}}"),), "bytes"),
            Panel(
                "Slave lag in time", ((f"rocketmq_ha_slave_lag_seconds{{{_B}}}", "{{node_id}} replica {{slave}}"),), "s"
            ),
            Panel(
                "SyncStateSet",
                (
                    (f"rocketmq_ha_sync_state_set_size{{{_B}}}", "{{node_id}} in sync"),
                    (f"max by (node_id) (rocketmq_ha_total_replicas{{{_B}}})", "{{node_id}} replicas"),
                ),
            ),
            Panel(
                "Acknowledgement latency",
                tuple(
                    (_quantile("rocketmq_ha_ack_latency", quantile, "node_id", _B), f"{{{{node_id}}}} p{name}")
                    for quantile, name in ((0.5, "50"), (0.99, "99"), (0.999, "99.9"))
                ),
                "s",
            ),
            Panel(
                "Committed bytes per second",
                ((f"rate(rocketmq_ha_confirm_offset{{{_B}}}[$__rate_interval])", "{{node}}"),),
                "Bps",
                "How fast the confirm offset moves on each replica",
            ),
            Panel(
                "Left to copy",
                ((f"rocketmq_ha_copy_left_bytes{{{_B}}}", "{{node}}"),),
                "bytes",
                "Of a replica that has just joined",
            ),
        ),
    ),
    (
        "Failovers",
        (
            Panel(
                "Elections by cause",
                (("sum by (cause) (increase(rocketmq_ha_elections_total[$__rate_interval]))", "{{cause}}"),),
            ),
            Panel(
                "Failover phases, mean",
                (
                    (
                        "sum by (phase) (rate(rocketmq_ha_failover_seconds_sum[$__range]))"
                        " / sum by (phase) (rate(rocketmq_ha_failover_seconds_count[$__range]))",
                        "{{phase}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Changes of the set",
                (
                    (
                        "sum by (kind, cause) (increase(rocketmq_ha_set_changes_total[$__rate_interval]))",
                        "{{kind}} {{cause}}",
                    ),
                ),
            ),
            Panel(
                "Bytes cut",
                (("increase(rocketmq_ha_truncated_bytes_total[$__rate_interval])", "{{node}}"),),
                "bytes",
            ),
            Panel("Controllers: Raft term", (("rmqha_controller_term", "{{peer_id}}"),)),
            Panel("Controllers: role", (("role", "{{peer_id}}"),), help="1 candidate, 2 follower, 3 leader"),
        ),
    ),
    (
        "Messages",
        (
            Panel(
                "In per second",
                (
                    (
                        f"sum by (topic) (rate(rocketmq_messages_in_total{{{_B}}}[$__rate_interval]))",
                        "{{topic}}",
                    ),
                ),
                "cps",
            ),
            Panel(
                "Out per second",
                (
                    (
                        f"sum by (consumer_group) (rate(rocketmq_messages_out_total{{{_B}}}[$__rate_interval]))",
                        "{{consumer_group}}",
                    ),
                ),
                "cps",
            ),
            Panel(
                "Consumer lag",
                ((f"rocketmq_consumer_lag_messages{{{_B}}}", "{{consumer_group}} {{topic}}"),),
            ),
            Panel(
                "Age of the oldest message not consumed",
                ((f"rocketmq_consumer_lag_latency_milliseconds{{{_B}}}", "{{consumer_group}} {{topic}}"),),
                "ms",
            ),
            Panel(
                "Bytes per second",
                (
                    (
                        f"sum by (node_id) (rate(rocketmq_throughput_in_total{{{_B}}}[$__rate_interval]))",
                        "in {{node_id}}",
                    ),
                    (
                        f"sum by (node_id) (rate(rocketmq_throughput_out_total{{{_B}}}[$__rate_interval]))",
                        "out {{node_id}}",
                    ),
                ),
                "Bps",
            ),
            Panel(
                "Record size",
                tuple(
                    (_quantile("rocketmq_message_size", quantile, "node_id", _B), f"{{{{node_id}}}} p{name}")
                    for quantile, name in ((0.5, "50"), (0.99, "99"))
                ),
                "bytes",
            ),
            Panel(
                "Waiting sends and refused ones",
                (
                    (f"rocketmq_processor_watermark{{{_B}}}", "{{node_id}} waiting"),
                    (f"rate(rmqha_sends_refused_total{{{_B}}}[$__rate_interval])", "{{node}} refused per second"),
                ),
            ),
        ),
    ),
    (
        "Machines",
        (
            Panel("Not synced", ((f"rocketmq_storage_flush_behind_bytes{{{_B}}}", "{{node}}"),), "bytes"),
            Panel("Not dispatched", ((f"rocketmq_storage_dispatch_behind_bytes{{{_B}}}", "{{node}}"),), "bytes"),
            Panel("Disk in use", ((f"rocketmq_storage_size_bytes{{{_B}}}", "{{node}}"),), "bytes"),
            Panel("Memory", (("process_resident_memory_bytes", "{{node}}"),), "bytes"),
            Panel("CPU", (("rate(process_cpu_seconds_total[$__rate_interval])", "{{node}}"),), "percentunit"),
            Panel("Descriptors", (("process_open_fds / process_max_fds", "{{node}}"),), "percentunit"),
        ),
    ),
)


def dashboard() -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place})
        for number, panel in enumerate(row):
            line, column = divmod(number, _COLUMNS)
            place = {"x": column * _WIDTH, "y": top + 1 + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(len(panels) + 1, panel, place))
        top += 1 + -(-len(row) // _COLUMNS) * _HEIGHT
    document = {
        "uid": "rmqha",
        "title": "rmqha",
        "tags": ["rocketmq", "rmqha"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _choice("cluster", ""), _choice("group", 'cluster=~"$cluster"')]},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(panel_id: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": panel_id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "gridPos": place,
        "datasource": _DATA_SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _DATA_SOURCE, "expr": expr, "legendFormat": legend}
            for number, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _choice(name: str, within: str) -> dict[str, Any]:
    label = {"cluster": "cluster", "group": "node_id"}[name]
    return {
        "name": name,
        "type": "query",
        "label": name.capitalize(),
        "datasource": _DATA_SOURCE,
        "query": f"label_values(rocketmq_ha_role{{{within}}}, {label})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
