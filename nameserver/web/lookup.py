"""Message lookup for the page: by id, by key, by queue and offset. Shell.

Only brokers with a route here are asked, never an address in a request. Partial results count: a group that does not
answer becomes a note beside the results of the others.

Bounded are lookups at a time, groups at a time, messages of each answer, bytes of each body. Answers are parsed, and
the page's document is made, in one thread beside the event loop, so that a controller in this process never waits.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from nameserver.config import NamesrvConfig
from nameserver.route_info import RouteTable
from nameserver.web.message_view import message_view, share_bytes, short
from nameserver.web.records import MessagePreview, message_previews
from rmqha.client.answers import number
from rmqha.host.access.security import Security
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RmqhaError, UsageError
from rmqha.model.identity import is_loopback
from rmqha.model.message import MAX_TOPIC_BYTES, parse_offset_message_id
from rmqha.model.offset import MASTER_ID
from rmqha.store.index.index_key import INDEX_KEY_TYPE, INDEX_UNIQUE_TYPE
from rmqha.wire.bodies import GroupData
from rmqha.wire.command import Command

TIMEOUT_MS = 3_000
MAX_MESSAGES = 32
MAX_READ_MESSAGES = 4 * MAX_MESSAGES
"""Bound on the messages of one answer; honest brokers send MAX_MESSAGES at most."""
MAX_QUEUES = 64
"""Queues of a group that a lookup by time reads."""
MAX_GROUPS = 64
"""Groups that one lookup asks."""
MAX_KEY_CHARS = 512
MAX_LOOKUPS = 2
"""Lookups at the same time; more wait."""
MAX_WAITING = 16
"""Waiting lookups; more are refused."""
MAX_GROUPS_AT_ONCE = 4
LOOKUP_TIMEOUT_S = 10.0
"""Time (s) of a lookup; the results so far are shown."""
PULL_BYTES = 1024 * 1024
PULL_GROUP = "TOOLS_CONSUMER"
"""RocketMQ's own name for the consumer group of tools; nothing is committed for it."""
SUBSCRIPTION_IN_REQUEST = 4
_LATEST_MS = (1 << 63) - 1

T = TypeVar("T")
Ask = Callable[[GroupData, str], Awaitable[None]]


class BusyError(RmqhaError):
    """Too many lookups are waiting."""


@dataclass(slots=True)
class LookupResult:
    """Result of a lookup. `notes`: sentences about groups that could not be asked, or that lack the message."""

    messages: list[MessagePreview] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def refusal(config: NamesrvConfig, what: str = "message lookup") -> str:
    """Reason why this page may not look up messages, or show `what`; "" if it may. The page has no accounts of its own:
    everyone who reaches it can read what it reads."""
    if config.web_credentials_file:
        return ""
    if config.acl_enable or config.credentials_file:
        return (
            f"{what} is off: this cluster has accounts and the page has none; name a file with the keys of one "
            "that may read in webCredentialsFile"
        )
    if not is_loopback(config.http_host):
        return (
            f"{what} is off: httpHost = {config.http_host} lets other machines in; name a file with the keys "
            "of an account that may read in webCredentialsFile, or use the page on the name server's machine"
        )
    return ""


