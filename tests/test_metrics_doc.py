"""docs/operate/metrics.md is what the lists of series say, and no two series share a name."""

from __future__ import annotations

import controller.metrics
import nameserver.metrics
import rmqha.broker.services.metrics
import rmqha.host.event_counts
import rmqha.model.series
from tools.metrics_doc import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python tools/metrics_doc.py"


def test_names_are_given_once() -> None:
    modules = (
        rmqha.broker.services.metrics,
        controller.metrics,
        nameserver.metrics,
        rmqha.host.event_counts,
        rmqha.model.series,
    )
    names = [item.name for module in modules for item in module.SERIES]
    assert len(names) > 60
    assert sorted(names) == sorted(set(names))
