"""The dashboard: JSON whose panels do not overlap and ask only for series that exist."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from rmqha.cli.generate.grafana import dashboard
from tests.cli.generate.support import check, shown


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard())["panels"]
    return found


def test_every_query_is_one_that_our_servers_answer() -> None:
    queries = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    assert len(queries) > 30
    for query in queries:
        check(query)


def test_panels_have_ids_and_places_of_their_own() -> None:
    found = panels()
    assert [panel["id"] for panel in found] == list(range(1, len(found) + 1))
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in found)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23
    for panel in found:
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert refs == sorted(set(refs))


def test_its_choices_ask_for_labels_that_exist() -> None:
    source, cluster, group = json.loads(dashboard())["templating"]["list"]
    assert source["type"] == "datasource"
    assert cluster["query"] == "label_values(rocketmq_ha_role{}, cluster)"
    assert group["query"].endswith(", node_id)") and "rocketmq_ha_role" in shown()


def test_rows_stand_in_order() -> None:
    tops = [panel["gridPos"]["y"] for panel in panels() if panel["type"] == "row"]
    assert len(tops) == 5 and all(before < after for before, after in pairwise(tops))