class Lookup:
    def __init__(self, routes: RouteTable, refused: str, security: Security | None = None) -> None:
        """`security`: TLS and account; None takes the process's TLS and no account."""
        self._routes = routes
        self._refused = refused
        self._security = security
        self._limit = trio.CapacityLimiter(MAX_LOOKUPS)
        self._thread = trio.CapacityLimiter(1)

    async def find(self, query: Mapping[str, str]) -> bytes:
        """JSON of a lookup: `messages`, `notes`. `query`: the page's form, with `by` (id, key, place, time) and its
        fields. Raises UsageError, one sentence, for invalid fields, and BusyError."""
        if self._refused:
            return json_bytes([], [self._refused], refused=True)
        if self._limit.statistics().tasks_waiting >= MAX_WAITING:
            raise BusyError(f"{MAX_WAITING} lookups wait already; try again in a moment")
        by = query.get("by", "")
        finders = {"id": self._by_id, "key": self._by_key, "place": self._by_place, "time": self._by_time}
        if by not in finders:
            raise UsageError("by must be id, key, place or time")
        async with self._limit, RemotingClient(security=self._security) as client:
            found = LookupResult()
            with trio.move_on_after(LOOKUP_TIMEOUT_S) as bound:
                await finders[by](client, query, found)
            if bound.cancelled_caught:
                found.notes.append(f"not everybody was asked: that takes longer than {LOOKUP_TIMEOUT_S:g} s")
        return await self._aside(lambda: _document(found))

    async def _aside(self, work: Callable[[], T]) -> T:
        """Run `work` in the one thread of all lookups. A lookup that ends meanwhile does not wait for it."""
        return await trio.to_thread.run_sync(work, limiter=self._thread, abandon_on_cancel=True)

    async def _take(self, group: GroupData, reply: Command, found: LookupResult, offset_msg_id: str = "") -> None:
        """Add the answer's messages, or only the one with this id."""
        body = reply.body
        taken = await self._aside(lambda: message_previews(group.broker_name, body, MAX_READ_MESSAGES))
        found.messages += [
            item for item in taken if not offset_msg_id or item.message.offset_msg_id.upper() == offset_msg_id
        ]

    # --- by id ------------------------------------------------------------------------------------------------------
    async def _by_id(self, client: RemotingClient, query: Mapping[str, str], found: LookupResult) -> None:
        """Find both kinds of ids: a record's (broker address and offset), or a producer's, which needs the topic
        because brokers index it by topic."""
        message_id, topic = text_field(query, "id", MAX_KEY_CHARS), _topic(query, needed=False)
        await self._by_record_id(client, message_id, topic, found)
        if found.messages:
            return
        if not topic:
            found.notes.append(
                "no broker has a record of that id; if a producer made it (msgId, UNIQ_KEY), give its topic as well"
            )
            return
        found.notes.clear()
        await self._query(client, topic, message_id, INDEX_UNIQUE_TYPE, found)

    async def _by_record_id(self, client: RemotingClient, message_id: str, topic: str, found: LookupResult) -> None:
        """Ask the group, not the address in the id: all replicas have the record at the same offset."""
        try:
            _, phy_offset = parse_offset_message_id(message_id)
        except ValueError:
            return
        wanted = message_id.upper()

        async def ask(group: GroupData, address: str) -> None:
            ext = {"offset": str(phy_offset), "topic": topic}
            reply = await client.call(address, Command(RequestCode.VIEW_MESSAGE_BY_ID, ext), TIMEOUT_MS)
            if reply.code == ResponseCode.SUCCESS:
                await self._take(group, reply, found, wanted)
            elif reply.code == ResponseCode.NO_PERMISSION:
                found.notes.append(f"{group.broker_name}: {reply.remark}")

        await self._ask_groups(self._routes.groups(), ask, found)

    # --- by key -----------------------------------------------------------------------------------------------------
    async def _by_key(self, client: RemotingClient, query: Mapping[str, str], found: LookupResult) -> None:
        await self._query(client, _topic(query), text_field(query, "key", MAX_KEY_CHARS), INDEX_KEY_TYPE, found)
        if not found.messages and not found.notes:
            found.notes.append("no message of that topic has that key; the index follows a send within a moment")

    async def _query(self, client: RemotingClient, topic: str, key: str, index_type: str, found: LookupResult) -> None:
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(MAX_MESSAGES),
            "beginTimestamp": "0",
            "endTimestamp": str(_LATEST_MS),
            "indexType": index_type,
            "_UNIQUE_KEY_QUERY": str(index_type == INDEX_UNIQUE_TYPE).lower(),
        }

        async def ask(group: GroupData, address: str) -> None:
            reply = await client.call(address, Command(RequestCode.QUERY_MESSAGE, dict(ext)), TIMEOUT_MS)
            if reply.code == ResponseCode.SUCCESS:
                await self._take(group, reply, found)
            elif reply.code != ResponseCode.QUERY_NOT_FOUND:
                found.notes.append(f"{group.broker_name} at {address} answered {reply.code}: {reply.remark}")

        await self._ask_groups(self._groups_of(topic), ask, found)

    # --- by place ---------------------------------------------------------------------------------------------------
    async def _by_place(self, client: RemotingClient, query: Mapping[str, str], found: LookupResult) -> None:
        topic, name = _topic(query), text_field(query, "group", MAX_TOPIC_BYTES)
        queue_id, offset = _number(query, "queue", (1 << 31) - 1), _number(query, "offset", _LATEST_MS)
        ext = _pull(topic, queue_id, offset, max(1, _number(query, "count", MAX_MESSAGES, 1)))
        groups = [group for group in self._groups_of(topic) if group.broker_name == name]
        if not groups:
            raise UsageError(f"topic {short(topic, 100)} has no queues in group {short(name, 100)}")

        async def ask(group: GroupData, address: str) -> None:
            reply = await client.call(address, Command(RequestCode.PULL_MESSAGE, ext), TIMEOUT_MS)
            if reply.code == ResponseCode.SUCCESS:
                await self._take(group, reply, found)
                return
            if not {"minOffset", "maxOffset"} <= reply.ext.keys():
                found.notes.append(f"{group.broker_name} at {address} answered {reply.code}: {reply.remark}")
            else:
                low, high = number(reply.ext, "minOffset", address), number(reply.ext, "maxOffset", address)
                held = "holds nothing" if low == high else f"holds the offsets {low} to {high - 1}"
                found.notes.append(f"queue {ext['queueId']} of {topic} in {group.broker_name} {held}")

        await self._ask_groups(groups, ask, found)

    # --- by time ----------------------------------------------------------------------------------------------------
    async def _by_time(self, client: RemotingClient, query: Mapping[str, str], found: LookupResult) -> None:
        """Find the earliest MAX_MESSAGES stored at or after the time, over all queues."""
        topic, since_ms = _topic(query), _number(query, "since", _LATEST_MS)
        route = self._routes.route(topic)
        queue_data = route[1] if route is not None else {}

        async def ask(group: GroupData, address: str) -> None:
            for queue_id in range(min(MAX_QUEUES, queue_data[group.broker_name].read_queue_count)):
                ext = {"topic": topic, "queueId": str(queue_id), "timestamp": str(since_ms)}
                reply = await client.call(address, Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext), TIMEOUT_MS)
                if reply.code != ResponseCode.SUCCESS:
                    found.notes.append(f"{group.broker_name} at {address} answered {reply.code}: {reply.remark}")
                    return
                pull = _pull(topic, queue_id, number(reply.ext, "offset", address, 0, least=0), MAX_MESSAGES)
                reply = await client.call(address, Command(RequestCode.PULL_MESSAGE, pull), TIMEOUT_MS)
                if reply.code == ResponseCode.SUCCESS:
                    await self._take(group, reply, found)

        await self._ask_groups(self._groups_of(topic), ask, found)
        found.messages = [item for item in found.messages if item.message.stored_at_ms >= since_ms]
        found.messages.sort(key=lambda item: item.message.stored_at_ms)
        if len(found.messages) > MAX_MESSAGES:
            found.notes.append(f"the first {MAX_MESSAGES} since then; a later time shows what follows")
        del found.messages[MAX_MESSAGES:]
        if not found.messages and not found.notes:
            found.notes.append("no message of that topic was stored at that time or later")

    # --- groups -----------------------------------------------------------------------------------------------------
    def _groups_of(self, topic: str) -> list[GroupData]:
        found = self._routes.route(topic)
        if found is None:
            raise UsageError(f"no broker has registered topic {short(topic, 100)}; mind the letter case")
        return found[0]

    async def _ask_groups(self, groups: list[GroupData], ask: Ask, found: LookupResult) -> None:
        """Ask each group's master, or any replica without one."""
        if len(groups) > MAX_GROUPS:
            found.notes.append(f"only {MAX_GROUPS} of {len(groups)} groups were asked; give the topic to ask fewer")
        at_once = trio.CapacityLimiter(MAX_GROUPS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for group in groups[:MAX_GROUPS]:
                nursery.start_soon(self._ask_group, group, ask, found, at_once)

    async def _ask_group(self, group: GroupData, ask: Ask, found: LookupResult, at_once: trio.CapacityLimiter) -> None:
        address = group.addresses.get(MASTER_ID) or next(iter(group.addresses.values()), "")
        async with at_once:
            try:
                await ask(group, address)
            except RmqhaError as error:
                found.notes.append(f"{group.broker_name}: {error}")


# --- the document -----------------------------------------------------------------------------------------------------
def _document(found: LookupResult) -> bytes:
    found.messages.sort(key=lambda peek: (peek.message.broker_name, peek.message.phy_offset, peek.message.queue_offset))
    shown = found.messages[:MAX_MESSAGES]
    if len(found.messages) > len(shown):
        found.notes.append(f"{len(found.messages) - len(shown)} more messages are not shown")
    share = share_bytes(len(shown))
    views = [message_view(item.message, share, packed_bytes=item.packed_bytes, problem=item.problem) for item in shown]
    return json_bytes(views, [short(note) for note in found.notes])


def json_bytes(messages: list[dict[str, object]], notes: list[str], *, refused: bool = False) -> bytes:
    """Answer to the page."""
    return json.dumps({"messages": messages, "notes": notes, "refused": refused}, separators=(",", ":")).encode()


def _pull(topic: str, queue_id: int, offset: int, count: int) -> dict[str, str]:
    """Fields of a pull that does not wait and commits nothing."""
    return {
        "consumerGroup": PULL_GROUP,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "maxMsgBytes": str(PULL_BYTES),
        "sysFlag": str(SUBSCRIPTION_IN_REQUEST),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


# --- fields -----------------------------------------------------------------------------------------------------------
def text_field(query: Mapping[str, str], name: str, limit_chars: int) -> str:
    """Stripped field of a form. Raises UsageError if it is missing or too long."""
    value = query.get(name, "").strip()
    if not value:
        raise UsageError(f"{name} is missing")
    if len(value) > limit_chars:
        raise UsageError(f"{name} is longer than {limit_chars} characters")
    return value


def _topic(query: Mapping[str, str], *, needed: bool = True) -> str:
    if not needed and not query.get("topic", "").strip():
        return ""
    return text_field(query, "topic", MAX_TOPIC_BYTES)


def _number(query: Mapping[str, str], name: str, limit: int, default: int | None = None) -> int:
    value = query.get(name, "").strip()
    if not value and default is not None:
        return default
    if not (value.isascii() and value.isdigit()) or len(value) > 19 or int(value) > limit:
        raise UsageError(f"{name} must be a number between 0 and {limit}")
    return int(value)
