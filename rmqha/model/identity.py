"""Who a replica is: names, id, addresses. An address is an attribute, never the identity (A1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address

from rmqha.model.offset import BrokerId


@dataclass(frozen=True, slots=True)
class Identity:
    """A replica's place: cluster, group (brokerName) and controller-issued id."""

    cluster_name: str
    broker_name: str
    broker_id: BrokerId


class Role(IntEnum):
    """Role of a replica in its group. PROMOTING has the mastership but does not serve yet (A7)."""

    STARTING = 0
    SLAVE = 1
    PROMOTING = 2
    MASTER = 3


class HaMode(IntEnum):
    """The one choice of A9."""

    AP = 0
    CP = 1


def is_loopback(host: str) -> bool:
    """This machine by number, or "localhost"; any other name may be anything."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """Split "host:port" (IPv6 hosts in brackets). ValueError with a sentence if it is not one."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not an address of the form host:port")
    return host.strip("[]"), int(port)
