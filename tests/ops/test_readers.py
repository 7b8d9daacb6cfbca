"""Every reader of what a cluster says shows recorded answers byte for byte as it did when they were recorded."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from nameserver.web.watch import CLUSTER, ClusterWatch
from rmqha.cli.cluster_table import cluster_json, print_cluster
from rmqha.cli.health.command import as_json
from rmqha.cli.render import Printer
from rmqha.ops.cluster_view import ask_cluster
from rmqha.ops.description.group import describe_group
from rmqha.ops.group_view import ask_groups, find_groups
from rmqha.ops.health.findings import judge
from rmqha.ops.replica_rows import rows
from rmqha.ops.survey import BootstrapAddresses, Survey
from rmqha.ops.wait_explanation import view_of
from rmqha.wire.state.name_server_state import NameServerFacts
from tests.ops.recorded import CASES, GOLDEN, RecordedCluster
from tests.support.clock import ManualClock
from tests.support.tracer import RecordingTracer


async def health_and_top(recorded: RecordedCluster) -> dict[str, Any]:
    words = await Survey(recorded.client, BootstrapAddresses.of_state(recorded.state), 5.0).run()
    health = judge(words, words.groups)
    return {"health": as_json(health, words), "top": [row.as_json() for row in rows(words, words, 2.0)]}


async def status(recorded: RecordedCluster) -> dict[str, Any]:
    view = await ask_cluster(recorded.client, recorded.state)
    out = io.StringIO()
    print_cluster(view, Printer(out, 80, is_styled=False))
    return {"status": cluster_json(view), "statusText": out.getvalue().splitlines()}


async def describe(recorded: RecordedCluster) -> dict[str, Any]:
    named = await find_groups(recorded.client, recorded.state.namesrv_addresses)
    groups = await ask_groups(recorded.client, list(named.values()))
    return {
        "describe": [describe_group(group, ["a condition"]).to_json() for group in groups],
        "explainWait": [view_of(group) for group in groups],
    }


async def page(recorded: RecordedCluster) -> dict[str, Any]:
    watch = ClusterWatch(
        lambda: NameServerFacts(address=recorded.state.namesrv_addresses),
        recorded.state.namesrv_addresses,
        recorded.state.controller_addresses,
        ManualClock(),
        RecordingTracer(),
    )
    watch._viewers.update((CLUSTER, "broker-a"))
    await watch._round(recorded.client)
    return {"page": {name: text.decode() for name, text in sorted(watch._documents.items())}}


async def shown(case: str, monkeypatch: pytest.MonkeyPatch) -> str:
    recorded = RecordedCluster(case, monkeypatch)
    told: dict[str, Any] = {}
    for reader in (health_and_top, status, describe, page):
        told |= await reader(recorded)
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("case", CASES)
async def test_what_is_shown_of_recorded_answers(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (GOLDEN / f"{case}.shown.json").read_text(encoding="utf-8")
    assert (await shown(case, monkeypatch)).splitlines() == wanted.splitlines()
