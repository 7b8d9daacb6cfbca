"""Prometheus' scrape configuration and alert rules. Every alert says why it matters and what to run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

JOB = "rmqha"
RULES_FILE = "rmqha-alerts.yml"
SCRAPE_INTERVAL = "15s"


class Alert(NamedTuple):
    """One alert rule. It fires when `expr` has held for `lasting`. `command` may use the labels of the series."""

    name: str
    expr: str
    lasting: str
    severity: str
    summary: str
    reason: str
    command: str


_GROUP = "{{ $labels.broker_set }}"
_BROKER_GROUP = "{{ $labels.node_id }}"
_DEAD_LETTERS = 'rocketmq_send_to_dlq_messages_total{is_system="false"}'
"""A group's series begins with its first dead letter, so at 1: `increase` does not count that one."""

ALERTS = (
    Alert(
        "RmqhaServerDown",
        f'up{{job="{JOB}"}} == 0',
        "1m",
        "warning",
        "{{ $labels.node }} {{ $labels.instance }} does not answer",
        "A group goes on without one replica, but has less to lose until it is back.",
        "rmqha status",
    ),
    Alert(
        "RmqhaGroupWithoutMaster",
        "rmqha_controller_group_has_master == 0",
        "10s",
        "critical",
        f"group {_GROUP} has no live master",
        "Nothing can be sent to it. An election takes about a second, so something keeps it from happening.",
        f"rmqha explain {_GROUP}",
    ),
    Alert(
        "RmqhaMasterRefusesSends",
        "rocketmq_ha_writable == 0",
        "10s",
        "critical",
        f"the master of {_BROKER_GROUP} takes no sends",
        "Too few replicas are in sync, its disk is full or failed, or a hand-over does not end.",
        f"rmqha explain-wait {_BROKER_GROUP}",
    ),
    Alert(
        "RmqhaSecurityFileRefused",
        "rmqha_security_file_problem == 1",
        "1m",
        "warning",
        "{{ $labels.instance }} refuses {{ $labels.file }}",
        "Its last good certificate, accounts or credentials are in force: a change that somebody made does not count.",
        "rmqha health",
    ),
    Alert(
        "RmqhaCertificateEndsSoon",
        "rmqha_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
        "60m",
        "warning",
        "a certificate in {{ $labels.file }} of {{ $labels.instance }} ends within 14 days",
        "From then on TLS connections fail. A new file is taken over without a restart.",
        "rmqha doctor",
    ),
    Alert(
        "RmqhaTwoMasters",
        'count by (cluster, node_id) (rocketmq_ha_role{role="master"}) > 1',
        "1m",
        "critical",
        f"group {_BROKER_GROUP} shows two masters",
        "One of them is cut off and fenced: in CP it acknowledges nothing, in AP what it takes may be lost.",
        "rmqha history",
    ),
    Alert(
        "RmqhaSetAtItsLeast",
        "rocketmq_ha_sync_state_set_size <= rocketmq_ha_total_replicas / 2",
        "30s",
        "critical",
        f"the SyncStateSet of {_BROKER_GROUP} has {{{{ $value }}}} members, less than a majority",
        "In CP nothing is acknowledged now; in AP one more failure loses acknowledged messages.",
        f"rmqha describe group {_BROKER_GROUP}",
    ),
    Alert(
        "RmqhaReplicaOutOfSync",
        "rocketmq_ha_sync_state_set_size < rocketmq_ha_total_replicas",
        "5m",
        "warning",
        f"{{{{ $value }}}} replicas of {_BROKER_GROUP} are in sync, fewer than it has",
        "A replica that stays out of the SyncStateSet protects nothing and cannot be elected.",
        f"rmqha describe group {_BROKER_GROUP}",
    ),
    Alert(
        "RmqhaSlaveLags",
        "rocketmq_ha_slave_lag_seconds > 30",
        "1m",
        "warning",
        f"replica {{{{ $labels.slave }}}} of {_BROKER_GROUP} was level with its master {{{{ $value }}}} s ago",
        "It copies more slowly than producers write: look at its disk and at the way between them.",
        f"rmqha describe group {_BROKER_GROUP}",
    ),
    Alert(
        "RmqhaSetUnconfirmed",
        "rocketmq_ha_set_unconfirmed_seconds > 30",
        "0s",
        "critical",
        f"{_BROKER_GROUP} acknowledges with a set that no controller knows",
        "The controllers are away and a replica too (AP): an election by them could lose what is acknowledged now.",
        "rmqha quorum show",
    ),
    Alert(
        "RmqhaControllersWithoutLeader",
        "max(rmqha_controller_has_leader) == 0",
        "10s",
        "critical",
        "the controllers have no leader",
        "Groups go on, but no master that dies is replaced: a majority of the controllers must be reachable.",
        "rmqha quorum show",
    ),
    Alert(
        "RmqhaControllerAway",
        "rocketmq_ha_controller_away == 1",
        "30s",
        "warning",
        f"a replica of {_BROKER_GROUP} reaches no controller",
        "It cannot be elected, and a master without controllers cannot let a slow slave go in CP.",
        "rmqha doctor",
    ),
    Alert(
        "RmqhaElectsAgainAndAgain",
        'sum(increase(rocketmq_ha_elections_total{cause="master_dead"}[15m])) > 3',
        "0s",
        "warning",
        "{{ $value }} masters were called dead within 15 minutes",
        "Machines that pause, or a network that drops heartbeats: each election costs producers about a second.",
        "rmqha history",
    ),
    Alert(
        "RmqhaElectedWithLoss",
        'increase(rocketmq_ha_elections_total{cause=~"unclean_by_operator|unclean_automatic"}[1h]) > 0',
        "0s",
        "critical",
        "a replica outside the SyncStateSet was elected",
        "Acknowledged messages may be missing. The old master's log still has them until it follows the new one.",
        "rmqha history --elections",
    ),
    Alert(
        "RmqhaSetFlaps",
        'sum by (instance) (increase(rocketmq_ha_set_changes_total{kind="leave"}[10m])) > 6',
        "0s",
        "warning",
        "replicas left the SyncStateSet {{ $value }} times within 10 minutes",
        "A slave that comes and goes holds up acknowledgements each time, for up to haAckStallBoundMs.",
        "rmqha history",
    ),
    Alert(
        "RmqhaLogWasCut",
        "increase(rocketmq_ha_truncated_bytes_total[10m]) > 0",
        "0s",
        "info",
        "{{ $labels.node }} has cut {{ $value }} bytes of its log to follow its master",
        "In CP nobody was told that these were stored; in AP they may have been acknowledged.",
        "rmqha history",
    ),
    Alert(
        "RmqhaDiskProblem",
        "rocketmq_ha_disk_problem == 1",
        "10s",
        "critical",
        f"the disk of a replica of {_BROKER_GROUP} fails, hangs or is full",
        "The mastership moves away from it; until it is mended the group has a replica less.",
        "rmqha doctor",
    ),
    Alert(
        "RmqhaNotWholeAfterPowerLoss",
        "rocketmq_ha_unclean == 1",
        "5m",
        "warning",
        f"a replica of {_BROKER_GROUP} has lost power and is not whole again",
        "It may lack acknowledged messages, so it is not elected before it has followed a master to its end.",
        f"rmqha explain {_BROKER_GROUP}",
    ),
    Alert(
        "RmqhaSlowAcknowledgements",
        "histogram_quantile(0.99, sum by (cluster, node_id, le) (rate(rocketmq_ha_ack_latency_bucket[5m]))) > 1",
        "5m",
        "warning",
        f"99 of 100 sends to {_BROKER_GROUP} are acknowledged within {{{{ $value }}}} s only",
        "The slowest disk or way of the SyncStateSet sets the pace.",
        f"rmqha explain-wait {_BROKER_GROUP}",
    ),
    Alert(
        "RmqhaFlushBehind",
        "rocketmq_storage_flush_behind_bytes > 268435456",
        "1m",
        "warning",
        f"{{{{ $value }}}} bytes of {_BROKER_GROUP} are not on the disk yet",
        "A power loss would take them from this replica.",
        "rmqha selftest disk --help",
    ),
    Alert(
        "RmqhaDispatchBehind",
        "rocketmq_storage_dispatch_behind_bytes > 67108864",
        "1m",
        "warning",
        f"{{{{ $value }}}} committed bytes of {_BROKER_GROUP} are in no queue yet",
        "Consumers see them late: the broker has more to do than one core can.",
        f"rmqha describe group {_BROKER_GROUP}",
    ),
    Alert(
        "RmqhaConsumerLags",
        'rocketmq_consumer_lag_messages{is_system="false"} > 100000',
        "10m",
        "warning",
        "group {{ $labels.consumer_group }} is {{ $value }} messages behind in {{ $labels.topic }}",
        "Its consumers are too few, too slow or gone, or the group is paused.",
        "rmqha consumer describe {{ $labels.consumer_group }}",
    ),
    Alert(
        "RmqhaDeadLetters",
        f"({_DEAD_LETTERS} unless {_DEAD_LETTERS} offset 15m) or increase({_DEAD_LETTERS}[15m]) > 0",
        "0s",
        "warning",
        "{{ $value }} messages of group {{ $labels.consumer_group }} became dead letters within 15 minutes",
        "Its consumers have failed on every try, and get them again only when somebody sends them again.",
        "rmqha dlq ls {{ $labels.consumer_group }}",
    ),
    Alert(
        "RmqhaNameServersDisagree",
        "max by (broker_set) (rmqha_namesrv_brokers) - min by (broker_set) (rmqha_namesrv_brokers) > 0",
        "1m",
        "warning",
        f"name servers know different numbers of replicas of {_GROUP}",
        "Some clients are told of a replica and some are not: a broker cannot reach one of the name servers.",
        "rmqha health",
    ),
    Alert(
        "RmqhaLogLinesLost",
        "increase(rmqha_log_lines_lost_total[10m]) > 0",
        "0s",
        "warning",
        "{{ $labels.node }} could not write {{ $value }} lines of its log",
        "The disk of logFile is full or fails.",
        "rmqha doctor",
    ),
)


def scrape_config(targets: Mapping[str, str]) -> str:
    """prometheus.yml; `targets` are "host:port" by node name. Each gets the label `node`."""
    static = [{"targets": [address], "labels": {"node": name}} for name, address in targets.items()]
    document: dict[str, Any] = {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
        "rule_files": [RULES_FILE],
        "scrape_configs": [{"job_name": JOB, "metrics_path": "/metrics", "static_configs": static}],
    }
    return _dump(document, f"Written by `rmqha generate prometheus`. `--alerts` writes {RULES_FILE}.")


def alert_rules() -> str:
    """The file of rules."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.lasting,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.reason, "command": alert.command},
        }
        for alert in ALERTS
    ]
    head = "Written by `rmqha generate prometheus --alerts`. `description` says why, `command` what to run first."
    return _dump({"groups": [{"name": JOB, "rules": rules}]}, head)


def _dump(document: dict[str, Any], head: str) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
    return f"# {head}\n{text}"
