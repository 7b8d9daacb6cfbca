"""Resources and actions of a request, as RocketMQ 5.4.0's ACL 2.0 has them. Pure.

Some requests need no right in RocketMQ although they change or return data (25, 200, 306, 361 and others); here they
need the obvious right. A code in no table needs a super user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rmqha.model.access import Account, Needs, group_of_topic, popped_again_of
from rmqha.model.authorization.policy import Access, Action, ResourceType
from rmqha.model.authorization.users import UserAccount
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import HALF_TOPIC, RETRY_PREFIX
from rmqha.wire.auth.acl_needs import ANY_ACCOUNT, acknowledged, members, needs, popped_from
from rmqha.wire.body_bound import body_refusal
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

A = Action
PUB, SUB, GET = frozenset({A.PUB}), frozenset({A.SUB}), frozenset({A.GET})
CREATE, UPDATE, DELETE = frozenset({A.CREATE}), frozenset({A.UPDATE}), frozenset({A.DELETE})
LISTS = GET | {A.LIST}
OWN_CODES = 52_000
"""First of rmqha's own request codes. Those in no table need a super user also without authorizationEnabled: they are
for replicas."""
ALL_NAMES = "*"
"""Name that stands for all topics, or all groups: only an entry on all names covers it."""

_Accesses = tuple[Access, ...]


class _Fields(NamedTuple):
    """Header fields with the resources of a request. `own_retry`: for the group's own retry topic only the right on the
    group is needed."""

    any_of: frozenset[Action]
    topic: str = ""
    group: str = ""
    more_topic: str = ""
    own_retry: bool = False


_FIELDS: Mapping[int, _Fields] = {
    RequestCode.RECALL_MESSAGE: _Fields(PUB, "topic"),
    RequestCode.PULL_MESSAGE: _Fields(SUB, "topic", "consumerGroup", own_retry=True),
    RequestCode.LITE_PULL_MESSAGE: _Fields(SUB, "topic", "consumerGroup", own_retry=True),
    RequestCode.POP_MESSAGE: _Fields(SUB, "topic", "consumerGroup"),
    RequestCode.PEEK_MESSAGE: _Fields(SUB, "topic", "consumerGroup"),
    RequestCode.NOTIFICATION: _Fields(SUB, "topic", "consumerGroup"),
    RequestCode.POLLING_INFO: _Fields(SUB | GET, "topic", "consumerGroup"),
    RequestCode.QUERY_MESSAGE: _Fields(SUB | GET, "topic"),
    RequestCode.QUERY_CONSUMER_OFFSET: _Fields(SUB | GET, "topic", "consumerGroup", own_retry=True),
    RequestCode.UPDATE_CONSUMER_OFFSET: _Fields(SUB | UPDATE, "topic", "consumerGroup", own_retry=True),
    RequestCode.CONSUMER_SEND_MSG_BACK: _Fields(SUB, group="group"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _Fields(SUB | GET, group="consumerGroup"),
    RequestCode.UPDATE_AND_CREATE_TOPIC: _Fields(CREATE, "topic"),
    RequestCode.DELETE_TOPIC_IN_BROKER: _Fields(DELETE, "topic"),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _Fields(DELETE, group="groupName"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _Fields(GET, "topic"),
    RequestCode.GET_MAX_OFFSET: _Fields(GET, "topic"),
    RequestCode.GET_MIN_OFFSET: _Fields(GET, "topic"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _Fields(GET, "topic"),
    RequestCode.VIEW_MESSAGE_BY_ID: _Fields(GET, "topic"),
    RequestCode.GET_TOPIC_STATS_INFO: _Fields(GET, "topic"),
    RequestCode.GET_TOPIC_CONFIG: _Fields(GET, "topic"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _Fields(GET, "topic"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _Fields(GET, "topic", "group"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _Fields(GET, group="consumerGroup"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _Fields(GET, group="consumerGroup"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _Fields(GET, group="group"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _Fields(GET, group="group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _Fields(GET, group="group", more_topic="topic"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _Fields(GET, "topic", "group"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _Fields(UPDATE, "topic", "group"),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _Fields(UPDATE, "topic", "group"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _Fields(SUB, group="consumerGroup", more_topic="topic"),
}
_CLUSTER: Mapping[int, frozenset[Action]] = {
    RequestCode.AUTH_CREATE_USER: UPDATE,
    RequestCode.AUTH_UPDATE_USER: UPDATE,
    RequestCode.AUTH_DELETE_USER: UPDATE,
    RequestCode.AUTH_GET_USER: GET,
    RequestCode.AUTH_LIST_USER: GET,
    RequestCode.AUTH_CREATE_ACL: UPDATE,
    RequestCode.AUTH_UPDATE_ACL: UPDATE,
    RequestCode.AUTH_DELETE_ACL: UPDATE,
    RequestCode.AUTH_GET_ACL: GET,
    RequestCode.AUTH_LIST_ACL: GET,
    RequestCode.UPDATE_BROKER_CONFIG: UPDATE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: UPDATE,
    RequestCode.CLEAN_UNUSED_TOPIC: UPDATE,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: UPDATE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: UPDATE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: UPDATE,
    RequestCode.GET_ALL_CONSUMER_OFFSET: GET,
    RequestCode.GET_ALL_DELAY_OFFSET: GET,
    RequestCode.GET_TIMER_CHECK_POINT: GET,
    RequestCode.GET_TIMER_METRICS: GET,
    RequestCode.SWITCH_TIMER_ENGINE: UPDATE,
    RequestCode.RMQHA_GET_TIMERS: GET,
    RequestCode.RMQHA_GET_TRANSACTIONS: GET,
    RequestCode.RMQHA_GET_DELAYED: GET,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: GET,
    RequestCode.VIEW_BROKER_STATS_DATA: GET,
    RequestCode.GET_BROKER_CONSUME_STATS: GET,
    RequestCode.GET_ALL_PRODUCER_INFO: GET,
}


def accesses(command: Command, cluster: str) -> _Accesses | None:
    """Resources that the request uses, each with the actions of which one must be allowed. None: it needs a super user,
    or its resources cannot be read."""
    code, ext = command.code, command.ext
    try:
        if (fields := _FIELDS.get(code)) is not None:
            return _by_fields(fields, ext)
        if (any_of := _CLUSTER.get(code)) is not None:
            return (Access(ResourceType.CLUSTER, cluster, any_of),)
        if (special := _SPECIAL.get(code)) is not None:
            return special(command)
    except (KeyError, TypeError, AttributeError, RemoteProtocolError):
        return None
    return () if code in ANY_ACCOUNT else None


def request_refusal(account: Account, command: Command, host: str) -> str:
    """Reason why the account may not make the request, "" if it may: by policies for a user, else by permissions."""
    if fault := body_refusal(command):
        return "" if account.admin else fault  # reading the body for the check would block all; the service refuses it
    if not isinstance(account, UserAccount):
        return account.refusal(needs(command))
    rules = account.rules
    if account.admin or command.code in rules.unauthorized_codes:
        return ""
    found = accesses(command, rules.cluster)
    if found is None and not rules.is_on and command.code < OWN_CODES:
        return ""
    return account.access_refusal(found, host)


def refusal_now(command: Command) -> str:
    """ "" if the account of a request that has waited may still make it, else why not."""
    principal = command.principal
    if not principal.is_restricted:
        return ""
    account = principal.account
    if account is None:
        return principal.refusal(Needs())  # there is no such account any more
    return request_refusal(account, command, principal.host)


def _by_fields(fields: _Fields, ext: Mapping[str, str]) -> _Accesses:
    found: list[Access] = []
    if fields.topic:
        topic = ext[fields.topic]
        if not (fields.own_retry and _is_retry_of(topic, ext[fields.group])):
            found.append(_topic(topic, fields.any_of))
    if fields.more_topic and (more := ext.get(fields.more_topic)):
        found.append(_topic(more, fields.any_of))
    if fields.group:
        found.append(_group(ext[fields.group], fields.any_of))
    return tuple(found)


def _is_retry_of(topic: str, group: str) -> bool:
    """True if `topic` is the retry topic of this group."""
    return topic.startswith(RETRY_PREFIX) and topic.removeprefix(RETRY_PREFIX) == group


def _topic(name: str, any_of: frozenset[Action]) -> Access:
    if name.startswith(RETRY_PREFIX):
        return _group(name, any_of)
    return Access(ResourceType.TOPIC, name, any_of)


def _group(name: str, any_of: frozenset[Action]) -> Access:
    group = group_of_topic(name) if name.startswith(RETRY_PREFIX) else None
    if group is None:
        return Access(ResourceType.GROUP, name, any_of)
    return Access(ResourceType.GROUP, group, any_of, tuple(popped_again_of(name)))


def _send(topic: str) -> Callable[[Command], _Accesses]:
    def of_command(command: Command) -> _Accesses:
        name = command.ext[topic]
        # RocketMQ believes the producer's group, and so lets in whoever may consume in any
        return (_topic(name, SUB if name.startswith(RETRY_PREFIX) else PUB),)

    return of_command


def _end_transaction(command: Command) -> _Accesses:
    """The half message itself decides: the topic is only a claim, and the answer to a check names the half topic."""
    topic = command.ext.get("topic")
    return (_topic(topic, PUB),) if topic and topic != HALF_TOPIC else ()


def _heartbeat(command: Command) -> _Accesses:
    found = []
    for consumer in members(loads(command.body, is_strict=True), "consumerDataSet"):
        group = str(consumer["groupName"])
        found.append(_group(group, SUB))
        topics = (str(data["topic"]) for data in members(consumer, "subscriptionDataSet"))
        found += [_topic(topic, SUB) for topic in topics if not _is_retry_of(topic, group)]
    return tuple(dict.fromkeys(found))


def _unregister(command: Command) -> _Accesses:
    group = command.ext.get("consumerGroup")
    return (_group(group, SUB),) if group else ()


def _locks(command: Command) -> _Accesses:
    body = loads(command.body, is_strict=True)
    group, topics = str(body["consumerGroup"]), (str(item["topic"]) for item in members(body, "mqSet"))
    used = (_topic(topic, SUB) for topic in topics if not _is_retry_of(topic, group))
    return (_group(group, SUB), *dict.fromkeys(used))


def _update_group(command: Command) -> _Accesses:
    return (_group(str(loads(command.body, is_strict=True)["groupName"]), CREATE | UPDATE),)


def _clone_offsets(command: Command) -> _Accesses:
    source, target = command.ext["srcGroup"], command.ext["destGroup"]
    topic = command.ext.get("topic")
    return (_group(source, GET | UPDATE), _group(target, UPDATE), *((_topic(topic, UPDATE),) if topic else ()))


def _consume_stats(command: Command) -> _Accesses:
    named = (command.ext.get("topic") or "", *(command.ext.get("topicList") or "").split(";"))
    return (_group(command.ext["consumerGroup"], GET), *(_topic(name, GET) for name in named if name))


def _correction_offsets(command: Command) -> _Accesses:
    groups = [command.ext["compareGroup"], *(command.ext.get("filterGroups") or "").split(",")]
    used = (_group(group, GET) for group in groups if group)
    return (_topic(command.ext["topic"], GET), *dict.fromkeys(used))


def _consume_queue(command: Command) -> _Accesses:
    group = command.ext.get("consumerGroup")
    return (_topic(command.ext["topic"], GET), *((_group(group, GET),) if group else ()))


def _topic_list(command: Command) -> _Accesses:
    topics = (str(item["topicName"]) for item in members(loads(command.body, is_strict=True), "topicConfigList"))
    return tuple(dict.fromkeys(_topic(topic, CREATE) for topic in topics))


def _group_list(command: Command) -> _Accesses:
    groups = (str(item["groupName"]) for item in members(loads(command.body, is_strict=True), "groupConfigList"))
    return tuple(dict.fromkeys(_group(group, CREATE | UPDATE) for group in groups))


def _popped(command: Command) -> _Accesses:
    group = command.ext["consumerGroup"]
    return (_topic(popped_from(command.ext["topic"], group), SUB), _group(group, SUB))


def _popped_batch(command: Command) -> _Accesses:
    used = ((_topic(topic, SUB), _group(group, SUB)) for topic, group in acknowledged(command))
    return tuple(dict.fromkeys(access for both in used for access in both))


def _assignment(command: Command) -> _Accesses:
    body = loads(command.body, is_strict=True)
    group = str(body["consumerGroup"])
    topic = popped_from(str(body["topic"]), group)
    return (_group(group, SUB), *(() if _is_retry_of(topic, group) else (_topic(topic, SUB),)))


def _request_mode(command: Command) -> _Accesses:
    body = loads(command.body, is_strict=True)
    return (_topic(str(body["topic"]), UPDATE), _group(str(body["consumerGroup"]), UPDATE))


def _all_topics(command: Command) -> _Accesses:
    return (Access(ResourceType.TOPIC, ALL_NAMES, LISTS),)


def _all_groups(command: Command) -> _Accesses:
    return (Access(ResourceType.GROUP, ALL_NAMES, LISTS),)


_SPECIAL: Mapping[int, Callable[[Command], _Accesses]] = {
    RequestCode.SEND_MESSAGE: _send("topic"),
    RequestCode.SEND_MESSAGE_V2: _send("b"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b"),
    RequestCode.SEND_REPLY_MESSAGE: _send("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _send("b"),
    RequestCode.END_TRANSACTION: _end_transaction,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _update_group,
    RequestCode.CLONE_GROUP_OFFSET: _clone_offsets,
    RequestCode.GET_CONSUME_STATS: _consume_stats,
    RequestCode.QUERY_CORRECTION_OFFSET: _correction_offsets,
    RequestCode.QUERY_CONSUME_QUEUE: _consume_queue,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_list,
    RequestCode.ACK_MESSAGE: _popped,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _popped,
    RequestCode.BATCH_ACK_MESSAGE: _popped_batch,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _request_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _all_groups,
    RequestCode.GET_ALL_TOPIC_CONFIG: _all_topics,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _all_groups,
}
