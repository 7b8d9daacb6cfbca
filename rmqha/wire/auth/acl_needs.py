"""Rights that the account of a request must have, by the request's code and fields. Pure.

A request that names a topic or a group needs a permission on it. A request with an offset or an id of a record cannot
prove its topic: its processor checks `Command.principal` for the record itself (33, 36, 37, 309), as for messages to
the producers of transactions (34, 39). A code in no table here needs an admin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rmqha.model.access import Needs, Permission
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import HALF_TOPIC, RETRY_PREFIX
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

PUB, SUB = Permission.PUB, Permission.SUB
DEFAULT_TOPIC = "TBW102"
"""Topic whose route producers query to create a topic with its settings."""
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"


class _Names(NamedTuple):
    """Header fields with the topics and the group of a request. `more_topic` may be missing in the request."""

    topic: str = ""
    any_of: Permission = SUB
    group: str = ""
    more_topic: str = ""


_NAMES: Mapping[int, _Names] = {
    RequestCode.SEND_MESSAGE: _Names("topic", PUB),
    RequestCode.SEND_MESSAGE_V2: _Names("b", PUB),
    RequestCode.SEND_BATCH_MESSAGE: _Names("b", PUB),
    RequestCode.SEND_REPLY_MESSAGE: _Names("topic", PUB),
    RequestCode.SEND_REPLY_MESSAGE_V2: _Names("b", PUB),
    RequestCode.RECALL_MESSAGE: _Names("topic", PUB),
    RequestCode.PULL_MESSAGE: _Names("topic", group="consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: _Names("topic", group="consumerGroup"),
    RequestCode.POP_MESSAGE: _Names("topic", group="consumerGroup"),
    RequestCode.PEEK_MESSAGE: _Names("topic", group="consumerGroup"),
    RequestCode.NOTIFICATION: _Names("topic", group="consumerGroup"),
    RequestCode.POLLING_INFO: _Names("topic", group="consumerGroup"),
    RequestCode.QUERY_MESSAGE: _Names("topic"),
    RequestCode.QUERY_CONSUMER_OFFSET: _Names("topic", group="consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _Names("topic", group="consumerGroup"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _Names("topic", PUB | SUB),
    RequestCode.GET_MAX_OFFSET: _Names("topic", PUB | SUB),
    RequestCode.GET_MIN_OFFSET: _Names("topic", PUB | SUB),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _Names("topic", PUB | SUB),
    RequestCode.VIEW_MESSAGE_BY_ID: _Names("topic"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _Names(group="group", more_topic="originTopic"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _Names(group="consumerGroup"),
    RequestCode.GET_TOPIC_STATS_INFO: _Names("topic", PUB | SUB),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _Names(group="consumerGroup"),
    RequestCode.GET_CONSUME_STATS: _Names(group="consumerGroup", more_topic="topic"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _Names("topic", PUB | SUB),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _Names("topic", group="group"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _Names(group="group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _Names(group="group", more_topic="topic"),
    RequestCode.GET_TOPIC_CONFIG: _Names("topic", PUB | SUB),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _Names(group="group"),
}
ANY_ACCOUNT = frozenset(
    {
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.RMQHA_EXPLAIN_GROUP,
        RequestCode.RMQHA_GET_CONTROLLER_STATE,
        RequestCode.RMQHA_GET_HISTORY,
        RequestCode.RMQHA_GET_NAMESRV_STATE,
        RequestCode.RMQHA_GET_QUORUM,
        RequestCode.RMQHA_GET_REPLICA_STATE,
        RequestCode.RMQHA_GET_SECURITY_STATE,
        RequestCode.RMQHA_HOLDS_SENDS,
    }
)
"""Queries that return no message: any account may make them. Lists of topics contain only those that the account may
use."""
_ADMIN = Needs(admin=True)
_NOTHING = Needs()


def needs(command: Command) -> Needs:
    """Rights that the request needs; an admin's if its topics or groups cannot be read."""
    code, ext = command.code, command.ext
    try:
        if (names := _NAMES.get(code)) is not None:
            topics = ((ext[names.topic], names.any_of),) if names.topic else ()
            if names.more_topic and (more := ext.get(names.more_topic)):
                topics = (*topics, (more, SUB))
            if code == RequestCode.GET_CONSUME_STATS:
                topics = (*topics, *((topic, SUB) for topic in (ext.get("topicList") or "").split(";") if topic))
            return Needs(topics=topics, groups=((ext[names.group], SUB),) if names.group else ())
        if code in ANY_ACCOUNT:
            return _NOTHING
        if (special := _SPECIAL.get(code)) is not None:
            return special(command)
    except (KeyError, TypeError, AttributeError, RemoteProtocolError):
        return _ADMIN  # it does not say what it is about; the service will refuse it anyway
    return _ADMIN


