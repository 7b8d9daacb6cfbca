"""Connected clients: producers and consumers by heartbeat, and their subscriptions."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple
from zlib import crc32

from rmqha.broker.requests.request import Channel, RequestError, Shares
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import host_of
from rmqha.model.message import RETRY_PREFIX, java_string_hash
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.model.printable import MAX_NAME_CHARS, name_refusal, printable
from rmqha.model.selector import Selector, SelectorError, parse_selector
from rmqha.wire.command import Language
from rmqha.wire.steps import RUN_COUNT

MAX_GROUPS_PER_CHANNEL = 256
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
"""Valid names of groups and topics, as RocketMQ's clients check them."""
MAX_SUBSCRIPTIONS = 1024
NAMES_PER_STEP = 1024
"""Names of a heartbeat that are checked in one step."""
SUBSCRIPTIONS_PER_STEP = 128
"""Subscriptions of a heartbeat that are parsed in one step: half a millisecond."""
MAX_NAME_LENGTH = 255
"""Bound on the name of a group or a client, as in RocketMQ."""
MAX_SUBSCRIPTION_LENGTH = 256 * 1024
"""Bound on topics and expressions of one group, together."""
MAX_SUBSCRIPTIONS_BYTES = 48 * 1024 * 1024
"""Bound on the memory of all groups' subscriptions, by `_size_bytes`."""
MAX_TAGS_CHARS = 32 * 1024
"""Bound on a tag expression, which takes eight milliseconds to parse."""
MAX_TEXT_LENGTH = 64
"""Bound on the stored text of an expression type."""
CONSUME_TYPES = ("CONSUME_PASSIVELY", "CONSUME_ACTIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("CLUSTERING", "BROADCASTING")
CONSUME_FROM_WHERES = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
"""RocketMQ's words for how a group consumes, the default first. No other one is kept: metrics and tools show them."""
TAG, SQL92 = "TAG", "SQL92"
"""Types of expressions."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Messages of a topic for a group. `tags_codes` None: all."""

    topic: str
    expression: str
    version: int
    expression_type: str = TAG
    tags_codes: frozenset[int] | None = None

    @property
    def selector(self) -> Selector | None:
        """Selector of an SQL92 expression, else None. It is compiled on first use, since a heartbeat has thousands."""
        return _selector(self.expression) if self.expression_type == SQL92 else None

    @property
    def tags(self) -> list[str]:
        """Tags of a tag expression; none if it takes all."""
        return [] if self.tags_codes is None else [tag.strip() for tag in self.expression.split("||") if tag.strip()]


class ClientChannelInfo(NamedTuple):
    """A client by its heartbeat, and the account that signed that."""

    client_id: str
    language: int
    version: int
    """Protocol version, an MQVersion ordinal."""
    principal: Principal = UNRESTRICTED
    heard_at_ms: int = 0
    """Wall clock (ms) of the newest heartbeat."""
    subscribed: int = 0
    """Digest of its subscriptions in one group, 0 before the first."""


def _name(value: Any) -> str:
    """Valid name, else raises ValueError."""
    name = str(value)
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"a name has at most {MAX_NAME_LENGTH} characters")
    return name


def _selector(expression: str) -> Selector | None:
    """Selector; None for a wrong expression: as in RocketMQ the heartbeat is accepted and later pulls are refused."""
    try:
        return parse_selector(expression)
    except SelectorError:
        return None


def parse_tags(expression: str) -> frozenset[int] | None:
    """Hashes of the tags in "a || b"; None for "*" and for nothing. Raises ValueError for "a ||" and the like, and
    beyond MAX_TAGS_CHARS."""
    if not expression or expression == "*":
        return None
    if len(expression) > MAX_TAGS_CHARS:
        raise ValueError(f"a subscription of {len(expression)} characters; {MAX_TAGS_CHARS} are taken")
    tags = [tag.strip() for tag in expression.split("||")]
    if not any(tags):
        raise ValueError(f"subscription {expression!r} names no tag")
    return frozenset(java_string_hash(tag) for tag in tags if tag)


