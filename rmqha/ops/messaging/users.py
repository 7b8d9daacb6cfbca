"""Users and policies of ACL 2.0 at the masters of broker groups (requests 3001 to 3010). Control plane."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from rmqha.client.admin import Admin
from rmqha.model.authorization import policy
from rmqha.model.authorization.plain_accounts import Converted
from rmqha.model.authorization.policy import Policies
from rmqha.model.code import RequestCode
from rmqha.model.error import ConfigError, RemoteProtocolError, UsageError
from rmqha.ops.messaging.brokers import AskedBroker, all_brokers, require_masters
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads


@dataclass(frozen=True, slots=True)
class UserSummary:
    """A user, and the groups that have it with these settings."""

    username: str
    is_super: bool
    is_enabled: bool
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class PolicySummary:
    """A policy entry, and the groups that have it."""

    username: str
    policy_type: str
    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...]
    decision: str
    groups: tuple[str, ...]


async def masters(admin: Admin, groups: Collection[str]) -> list[AskedBroker]:
    """Masters of these groups, or of all groups if none is given: a change is refused before it begins, or made
    everywhere. Raises UsageError for an unknown group, UnreachableError for one without a master."""
    found = await all_brokers(admin)
    known = {broker.name for broker in found}
    for name in groups:
        if name not in known:
            raise UsageError(f"there is no group {name}; known are {', '.join(sorted(known)) or 'none'}")
    wanted = [broker for broker in found if not groups or broker.name in groups]
    if not wanted:
        raise UsageError("the name servers know no broker group; see rmqha health")
    require_masters(wanted)
    return wanted


async def users(admin: Admin, groups: Collection[str], name_part: str = "") -> list[UserSummary]:
    """Users whose name contains `name_part`, by name; one with different settings is listed once for each."""
    found: dict[tuple[str, bool, bool], list[str]] = {}
    for broker in await masters(admin, groups):
        for row in await _rows(admin, broker, Command(RequestCode.AUTH_LIST_USER, {"filter": name_part})):
            status, type_ = str(row.get("userStatus")), str(row.get("userType"))
            key = str(row.get("username")), type_.lower() == "super", status.lower() != "disable"
            found.setdefault(key, []).append(broker.name)
    return [UserSummary(*key, tuple(names)) for key, names in sorted(found.items())]


async def put_user(
    admin: Admin, groups: Collection[str], username: str, body: dict[str, str], *, new: bool
) -> list[str]:
    """Make or change a user. `body`: RocketMQ's UserInfo. Returns the groups where it is done."""
    code = RequestCode.AUTH_CREATE_USER if new else RequestCode.AUTH_UPDATE_USER
    return await _everywhere(
        admin, groups, Command(code, {"username": username}, dumps({"username": username, **body}))
    )


async def delete_user(admin: Admin, groups: Collection[str], username: str) -> list[str]:
    """Remove a user. Returns the groups where it is done. Raises UsageError for one that no group knows."""
    if username not in {user.username for user in await users(admin, groups, username)}:
        raise UsageError(f"no group knows a user {username}; see rmqha acl user ls")
    return await _everywhere(admin, groups, Command(RequestCode.AUTH_DELETE_USER, {"username": username}))


async def entries(admin: Admin, groups: Collection[str], username: str = "", resource: str = "") -> list[PolicySummary]:
    """Policy entries of users whose names contain `username`, about resources whose names contain `resource`."""
    found: dict[PolicySummary, list[str]] = {}
    ext = {"subjectFilter": username, "resourceFilter": resource}
    for broker in await masters(admin, groups):
        for row in await _rows(admin, broker, Command(RequestCode.AUTH_LIST_ACL, dict(ext))):
            subject = str(row.get("subject")).partition(":")[2]
            for entry in _entries(subject, _policies(row, broker)):
                found.setdefault(entry, []).append(broker.name)
    return [replace(entry, groups=tuple(names)) for entry, names in sorted(found.items(), key=lambda item: item[0])]


async def put_policies(admin: Admin, groups: Collection[str], username: str, given: Policies) -> list[str]:
    """Add entries to a user's policies, each in place of the one about the same resource."""
    subject = f"User:{username}"
    body = dumps({"policies": policy.to_json(given), "subject": subject})
    return await _everywhere(admin, groups, Command(RequestCode.AUTH_UPDATE_ACL, {"subject": subject}, body))


async def delete_policies(
    admin: Admin, groups: Collection[str], username: str, resource: str, policy_type: str
) -> list[str]:
    """Remove a user's entry about a resource; all its entries if `resource` is ""."""
    ext = {"subject": f"User:{username}", **({"resource": resource, "policyType": policy_type} if resource else {})}
    return await _everywhere(admin, groups, Command(RequestCode.AUTH_DELETE_ACL, ext))


async def take_over(admin: Admin, groups: Collection[str], accounts: Converted) -> list[str]:
    """Make the users with their policies, or change existing ones. Returns the groups where it is done."""
    wanted = await masters(admin, groups)
    for broker in wanted:
        known = {user.username for user in await users(admin, [broker.name])}
        for user, policies in accounts.users:
            await put_user(admin, [broker.name], user.username, user.to_json(), new=user.username not in known)
            if policies:
                await put_policies(admin, [broker.name], user.username, policies)
    return [broker.name for broker in wanted]


async def _everywhere(admin: Admin, groups: Collection[str], command: Command) -> list[str]:
    done = []
    for broker in await masters(admin, groups):
        await admin.ask(broker.address, Command(command.code, dict(command.ext), bytes(command.body)))
        done.append(broker.name)
    return done


async def _rows(admin: Admin, broker: AskedBroker, command: Command) -> list[dict[str, Any]]:
    body = bytes((await admin.ask(broker.address, command)).body)
    try:
        found = loads(body) if body else []
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{broker.address}: the answer is {error}") from None
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise RemoteProtocolError(f"{broker.address}: the answer is no list of objects")
    return found


def _policies(row: dict[str, Any], broker: AskedBroker) -> Policies:
    try:
        return policy.from_json(row.get("policies"))
    except ConfigError as error:
        raise RemoteProtocolError(f"{broker.address}: the answer has no policies: {error}") from None


def _entries(username: str, policies: Policies) -> Iterable[PolicySummary]:
    """Summaries of a user's entries, still without groups."""
    for item in policies:
        for entry in item.entries:
            actions = tuple(action.value for action in entry.actions)
            decision = "Allow" if entry.allows else "Deny"
            yield PolicySummary(username, item.type.value, entry.resource.key, actions, entry.sources, decision, ())
