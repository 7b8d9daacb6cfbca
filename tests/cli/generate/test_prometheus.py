"""The scrape configuration and the alerts: YAML, PromQL, series that exist, commands that exist."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import click
import promql_parser
import pytest
import yaml

from controller.state.event import Cause
from rmqha.cli.generate.prometheus import ALERTS, RULES_FILE, Alert, alert_rules, scrape_config
from rmqha.model.error import UsageError
from tests.cli.generate.support import check
from tests.cli.test_help import ALL

LOOKBACK_S = 300
"""Age (s) at which Prometheus no longer takes a sample for the current one."""


def test_each_node_is_a_target_with_its_name() -> None:
    found = yaml.safe_load(scrape_config({"ns-1": "127.0.0.1:9900", "broker-a-1": "[::1]:9920"}))
    assert found["rule_files"] == [RULES_FILE]
    (job,) = found["scrape_configs"]
    assert job["static_configs"] == [
        {"targets": ["127.0.0.1:9900"], "labels": {"node": "ns-1"}},
        {"targets": ["[::1]:9920"], "labels": {"node": "broker-a-1"}},
    ]


def test_the_rules_are_the_alerts() -> None:
    (group,) = yaml.safe_load(alert_rules())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in ALERTS]
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for rule in group["rules"]:
        assert set(rule["annotations"]) == {"summary", "description", "command"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_asks_for_what_is_shown_and_says_what_to_run(alert: Alert) -> None:
    check(alert.expr)
    assert re.fullmatch(r"\d+[sm]", alert.lasting)
    assert alert.severity in ("critical", "warning", "info")
    assert alert.reason.endswith(".")
    program, *words = re.sub(r"\{\{.*?\}\}", "x", alert.command).split()
    path = max((found for found in ALL if found == tuple(words[: len(found)])), key=len)
    assert program == "rmqha"
    with suppress(click.exceptions.Exit, UsageError):  # --help, and no cluster is known
        ALL[path].make_context(path[-1], words[len(path) :])
    used = re.findall(r"\$labels\.(\w+)", alert.summary + alert.reason + alert.command)
    known = {"node", "instance", "broker_set", "node_id", "slave", "consumer_group", "topic", "file"}
    assert set(used) <= known
    for template in (alert.summary, alert.command):
        assert template.count("{{") == template.count("}}") == len(re.findall(r"\{\{ \$[\w.]+ \}\}", template))


def value(node: Any, samples: Mapping[int, float], at_s: int) -> float | None:
    """Value of a query over one series at a moment, None without one. `samples` by time (s)."""
    if isinstance(node, promql_parser.ParenExpr):
        return value(node.expr, samples, at_s)
    if isinstance(node, promql_parser.NumberLiteral):
        return float(node.val)
    if isinstance(node, promql_parser.VectorSelector):
        moment_s = at_s - (node.offset.total_seconds() if node.offset is not None else 0)
        fresh = [time_s for time_s in samples if moment_s - LOOKBACK_S < time_s <= moment_s]
        return samples[max(fresh)] if fresh else None
    if isinstance(node, promql_parser.Call):
        assert node.func.name == "increase"
        range_s = node.args[0].range.total_seconds()
        within = [samples[time_s] for time_s in sorted(samples) if at_s - range_s < time_s <= at_s]
        grown = [after - before if after >= before else after for before, after in pairwise(within)]
        return sum(grown) if grown else None
    left, right = value(node.lhs, samples, at_s), value(node.rhs, samples, at_s)
    match str(node.op):
        case ">":
            assert right is not None
            return left if left is not None and left > right else None
        case "or":
            return right if left is None else left
        case "unless":
            return left if right is None else None
    raise AssertionError(f"no such operator here: {node.op}")


@pytest.mark.parametrize(
    ("samples", "fires"),
    [
        ({}, []),
        # born at 1 by the group's first dead letter
        (dict.fromkeys(range(3600, 9000, 15), 1), [3600, 4000, 4485]),
        ({time_s: 1 + (time_s >= 6000) for time_s in range(0, 9000, 15)}, [0, 800, 6000, 6800]),
        # a broker's restart
        ({time_s: 5 if time_s < 6000 else 1 for time_s in range(0, 9000, 15)}, [0, 800, 6000, 6800]),
    ],
)
def test_the_alert_for_dead_letters_counts_the_first_one(samples: Mapping[int, float], fires: list[int]) -> None:
    query = promql_parser.parse(next(alert.expr for alert in ALERTS if alert.name == "RmqhaDeadLetters"))
    at_s = [0, 800, 3000, 3600, 4000, 4485, 5000, 6000, 6800, 8000]
    assert [moment_s for moment_s in at_s if value(query, samples, moment_s) is not None] == fires


def test_causes_that_alerts_name_exist() -> None:
    causes = {cause.name.lower() for cause in Cause}
    named = {alert.name: re.findall(r'cause=~?"([\w|]+)"', alert.expr) for alert in ALERTS}
    named = {name: found[0].split("|") for name, found in named.items() if found}
    assert {cause for found in named.values() for cause in found} <= causes
    assert set(named["RmqhaElectedWithLoss"]) == {
        cause for cause in causes if re.fullmatch("unclean_(?!boot).*", cause)
    }
    # UNCLEAN_BOOT drops a master that lost power from the set: who is elected then holds all


def test_a_query_that_names_no_series_of_ours_is_seen() -> None:
    for wrong in (
        "rocketmq_ha_no_such_thing > 0",
        "sum(rate(rocketmq_ha_epoch[5m])",
        "count by (role) (rocketmq_role)",
    ):
        with pytest.raises((AssertionError, ValueError)):
            check(wrong)
