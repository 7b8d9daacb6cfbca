"""Settings of a consumer group in each broker group, and changes of them. Control plane."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rmqha.client.admin import Admin
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.ops.messaging.brokers import (
    AskedBroker,
    EditResult,
    all_brokers,
    ask_json,
    masters_of,
    require_brokers,
    side_by_side,
)
from rmqha.ops.messaging.consumer_group import is_system_group
from rmqha.wire.bodies import ONLY_EXISTING
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps

READS, MAX_RETRIES, BROADCASTS = "consumeEnable", "retryMaxTimes", "consumeBroadcastEnable"


@dataclass(frozen=True, slots=True)
class GroupEdit:
    """Changes that an operator wants; None leaves a setting as it is. `max_retries`: deliveries of a message after the
    first one, before it becomes a dead letter."""

    reads: bool | None = None
    broadcasts: bool | None = None
    max_retries: int | None = None

    def settings(self) -> dict[str, Any]:
        """The changed settings by RocketMQ's names."""
        wanted = {READS: self.reads, BROADCASTS: self.broadcasts, MAX_RETRIES: self.max_retries}
        return {name: value for name, value in wanted.items() if value is not None}


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A consumer group in one broker group: its settings there, None if it has none, and those that change."""

    broker: AskedBroker
    before: Mapping[str, Any] | None
    wanted: Mapping[str, Any]

    @property
    def changes(self) -> bool:
        """False if the broker group has these settings already."""
        return self.before is None or any(self.before.get(name) != value for name, value in self.wanted.items())


async def plan_edit(admin: Admin, group: str, edit: GroupEdit, names: Collection[str] = ()) -> list[GroupChange]:
    """The change in each of the broker groups `names`, or in all that know the consumer group. Raises UsageError for a
    group that is the servers' own or that none of them knows, UnreachableError unless every master answers."""
    found = [change for change in await _at_each(admin, group, edit, names) if change.before is not None]
    if not found:
        where = f"of {', '.join(names)} " if names else ""
        raise UsageError(f"no broker {where}knows a consumer group {group!r}; see rmqha consumer ls")
    return found


async def plan_creation(admin: Admin, group: str, edit: GroupEdit, names: Collection[str] = ()) -> list[GroupChange]:
    """The creation in each of the broker groups `names`, or in all; no setting changes where the group exists. Raises
    as `plan_edit`."""
    found = await _at_each(admin, group, edit, names)
    return [change if change.before is None else replace(change, wanted={}) for change in found]


async def _at_each(admin: Admin, group: str, edit: GroupEdit, names: Collection[str]) -> list[GroupChange]:
    if is_system_group(group):
        raise UsageError(f"{group} is the servers' own; it stays as it is")
    await require_brokers(admin)
    brokers = masters_of(
        await all_brokers(admin),
        names,
        lambda name, known: UnreachableError(f"there is no broker group {name}; the name servers know {known}"),
    )
    return [GroupChange(broker, await _settings_at(admin, broker, group), edit.settings()) for broker in brokers]


async def _settings_at(admin: Admin, broker: AskedBroker, group: str) -> dict[str, Any] | None:
    try:
        command = Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group, ONLY_EXISTING: "true"})
        return await ask_json(admin, broker.address, command)
    except RemoteError as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        return None


async def apply_edit(admin: Admin, group: str, changes: Sequence[GroupChange]) -> EditResult:
    """Change the settings, in all broker groups at once. In CP each answers once its SyncStateSet holds the change."""

    async def change_at(change: GroupChange) -> Command:
        # attributes are told as changes: none of them is meant
        body = {**(change.before or {}), "attributes": {}, **change.wanted, "groupName": group}
        command = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(body))
        return await admin.ask(change.broker.address, command)

    by_name = {change.broker.name: change for change in changes if change.changes}
    done, failures = await side_by_side(by_name, lambda name: change_at(by_name[name]))
    return EditResult(tuple(done), {name: str(error) for name, error in failures.items()})
