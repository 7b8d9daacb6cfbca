"""Every key of brokers and controllers is drawn by simulated runs, or stands here with the reason why not."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import replace

import pytest

from controller.config import ControllerConfig
from nameserver.config import NamesrvConfig
from rmqha.model.config.servers import BrokerConfig, ServerConfig
from rmqha.sim.prng import SimPrng
from tests.simulation import tuning
from tests.simulation.broker_group import BrokerGroup
from tests.simulation.options import seed_options
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.themes.table import tuned
from tests.simulation.world import World

DRAWN_BY_OPTIONS = {
    "async_learner", "clean_resource_interval", "commit_log_max_bytes", "delete_when", "file_reserved_time",
    "flush_disk_type", "ha_mode", "mapped_file_size_commit_log", "mapped_file_size_timer_log",
    "mapper_file_size_batch_consume_queue", "max_message_size", "metadata_sync", "offset_sync",
    "recall_message_enable", "total_replicas",
    "transient_store_pool_enable",
}  # fmt: skip
"""What `BrokerGroup` gives brokers, most of it by what the seed draws."""
LEFT_OUT = {
    "who and where it is": {
        "broker_cluster_name", "broker_ip1", "broker_ip2", "broker_name", "controller_addr", "ha_listen_port",
        "listen_port", "namesrv_addr", "region_id", "store_path_root_dir", "controller_dleger_group",
        "controller_dleger_peers", "controller_dleger_self_id", "controller_store_path",
    },
    "groups without controllers: tests/ha/test_static_replica.py, tests/chaos/test_static_group.py": {
        "broker_id", "broker_role", "enable_controller_mode", "ha_master_address",
    },
    "the host's shells: their own tests": {
        "broker_heartbeat_interval", "compressed_register", "disk_probe_interval_millis", "disk_probe_timeout_millis",
        "forward_sends_millis", "ha_security", "register_name_server_period", "wait_time_mills_in_send_queue",
    },
    "reads, which no simulated client does": {
        "access_message_in_memory_max_ratio", "enable_property_filter", "long_polling_max_ms",
        "max_transfer_bytes_on_message_in_disk", "max_transfer_bytes_on_message_in_memory",
        "max_transfer_count_on_message_in_disk", "max_transfer_count_on_message_in_memory",
        "use_server_side_reset_offset",
    },
    "refuses what clients of the simulation read: tests/broker/rights/test_permission.py": {"broker_permission"},
    "refuses what the theme `transactions` sends: tests/broker/requests/test_send.py": {"reject_transaction_message"},
    "refuses what the theme `timers` sends: tests/broker/timers/test_service.py": {
        "timer_max_delay_sec", "timer_wheel_enable",
    },
    "who may do what: tests/broker/rights/test_acl_matrix.py and tests of ACL 2.0": {
        "authentication_enabled", "authentication_whitelist", "authorization_enabled", "authorization_whitelist",
        "init_authentication_user", "inner_client_authentication_credentials",
    },
    "by the room on a disk: tests/store/log/test_retention.py": {
        "disk_max_used_space_ratio", "disk_space_clean_forcibly_ratio", "disk_space_warning_level_ratio",
    },
    "addresses of the simulation are never looked up: tests/host/net/test_address_watch.py": {
        "address_server", "fetch_namesrv_addr_by_address_server", "update_name_server_addr_period",
    },
    "the checkers look for every message by its key": {"message_index_enable"},
    "topics and groups of the simulation are made by their first use": {
        "auto_create_subscription_group", "auto_create_topic_enable",
    },
    "bounds that a run's few names never reach: tests/broker/bounds/test_table_bounds.py": {
        "auto_create_max_per_second", "max_client_count", "max_group_count", "max_topic_count",
    },
    "for clients that trace: tests/broker/requests/test_send.py": {"trace_on", "trace_topic_enable"},
    "refuses what a test of one machine counts: tests/ha/test_replica.py": {"min_in_sync_replicas"},
    "a choice to lose: the operator of the simulation makes it by name": {"enable_elect_unclean_master"},
}  # fmt: skip


def keys(kind: type[ServerConfig]) -> set[str]:
    return {item.name for item in dataclasses.fields(kind)} - {item.name for item in dataclasses.fields(ServerConfig)}


def test_no_key_is_forgotten() -> None:
    drawn = {name for value in vars(tuning).values() if isinstance(value, dict) for name in value}
    left_out = set().union(*LEFT_OUT.values())
    known = keys(BrokerConfig) | keys(ControllerConfig)
    drawn = {name for name in drawn if name in known}
    assert known - drawn - DRAWN_BY_OPTIONS - left_out == set(), "say what a simulated run does with it"
    assert drawn & left_out == set() and DRAWN_BY_OPTIONS & left_out == set()
    assert left_out - known == set() and DRAWN_BY_OPTIONS - known == set(), "there is no such key any more"


@pytest.mark.parametrize("kind", [BrokerConfig, ControllerConfig, NamesrvConfig])
def test_a_knob_says_its_range(kind: type[ServerConfig]) -> None:
    """Its default and what runs draw lie in it; `max_index_num` has a bound of its own beside."""
    for item in dataclasses.fields(kind):
        if item.metadata.get("is_knob") and not isinstance(item.default, bool | str):
            low, high = item.metadata["range"]
            assert all(low <= value <= high for value in (item.default, *item.metadata["drawn"])), item.name


@pytest.mark.parametrize(("kind", "most"), [(BrokerConfig, 42), (ControllerConfig, 12), (NamesrvConfig, 8)])
def test_users_see_few_settings(kind: type[ServerConfig], most: int) -> None:
    own = keys(kind)
    settings = [item.name for item in dataclasses.fields(kind) if item.name in own and "is_knob" not in item.metadata]
    assert len(settings) <= most, settings


def test_a_group_gives_what_it_is_said_to_draw() -> None:
    source = inspect.getsource(BrokerGroup._broker)
    assert all(f"{name}=" in source for name in DRAWN_BY_OPTIONS)


def test_every_value_is_one_that_a_broker_takes() -> None:
    for mode in ("ap", "cp"):
        for count in (1, 3):
            config = BrokerConfig(
                broker_ip1="b1",
                ha_mode=mode,
                total_replicas=count,
                mapped_file_size_commit_log=65536,
                max_message_size=1000,
            )
            made = [tuning.tuned_broker(config, SimPrng(seed)) for seed in range(200)]
            for name, values in tuning.BROKER.items():
                assert {getattr(item, name) for item in made} == set(values), name
    controllers = [tuning.tuned_controller(ControllerConfig(), SimPrng(seed)) for seed in range(200)]
    for name, values in tuning.CONTROLLER.items():
        assert {getattr(item, name) for item in controllers} == set(values), name


def test_a_roll_starts_every_process_again_with_other_values() -> None:
    options = replace(
        tuned(seed_options(3)),
        kill_broker_per_mille=0,
        kill_controller_per_mille=0,
        roll_per_mille=1000,
        chaos_ms=12_000,
    )
    world = World(3, options)
    processes: list[BrokerProcess | ControllerProcess] = [*world.brokers, *world.controllers]
    before = {process.host: (process.life, process.config) for process in processes}
    report = world.run()
    assert not report.failure, report.failure
    for process in processes:
        life, config = before[process.host]
        assert process.life > life and process.config != config, process.host
