"""Users and policies in place of the accounts of a plain_acl.yml. Pure.

Each permission of an account becomes a policy entry. A default permission becomes an entry on every topic or group, in
the default policy, so that named entries win. ACL 2.0 has no equivalent of addresses that need no account, nor of
producer groups; these are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rmqha.model.access import AccessList, Account, Permission
from rmqha.model.authorization.policy import (
    Action,
    Policies,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourcePattern,
    ResourceType,
)
from rmqha.model.authorization.users import User, username_refusal


class Converted(NamedTuple):
    """Result of the conversion. `lost`: sentences about settings that users and policies cannot express."""

    users: tuple[tuple[User, Policies], ...]
    lost: tuple[str, ...]


def converted(accounts: AccessList) -> Converted:
    users, lost = [], []
    if accounts.white_addresses:
        lost.append(
            f"globalWhiteRemoteAddresses ({', '.join(accounts.white_addresses)}): every request needs a user then"
        )
    for name, account in sorted(accounts.accounts.items()):
        if fault := username_refusal(name):
            lost.append(f"account {name}: {fault}; it is left out")
            continue
        if account.white_addresses:
            addresses = ", ".join(account.white_addresses)
            lost.append(f"account {name}: whiteRemoteAddress ({addresses}): its requests are signed from there too")
        producers = sorted(group for group, permission in account.groups.items() if permission & Permission.PUB)
        if producers:
            lost.append(
                f"account {name}: PUB on groups {', '.join(producers)}: policies say nothing of producer groups"
            )
        user = User(name, account.credentials.secret_key, is_super=account.admin)
        users.append((user, () if account.admin else _policies(account)))
    return Converted(tuple(users), tuple(lost))


def _policies(account: Account) -> Policies:
    custom = (*_named(ResourceType.TOPIC, account.topics), *_named(ResourceType.GROUP, account.groups))
    default = (
        *_every(ResourceType.TOPIC, account.default_topic),
        *_every(ResourceType.GROUP, account.default_group),
    )
    made = (Policy(PolicyType.CUSTOM, custom), Policy(PolicyType.DEFAULT, default))
    return tuple(policy for policy in made if policy.entries)


def _named(type_: ResourceType, permissions: Mapping[str, Permission]) -> Iterable[PolicyEntry]:
    for name, permission in sorted(permissions.items()):
        yield _entry(Resource(type_, ResourcePattern.LITERAL, name), permission)


def _every(type_: ResourceType, permission: Permission) -> Iterable[PolicyEntry]:
    if permission is not Permission.DENY:
        yield _entry(Resource(type_, ResourcePattern.ANY), permission)


def _entry(resource: Resource, permission: Permission) -> PolicyEntry:
    """Policy entry for a permission. A right to send or receive includes that to query (GET), as for an account."""
    actions = [Action.PUB] if permission & Permission.PUB and resource.type is ResourceType.TOPIC else []
    actions += [Action.SUB] if permission & Permission.SUB else []
    return PolicyEntry(resource, (*actions, Action.GET) if actions else (Action.ALL,), (), bool(actions))
