"""What a query may name, and the parser of Prometheus' query language."""

from __future__ import annotations

import re

import promql_parser

import controller.metrics
import nameserver.metrics
import rmqha.broker.services.metrics
import rmqha.host.access.security_watch
import rmqha.host.event_counts
import rmqha.model.series
from rmqha.model.series import MetricKind

PROCESS = {
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
}


def shown() -> set[str]:
    """Names of all samples that our servers, or Prometheus for them, show."""
    names = {"up"} | PROCESS
    for module in (
        rmqha.broker.services.metrics,
        controller.metrics,
        nameserver.metrics,
        rmqha.host.event_counts,
        rmqha.host.access.security_watch,
        rmqha.model.series,
    ):
        for item in module.SERIES:
            suffixes = ("_bucket", "_sum", "_count") if item.kind is MetricKind.HISTOGRAM else ("",)
            names |= {item.name + suffix for suffix in suffixes}
    return names


def check(query: str) -> None:
    """The query is PromQL and names only series that exist."""
    text = re.sub(r"\$__\w+", "5m", query)
    promql_parser.parse(text)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(?:by|without) \([^)]*\)|\boffset \w+", "", text)
    named = set(re.findall(r"[a-z_][a-z0-9_]*(?!\w)(?!\s*\()", bare)) - {"by", "without", "and", "or", "unless"}
    assert named, query
    assert named <= shown(), f"{query}: {sorted(named - shown())}"