# --- by more than a field ---------------------------------------------------------------------------------------------
def _route(command: Command) -> Needs:
    topic = command.ext["topic"]
    return _NOTHING if topic == DEFAULT_TOPIC else Needs(topics=((topic, PUB | SUB),))


def _end_transaction(command: Command) -> Needs:
    """Rights for the end of a transaction. The field `topic` is not proved, and in the answer to a check it is the half
    topic: the processor checks the half message itself."""
    topic = command.ext.get("topic")
    return Needs(topics=((topic, PUB),)) if topic and topic != HALF_TOPIC else _NOTHING


def _unregister(command: Command) -> Needs:
    """Rights to unregister: on the consumer group; a producer needs none."""
    group = command.ext.get("consumerGroup")
    return Needs(groups=((group, SUB),)) if group else _NOTHING


def _heartbeat(command: Command) -> Needs:
    """Rights for a heartbeat: on the subscriptions of consumers; a producer needs none."""
    consumers = members(loads(command.body, is_strict=True), "consumerDataSet")
    topics = [str(data["topic"]) for item in consumers for data in members(item, "subscriptionDataSet")]
    return _to_consume(topics, [str(item["groupName"]) for item in consumers])


def _locks(command: Command) -> Needs:
    body = loads(command.body, is_strict=True)
    return _to_consume([str(item["topic"]) for item in members(body, "mqSet")], [str(body["consumerGroup"])])


def _producer_connections(command: Command) -> Needs:
    return Needs(groups=((command.ext["producerGroup"], PUB | SUB),))


def _kv_config(command: Command) -> Needs:
    """Rights for a request about the name server's KV settings: a setting of a topic needs a right on the topic."""
    if command.ext["namespace"] != ORDER_TOPIC_NAMESPACE:
        return _ADMIN
    return Needs(topics=((command.ext["key"], PUB | SUB),))


def _stats_data(command: Command) -> Needs:
    """Rights for a statistic, which names a topic, or also a group; those of the whole broker are for any account."""
    name, (topic, _, group) = command.ext["statsName"], command.ext["statsKey"].partition("@")
    if name.startswith("TOPIC_PUT_"):
        return Needs(topics=((topic, PUB | SUB),))
    return _NOTHING if name.startswith("BROKER_") else _to_consume([topic], [group])


def _consume_queue(command: Command) -> Needs:
    """Rights for a queue's entries, and for the subscription of a group that is named."""
    group = command.ext.get("consumerGroup")
    return _to_consume([command.ext["topic"]], [group] if group else [])


def _popped(command: Command) -> Needs:
    """Rights for a popped message; for one from a retry topic, on its original topic."""
    group = command.ext["consumerGroup"]
    return _to_consume([popped_from(command.ext["topic"], group)], [group])


def popped_from(topic: str, group: str) -> str:
    """Original topic of the group's pop retry topic `topic`; any other topic is returned as it is."""
    for separator in "_+":
        begin = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(begin):
            return topic.removeprefix(begin)
    return topic


def _popped_batch(command: Command) -> Needs:
    acks = acknowledged(command)
    return _to_consume([topic for topic, _ in acks], [group for _, group in acks])


def acknowledged(command: Command) -> list[tuple[str, str]]:
    """(topic, group) of each acknowledgement of a batch. Raises KeyError, TypeError, AttributeError and
    RemoteProtocolError."""
    found = []
    for item in members(loads(command.body, is_strict=True) if command.body else {}, "acks"):
        topic, group = item.get("t", item.get("topic")), item.get("c", item.get("consumerGroup"))
        if not isinstance(topic, str) or not isinstance(group, str):
            raise TypeError
        found.append((popped_from(topic, group), group))
    if not found:
        raise KeyError("acks")
    return found


def _assignment(command: Command) -> Needs:
    body = loads(command.body, is_strict=True)
    return _to_consume([popped_from(str(body["topic"]), str(body["consumerGroup"]))], [str(body["consumerGroup"])])


_SPECIAL: Mapping[int, Callable[[Command], Needs]] = {
    RequestCode.ACK_MESSAGE: _popped,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _popped,
    RequestCode.BATCH_ACK_MESSAGE: _popped_batch,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.END_TRANSACTION: _end_transaction,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.GET_KV_CONFIG: _kv_config,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.VIEW_BROKER_STATS_DATA: _stats_data,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _producer_connections,
    RequestCode.QUERY_CONSUME_QUEUE: _consume_queue,
}


def members(value: Any, name: str) -> list[Any]:
    """List `name` of a body, [] if absent. Raises TypeError if it is no list: the service must not read the body in
    another way than this check."""
    found = value.get(name) or []
    if not isinstance(found, list):
        raise TypeError
    return found


def _to_consume(topics: Iterable[str], groups: Iterable[str]) -> Needs:
    return Needs(
        topics=tuple((topic, SUB) for topic in dict.fromkeys(topics)),
        groups=tuple((group, SUB) for group in dict.fromkeys(groups)),
    )
