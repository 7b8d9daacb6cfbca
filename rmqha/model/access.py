"""Access rights: accounts, their permissions on topics and groups, addresses that need no account.

The file is RocketMQ's plain_acl.yml: globalWhiteRemoteAddresses, and accounts with accessKey, secretKey,
whiteRemoteAddress, admin, defaultTopicPerm, defaultGroupPerm, topicPerms and groupPerms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Flag
from functools import cached_property
from ipaddress import ip_address
from typing import Any

from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.error import ConfigError
from rmqha.model.identity import Credentials
from rmqha.model.message import (
    CHECK_MAX_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    REVIVE_TOPIC_PREFIX,
    ROCKSDB_TRANSACTION_TOPICS,
    TIMER_TOPIC,
)

MIN_KEY_CHARS = 6
"""Least length of accessKey and secretKey. RocketMQ wants more than six characters; its examples have seven and
eight."""


class Permission(Flag):
    """Rights on a topic (PUB, SUB) or on a group (SUB)."""

    DENY = 0
    PUB = 1
    SUB = 2


MIXED_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        *ROCKSDB_TRANSACTION_TOPICS,
        CHECK_MAX_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics in which a broker keeps messages of all topics: default permissions do not apply to them."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
"""Prefix of the groups whose offsets are the broker's own: default permissions do not apply to them either."""

_PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Rights that a request needs: on each topic and group one of the permissions; `admin`: an admin account."""

    admin: bool = False
    topics: tuple[tuple[str, Permission], ...] = ()
    groups: tuple[tuple[str, Permission], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Account:
    """Account of a plain_acl.yml with its permissions."""

    credentials: Credentials
    white_addresses: tuple[str, ...] = ()
    admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Mapping[str, Permission] = field(default_factory=dict)
    groups: Mapping[str, Permission] = field(default_factory=dict)

    def refusal(self, needs: Needs, host: str = "") -> str:
        """Reason why this account lacks a right; "" if it has all. `host`: address of the client; these rights do not
        depend on it."""
        if needs.admin and not self.admin:
            return f"account {self.credentials.access_key} is not an admin"
        for topic, any_of in needs.topics:
            if reason := self._topic_refusal(topic, any_of):
                return reason
        for group, any_of in needs.groups:
            if reason := self._group_refusal(group, any_of):
                return reason
        return ""

    def _topic_refusal(self, topic: str, any_of: Permission) -> str:
        """Reason why the account may not use a topic; "" if it may. A group's retry and dead letter topics belong to
        the group: an account that may consume may use them. If no entry names the group, the topic must not contain
        popped messages of a group or a topic that is forbidden to the account."""
        has, group = self.topics.get(topic), group_of_topic(topic)
        if group is not None:
            any_of = Permission.SUB
            if has is None:
                reason = self._group_refusal(group, any_of)
                if reason or group in self.groups:
                    return reason
                return self._popped_again_refusal(topic)
        if has is None:
            has = self._default(self.default_topic, is_mixed(topic))
        return "" if has & any_of else self._lacks(any_of, "topic", topic)

    def _popped_again_refusal(self, topic: str) -> str:
        for group, popped in popped_again_of(topic):
            if not self.groups.get(group, Permission.SUB) & Permission.SUB:
                return self._lacks(Permission.SUB, "group", group)
            if not self.topics.get(popped, Permission.SUB) & Permission.SUB:
                return self._lacks(Permission.SUB, "topic", popped)
        return ""

    def _group_refusal(self, group: str, any_of: Permission) -> str:
        has = self.groups.get(group)
        if has is None:
            has = self._default(self.default_group, group.startswith(SYSTEM_GROUP_PREFIX))
        return "" if has & any_of else self._lacks(any_of, "group", group)

    def _default(self, default: Permission, is_system: bool) -> Permission:
        if self.admin:
            return Permission.PUB | Permission.SUB
        return Permission.DENY if is_system else default

    def _lacks(self, any_of: Permission, kind: str, name: str) -> str:
        return f"account {self.credentials.access_key} has no {_names(any_of)} permission on {kind} {name}"


def _names(permission: Permission) -> str:
    return " or ".join(str(item.name) for item in (Permission.PUB, Permission.SUB) if item & permission)


@dataclass(frozen=True)
class AccessList:
    """All accounts by access key."""

    accounts: Mapping[str, Account]
    white_addresses: tuple[str, ...] = ()

    def refusal(self, access_key: str, needs: Needs, host: str = "") -> str:
        """Reason why that account lacks a right; "" if it has all. `host`: address of the client."""
        account = self.accounts.get(access_key)
        return self.unknown(access_key) if account is None else account.refusal(needs, host)

    def unsigned(self, code: int) -> str:
        """Reason for the refusal of a request without a signature."""
        return f"request {code} is not signed: set an access key and a secret key"

    def unknown(self, access_key: str) -> str:
        """Reason for the refusal of an unknown account."""
        return f"there is no account {access_key!r}"

    def wrong_signature(self, access_key: str) -> str:
        """Reason for the refusal of a wrong signature."""
        return f"the signature of account {access_key} is wrong: check its secret key"

    def takes_unsigned(self, code: int) -> bool:
        """True if requests of that code need no account."""
        return False

    def producer_group_refusal(self, access_key: str, group: str) -> str:
        """Reason why that account may not be a producer of the group; "" if it may. If some accounts have PUB on the
        group in their groupPerms, only these may. Otherwise all may whose groupPerms do not deny it: RocketMQ's files
        have no rights on producer groups."""
        account = self.accounts.get(access_key)
        if account is None:
            return self.unknown(access_key)
        has = account.groups.get(group)
        if has is None or has == Permission.SUB:
            may = account.admin or group not in self._owned_producer_groups
        else:
            may = bool(has & Permission.PUB)
        return "" if may else f"account {access_key} has no PUB permission on group {group}"

    @cached_property
    def _owned_producer_groups(self) -> frozenset[str]:
        named = (item for account in self.accounts.values() for item in account.groups.items())
        return frozenset(group for group, permission in named if permission & Permission.PUB)


# --- addresses ----------------------------------------------------------------------------------------------------
def address_matches(pattern: str, host: str) -> bool:
    """True if `host` matches a pattern of RocketMQ: `*`, `10.1.2.3`, `10.1.*.*`, `10.1.2.{3,5}`, `10.1.2.3-9`. A list
    of patterns is not possible. The parts of an IPv6 address are its eight groups."""
    if pattern in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if "." in pattern:
        base, radix, given = 10, 4, pattern.split(".")
        parts = list(address.packed) if address.version == 4 else []
    else:
        base, radix, given = 16, 8, _ipv6_parts(pattern)
        packed = address.packed if address.version == 6 else b""
        parts = [int.from_bytes(packed[at : at + 2], "big") for at in range(0, len(packed), 2)]
    if len(parts) != radix or len(given) != radix:
        return False
    return all(_part_matches(wanted, part, base) for wanted, part in zip(given, parts, strict=True))


def _ipv6_parts(pattern: str) -> list[str]:
    head, gap, tail = pattern.partition("::")
    left, right = [item for item in head.split(":") if item], [item for item in tail.split(":") if item]
    return left + ["0"] * (8 - len(left) - len(right) if gap else 0) + right


def _part_matches(wanted: str, part: int, base: int) -> bool:
    if wanted == "*":
        return True
    choices = wanted[1:-1].split(",") if wanted.startswith("{") and wanted.endswith("}") else [wanted]
    for choice in choices:
        low, dash, high = choice.strip().partition("-")
        try:
            if int(low, base) <= part <= int(high if dash else low, base):
                return True
        except ValueError:
            return False
    return False


# --- the file -----------------------------------------------------------------------------------------------------
_ACCOUNT_KEYS = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)
_IGNORED_KEYS = ("dataVersion",)
"""RocketMQ's broker writes its own bookkeeping into the file."""


