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
    kv_config_path: str = ""
    """File of the settings that request 100 stores; config-overrides.properties beside it has the keys that were
    changed at run time. Empty: both are forgotten when the process ends."""
    max_kv_count: int = knob(100_000, 1, 10_000_000)
    """Own. No setting is stored beyond so many; each has 64 Ki characters at most."""
    max_route_count: int = knob(200_000, 1, 100_000_000)
    """Own. No registration is taken whose topics would make more routes than this: topics of all groups, each counted
    once for each group that has it."""
    order_message_enable: bool = False
    """Routes carry orderTopicConf, which `mqadmin updateTopic -o true` stores."""
    lite_heartbeat_timeout_millis: int = knob(5_000, 100, 600_000)
    """Own. A broker that sends lite heartbeats (904, each second) is removed after so long a silence."""
    register_broker_timeout_millis: int = knob(120_000, 100, 3_600_000)
    """Own. Bound (ms) of a broker that only registers, each 30 s, and says nothing else of itself."""
    scan_not_active_broker_interval: int = knob(500, 10, 60_000)
    """Most time between two looks for silent brokers, which come at least ten times in liteHeartbeatTimeoutMillis.
    RocketMQ: 5000."""
    enable_controller_in_namesrv: bool = False
    controller_addr: str = ""
    """Own. Controllers whose elections this name server follows, separated by `;`: a new master is then routed to as
    soon as it is elected. Empty: only brokers tell it."""
    web_credentials_file: str = ""
    """Own. File with accessKey and secretKey of the account by which the page at httpPort looks up messages. Without it
    the page does so only if no accounts are in force and httpHost is loopback (docs/operate/web.md)."""

    @property
    def data_directory(self) -> str:
        return str(Path(self.kv_config_path).parent) if self.kv_config_path else ""

    @property
    def scan_ms(self) -> int:
        """Time between two looks for silent brokers."""
        return min(self.scan_not_active_broker_interval, self.lite_heartbeat_timeout_millis // SCANS_PER_TIMEOUT)

    def check(self, source: str) -> None:
        super().check(source)
        if self.controller_addr:
            parse_addresses(self.controller_addr, f"{source}: controllerAddr")


def read_config(path: str | None) -> tuple[NamesrvConfig, ControllerConfig | None]:
    """The name server's configuration, and the embedded controller's if it is enabled; None = all defaults.

    Raises UsageError, one sentence, if the file cannot be read or holds a wrong key or value.
    """
    if path is None:
        return NamesrvConfig(), None
    return parse_config(read_text(path, "the configuration"), path)


def parse_config(text: str, source: str) -> tuple[NamesrvConfig, ControllerConfig | None]:
    """The configuration as read_config gives it, from the file's text."""
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
    # RocketMQ's tools are told the keys of the whole file by either of them
    whole = tuple(properties.items())
    controller = ControllerConfig.from_properties(_controller_part(properties, known), source)
    return replace(config, given=whole), replace(controller, given=whole)


def _controller_part(properties: Mapping[str, str], known: Mapping[str, object]) -> dict[str, str]:
    """Keys that both know, as listenAddress, count for both."""
    return {key: value for key, value in properties.items() if key in known}
