"""The replicas of a group that the controllers have registered, and the check that a peer may be one of them. Pure.

They come from the field `registered` of our controllers' answers, or from request 1006, which Apache's controllers
answer too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from rmqha.model.error import RemoteProtocolError
from rmqha.model.identity import is_loopback, parse_address
from rmqha.model.offset import BrokerId
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads

Addresses = tuple[str, ...]
"""Addresses of a replica: its broker address, and its HA address if the controllers know that too."""
MAX_REPLICA_COUNT = 64


def encode_registered(replicas: Mapping[BrokerId, Addresses]) -> str:
    """The text of the field `registered`."""
    known = {str(broker_id): [item for item in addresses if item] for broker_id, addresses in replicas.items()}
    return dumps(known).decode()


def parse_registered(text: str) -> dict[BrokerId, Addresses]:
    """Parse the field `registered`. Raises RemoteProtocolError."""
    return _table((broker_id, addresses) for broker_id, addresses in _mapping(loads(text.encode())).items())


def parse_sync_state_data(command: Command, broker_name: str) -> dict[BrokerId, Addresses]:
    """Parse a successful answer to 1006; {} if the controllers do not know the group. Raises RemoteProtocolError."""
    document = _mapping(loads(bytes(command.body)) if command.body else {})
    group = _mapping(_mapping(document.get("replicasInfoTable") or {}).get(broker_name) or {})
    rows = [*(group.get("inSyncReplicas") or ()), *(group.get("notInSyncReplicas") or ())]
    return _table(
        (row.get("brokerId"), [row.get("brokerAddress") or "", row.get("haAddress") or ""])
        for row in map(_mapping, rows)
    )


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise RemoteProtocolError("the controllers' table of replicas cannot be read")
    return value


def _table(rows: Iterable[tuple[Any, Any]]) -> dict[BrokerId, Addresses]:
    table: dict[BrokerId, Addresses] = {}
    for broker_id, addresses in rows:
        if not isinstance(addresses, list) or not all(isinstance(item, str) for item in addresses):
            raise RemoteProtocolError("the controllers' table of replicas cannot be read")
        try:
            table[BrokerId(int(broker_id))] = tuple(item for item in addresses if item)
        except (TypeError, ValueError):
            raise RemoteProtocolError("the controllers' table of replicas holds what is no broker id") from None
    if len(table) > MAX_REPLICA_COUNT:
        raise RemoteProtocolError(f"the controllers' table has {len(table)} replicas of one group")
    return table


def lenient_host(address: str) -> str:
    """Host of "host:port", or of a text without a port."""
    try:
        return parse_address(address)[0]
    except ValueError:
        return address.strip("[]")


def is_host_name(host: str) -> bool:
    """True for a name that the system's resolver must resolve; False for a number and for "localhost"."""
    try:
        ip_address(host)
    except ValueError:
        return not is_loopback(host)
    return False


def same_host(one: str, other: str) -> bool:
    """True if both are equal as name or number. All loopback addresses are the same host."""
    if one.lower() == other.lower() or (is_loopback(one) and is_loopback(other)):
        return True
    try:
        return _number(one) == _number(other)
    except ValueError:
        return False


def _number(host: str) -> object:
    address = ip_address(host)
    return getattr(address, "ipv4_mapped", None) or address


class RegisteredReplicas:
    """The registered replicas as they are known now. `resolved`: addresses of those hosts that are names."""

    def __init__(self) -> None:
        self.replicas: dict[BrokerId, Addresses] = {}
        self.resolved: dict[str, tuple[str, ...]] = {}
        self._text = ""

    def update(self, text: str) -> bool:
        """Take the field `registered` of an answer; True if it differs from the last one. Raises
        RemoteProtocolError."""
        if not text or text == self._text:
            return False
        self.replicas = parse_registered(text)
        self._text = text
        return True

    def hosts(self, broker_id: BrokerId) -> list[str]:
        return [lenient_host(address) for address in self.replicas.get(broker_id, ())]

    def refusal(self, broker_id: BrokerId, host: str, claim: HaClaim | None) -> str:
        """Reason to refuse a peer from `host` that says it is `broker_id`; "" if it is believed. `claim`: identity that
        the peer has proved; it may then come from any host (NAT, several networks)."""
        addresses = self.replicas.get(broker_id)
        if addresses is None:
            return f"the controllers know no replica {broker_id} of this group"
        if claim is not None:
            if claim.broker_id != broker_id:
                return f"it proved to be replica {claim.broker_id} and shook hands as {broker_id}"
            return "" if claim.address in addresses else f"replica {broker_id} is registered at {addresses[0]}"
        for known in self.hosts(broker_id):
            if same_host(known, host) or any(same_host(item, host) for item in self.resolved.get(known, ())):
                return ""
        where = addresses[0] if addresses else "no address"
        return f"replica {broker_id} is registered at {where}, this comes from {host}"
