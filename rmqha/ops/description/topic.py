"""Descriptions of topics: in which groups, their queues, and what those groups promise. Control plane."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rmqha.client.admin import Admin
from rmqha.host.asking.shell import Caller, open_client
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UsageError
from rmqha.model.offset import MASTER_ID
from rmqha.ops.group_view import ask_broker, promise_of
from rmqha.ops.messaging.brokers import require_brokers
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import ObjectKey, loads
from rmqha.wire.state.json_record import JsonRecord

PERMISSIONS = {0: "none", 2: "write", 4: "read", 6: "read and write"}


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QueueDescription(JsonRecord):
    """One queue of a topic in a group. `last_stored_ms`: 0 without a message."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_ms: int

    @property
    def message_count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TopicInGroup(JsonRecord):
    """A topic in one group, by the broker `asked_at`: the master, else any other. `error`: why it tells no more."""

    group: str
    asked_at: str
    master: str | None
    permission: str
    read_queues: int | None
    write_queues: int | None
    attributes: dict[str, str] = field(default_factory=dict)
    """Attributes such as queue.type."""
    is_ordered: bool = False
    queues: Sequence[QueueDescription] = ()
    kind: str | None = None
    acknowledged: str | None = None
    error: str | None = None

    @property
    def all_attributes(self) -> dict[str, str | bool]:
        """The attributes, and `order` of an ordered topic."""
        return {**self.attributes, **({"order": True} if self.is_ordered else {})}

    def to_json(self) -> dict[str, Any]:
        found = JsonRecord.to_json(self) | {"attributes": self.all_attributes}
        del found["isOrdered"]
        return found


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TopicDescription(JsonRecord):
    """A topic in all its groups."""

    topic: str
    answered_by: str
    groups: Sequence[TopicInGroup]


async def ask_topic(namesrv: str, name: str) -> TopicDescription:
    """Describe a topic. UsageError for one that the name servers do not know."""
    async with Admin(namesrv) as admin, open_client() as client:
        try:
            route = await admin.route(name)
        except RemoteError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                await require_brokers(admin)
                raise UsageError(f"the name servers {namesrv} know no topic {name!r}; see rmqha topic ls") from None
            raise
        groups = []
        for group, addresses in sorted(route["brokers"].items()):
            groups.append(await _describe_group(admin, client, name, group, addresses, route["queues"].get(group, {})))
        return TopicDescription(topic=name, answered_by=route["answered_by"], groups=groups)


async def _describe_group(
    admin: Admin, client: Caller, name: str, group: str, addresses: dict[int, str], queues: dict[str, int]
) -> TopicInGroup:
    address = addresses.get(MASTER_ID) or next(iter(addresses.values()), "")
    row = TopicInGroup(
        group=group,
        asked_at=address,
        master=addresses.get(MASTER_ID),
        permission=PERMISSIONS.get(queues.get("perm", -1), str(queues.get("perm"))),
        read_queues=queues.get("read"),
        write_queues=queues.get("write"),
    )
    try:
        row.queues = await _queues(admin, address, name)
        row.attributes, row.is_ordered = await _attributes(admin, address, name)
        view = await ask_broker(client, address)
        if view.error:
            raise RmqhaError(view.error)
        _, found = promise_of(view)
        row.kind, row.acknowledged = found.kind, found.acknowledged
    except RmqhaError as error:
        row.error = str(error)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        row.error = f"an answer of {address} cannot be read: {error}"
    return row


async def _queues(admin: Admin, address: str, name: str) -> list[QueueDescription]:
    """Queues of an answer to request 202, in order of the queue ids."""
    reply = await admin.ask(address, Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": name}))
    found = []
    for key, row in loads(bytes(reply.body)).get("offsetTable", {}).items():
        queue = key if isinstance(key, ObjectKey) else json.loads(key)
        found.append(
            QueueDescription(
                queue_id=int(queue["queueId"]),
                min_offset=int(row["minOffset"]),
                max_offset=int(row["maxOffset"]),
                last_stored_ms=int(row["lastUpdateTimestamp"]),
            )
        )
    return sorted(found, key=lambda item: item.queue_id)


async def _attributes(admin: Admin, address: str, name: str) -> tuple[dict[str, str], bool]:
    """Attributes of an answer to request 351, and whether the topic is ordered."""
    body = loads(bytes((await admin.ask(address, Command(RequestCode.GET_TOPIC_CONFIG, {"topic": name}))).body))
    return dict(body.get("attributes") or {}), bool(body.get("order"))
