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

`httpPort` opens a port for monitoring; 0, the default, opens none. For example:

```
curl http://127.0.0.1:9920/role        # role, epoch and offsets of the first broker, as JSON
curl http://127.0.0.1:9920/metrics     # Prometheus' text format
```

The port listens on `httpHost`, by default 127.0.0.1. In a cluster file `[cluster] httpPort = 9900` gives every node a
port of its own: name servers from 9900, controllers from 9910, the first group from 9920, the next from 9930;
`rmqha status -o json` shows them as `httpAddress`. A name server and the controller in it share one port.

| path | answers |
|---|---|
| `/healthz` | 200 while the event loop turns: restart the process if it does not |
| `/readyz` | 200 if the server does its work, else 503 and one sentence |
| `/role` | 200 and JSON: role, epoch, offsets, ready and why not |
| `/role/master`, `/role/slave`, `/role/leader` | 200 only where the role is that, else 503 (load balancers) |
| `/metrics` | Prometheus' text format |

Not ready are a master that takes no sends, a slave that does not follow its master or still copies, a controller that
knows no leader, and a server that still starts. A process manager that waits for `/readyz` before it stops the next
replica keeps a group writable.

A listener on loopback answers only to names of this machine (421 else). With `tls.server.certPath` the port takes HTTPS
too, with `tls.server.mode=enforcing` nothing else. It asks for no account and shows no message, so leave `httpHost` on
loopback, or let only your monitoring reach it.

The port costs 3 MiB and 35 ms of CPU time when a process starts. Counting by topic costs 2 µs of 45 µs for each send.
A scrape of 1000 consumer groups with 8 queues each takes 20 ms (30 ms where all of them lag), in steps of 1 ms between
which messages flow. The text of half a megabyte takes 40 ms in a thread. Without `httpPort` nothing of this is loaded
or counted.

`rmqha generate prometheus` writes a scrape configuration and alerts, `rmqha generate grafana` a dashboard.

Counters by cause, and failovers by phase, show 0 for what has not happened yet, because Prometheus' `increase` does not
see a series that begins at 1. Values are read at each scrape. So when a replica loses a role, the series of that role
are gone with the next scrape.

Names and labels are RocketMQ 5's where it has them ("5.x" below). They are as the Prometheus exporter of 5.4.0 writes
them, with the unit at the end (`rocketmq_storage_size_bytes`) and without its label `otel_scope_name`. Two replicas
of a group differ by Prometheus' own label `instance`, as two brokers of RocketMQ do. Series by topic and group stop
at 1000 places. Further ones are counted under `other`, and `rmqha_lag_series_left_out` says how many there are.

These series of RocketMQ's are missing: `rocketmq_rpc_latency_*`; those of pop; of timers
`rocketmq_timer_enqueue_total`, `_enqueue_latency`, `_dequeue_lag` and `_message_snapshot`; of the
controllers `dledger_disk_usage_bytes` and `election_total` (use `rocketmq_ha_elections_total`, by cause).
`rocketmq_half_messages` is one figure for all topics. The two series about creation measure how long the operator
waited.

`rocketmq_consumer_lag_latency_milliseconds` and `rocketmq_consumer_queueing_latency_milliseconds` read one entry of
each queue in which a group lags, and only one message of the group: the one that the log holds first. If that message
is damaged, the series is absent.
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
