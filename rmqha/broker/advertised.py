"""The addresses that a broker tells others, and checks that they can use them (ruling 23). Shell.

At the start: an address that nobody can connect to, or that leads only here although a configured peer is elsewhere, is
refused. What can be known only later, a client or a slave that comes from elsewhere, is traced once and shown by
`rmqha health` and `rmqha doctor`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address

import trio

from rmqha.host.net.network import RemotePeer
from rmqha.host.tracer import HostTracer
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError
from rmqha.model.identity import is_loopback, parse_address

RESOLVE_TIMEOUT_S = 2
LISTEN, HA = "brokerIP1", "brokerIP2"

Places = Mapping[str, Sequence[str]]
"""Addresses by name; a name that has none, or is not asked for in time, may be anything."""


def told_hosts(config: BrokerConfig) -> dict[str, str]:
    """Key → the host that others are told by it. Raises ConfigError for what is neither a name nor a number."""
    return {LISTEN: _host_of(LISTEN, config.address), HA: _host_of(HA, config.ha_address)}


def _host_of(key: str, address: str) -> str:
    try:
        return parse_address(address, lowest_port=0)[0]
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


async def resolved(addresses: Iterable[str]) -> Places:
    """Addresses of each host or "host:port", as far as names can be resolved within RESOLVE_TIMEOUT_S."""
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


def check_advertised(config: BrokerConfig, peers: Sequence[str], places: Places) -> None:
    """`peers`: "host:port" of controllers and name servers. Raises ConfigError if one would be told an address under
    which it cannot reach this broker."""
    for key, host in told_hosts(config).items():
        if host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"{key}: clients cannot reach {host}; set {key} to this machine's address as clients see it"
            )
        if not _leads_here_only(host, places):
            continue
        for peer in peers:
            if _is_elsewhere(parse_address(peer)[0], places):
                meant = "" if is_loopback(host) else f", which is {places[host][0]} here,"
                raise ConfigError(
                    f"{key}: {peer} would be told {host}{meant} and cannot reach it; "
                    f"set {key} to this machine's address"
                )


def _leads_here_only(host: str, places: Places) -> bool:
    """A name too that is loopback on this machine alone: message ids carry what it stands for here."""
    return is_loopback(host) or (bool(places.get(host)) and all(map(is_loopback, places[host])))


def _is_elsewhere(host: str, places: Places) -> bool:
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return any(not is_loopback(place) for place in places.get(host, ()))


class AdvertisedAddressCheck:
    """A check of those who connect against the address that they are told. `problem` is "" or a sentence."""

    def __init__(self, config: BrokerConfig, places: Places, tracer: HostTracer) -> None:
        self._tracer = tracer
        self._local = {key: host for key, host in told_hosts(config).items() if _leads_here_only(host, places)}
        self._far = {key: RemotePeer() for key in self._local}
        self.problem = ""

    def came(self, key: str, peer: str) -> None:
        """A connection to the port that `key` tells others of."""
        far = self._far.get(key)
        if far is None or not far.came(peer):
            return
        host, who = self._local[key], "clients" if key == LISTEN else "slaves"
        sentence = f"{key}: {who} elsewhere, as {peer}, are told {host} and cannot reach it"
        self.problem = self.problem or sentence
        self._tracer.event("advertises_loopback", key=key, told=host, peer=peer)
