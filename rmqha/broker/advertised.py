"""Advertised addresses of a broker, and checks that they are reachable (ruling 23). Shell.

At the start an address is refused that nobody can connect to, or that is local only although a configured peer is on
another host. What shows later, a client or a slave from another host, is traced once and shown by `rmqha health` and
`rmqha doctor`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address

import trio

from rmqha.host.net.network import FirstRemotePeer
from rmqha.host.tracer import HostTracer
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError
from rmqha.model.identity import is_loopback, parse_address

RESOLVE_TIMEOUT_S = 2
LISTEN, HA = "brokerIP1", "brokerIP2"

ResolvedHosts = Mapping[str, Sequence[str]]
"""Addresses by name; a name without addresses may be anything, since it may not have been resolved in time."""


def advertised_hosts(config: BrokerConfig) -> dict[str, str]:
    """Advertised host of each key. Raises ConfigError for an invalid one."""
    return {LISTEN: _host_of(LISTEN, config.address), HA: _host_of(HA, config.ha_address)}


def _host_of(key: str, address: str) -> str:
    try:
        return parse_address(address, lowest_port=0)[0]
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


async def resolved(addresses: Iterable[str]) -> ResolvedHosts:
    """Addresses of each host or "host:port", as far as names are resolved within RESOLVE_TIMEOUT_S."""
    found: dict[str, list[str]] = {}

    async def ask(host: str) -> None:
        try:
            rows = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:
            return
        found[host] = [str(row[4][0]) for row in rows]

    with trio.move_on_after(RESOLVE_TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for host in set(addresses):
                nursery.start_soon(ask, host)
    return found


def check_advertised(config: BrokerConfig, peers: Sequence[str], hosts: ResolvedHosts) -> None:
    """Raise ConfigError if one of `peers` cannot reach an advertised address. `peers`: "host:port" of controllers and
    name servers."""
    for key, host in advertised_hosts(config).items():
        if host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"{key}: clients cannot reach {host}; set {key} to this machine's address as clients see it"
            )
        if not _is_local_only(host, hosts):
            continue
        for peer in peers:
            if _is_elsewhere(parse_address(peer)[0], hosts):
                meant = "" if is_loopback(host) else f", which is {hosts[host][0]} here,"
                raise ConfigError(
                    f"{key}: {peer} would be told {host}{meant} and cannot reach it; "
                    f"set {key} to this machine's address"
                )


def _is_local_only(host: str, hosts: ResolvedHosts) -> bool:
    """True for loopback addresses, also of a name that is loopback on this machine alone: message ids have its
    address."""
    return is_loopback(host) or (bool(hosts.get(host)) and all(map(is_loopback, hosts[host])))


def _is_elsewhere(host: str, hosts: ResolvedHosts) -> bool:
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return any(not is_loopback(place) for place in hosts.get(host, ()))


class AdvertisedAddressCheck:
    """Comparison of peers with the address that they were told. `problem` is "" or a sentence."""

    def __init__(self, config: BrokerConfig, hosts: ResolvedHosts, tracer: HostTracer) -> None:
        self._tracer = tracer
        self._local = {key: host for key, host in advertised_hosts(config).items() if _is_local_only(host, hosts)}
        self._far = {key: FirstRemotePeer() for key in self._local}
        self.problem = ""

    def connected(self, key: str, peer: str) -> None:
        """Check a connection to the port that `key` advertises."""
        far = self._far.get(key)
        if far is None or not far.came(peer):
            return
        host, who = self._local[key], "clients" if key == LISTEN else "slaves"
        sentence = f"{key}: {who} elsewhere, as {peer}, are told {host} and cannot reach it"
        self.problem = self.problem or sentence
        self._tracer.event("advertises_loopback", key=key, told=host, peer=peer)
