"""The right of a request's account to the record that the request reaches by an offset or an id. No trio.

What such a request says of a topic is a claim; whose a record is, it says itself. A record in one of the topics where
the broker keeps messages of all others belongs to the topic that it is meant for.
"""

from __future__ import annotations

from rmqha.broker.requests.request import RequestError
from rmqha.model.access import Needs, Permission, is_mixed
from rmqha.model.code import ResponseCode
from rmqha.model.message import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_INNER_BATCH,
    find_property,
)
from rmqha.store.log.record import Record
from rmqha.wire.command import Command


def owner_topic(record: Record) -> str:
    """The topic whose readers and writers a record is for."""
    return (_property(record, PROPERTY_REAL_TOPIC) if is_mixed(record.topic) else "") or record.topic


def require_owner(command: Command, record: Record, permission: Permission) -> None:
    """Raises RequestError if the account of the request lacks a permission on the topic that the record is for, or on
    its group. Which topic that is, the answer does not say: whoever names an offset need not know it."""
    principal = command.principal
    if principal.is_restricted and (reason := principal.refusal(Needs(topics=((owner_topic(record), permission),)))):
        told = f"no {permission.name} permission on the topic of the message at {record.phy_offset}"
        raise denied(command, reason, f"account {principal.access_key} has {told}")


def require_reader(command: Command, record: Record, named_topic: str | None) -> None:
    """Raises RequestError if the account of the request may not read the record, or if the request names a topic that
    is not the record's, by any of the names that its readers know it by."""
    if not command.principal.is_restricted:
        return
    require_owner(command, record, Permission.SUB)
    if named_topic and named_topic not in _topics_of(record):
        raise denied(command, f"the message at {record.phy_offset} is none of topic {named_topic}")


def is_meant(record: Record, named_id: str, named_topic: str) -> bool:
    """False if the record at a place is not the message that a request names, each "" if it does not: where the log was
    cut (AP) another may stand there."""
    key = _property(record, PROPERTY_UNIQUE_KEY)
    if key and named_id and not record.sys_flag & SYS_FLAG_INNER_BATCH:
        return named_id == key or named_id.upper().endswith(f"{record.phy_offset:016X}")
    return not named_topic or named_topic in _topics_of(record)


def _topics_of(record: Record) -> tuple[str, str, str]:
    """The names by which readers know the record's topic; some are ""."""
    return record.topic, owner_topic(record), _property(record, PROPERTY_RETRY_TOPIC)


def require_producer(command: Command, group: str) -> None:
    """Raises RequestError if the account of the request may not be a producer of the group."""
    if reason := command.principal.producer_group_refusal(group):
        raise denied(command, reason)


def denied(command: Command, reason: str, told: str = "") -> RequestError:
    """The error to raise for a request that came through the guard and must be refused all the same; it is counted
    there. `told`: what the answer says instead of the reason, which the audit log has."""
    command.principal.denied(command, reason)
    return RequestError(ResponseCode.NO_PERMISSION, told or reason)


def _property(record: Record, name: str) -> str:
    return (find_property(record.properties, name.encode()) or b"").decode("utf-8", "replace")
