"""The scrape configuration and the alerts: YAML, PromQL, series that exist, commands that exist."""

from __future__ import annotations

import re

import pytest
import yaml

from controller.state.event import Cause
from rmqha.cli.generate.prometheus import ALERTS, RULES_FILE, Alert, alert_rules, scrape_config
from rmqha.cli.main import COMMANDS
from tests.cli.generate.support import check


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
    program, command = alert.command.split()[:2]
    assert program == "rmqha" and command in COMMANDS
    used = re.findall(r"\$labels\.(\w+)", alert.summary + alert.reason + alert.command)
    known = {"node", "instance", "broker_set", "node_id", "slave", "consumer_group", "topic", "file"}
    assert set(used) <= known
    for template in (alert.summary, alert.command):
        assert template.count("{{") == template.count("}}") == len(re.findall(r"\{\{ \$[\w.]+ \}\}", template))


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
