"""Policies of RocketMQ's ACL 2.0, and the decision by them. Pure.

A policy entry allows or denies actions on a resource to requests from some addresses. Of the entries that match a
request, that with the most exact resource decides: a literal name before a prefix, a longer prefix before a shorter
one, all of a type before everything. Of two equal ones the one that denies decides. A user's custom policy is checked
before the default one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple, TypeVar

from rmqha.model.access import SYSTEM_GROUP_PREFIX, is_mixed
from rmqha.model.error import ConfigError

MAX_RESOURCE_CHARS = 512
MAX_SOURCE_COUNT = 64
"""Most addresses of one entry."""
MAX_ENTRY_COUNT = 512
"""Most entries of one user."""


class Action(Enum):
    """Action on a resource. `All` contains every other one."""

    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceType(Enum):
    """Kind of a resource, as RocketMQ names it."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class ResourcePattern(Enum):
    """Form of a resource's name; the lower the value, the more exact."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


class PolicyType(Enum):
    """Kind of a policy. The default one decides only where no entry of the custom one matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Access(NamedTuple):
    """A request's use of a resource: any of the actions must be allowed."""

    type: ResourceType
    name: str
    any_of: frozenset[Action]
    again_of: tuple[tuple[str, str], ...] = ()
    """Groups and topics whose popped messages may come again in a retry topic."""

    @property
    def key(self) -> str:
        return f"{self.type.value}:{self.name}"

    @property
    def is_of_all(self) -> bool:
        """True for a topic or group in which a broker keeps data of all others: an entry on all names does not allow
        it."""
        if self.type is ResourceType.TOPIC:
            return is_mixed(self.name)
        return self.type is ResourceType.GROUP and self.name.startswith(SYSTEM_GROUP_PREFIX)


@dataclass(frozen=True, slots=True)
class Resource:
    """Resource of a policy entry. `name`: a name, a prefix, or "" for all names."""

    type: ResourceType
    pattern: ResourcePattern
    name: str = ""

    @classmethod
    def parse(cls, key: str) -> Resource | None:
        """Parse a key such as `Topic:orders`, `Group:pay*`, `Cluster:*` or `*`; None for anything else."""
        if key == "*":
            return cls(ResourceType.ANY, ResourcePattern.ANY)
        type_name, colon, name = key.partition(":")
        found = by_name(ResourceType, type_name)
        if found is None or not colon or len(key) > MAX_RESOURCE_CHARS or not key.isprintable():
            return None
        if found is ResourceType.ANY or name == "*":
            return cls(found, ResourcePattern.ANY)
        if name.endswith("*"):
            return cls(found, ResourcePattern.PREFIXED, name.partition("*")[0])
        return cls(found, ResourcePattern.LITERAL, name)

    @property
    def key(self) -> str:
        if self.type is ResourceType.ANY:
            return "*"
        return f"{self.type.value}:{self.name}{'' if self.pattern is ResourcePattern.LITERAL else '*'}"

    def covers(self, type_: ResourceType, name: str) -> bool:
        if self.type is ResourceType.ANY:
            return True
        if self.type is not type_:
            return False
        return name == self.name if self.pattern is ResourcePattern.LITERAL else name.startswith(self.name)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """Entry of a policy. `sources`: addresses and networks (10.0.0.0/8) for which it is valid; () for all."""

    resource: Resource
    actions: tuple[Action, ...]
    sources: tuple[str, ...]
    allows: bool

    def matches(self, access: Access, host: str) -> bool:
        if not self.resource.covers(access.type, access.name):
            return False
        if self.allows and self.resource.pattern is ResourcePattern.ANY and access.is_of_all:
            return False
        if Action.ALL not in self.actions and access.any_of.isdisjoint(self.actions):
            return False
        return not self.sources or any(_is_within(host, source) for source in self.sources)

    @property
    def rank(self) -> tuple[bool, int, int, bool]:
        """Sort key: of the matching entries, the one with the lowest rank decides."""
        resource = self.resource
        return resource.type is ResourceType.ANY, resource.pattern.value, -len(resource.name), self.allows


@dataclass(frozen=True, slots=True)
class Policy:
    """Entries of one user and one kind, each about another resource."""

    type: PolicyType
    entries: tuple[PolicyEntry, ...]

    def with_entries(self, entries: Iterable[PolicyEntry]) -> Policy:
        """This policy with `entries`, each in place of the one about the same resource."""
        found = {entry.resource: entry for entry in self.entries}
        found.update((entry.resource, entry) for entry in entries)
        return Policy(self.type, tuple(found.values()))

    def without(self, resource: Resource) -> Policy:
        return Policy(self.type, tuple(entry for entry in self.entries if entry.resource != resource))


Policies = tuple[Policy, ...]


_DENIED = "the decision is deny."


