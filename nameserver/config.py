"""Configuration of a name server, and how one file also configures the controller embedded in it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rmqha.broker.replication.controller_route import parse_addresses
from rmqha.host.text_file import read_text
from rmqha.model.config.servers import QUOTA_KEYS, ServerConfig, bounded, knob, parse_properties
from rmqha.model.error import ConfigError

if TYPE_CHECKING:
    from controller.config import ControllerConfig

SCANS_PER_TIMEOUT = 10


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig(ServerConfig):
    """Times are milliseconds. Fields marked "Own" are not keys of Apache RocketMQ."""

    live_keys: ClassVar[frozenset[str]] = frozenset(
        {
            "liteHeartbeatTimeoutMillis",
            "maxKvCount",
            "maxRouteCount",
            "orderMessageEnable",
            "registerBrokerTimeoutMillis",
            "scanNotActiveBrokerInterval",
        }
        | QUOTA_KEYS
    )

    aliases: ClassVar[Mapping[str, str]] = {"bindAddress": "listenAddress"}
    file_name: ClassVar[str] = "namesrv.conf"

    listen_port: int = bounded(9876, 0, 65535)
    """Port for brokers and clients; 0: a free one."""
    kv_config_path: str = ""
    """File of the settings that request 100 stores. Beside it, config-overrides.properties stores the keys that were
    changed at run time. Empty: both are lost when the process ends."""
    max_kv_count: int = knob(100_000, 1, 10_000_000)
    """Own. Number of settings at most; each has 64 Ki characters at most."""
    max_route_count: int = knob(200_000, 1, 100_000_000)
    """Own. Number of routes at most: topics of all groups, each counted once for each group that has it. A registration
    that would exceed it is refused."""
    order_message_enable: bool = False
    """Put orderTopicConf, which `mqadmin updateTopic -o true` stores, into routes."""
    lite_heartbeat_timeout_millis: int = knob(5_000, 100, 600_000)
    """Own. Time (ms) without a lite heartbeat (904, each second) after which a broker that sends them is removed."""
    register_broker_timeout_millis: int = knob(120_000, 100, 3_600_000)
    """Own. Time (ms) without a registration (each 30 s) after which a broker without lite heartbeats is removed."""
    scan_not_active_broker_interval: int = knob(500, 10, 60_000)
    """Longest interval (ms) between two scans for silent brokers. There are at least ten scans in
    liteHeartbeatTimeoutMillis. RocketMQ: 5000."""
    enable_controller_in_namesrv: bool = False
    """Run a controller in this process too; its keys stand in the same file."""
    controller_addr: str = ""
    """Own. Controllers whose elections this name server follows, separated by `;`. A new master then gets its route as
    soon as it is elected. Empty: only brokers report their role."""
    web_credentials_file: str = ""
    """Own. File with accessKey and secretKey of the account that looks up messages for the page at httpPort. Without it
    the page does so only if there are no accounts and httpHost is loopback (docs/operate/web.md)."""

    @property
    def data_directory(self) -> str:
        return str(Path(self.kv_config_path).parent) if self.kv_config_path else ""

    @property
    def scan_ms(self) -> int:
        """Interval (ms) between two scans for silent brokers."""
        return min(self.scan_not_active_broker_interval, self.lite_heartbeat_timeout_millis // SCANS_PER_TIMEOUT)

    def check(self, source: str) -> None:
        super().check(source)
        if self.controller_addr:
            parse_addresses(self.controller_addr, f"{source}: controllerAddr")


def read_config(path: str | None) -> tuple[NamesrvConfig, ControllerConfig | None]:
    """Configurations of the name server and of the embedded controller (None unless enabled). `path` None: all
    defaults.

    Raises UsageError, one sentence, if the file cannot be read or holds a wrong key or value."""
    if path is None:
        return NamesrvConfig(), None
    return parse_config(read_text(path, "the configuration"), path)


def parse_config(text: str, source: str) -> tuple[NamesrvConfig, ControllerConfig | None]:
    """Configurations of a file's text, as `read_config` returns them."""
    properties = parse_properties(text, source)
    own_keys = {**NamesrvConfig.keys(), **NamesrvConfig.aliases, **NamesrvConfig.foreign_keys()}
    own = {key: value for key, value in properties.items() if key in own_keys}
    config = NamesrvConfig.from_properties(own, source)
    rest = {key: value for key, value in properties.items() if key not in own}
    if not rest and not config.enable_controller_in_namesrv:
        return config, None
    # a name server alone must start without loading the controller
    from controller.config import ControllerConfig

    known = {**ControllerConfig.keys(), **ControllerConfig.aliases}
    for key in rest:
        if key not in known:
            near = difflib.get_close_matches(key, [*NamesrvConfig.keys(), *known], n=1, cutoff=0.0)
            raise ConfigError(f"{source}: unknown key {key}; the nearest known key is {near[0]}")
        if not config.enable_controller_in_namesrv:
            raise ConfigError(
                f"{source}: {key} is for a controller; set enableControllerInNamesrv=true or remove the line"
            )
    # for RocketMQ's tools both servers return the keys of the whole file
    whole = tuple(properties.items())
    controller = ControllerConfig.from_properties(_controller_part(properties, known), source)
    return replace(config, given=whole), replace(controller, given=whole)


def _controller_part(properties: Mapping[str, str], known: Mapping[str, object]) -> dict[str, str]:
    """Keys of the controller. Keys that both have, such as listenAddress, are for both."""
    return {key: value for key, value in properties.items() if key in known}
