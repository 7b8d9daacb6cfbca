"""Metric families as Prometheus' text format, by its client library, with the process's own metrics. Shell.

`rmqha.host.http.endpoint.expose` imports this module when a process with metrics starts: at the first scrape the import
would block the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from rmqha.model.series import MetricFamilies, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _FamiliesCollector(Collector):
    """Collector of the families of all servers of a process; series of one name become one family."""

    def __init__(self, scraped: Sequence[MetricFamilies]) -> None:
        self._scraped = scraped

    def collect(self) -> Iterable[Metric]:
        families: dict[Series, Metric] = {}
        for part in self._scraped:
            for series, samples in part.samples.items():
                family = families.get(series)
                if family is None:
                    # the library adds "_total" to the names of counters
                    name = series.name.removesuffix("_total")
                    family = families[series] = Metric(name, series.help, series.kind.value)
                for sample in samples:
                    family.add_sample(series.name + sample.suffix, dict(sample.labels), sample.value)
        return families.values()


def exposition(scraped: Sequence[MetricFamilies]) -> bytes:
    """Metrics in the text format 0.0.4, with the process_* series."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FamiliesCollector(scraped))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