def parse_access_list(document: Any, source: str) -> AccessList:
    """Parse the decoded YAML document. Raises ConfigError with one sentence, which never contains a secret key."""
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected the keys globalWhiteRemoteAddresses and accounts")
    _check_keys(document, ("globalWhiteRemoteAddresses", "accounts", *_IGNORED_KEYS), source)
    accounts: dict[str, Account] = {}
    for number, item in enumerate(document.get("accounts") or (), 1):
        account = _account(item, f"{source}: account {number}")
        if account.credentials.access_key in accounts:
            raise ConfigError(f"{source}: accessKey {account.credentials.access_key} is given twice")
        accounts[account.credentials.access_key] = account
    return AccessList(accounts, _addresses(document.get("globalWhiteRemoteAddresses"), source))


def _check_keys(found: Mapping[Any, Any], known: Iterable[str], source: str) -> None:
    known = list(known)
    for key in found:
        if key not in known:
            import difflib  # costs every command that asks brokers a millisecond

            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
            raise ConfigError(f"{source}: unknown key {key}; the nearest known key is {near[0]}")


def _account(item: Any, source: str) -> Account:
    if not isinstance(item, dict):
        raise ConfigError(f"{source}: expected the keys of an account, beginning with accessKey")
    _check_keys(item, (*_ACCOUNT_KEYS, *_IGNORED_KEYS), source)
    keys = [str(item.get(name) or "") for name in ("accessKey", "secretKey")]
    for name, value in zip(("accessKey", "secretKey"), keys, strict=True):
        if len(value) < MIN_KEY_CHARS:
            raise ConfigError(f"{source}: {name} must have {MIN_KEY_CHARS} characters or more")
    admin = item.get("admin", False)
    if not isinstance(admin, bool):
        raise ConfigError(f"{source}: admin must be true or false")
    return Account(
        credentials=Credentials(access_key=keys[0], secret_key=keys[1]),
        white_addresses=_addresses(item.get("whiteRemoteAddress"), source),
        admin=admin,
        default_topic=_permission(item.get("defaultTopicPerm") or "DENY", f"{source}: defaultTopicPerm"),
        default_group=_permission(item.get("defaultGroupPerm") or "DENY", f"{source}: defaultGroupPerm"),
        topics=_permissions(item.get("topicPerms"), f"{source}: topicPerms"),
        groups=_permissions(item.get("groupPerms"), f"{source}: groupPerms"),
    )


def _addresses(value: Any, source: str) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ConfigError(f"{source}: an address pattern must be text, for example 10.1.2.*")
    return tuple(item.strip() for item in found if item.strip())


def _permission(value: Any, source: str) -> Permission:
    found = _PERMISSIONS.get(str(value).replace(" ", ""))
    if found is None:
        raise ConfigError(f"{source}: {value} is none of {', '.join(_PERMISSIONS)}")
    return found


def _permissions(value: Any, source: str) -> dict[str, Permission]:
    if not isinstance(value or [], list):
        raise ConfigError(f"{source}: expected a list of NAME=PERMISSION")
    found: dict[str, Permission] = {}
    for item in value or ():
        name, equals, permission = str(item).partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{source}: {item} is not of the form NAME=PERMISSION")
        found[name.strip()] = _permission(permission, source)
    return found


def is_mixed(topic: str) -> bool:
    """True for a topic in which the broker keeps messages of all topics."""
    return topic in MIXED_TOPICS or topic.startswith(REVIVE_TOPIC_PREFIX)


def popped_again_of(topic: str) -> Iterator[tuple[str, str]]:
    """Pairs of group and topic for which `topic` may be the retry topic of popped messages. Its name is
    `%RETRY%<group>_<topic>` or `%RETRY%<group>+<topic>`, and a name may contain `_` too."""
    if not topic.startswith(RETRY_PREFIX):
        return
    name = topic[len(RETRY_PREFIX) :]
    for place in range(1, len(name) - 1):
        if name[place] in "_+":
            yield name[:place], name[place + 1 :]


def group_of_topic(topic: str) -> str | None:
    """Consumer group of a retry or dead letter topic; None for any other topic."""
    if not topic.startswith("%"):
        return None
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None
