"""What an operator may set: values for every key that a machine or a store goes by, a knob's as they stand beside it in
the configuration classes. The theme `tuned` draws them for
each process, and new ones for a roll: one process after the other is started again with another configuration.

`test_tuning` holds every key against this page: drawn here, drawn by `options`, or left out with a reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from controller.config import ControllerConfig
from rmqha.model.config.servers import BrokerConfig, ServerConfig
from rmqha.model.identity import HaMode
from rmqha.sim.prng import SimPrng

Choices = Mapping[str, tuple[Any, ...]]

_STORE = ("mapped_file_size_consume_queue", "max_hash_slot_num", "max_index_num")
_TRANSACTIONS = ("transaction_check_interval", "transaction_check_max", "transaction_time_out")
_POOL = ("commit_commit_log_least_pages", "commit_interval_commit_log", "transient_store_pool_size")
_TIMERS = ("timer_precision_ms",)
_CONTROLLERS = ("election_timeout_ms",)


def _drawn(
    kind: type[ServerConfig], names: Collection[str] = (), but: Collection[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Knobs that are drawn, with the values that stand beside their defaults: `names`, or all but `but`."""
    drawn = {item.name: item.metadata["drawn"] for item in dataclasses.fields(kind) if item.metadata.get("drawn")}
    return {name: values for name, values in drawn.items() if (name in names if names else name not in but)}


BROKER: Choices = _drawn(BrokerConfig, but=(*_STORE, *_TRANSACTIONS, *_POOL)) | {
    "broker_election_priority": (1, 2, 2147483647),
    "broker_zone": ("", "east", "west"),
    "ha_transfer_bytes_per_second": (0, 0, 2_000_000),
    "message_delay_level": ("1s 5s 10s", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
    "slave_read_enable": (False, True),
}
"""May differ between replicas, and from one start to the next."""

BROKER_AP: Choices = {
    "all_ack_in_sync_state_set": (False, True),
    "enable_auto_in_sync_replicas": (False, True),
    "in_sync_replicas": (1, 2),
}
"""Contradictions in CP (ruling 11); `minInSyncReplicas` is a number that a test of its own lowers and raises."""

STORE: Choices = _drawn(BrokerConfig, _STORE)
"""May differ between replicas; a store keeps what it was made with."""

TRANSACTIONS: Choices = _drawn(BrokerConfig, _TRANSACTIONS)
"""Of the theme `transactions` only: short, so that masters ask, and give up, within a run."""

TIMERS: Choices = _drawn(BrokerConfig, _TIMERS)
"""Of themes with timer messages: each replica stores with another precision than the others, and delivers what they
have stored."""

POOL: Choices = _drawn(BrokerConfig, _POOL)
"""Of the theme `pool` only, which sends what nobody waits for."""

CONTROLLER: Choices = _drawn(ControllerConfig, but=_CONTROLLERS) | {
    "election_policy": ("seniority,priority,zone", "priority,zone,seniority", "zone"),
    "election_zones": ("", "west;east"),
    "preferred_master_rebalance": (False, True),
    "total_replicas": (0,),
}

CONTROLLERS: Choices = _drawn(ControllerConfig, _CONTROLLERS)
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


def tuned_timers(config: BrokerConfig, draws: SimPrng) -> BrokerConfig:
    return replace(config, **_pick(draws, TIMERS))


def tuned_pool(config: BrokerConfig, draws: SimPrng) -> BrokerConfig:
    return replace(config, **_pick(draws, POOL))


def tuned_controller(config: ControllerConfig, draws: SimPrng) -> ControllerConfig:
    made = replace(config, **_pick(draws, CONTROLLER))
    made.check(config.controller_dleger_self_id)
    return made


def tuned_controllers(config: ControllerConfig, draws: SimPrng) -> ControllerConfig:
    """What all of them share for the whole run."""
    return replace(config, **_pick(draws, CONTROLLERS))
