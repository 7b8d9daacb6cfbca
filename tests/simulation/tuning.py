"""What an operator may set: values for every key that a machine or a store goes by. The theme `tuned` draws them for
each process, and new ones for a roll: one process after the other is started again with another configuration.

`test_tuning` holds every key against this page: drawn here, drawn by `options`, or left out with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.config import ControllerConfig
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import HaMode
from rmqha.sim.prng import SimPrng

Choices = Mapping[str, tuple[Any, ...]]

BROKER: Choices = {
    "broker_election_priority": (1, 2, 2147483647),
    "broker_zone": ("", "east", "west"),
    "clean_file_forcibly_enable": (False, True),
    "controller_heart_beat_timeout_mills": (1500, 2000, 3000),
    "controller_heartbeat_interval_millis": (100, 300, 500),
    "default_topic_queue_nums": (4, 8),
    "delete_commit_log_files_interval": (0, 100),
    "delete_file_batch_max": (1, 10),
    "destroy_maped_file_interval_forcibly": (1000, 120_000),
    "enabled_append_prop_crc": (False, True),
    "flush_interval_commit_log": (10, 500, 1500),
    "ha_ack_stall_bound_ms": (300, 1000, 2000),
    "ha_housekeeping_interval": (6000, 20_000),
    "ha_max_gap_not_in_sync": (64 * 1024, 256 * 1024 * 1024),
    "ha_max_time_slave_not_catchup": (3000, 15_000),
    "ha_send_heartbeat_interval": (200, 1000, 5000),
    "ha_transfer_batch_size": (1024, 4096, 64 * 1024, 1024 * 1024),
    "ha_transfer_bytes_per_second": (0, 0, 2_000_000),
    "message_delay_level": ("1s 5s 10s", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
    "metadata_sync_timeout_ms": (500, 3000),
    "redelete_hanged_file_interval": (1000, 120_000),
    "scrub_bytes_per_second": (0, 20_000, 2 * 1024 * 1024),
    "slave_read_enable": (False, True),
    "slave_timeout": (2500, 3000),
    "sync_flush_timeout": (2000, 3000),
}
"""May differ between replicas, and from one start to the next."""

BROKER_AP: Choices = {
    "all_ack_in_sync_state_set": (False, True),
    "enable_auto_in_sync_replicas": (False, True),
    "in_sync_replicas": (1, 2),
}
"""Contradictions in CP (ruling 11); `minInSyncReplicas` is a number that a test of its own lowers and raises."""

STORE: Choices = {
    "mapped_file_size_consume_queue": (20 * 50, 20 * 300),
    "max_hash_slot_num": (16, 64),
    "max_index_num": (64, 256),
}
"""May differ between replicas; a store keeps what it was made with."""

TRANSACTIONS: Choices = {
    "transaction_check_interval": (200, 500, 1000),
    "transaction_check_max": (4, 8),
    "transaction_time_out": (200, 600, 1500),
}
"""Of the theme `transactions` only: short, so that masters ask, and give up, within a run."""

CONTROLLER: Choices = {
    "default_heartbeat_timeout_mills": (1500, 2000),
    "election_policy": ("seniority,priority,zone", "priority,zone,seniority", "zone"),
    "election_zones": ("", "west;east"),
    "hand_over_timeout_ms": (500, 2000),
    "notify_broker_role_changed": (True, True, False),
    "preferred_master_after_ms": (3000, 60_000),
    "preferred_master_rebalance": (False, True),
    "probe_timeout_ms": (20, 50, 200),
    "scan_not_active_broker_interval": (100, 500),
    "snapshot_after_entries": (16, 50, 10_000),
    "suspect_heartbeats": (1, 2, 3),
    "total_replicas": (0,),
}

CONTROLLERS: Choices = {"election_timeout_ms": (150, 250, 500)}
"""The same for all controllers of a run: a leader's lease goes by it."""


def _pick(draws: SimPrng, choices: Choices) -> dict[str, Any]:
    return {name: values[draws.child(name).below(len(values))] for name, values in choices.items()}


def tuned_broker(config: BrokerConfig, draws: SimPrng) -> BrokerConfig:
    """`config` with other values; still one that a broker takes."""
    choices = BROKER if config.mode is HaMode.CP else {**BROKER, **BROKER_AP}
    values = _pick(draws, choices)
    if config.total_replicas == 1:
        values["in_sync_replicas"] = 1
    made = replace(config, **values)
    made.check(config.broker_ip1)
    return made


def tuned_store(config: BrokerConfig, draws: SimPrng) -> BrokerConfig:
    """For the first start of a broker."""
    return replace(config, **_pick(draws, STORE))


def tuned_transactions(config: BrokerConfig, draws: SimPrng) -> BrokerConfig:
    return replace(config, **_pick(draws, TRANSACTIONS))


def tuned_controller(config: ControllerConfig, draws: SimPrng) -> ControllerConfig:
    made = replace(config, **_pick(draws, CONTROLLER))
    made.check(config.controller_dleger_self_id)
    return made


def tuned_controllers(config: ControllerConfig, draws: SimPrng) -> ControllerConfig:
    """What all of them share for the whole run."""
    return replace(config, **_pick(draws, CONTROLLERS))
