"""Identity of a replica (names and id; an address is an attribute, not identity), addresses, and the keys of an
account."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import ip_address

from rmqha.model.offset import BrokerId

PEER = "peer-server"
"""Access key with which servers sign by the cluster's secret; no account and no user may have this name."""
MAX_NAME_CHARS = 253
MAX_CHECK_CODE_CHARS = 255
NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of an IPv6 address on a machine that has none: containers have `::1 localhost` in /etc/hosts all the same."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


@dataclass(frozen=True, slots=True)
class Identity:
    """A replica's place: cluster, group (brokerName) and controller-issued id."""

    cluster_name: str
    broker_name: str
    broker_id: BrokerId


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Keys with which a client signs. The secret key never leaves the process."""

    access_key: str
    secret_key: str = field(repr=False)


class Role(IntEnum):
    """Role of a replica in its group. PROMOTING has the mastership but does not serve yet."""

    STARTING = 0
    SLAVE = 1
    PROMOTING = 2
    MASTER = 3


class HaMode(IntEnum):
    """Choice of a group between safety (CP) and availability (AP)."""

    AP = 0
    CP = 1


def node_name(broker_name: str, number: int) -> str:
    """Name of a broker's node: `rmqha up` numbers the nodes of a group from 1."""
    return f"{broker_name}-{number}"


def node_label(name: str, own_id: int | str | None, address: str = "") -> str:
    """Label of a node in sentences: its name, with its id if they differ; id and address if the name is not known.
    `own_id`: a broker's number, or a controller's id such as n1."""
    if not name:
        return f"replica {own_id}" + (f" at {address}" if address else "")
    same = own_id is None or name.rpartition("-")[2] == str(own_id).removeprefix("n") or name == own_id
    return name if same else f"{name} (id {own_id})"


def name_replicas(sentence: str, label: Callable[[int], str]) -> str:
    """A broker's sentence with names of replicas for their ids: a broker knows only ids."""
    sentence = re.sub(r"\breplica (\d{1,18})\b", lambda found: label(int(found[1])), sentence)
    several = r"(\breplicas |\bset )\[(\d{1,18}(?:, \d{1,18})*)\]"
    return re.sub(
        several, lambda found: f"{found[1]}[{', '.join(label(int(item)) for item in found[2].split(', '))}]", sentence
    )


def make_check_code(address: str, at_ms: int, name: str) -> str:
    """RocketMQ's check code `address;wall time`, by which a controller recognizes the applicant for an id. The node's
    name is appended, so that controllers know it also for a replica that is away."""
    code = f"{address};{at_ms}"
    named = f"{code};{name}"
    return named if len(named) <= MAX_CHECK_CODE_CHARS else code


def name_in_check_code(check_code: str) -> str:
    """Node's name in a check code; "" in that of an Apache broker or an earlier release."""
    parts = check_code.split(";", 2)
    return parts[2] if len(parts) == 3 else ""


def is_loopback(host: str) -> bool:
    """True for a loopback address and for "localhost"; other names are not resolved."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_address(text: str, *, lowest_port: int = 1) -> tuple[str, int]:
    """Split "host:port". An IPv6 host may be in brackets, or without them before the last colon, as Java writes it.
    Raises ValueError with one sentence for a text that is no address. `lowest_port`: 0 for listeners."""
    given, colon, port = text.rpartition(":")
    bracketed = given.startswith("[") and given.endswith("]")
    host = given[1:-1] if bracketed else given
    is_host = _is_ipv6(host) if bracketed or ":" in host else _is_name(host)
    # isdecimal alone also takes the digits of other scripts
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and lowest_port <= int(port) < 65536
    if not (colon and is_host and is_port):
        alone = _is_ipv6(text[1:-1] if text.startswith("[") and text.endswith("]") else text)
        hint = "; an IPv6 host stands in brackets before its port, such as [::1]:9876" if alone else ""
        raise ValueError(f"{_shortened(text)} is not an address of the form host:port{hint}")
    return host, int(port)


def split_addresses(text: str) -> list[str]:
    """Split "a:1;b:2" (also by ","), in order, without repetitions. Raises ValueError."""
    found: list[str] = []
    for item in text.replace(",", ";").split(";"):
        address = item.strip()
        if address and address not in found:
            parse_address(address)
            found.append(address)
    if not found:
        raise ValueError("names no address; write host:port, several joined by ';'")
    return found


def is_numeric(host: str) -> bool:
    """True for an IP address, which needs no resolver."""
    try:
        return bool(ip_address(host.strip("[]")))
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """ "host:port", IPv6 hosts in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_of(address: str) -> str:
    """Host of "host:port", an IPv6 one without brackets."""
    return address.rpartition(":")[0].strip("[]")


def _is_ipv6(text: str) -> bool:
    try:
        return text.isascii() and text.isprintable() and ip_address(text).version == 6
    except ValueError:
        return False


def _is_name(host: str) -> bool:
    """True for an IPv4 address, or a name that a resolver can resolve."""
    if host.isascii():
        return len(host) <= MAX_NAME_CHARS and _NAME.fullmatch(host) is not None
    try:
        return _NAME.fullmatch(host.encode("idna").decode()) is not None
    except UnicodeError:
        return False


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")