@dataclass(slots=True)
class ConsumerGroupInfo:
    consume_type: str
    message_model: str
    consume_from_where: str
    channels: dict[Channel, ClientChannelInfo] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    size_bytes: int = 0
    """Memory of the subscriptions (bytes)."""

    def client_ids(self) -> list[str]:
        return sorted({member.client_id for member in self.channels.values()})

    def subscribed_alike(self) -> list[list[str]]:
        """Ids of the members that subscribe alike, list by list: more than one list is a mistake of the users, since
        members share the queues, and each filters out what is meant for others."""
        found: dict[int, set[str]] = {}
        for member in self.channels.values():
            if member.subscribed:
                found.setdefault(member.subscribed, set()).add(member.client_id)
        return sorted(map(sorted, found.values()))


class ClientTable:
    """Groups exist while they have a channel. Every change of a group's members or subscriptions is sent to all of its
    channels, the new one included (formats.md §17)."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self._places = Shares(0)
        """Memberships."""
        self.configure(config or BrokerConfig())
        self._consumers: dict[str, ConsumerGroupInfo] = {}
        self._producers: dict[str, dict[Channel, ClientChannelInfo]] = {}
        self._producer_clients: dict[str, tuple[Channel, ClientChannelInfo]] = {}
        """Newest connection by client id."""
        self._groups_of: dict[Channel, dict[tuple[str, bool], str]] = {}
        """The account (access key) that has joined each group, by connection and group."""
        self.subscriptions_bytes = 0
        """Memory of all subscriptions (bytes)."""

    def configure(self, config: BrokerConfig) -> None:
        self._places.most = config.max_client_count

    def consumer_group(self, name: str) -> ConsumerGroupInfo | None:
        return self._consumers.get(name)

    def groups_of(self, topic: str) -> Generator[None, None, list[str]]:
        """List, in steps, the connected consumer groups that subscribe to the topic."""
        found = []
        for place, (name, group) in enumerate(list(self._consumers.items())):
            if topic in group.subscriptions:
                found.append(name)
            if place % RUN_COUNT == RUN_COUNT - 1:
                yield
        return found

    def producer_group(self, name: str) -> Mapping[Channel, ClientChannelInfo] | None:
        return self._producers.get(name)

    def producer_channel(self, client_id: str) -> Channel | None:
        """Connection of a producing client; None if no such client is connected."""
        found = self._producer_clients.get(client_id)
        return None if found is None else found[0]

    def producer_groups(self) -> list[str]:
        return sorted(self._producers)

    @property
    def producer_connection_count(self) -> int:
        return sum(len(members) for members in self._producers.values())

    def consumer_connections(self) -> Iterator[tuple[str, str, int]]:
        """(group, message model, number of members) of each connected consumer group."""
        for name, group in sorted(self._consumers.items()):
            yield name, group.message_model, len(group.channels)

    def heartbeat(
        self,
        channel: Channel,
        body: Mapping[str, Any],
        language: int = Language.OTHER,
        version: int = 0,
        principal: Principal = UNRESTRICTED,
        heard_at_ms: int = 0,
        changed: list[str] | None = None,
    ) -> Generator[None, None, list[str]]:
        """Take one heartbeat, in steps. Returns the changed consumer groups; `changed` gets them also when a later part
        is refused. A producer group of another account is ignored. Raises ValueError, KeyError or TypeError for a
        malformed body, RequestError beyond the bounds."""
        member = ClientChannelInfo(_name(body["clientID"]), language, version, principal, heard_at_ms)
        without_subscriptions = bool(body.get("withoutSub"))
        groups = self._groups_of.setdefault(channel, {})
        changed = [] if changed is None else changed
        for item in body.get("producerDataSet") or []:
            name = _name(item["groupName"])
            if principal.producer_group_refusal(name):
                self.unregister(channel, name, consumer=False)
            elif self._may_join(groups, (name, False), principal):
                self._producer(channel, member, name)
        for item in body.get("consumerDataSet") or []:
            name = _name(item["groupName"])
            if not self._may_join(groups, (name, True), principal):
                continue
            found = (
                None if without_subscriptions else (yield from _subscriptions(item.get("subscriptionDataSet") or []))
            )
            self._consumer(channel, member, name, item, found, changed)
            yield
        return changed

    def knows_subscriptions(self, body: Mapping[str, Any]) -> bool:
        """True if the subscriptions are known, so that a heartbeat may omit them."""
        names = [str(item["groupName"]) for item in body.get("consumerDataSet") or []]
        return all((group := self._consumers.get(name)) is not None and group.subscriptions for name in names)

    def is_on_other_channel(
        self, channel: Channel, client_id: str, producer_group: str | None, consumer_group: str | None
    ) -> bool:
        """True if a client of either group has this id on another connection than `channel`."""
        consumers = self._consumers.get(consumer_group or "")
        for members in (self._producers.get(producer_group or "", {}), consumers.channels if consumers else {}):
            if channel not in members and any(member.client_id == client_id for member in members.values()):
                return True
        return False

    def unregister(self, channel: Channel, group: str, *, consumer: bool) -> bool:
        """Remove a member; True if a consumer group changed."""
        if (access_key := self._groups_of.get(channel, {}).pop((group, consumer), None)) is not None:
            self._places.give_back(access_key)
        return self._leave(channel, group, consumer)

    def closed(self, channel: Channel) -> list[str]:
        """Remove a closed channel. Returns the consumer groups that lost a member."""
        groups = self._groups_of.pop(channel, {})
        for access_key in groups.values():
            self._places.give_back(access_key)
        return [group for group, consumer in sorted(groups) if self._leave(channel, group, consumer)]

    def _may_join(self, groups: dict[tuple[str, bool], str], place: tuple[str, bool], principal: Principal) -> bool:
        if place in groups:
            return True
        if len(groups) >= MAX_GROUPS_PER_CHANNEL:
            return False
        if not self._places.take(principal):
            most, key = self._places.most, principal.access_key
            remark = f"this broker has as many clients as maxClientCount allows, {most}: raise it or stop some"
            if self._places.used < most:
                remark = f"account {key} has half of the clients that maxClientCount allows, {most}: stop some"
            raise RequestError(ResponseCode.SYSTEM_BUSY, remark)
        groups[place] = principal.access_key
        return True

    def _producer(self, channel: Channel, member: ClientChannelInfo, name: str) -> None:
        members = self._producers.setdefault(name, {})
        old, members[channel] = members.get(channel), member
        if old is not None and old.client_id != member.client_id:
            self._forget(channel, old.client_id)
        known = self._producer_clients.get(member.client_id)
        # what one account waits for no other one gets, unless only that one comes from where the id says
        if (
            known is None
            or known[1].principal.access_key == member.principal.access_key
            or _is_at_home(channel, member.client_id) > _is_at_home(known[0], member.client_id)
        ):
            self._producer_clients[member.client_id] = channel, member

    def _is_known_by(self, channel: Channel, client_id: str) -> bool:
        """True if the connection is in a group of producers under this id."""
        groups = (name for name, is_consumer in self._groups_of.get(channel, ()) if not is_consumer)
        found = (self._producers.get(name, {}).get(channel) for name in groups)
        return any(member is not None and member.client_id == client_id for member in found)

    def _forget(self, channel: Channel, client_id: str) -> None:
        known = self._producer_clients.get(client_id)
        if known is not None and known[0] is channel:
            del self._producer_clients[client_id]

    def _consumer(
        self,
        channel: Channel,
        member: ClientChannelInfo,
        name: str,
        item: Mapping[str, Any],
        found: dict[str, Subscription] | None,
        changed: list[str],
    ) -> None:
        """Update a consumer group. `found`: its subscriptions, None if the heartbeat omits them."""
        group = self._consumers.get(name)
        if group is None:
            group = self._consumers[name] = ConsumerGroupInfo("", "", "")
        group.consume_type = _value_of(item, "consumeType", CONSUME_TYPES)
        group.message_model = _value_of(item, "messageModel", MESSAGE_MODELS)
        group.consume_from_where = _value_of(item, "consumeFromWhere", CONSUME_FROM_WHERES)
        old = group.channels.get(channel)
        if old is None:
            changed.append(name)
        subscribed = _digest(found) if found is not None else old.subscribed if old is not None else 0
        group.channels[channel] = member._replace(subscribed=subscribed)
        if found is not None and self._subscribe(group, found) and old is not None:
            changed.append(name)

    def _subscribe(self, group: ConsumerGroupInfo, found: dict[str, Subscription]) -> bool:
        """Replace the topics of the group. A newer version of a known subscription is no change. Raises RequestError
        beyond the bounds; the group then keeps its subscriptions."""
        changed = found.keys() != group.subscriptions.keys()
        for topic, old in group.subscriptions.items():
            if topic in found and old.version > found[topic].version:
                found[topic] = old
        size_bytes = sum(map(_size_bytes, found.values()))
        grown_bytes = size_bytes - group.size_bytes
        if grown_bytes > 0 and self.subscriptions_bytes + grown_bytes > MAX_SUBSCRIPTIONS_BYTES:
            remark = f"the subscriptions of all groups would take more than {MAX_SUBSCRIPTIONS_BYTES} bytes"
            raise RequestError(ResponseCode.SYSTEM_BUSY, remark)
        self.subscriptions_bytes += grown_bytes
        group.subscriptions, group.size_bytes = found, size_bytes
        return changed

    def _leave(self, channel: Channel, name: str, consumer: bool) -> bool:
        if not consumer:
            members = self._producers.get(name, {})
            member = members.pop(channel, None)
            if member is not None and not self._is_known_by(channel, member.client_id):
                self._forget(channel, member.client_id)
            if not members:
                self._producers.pop(name, None)
            return False
        group = self._consumers.get(name)
        if group is None or group.channels.pop(channel, None) is None:
            return False
        if not group.channels:
            del self._consumers[name]
            self.subscriptions_bytes -= group.size_bytes
        return True


def _is_at_home(channel: Channel, client_id: str) -> bool:
    """True if a client's id begins with the address that it comes from, as those of RocketMQ's clients."""
    return client_id.partition("@")[0] == host_of(channel.peer)


def _value_of(item: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    word = item.get(name)
    return str(word) if word in known else known[0]


def _subscriptions(items: list[Mapping[str, Any]]) -> Generator[None, None, dict[str, Subscription]]:
    """Subscriptions by topic, in steps. Raises ValueError, KeyError or TypeError if malformed, RequestError beyond the
    bounds."""
    found: dict[str, Subscription] = {}
    length = 0
    for number, item in enumerate(items[:MAX_SUBSCRIPTIONS], start=1):
        if number % SUBSCRIPTIONS_PER_STEP == 0:
            yield
        expression, topic = str(item.get("subString") or "*"), str(item["topic"])
        length += len(expression) + len(topic)
        if length > MAX_SUBSCRIPTION_LENGTH:
            remark = f"the subscriptions of a group have at most {MAX_SUBSCRIPTION_LENGTH} characters"
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        expression_type, version = str(item.get("expressionType") or TAG)[:MAX_TEXT_LENGTH], item.get("subVersion", 0)
        if isinstance(version, float) or not -(1 << 63) <= int(version) < 1 << 63:
            raise ValueError("subVersion is not a 64 bit integer")
        codes = parse_tags(expression) if expression_type == TAG else None
        found[topic] = Subscription(topic, expression, int(version), expression_type, codes)
    return found


def _digest(found: Mapping[str, Subscription]) -> int:
    """Equal for equal topics and tags, never 0; the group's own retry topic is left to each client."""
    value = 1
    for topic in sorted(found):
        if not topic.startswith(RETRY_PREFIX):
            item = found[topic]
            wanted = item.expression if item.expression_type != TAG else sorted(item.tags_codes or ())
            value = crc32(f"{topic} {item.expression_type} {wanted};".encode(errors="surrogatepass"), value)
    return value or 1


def _size_bytes(subscription: Subscription) -> int:
    """Estimated memory of a subscription: short tags need 24 bytes for each of their characters."""
    per_char = 1 if subscription.tags_codes is None else 24
    return 256 + len(subscription.topic) + per_char * len(subscription.expression)


def names_refusal(body: Mapping[str, Any]) -> Generator[None, None, str]:
    """Reason why a heartbeat with these names is refused, by the rules of RocketMQ's clients, "" if it is accepted; in
    steps. Raises KeyError or TypeError for a malformed body."""
    if fault := name_refusal("clientID", str(body["clientID"])):
        return fault
    consumers = body.get("consumerDataSet") or []
    groups = (("group", item["groupName"]) for item in chain(body.get("producerDataSet") or [], consumers))
    topics = (("topic", row["topic"]) for item in consumers for row in item.get("subscriptionDataSet") or [])
    for number, (what, value) in enumerate(chain(groups, topics), start=1):
        name = str(value)
        if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
            return f"the {what} {printable(name[:MAX_NAME_CHARS], lines=False)} is not ^[%|a-zA-Z0-9_-]+$ or too long"
        if number % NAMES_PER_STEP == 0:
            yield
    return ""
