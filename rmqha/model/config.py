"""Configuration: RocketMQ-style properties files read into frozen dataclasses.

A field `mapped_file_size_commit_log` is the key `mappedFileSizeCommitLog`; a field may name its key in its metadata.
An unknown key is an error that names the nearest known one; a value of the wrong kind is an error that says which kind.
Keys marked "own" in docs/configuration.md do not exist in Apache RocketMQ.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from rmqha.model.error import ConfigError
from rmqha.model.identity import HaMode

T = TypeVar("T")


def key_field(key: str, default: T) -> T:
    """A dataclass field whose configuration key does not follow from its name."""
    value: T = field(default=default, metadata={"key": key})
    return value


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Java properties, the subset that brokers' files use: `key=value` lines, `#` or `!` comments.

    Raises ConfigError for a line without "=" and for a key given twice with different values.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key:
            raise ConfigError(f"{source}:{number}: expected key=value, found {line!r}")
        if found.get(key, value) != value:
            raise ConfigError(f"{source}:{number}: {key} is given twice, as {found[key]!r} and {value!r}")
        found[key] = value
    return found


def _convert(kind: Any, value: str) -> Any:
    if kind is bool:
        lowered = value.lower()
        if lowered not in ("true", "false"):
            raise ValueError("true or false")
        return lowered == "true"
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError("a whole number") from None
    return value


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base of every server's configuration."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Keys of RocketMQ that mean one of ours under another name."""

    @classmethod
    def keys(cls) -> dict[str, dataclasses.Field[Any]]:
        return {item.metadata.get("key", _camel(item.name)): item for item in dataclasses.fields(cls)}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str) -> Self:
        """Raises ConfigError naming `source`, the key, and what to write instead."""
        fields, hints, values = cls.keys(), get_type_hints(cls), dict[str, Any]()
        for given, value in properties.items():
            key = cls.aliases.get(given, given)
            item = fields.get(key)
            if item is None:
                near = difflib.get_close_matches(given, [*fields, *cls.aliases], n=1, cutoff=0.0)
                raise ConfigError(f"{source}: unknown key {given}; the nearest known key is {near[0]}")
            try:
                values[item.name] = _convert(hints[item.name], value)
            except ValueError as wanted:
                raise ConfigError(f"{source}: {given} = {value!r} must be {wanted}") from None
        config = cls(**values)
        config.check(source)
        return config

    def check(self, source: str) -> None:
        """Raise ConfigError for values that contradict each other or leave their range."""

    def to_properties(self) -> dict[str, str]:
        """Every key with its effective value, as a properties file would hold it."""
        return {
            key: str(value).lower() if isinstance(value := getattr(self, item.name), bool) else str(value)
            for key, item in type(self).keys().items()
        }

    def require_range(self, source: str, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise ConfigError(f"{source}: {_camel(name)} = {value} must lie between {low} and {high}")


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Config):
    """Keys that every server has. `listen_address` is where it binds, loopback unless told otherwise."""

    listen_address: str = "127.0.0.1"
    log_file: str = ""
    """Where the log goes; empty = standard error. Rotated at `log_max_bytes`, reopened on SIGHUP (ruling 24)."""
    log_max_bytes: int = 16 * 1024 * 1024
    max_frame_bytes: int = 16 * 1024 * 1024
    """A longer remoting frame closes the connection, as com.rocketmq.remoting.frameMaxLength does."""


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(ServerConfig):
    """A replica of a broker group. Times are milliseconds, sizes bytes."""

    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = -1
    """-1: the controller issues it (A1)."""
    namesrv_addr: str = "127.0.0.1:9876"
    controller_addr: str = "127.0.0.1:9878"
    enable_controller_mode: bool = True
    listen_port: int = 10911
    ha_listen_port: int = 0
    """0: listenPort + 1."""
    broker_ip1: str = key_field("brokerIP1", "")
    """Address told to clients and controllers; empty = listenAddress."""
    broker_ip2: str = key_field("brokerIP2", "")
    """Address told to slaves for the HA stream; empty = brokerIP1."""
    store_path_root_dir: str = "store"

    ha_mode: str = ""
    """Own. "ap" or "cp" selects a preset (A9); empty leaves the plain keys alone, which is AP in effect."""
    broker_role: str = "ASYNC_MASTER"
    flush_disk_type: str = "ASYNC_FLUSH"
    total_replicas: int = 1
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    all_ack_in_sync_state_set: bool = False
    enable_auto_in_sync_replicas: bool = False
    async_learner: bool = False
    broker_election_priority: int = 2147483647

    ha_max_time_slave_not_catchup: int = 15000
    ha_max_gap_not_in_sync: int = 256 * 1024 * 1024
    check_sync_state_set_period: int = 5000
    ha_send_heartbeat_interval: int = 5000
    ha_housekeeping_interval: int = 20000
    ha_transfer_batch_size: int = 1024 * 1024
    """RocketMQ's default is 32 KiB; every peer takes up to 1 MiB (ruling 19)."""
    ha_ack_stall_bound_ms: int = 3000
    """Own. How long a slave in the set may hold back acks before it is shrunk out."""
    slave_timeout: int = 3000
    """How long a send waits for replicas before FLUSH_SLAVE_TIMEOUT."""
    sync_flush_timeout: int = 5000
    flush_interval_commit_log: int = 500

    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: int = 300000 * 20
    max_message_size: int = 4 * 1024 * 1024
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    slave_read_enable: bool = False
    access_message_in_memory_max_ratio: int = 40
    long_polling_max_ms: int = 30000
    """Own bound on a pull's suspendTimeoutMillis."""

    controller_heartbeat_interval_millis: int = 500
    controller_heart_beat_timeout_mills: int = 2000
    """How long after the last heartbeat the controller holds this broker for alive (ruling 17)."""
    broker_heartbeat_interval: int = 1000
    register_name_server_period: int = 30000
    region_id: str = "DefaultRegion"

    @property
    def mode(self) -> HaMode:
        return HaMode.CP if self.ha_mode == "cp" else HaMode.AP

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def majority(self) -> int:
        """Smallest confirmed set that may acknowledge in CP (ruling 1): 1→1, 2→2, 3→2, 5→3."""
        return self.total_replicas // 2 + 1

    @property
    def address(self) -> str:
        return f"{self.broker_ip1 or self.listen_address}:{self.listen_port}"

    @property
    def ha_port(self) -> int:
        return self.ha_listen_port or self.listen_port + 1

    @property
    def ha_address(self) -> str:
        return f"{self.broker_ip2 or self.broker_ip1 or self.listen_address}:{self.ha_port}"

    def check(self, source: str) -> None:
        if self.ha_mode not in ("", "ap", "cp"):
            raise ConfigError(f"{source}: haMode = {self.ha_mode!r} must be ap or cp")
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError(f"{source}: flushDiskType = {self.flush_disk_type!r} must be ASYNC_FLUSH or SYNC_FLUSH")
        if self.broker_role not in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"):
            raise ConfigError(f"{source}: brokerRole = {self.broker_role!r} must be ASYNC_MASTER, SYNC_MASTER or SLAVE")
        if not self.enable_controller_mode:
            raise ConfigError(
                f"{source}: enableControllerMode=false (static groups) is not supported yet; remove the key"
            )
        self.require_range(source, "listen_port", 3, 65534)
        self.require_range(source, "total_replicas", 1, 9)
        self.require_range(source, "in_sync_replicas", 1, self.total_replicas)
        self.require_range(source, "min_in_sync_replicas", 1, self.total_replicas)
        self.require_range(source, "mapped_file_size_commit_log", 64 * 1024, 2**31 - 1)
        self.require_range(source, "max_message_size", 1, self.mapped_file_size_commit_log // 2)
        self.require_range(source, "ha_transfer_batch_size", 1024, 1024 * 1024)
        if self.mapped_file_size_consume_queue % 20:
            raise ConfigError(f"{source}: mappedFileSizeConsumeQueue must be a multiple of 20, the size of one entry")
        if self.in_sync_replicas < self.min_in_sync_replicas:
            raise ConfigError(f"{source}: inSyncReplicas must not be below minInSyncReplicas")
        if self.mode is HaMode.CP:
            for key, wrong in (
                ("enableAutoInSyncReplicas", self.enable_auto_in_sync_replicas),
                ("inSyncReplicas", self.in_sync_replicas != 1),
                ("asyncLearner", self.async_learner),
            ):
                if wrong:
                    raise ConfigError(
                        f"{source}: {key} contradicts haMode=cp, which waits for the whole set; remove one"
                    )
