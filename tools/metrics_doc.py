"""Writes docs/operate/metrics.md from the lists of series in the code, so that the page cannot drift from it.

`python tools/metrics_doc.py` rewrites it; tests/test_metrics_doc.py compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import controller.metrics
import nameserver.metrics
import rmqha.broker.services.metrics
import rmqha.host.access.security_watch
import rmqha.host.event_counts
import rmqha.model.series
from rmqha.model.series import MetricKind, Series

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operate" / "metrics.md"
HEAD = """# Health, roles and metrics over HTTP

The tables are written by `tools/metrics_doc.py` from the code; do not edit by hand.

`httpPort` opens a port for people and machines that look after a server; 0, the default, opens none. It listens on
`httpHost`, 127.0.0.1 unless told otherwise. In a cluster file `[cluster] httpPort = 9900` gives every node a port of
its own: name servers from 9900, controllers from 9910, the first group from 9920, the next from 9930;
`rmqha status -o json` shows them as `httpAddress`. A name server and the controller in it share one port.

| path | answers |
|---|---|
| `/healthz` | 200 while the event loop turns: restart the process if it does not |
| `/readyz` | 200 if the server does its work, else 503 and one sentence |
| `/role` | 200 and JSON: role, epoch, offsets, ready and why not |
| `/role/master`, `/role/slave`, `/role/leader` | 200 only where the role is that, else 503 (load balancers) |
| `/metrics` | Prometheus' text format |

Not ready is a master that takes no sends, a slave that does not follow its master or still copies, a controller that
knows no leader, and whatever still starts. A process manager that waits for `/readyz` before it stops the next replica
keeps a group writable.

A listener on loopback answers only to names of this machine (421 else). With `tls.server.certPath` the port takes HTTPS
too, with `tls.server.mode=enforcing` nothing else. It asks for no account and shows no message, so leave `httpHost` on
loopback, or let only your monitoring reach it.

What it costs, CPU time on a busy machine: 3 MiB and 35 ms when a process starts, and 2 µs of 45 µs for each send,
for counting by topic. A scrape of 1000 consumer groups with 8 queues each takes 20 ms (30 ms where all of them
lag), in steps of 1 ms between which messages flow, and 40 ms of a thread for half a megabyte of text. Without
`httpPort` nothing of it is loaded or counted.

`rmqha generate prometheus` writes a scrape configuration and alerts, `rmqha generate grafana` a dashboard.

Counters by cause, and failovers by phase, show 0 for what has not happened yet: Prometheus' `increase` does not see a
series that begins at 1.

Values are read when somebody scrapes, so the series of a role that a replica has lost are gone with the next scrape.
Names and labels are RocketMQ 5's where it has them ("5.x" below), as the Prometheus exporter of 5.4.0 writes them, with
the unit at the end (`rocketmq_storage_size_bytes`) and without its label `otel_scope_name`. Two replicas of a group
differ by Prometheus' own label `instance`, as two brokers of RocketMQ do. Series by topic and group stop at 1000
places, and say how many were left out: what comes beyond is counted under `other`.

RocketMQ's series that are missing here: `rocketmq_rpc_latency_*`, those of pop, of timers
`rocketmq_timer_enqueue_total`, `_enqueue_latency`, `_dequeue_lag` and `_message_snapshot`, and of the
controllers `dledger_disk_usage_bytes` and `election_total` (`rocketmq_ha_elections_total` tells of each, by cause).
`rocketmq_half_messages` is one figure of all topics, and the two about creation tell how long the operator waited.

`rocketmq_consumer_lag_latency_milliseconds` and `rocketmq_consumer_queueing_latency_milliseconds` look at one entry of
each queue in which a group lags and at one message of the group: the one that the log holds first, not one of each
queue. Where damage hides that message the series is absent.
"""


def _table(title: str, text: str, series: Iterable[Series]) -> str:
    lines = [f"\n## {title}\n", f"{text}\n", "| series | kind | labels | since | meaning |", "|---|---|---|---|---|"]
    for item in series:
        labels = ", ".join(f"`{label}`" for label in item.labels)
        unit = " (`_bucket`, `_sum`, `_count`)" if item.kind is MetricKind.HISTOGRAM else ""
        since = "own" if item.own else "5.x"
        lines.append(f"| `{item.name}`{unit} | {item.kind.value} | {labels} | {since} | {item.help} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    return (
        HEAD
        + _table(
            "Broker",
            "Labels of all: `cluster`, `node_type` (broker), `node_id` (brokerName).",
            rmqha.broker.services.metrics.SERIES,
        )
        + _table("Controller", "Labels of all: `address`, `group`, `peer_id`.", controller.metrics.SERIES)
        + _table(
            "Name server", "Labels of all: `node_type` (namesrv), `node_id` (its address).", nameserver.metrics.SERIES
        )
        + _table("The port of each server", "Labels: those of the server.", rmqha.model.series.SERIES)
        + _table(
            "Every process",
            "No labels of their own beside those below; `process_*` (CPU, memory, descriptors, start time) come from"
            " Prometheus' client library.",
            (*rmqha.host.event_counts.SERIES, *rmqha.host.access.security_watch.SERIES),
        )
    )


if __name__ == "__main__":
    PAGE.write_text(page())