def decide(policies: Policies, access: Access, host: str) -> str:
    """Reason why the policies do not allow an access from `host`, in RocketMQ's words; "" if they do. If no entry names
    the group of a retry topic, the topic must not contain popped messages of a group or a topic that an entry
    denies."""
    entry = _deciding(policies, access, host)
    if entry is None:
        return "no matched policies."
    if not entry.allows:
        return _DENIED
    if access.again_of and entry.resource.pattern is not ResourcePattern.LITERAL:
        for group, topic in access.again_of:
            for type_, name in ((ResourceType.GROUP, group), (ResourceType.TOPIC, topic)):
                other = _deciding(policies, Access(type_, name, access.any_of), host)
                if other is not None and not other.allows:
                    return _DENIED
    return ""


def _deciding(policies: Policies, access: Access, host: str) -> PolicyEntry | None:
    for type_ in PolicyType:
        found = [
            entry
            for policy in policies
            if policy.type is type_
            for entry in policy.entries
            if entry.matches(access, host)
        ]
        if found:
            return min(found, key=lambda entry: entry.rank)
    return None


def merged(policies: Policies, given: Policies) -> Policies:
    """Policies with the entries of `given` added, which replace those on the same resource."""
    found = {policy.type: policy for policy in policies}
    for policy in given:
        found[policy.type] = found.get(policy.type, Policy(policy.type, ())).with_entries(policy.entries)
    return tuple(found.values())


def without(policies: Policies, type_: PolicyType, resource: Resource) -> Policies:
    """Policies without the entry on that resource."""
    rest = (policy.without(resource) if policy.type is type_ else policy for policy in policies)
    return tuple(policy for policy in rest if policy.entries)


def _is_within(host: str, source: str) -> bool:
    try:
        address = ip_address(host)
        return address in ip_network(source, strict=False) if "/" in source else address == ip_address(source)
    except ValueError:
        return False


# --- JSON -------------------------------------------------------------------------------------------------------------
def to_json(policies: Policies) -> list[dict[str, Any]]:
    return [
        {"entries": [_entry_to_json(entry) for entry in policy.entries], "policyType": policy.type.value}
        for policy in policies
    ]


def _entry_to_json(entry: PolicyEntry) -> dict[str, Any]:
    told = {
        "actions": [action.value for action in entry.actions],
        "decision": "Allow" if entry.allows else "Deny",
        "resource": entry.resource.key,
    }
    return told | ({"sourceIps": list(entry.sources)} if entry.sources else {})


def from_json(value: Any) -> Policies:
    """Parse the policies of RocketMQ's AclInfo. Raises ConfigError, with RocketMQ's text if it has one."""
    policies: Policies = ()
    for item in _list(value, "policies"):
        if not isinstance(item, dict):
            raise ConfigError("The policies is empty.")
        entries = tuple(_entry_from_json(entry) for entry in _list(item.get("entries"), "entries"))
        if entries:
            type_ = by_name(PolicyType, item.get("policyType")) or PolicyType.CUSTOM
            policies = merged(policies, (Policy(type_, entries),))
    if not policies:
        raise ConfigError("The policies is empty.")
    return policies


def _entry_from_json(value: Any) -> PolicyEntry:
    given = value if isinstance(value, dict) else {}
    resource = Resource.parse(str(given.get("resource") or ""))
    if resource is None:
        raise ConfigError("The resource is null.")
    found = (by_name(Action, name) for name in _list(given.get("actions"), "actions"))
    actions = tuple(dict.fromkeys(action for action in found if action is not None))
    if not actions:
        raise ConfigError("The actions is empty.")
    if Action.ANY in actions:
        raise ConfigError("The actions can not be Any.")
    sources = tuple(dict.fromkeys(str(item) for item in _list(given.get("sourceIps"), "sourceIps")))
    if len(sources) > MAX_SOURCE_COUNT:
        raise ConfigError(f"an entry has at most {MAX_SOURCE_COUNT} source addresses")
    for source in sources:
        if not source.strip():
            raise ConfigError("The source ip is empty.")
        if not _is_source(source):
            raise ConfigError("The source ip is invalid.")
    decision = str(given.get("decision")).lower()
    if decision not in ("allow", "deny"):
        raise ConfigError("The decision is null or illegal.")
    return PolicyEntry(resource, actions, sources, decision == "allow")


def _is_source(source: str) -> bool:
    try:
        ip_network(source, strict=False)
    except ValueError:
        return False
    host, slash, prefix = source.partition("/")
    return "%" not in host and (not slash or prefix.isdecimal())


def _list(value: Any, name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{name} must be a list")
    return value


E = TypeVar("E", bound=Enum)


def by_name(kind: type[E], name: object) -> E | None:
    """Member of an enum with that value, in upper or lower case; None if there is none."""
    wanted = name.lower() if isinstance(name, str) else ""
    return next((member for member in kind if str(member.value).lower() == wanted), None)
