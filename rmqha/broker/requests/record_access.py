"""Rights of a request's account on the record that it names by an offset or an id. No trio.

The topic in such a request is only a claim: the record itself names its topic. A record in a topic where the broker
keeps messages of all others belongs to the topic of its destination. A topic of the name of a deleted one has nothing
of that one.
"""

from __future__ import annotations

from typing import Protocol

from rmqha.broker.requests.request import Channel, RequestError
from rmqha.model.access import Needs, Permission, is_mixed
from rmqha.model.code import ResponseCode
from rmqha.model.message import (
    CHECK_MAX_TOPIC,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_INNER_BATCH,
    find_property,
)
from rmqha.store.log.record import Record
from rmqha.wire.auth.accesses import refusal_now
from rmqha.wire.command import Command


class DeletedTopics(Protocol):
    """Port to what is known of deleted topics; `TopicTable` is one."""

    def is_of_deleted(self, name: str, queue_id: int, queue_offset: int) -> bool: ...

    def is_for_deleted(self, name: str, phy_offset: int, *, if_unknown: bool = False) -> bool: ...


def owner_topic(record: Record) -> str:
    """Topic whose rights protect a record."""
    return (_property(record, PROPERTY_REAL_TOPIC) if is_mixed(record.topic) else "") or record.topic


def require_owner(command: Command, record: Record, permission: Permission) -> None:
    """Raises RequestError if the account lacks the permission on the record's topic or group. The answer does not name
    that topic, which the peer may not know."""
    principal = command.principal
    if principal.is_restricted and (reason := principal.refusal(Needs(topics=((owner_topic(record), permission),)))):
        told = f"no {permission.name} permission on the topic of the message at {record.phy_offset}"
        raise denied(command, reason, f"account {principal.access_key} has {told}")


def require_reader(command: Command, record: Record, named_topic: str | None, topics: DeletedTopics) -> None:
    """Raises RequestError if the account may not read the record, if the request names a topic that is none of the
    record's names, or if the record was sent to a deleted topic: its rights are those of another topic now."""
    if not command.principal.is_restricted:
        return
    require_owner(command, record, Permission.SUB)
    if named_topic and named_topic not in _topics_of(record):
        raise denied(command, f"the message at {record.phy_offset} is none of topic {named_topic}")
    if not command.principal.is_admin and _is_of_deleted(record, topics):
        raise denied(command, f"the message at {record.phy_offset} was sent to a topic that has been deleted")


def _is_of_deleted(record: Record, topics: DeletedTopics) -> bool:
    owner = owner_topic(record)
    if owner != record.topic:
        # a transaction may have been given up because of the deletion
        phy_offset = -1 if record.topic == CHECK_MAX_TOPIC else record.phy_offset
        return topics.is_for_deleted(owner, phy_offset, if_unknown=True)
    return topics.is_of_deleted(owner, record.queue_id, record.queue_offset)


def is_meant(record: Record, named_id: str, named_topic: str) -> bool:
    """False if the record is not the message that a request names ("" names none): after a cut of the log (AP) another
    record may be at that offset."""
    key = _property(record, PROPERTY_UNIQUE_KEY)
    if key and named_id and not record.sys_flag & SYS_FLAG_INNER_BATCH:
        return named_id == key or named_id.upper().endswith(f"{record.phy_offset:016X}")
    return not named_topic or named_topic in _topics_of(record)


def _topics_of(record: Record) -> tuple[str, str, str]:
    """Names of the record's topic for its readers; some are ""."""
    return record.topic, owner_topic(record), _property(record, PROPERTY_RETRY_TOPIC)


def require_producer(command: Command, group: str) -> None:
    """Raises RequestError if the account may not be a producer of the group."""
    if reason := command.principal.producer_group_refusal(group):
        raise denied(command, reason)


def denied(command: Command, reason: str, told: str = "") -> RequestError:
    """Error for a request that passed the authorization filter and is refused nevertheless; the filter counts it.
    `told`: text of the answer in place of the reason, which the audit log has."""
    command.principal.denied(command, reason)
    return RequestError(ResponseCode.NO_PERMISSION, told or reason)


def was_refused(channel: Channel, command: Command) -> bool:
    """True, and it is answered, if the account of a request that has waited may not make it any more."""
    if not (reason := refusal_now(command)):
        return False
    refused = denied(command, reason)
    if not command.is_oneway:
        channel.send(command.reply(refused.code, {}, remark=reason))
    return True


def _property(record: Record, name: str) -> str:
    return (find_property(record.properties, name.encode()) or b"").decode("utf-8", "replace")
