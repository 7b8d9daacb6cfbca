"""Bounds of a request's body and of the lists in its fields, by code: heartbeats wait while one is parsed. Decision."""

from __future__ import annotations

from typing import Final, NamedTuple

from rmqha.model.code import RequestCode
from rmqha.wire.command import Command


class BodyBound(NamedTuple):
    """Bounds of a body. `value_count`: most JSON values. They cost more than bytes: a list of empty lists a hundred
    times as much as a text of the same size."""

    size_bytes: int
    value_count: int


DEFAULT_BOUND: Final = BodyBound(64 * 1024, 16 * 1024)
"""Bound for most codes, which need no body at all."""
BOUNDS: Final[dict[int, BodyBound]] = {
    # A client of 256 groups with ten subscriptions each has 400 KB and 26,000 values.
    RequestCode.HEART_BEAT: BodyBound(512 * 1024, 40_000),
    RequestCode.LOCK_BATCH_MQ: BodyBound(256 * 1024, 16 * 1024),
    RequestCode.UNLOCK_BATCH_MQ: BodyBound(256 * 1024, 16 * 1024),
    # 1,500 topics or groups
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: BodyBound(512 * 1024, 16 * 1024),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: BodyBound(512 * 1024, 32 * 1024),
    # 20,000 offsets of a slave that its master has lost by a kill
    RequestCode.RMQHA_FOLLOW_TABLES: BodyBound(8 * 1024 * 1024, 160_000),
    # the answer of one client for a topic of 1,024 queues; it is parsed in one step
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: BodyBound(96 * 1024, 5_000),
    # names of 16,000 broker groups
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: BodyBound(512 * 1024, 16 * 1024),
}
UNBOUNDED: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.RMQHA_RAFT_MESSAGE,
        RequestCode.REGISTER_BROKER,
    }
)
"""Requests without such a bound. Messages are bounded by `maxMessageSize` and not parsed. Raft messages, from
controllers only, and registrations have their own bounds (`rmqha.wire.raft_codec`, `rmqha.wire.registration`)."""

LISTS: Final[dict[int, tuple[str, str]]] = {
    RequestCode.GET_CONSUME_STATS: ("topicList", ";"),
    RequestCode.QUERY_CORRECTION_OFFSET: ("filterGroups", ","),
}
"""Fields that are lists of names, with their separators. The rights on each name must be checked."""
MAX_LISTED_COUNT = 1024


def body_refusal(command: Command) -> str:
    """Reason to refuse a body, or a list in a field, without reading it; "" if both are accepted."""
    if command.code in UNBOUNDED:
        return ""
    listed = LISTS.get(command.code)
    if listed is not None and (count := (command.ext.get(listed[0]) or "").count(listed[1])) > MAX_LISTED_COUNT:
        return f"{listed[0]} of request {command.code} has {count} names; at most {MAX_LISTED_COUNT} are taken"
    size_bytes = len(command.body)
    if not size_bytes:
        return ""
    bound = BOUNDS.get(command.code, DEFAULT_BOUND)
    if size_bytes > bound.size_bytes:
        return f"the body of request {command.code} has {size_bytes} bytes; at most {bound.size_bytes} are taken"
    body = bytes(command.body)
    count = sum(map(body.count, (b",", b"[", b"{")))
    if count > bound.value_count:
        return f"the body of request {command.code} has {count} values; at most {bound.value_count} are taken"
    return ""
