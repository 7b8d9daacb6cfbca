"""Configuration of a controller: RocketMQ's keys where it has them, our own where it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

from controller.decisions.elect_master import ElectionPolicy, parse_policy
from rmqha.model.config.servers import (
    HA_SECURITY_MODES,
    ServerConfig,
    accepts_unproven_peers,
    bounded,
    key_field,
    knob,
    unproven_peer_warnings,
)
from rmqha.model.error import ConfigError
from rmqha.model.identity import join_address, parse_address
from rmqha.raft.quorum import SEPARATOR

LIVE_KEYS = frozenset(
    {
        "electionPolicy",
        "electionZones",
        "enableElectUncleanMaster",
        "handOverTimeoutMs",
        "notifyBrokerRoleChanged",
        "preferredMasterAfterMs",
        "preferredMasterRebalance",
        "probeTimeoutMs",
        "scanNotActiveBrokerInterval",
        "snapshotAfterEntries",
        "totalReplicas",
    }
)
"""Keys that request 1009 changes at once; the others need a restart (ruling 25)."""


@dataclass(frozen=True, kw_only=True)
class ControllerConfig(ServerConfig):
    """Times are milliseconds. Fields marked "Own" are not keys of Apache RocketMQ."""

    live_keys: ClassVar[frozenset[str]] = LIVE_KEYS
    aliases: ClassVar[Mapping[str, str]] = {
        "bindAddress": "listenAddress",
        "scanInactiveMasterInterval": "scanNotActiveBrokerInterval",
    }
    file_name: ClassVar[str] = "controller.conf"

    controller_dleger_group: str = key_field("controllerDLegerGroup", "DefaultControllerGroup")
    """Name of the controllers' group, as answers and metrics give it."""
    controller_dleger_peers: str = key_field("controllerDLegerPeers", "n0-127.0.0.1:9878")
    """`id-host:port` of every controller, separated by `;`. All controllers of a group have the same value."""
    controller_dleger_self_id: str = key_field("controllerDLegerSelfId", "n0")
    """Id of this controller in controllerDLegerPeers."""
    controller_store_path: str = "controller-store"
    """Directory of this controller's Raft log, vote and snapshots."""
    enable_elect_unclean_master: bool = False
    """Elect a replica outside the SyncStateSet when no member is alive. AP groups only; it may lose messages."""
    ha_security: str = "auto"
    """Own. Brokers whose registrations, heartbeats, alters and elections are accepted where there are no accounts.
    `auto`, `enforcing`: brokers that prove the secret of haSecretFile, if that is set. `open`: every peer that reaches
    the controller; Apache's brokers need that. `permissive`: the same, during an upgrade. `disabled` is an older name
    of open."""
    election_policy: str = "seniority,priority,zone"
    """Own. Order of candidates with the same epoch and log end: `seniority` (longest in the
    SyncStateSet), `priority` (brokerElectionPriority, the lower number first), `zone` (electionZones). The lowest id
    decides last."""
    election_zones: str = ""
    """Own. Zones (brokerZone) from which a master is preferred, the best first, separated by `;`."""
    hand_over_timeout_ms: int = knob(2000, 100, 2_500, drawn=(500, 2000))
    """Own. Time (ms) for which a master that hands over refuses messages until the next one has acknowledged its
    end."""
    notify_broker_role_changed: bool = knob(True, drawn=(True, True, False))
    """Tell brokers of a new master by request 1008; without it their next heartbeat tells them."""
    scan_not_active_broker_interval: int = knob(500, 10, 60_000, drawn=(100, 500))
    """Period (ms) of the checks of groups without a live master. RocketMQ: 5000."""
    total_replicas: int = bounded(0, 0, 9)
    """Own. Replicas that must answer before the first election of a group, if the brokers declare no larger number. 0:
    their number; a group of Apache brokers then gets the first broker that asks as master, as in RocketMQ."""
    default_heartbeat_timeout_mills: int = knob(2000, 100, 600_000, drawn=(1500, 2000))
    """Own. Heartbeat time-out (ms) of a broker that has not sent its own yet. RocketMQ: 10000."""
    suspect_heartbeats: int = knob(2, 1, 100, drawn=(1, 2, 3))
    """Own. Heartbeat intervals of silence after which a broker is probed."""
    preferred_master_rebalance: bool = False
    """Own. Give the mastership back to the preferred replica of a group: the one with the lowest
    brokerElectionPriority, then the lowest id."""
    preferred_master_after_ms: int = knob(60_000, 1_000, 86_400_000, drawn=(3000, 60_000))
    """Own. Time (ms) for which all replicas must have been healthy and in the SyncStateSet, without an election, before
    the mastership is given back."""
    probe_timeout_ms: int = knob(50, 1, 10_000, drawn=(20, 50, 200))
    """Own. Time (ms) that an answer to request 1007 may take, in a probe and in an election (ruling 8)."""
    election_timeout_ms: int = knob(250, 20, 60_000, drawn=(150, 250, 500))
    """Own. Time (ms) for which controllers keep their leader after its last message."""
    snapshot_after_entries: int = knob(10000, 16, 10_000_000, drawn=(16, 50, 10_000))
    """Own. Entries after which a snapshot replaces the Raft log."""

    @cached_property
    def peers(self) -> Mapping[str, str]:
        """Address of every controller by its id, sorted by id. ValueError with a sentence if the key is malformed."""
        found: dict[str, str] = {}
        for item in self.controller_dleger_peers.split(";"):
            if not (item := item.strip()):
                continue
            node_id, dash, address = item.partition("-")
            if SEPARATOR in node_id:
                raise ValueError(f"the id {node_id!r} contains {SEPARATOR!r}")
            try:
                port = parse_address(address, lowest_port=0)[1]
            except ValueError:
                port = -1
            if not (node_id and dash and port >= 0):
                raise ValueError(f"{item!r} is not of the form id-host:port")
            if node_id in found:
                raise ValueError(f"the id {node_id} is given twice")
            if address in found.values() and port:
                raise ValueError(f"the address {address} is given twice")
            found[node_id] = address
        return dict(sorted(found.items()))

    @cached_property
    def policy(self) -> ElectionPolicy:
        """electionPolicy and electionZones. ValueError with a sentence if they are malformed."""
        return parse_policy(self.election_policy, self.election_zones)

    @property
    def accepts_unproven_peers(self) -> bool:
        """True if any peer that reaches this controller may act as a broker."""
        return accepts_unproven_peers(self, self.ha_security)

    def warnings(self) -> list[str]:
        return [*super().warnings(), *unproven_peer_warnings(self, self.ha_security)]

    @property
    def data_directory(self) -> str:
        return self.controller_store_path

    @property
    def self_address(self) -> str:
        """Address by which the other controllers and the brokers know this one."""
        return self.peers[self.controller_dleger_self_id]

    @property
    def bind_address(self) -> str:
        """listenAddress with the port of the own entry in controllerDLegerPeers."""
        return join_address(self.listen_address, parse_address(self.self_address, lowest_port=0)[1])

    def with_self_port(self, port: int) -> Self:
        """Copy of this configuration with the own port; port 0, which the system replaces, needs a sole voter."""
        peers = {**self.peers, self.controller_dleger_self_id: f"{self.self_address.rpartition(':')[0]}:{port}"}
        return replace(self, controller_dleger_peers=";".join(f"{key}-{value}" for key, value in peers.items()))

    def check(self, source: str) -> None:
        super().check(source)
        try:
            peers = self.peers
        except ValueError as problem:
            raise ConfigError(f"{source}: controllerDLegerPeers: {problem}") from None
        try:
            self.policy  # noqa: B018 (raises)
        except ValueError as problem:
            raise ConfigError(f"{source}: {problem}") from None
        if self.ha_security not in HA_SECURITY_MODES:
            raise ConfigError(
                f"{source}: haSecurity = {self.ha_security!r} must be auto, open, permissive or enforcing"
            )
        if self.ha_security == "enforcing" and self.accepts_unproven_peers:
            raise ConfigError(f"{source}: haSecurity = enforcing needs haSecretFile or aclEnable=true")
        if self.controller_dleger_self_id not in peers:
            raise ConfigError(
                f"{source}: controllerDLegerSelfId = {self.controller_dleger_self_id} is not among "
                f"controllerDLegerPeers ({', '.join(peers)})"
            )
        if len(peers) > 1 and any(address.endswith(":0") for address in peers.values()):
            raise ConfigError(f"{source}: controllerDLegerPeers: port 0 is possible only for a sole controller")
        if not self.controller_store_path:
            raise ConfigError(f"{source}: controllerStorePath must name a directory")
