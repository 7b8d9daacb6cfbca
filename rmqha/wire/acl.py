"""Signed requests, as RocketMQ's AclClientRPCHook makes them, and what each request code needs (D6).

A signature is the HMAC-SHA1, in Base64, of the values of all header fields but the signature itself, in the order of
their names, and of the body. It proves who asks; it does not hide anything and does not keep a request from being
repeated by somebody who saw it: that takes TLS.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from rmqha.model.access import AccessList, Credentials, Needs, Permission, address_matches, group_of_retry_topic
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import HALF_TOPIC
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
_UNIQUE_QUERY_FLAG = "_UNIQUE_KEY_QUERY"
_LAST_VERSION_THAT_FLAGS_LATER = 399
"""MQVersion ordinal of 4.9.3: up to it clients added the flag of a query after they had signed it."""


def signature(command: Command, secret_key: str) -> str:
    """Of a command whose AccessKey field is set."""
    fields = command.ext
    names = sorted(
        (
            name
            for name in fields
            if name != SIGNATURE
            and not (name == _UNIQUE_QUERY_FLAG and command.version <= _LAST_VERSION_THAT_FLAGS_LATER)
        ),
        key=_java_order,
    )
    mac = hmac.new(secret_key.encode(), "".join([fields[name] for name in names]).encode(), "sha1")
    mac.update(command.body)
    return b64encode(mac.digest()).decode()


def _java_order(name: str) -> bytes:
    """Java sorts by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")


def sign(command: Command, credentials: Credentials) -> None:
    command.ext[ACCESS_KEY] = credentials.access_key
    command.ext.pop(SIGNATURE, None)
    command.ext[SIGNATURE] = signature(command, credentials.secret_key)


def refusal(access: AccessList, command: Command, host: str) -> str:
    """ "" if a request from `host` may be served, else why not, in one sentence that names no secret."""
    if any(address_matches(pattern, host) for pattern in access.white_addresses):
        return ""
    key = command.ext.get(ACCESS_KEY)
    if not key:
        return f"request {command.code} is not signed: set an access key and a secret key"
    account = access.accounts.get(key)
    if account is None:
        return f"there is no account {key!r}"
    if not any(address_matches(pattern, host) for pattern in account.white_addresses):
        given = command.ext.get(SIGNATURE, "")
        if not hmac.compare_digest(given.encode(), signature(command, account.credentials.secret_key).encode()):
            return f"the signature of account {key} is wrong: check its secret key"
    return account.refusal(needs(command))


# --- what a request needs -----------------------------------------------------------------------------------------
_TOPIC_FIELD: Mapping[int, str] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
}
_SUB_FIELDS: Mapping[int, tuple[str, str]] = {
    RequestCode.PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.QUERY_CONSUMER_OFFSET: ("topic", "consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("topic", "consumerGroup"),
    RequestCode.QUERY_MESSAGE: ("topic", ""),
    RequestCode.CONSUMER_SEND_MSG_BACK: ("", "group"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ("", "consumerGroup"),
}
_EITHER_TOPIC = frozenset(
    {
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    }
)
_ANY_ACCOUNT = frozenset(
    {
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.RMQHA_EXPLAIN_GROUP,
        RequestCode.RMQHA_GET_CONTROLLER_STATE,
        RequestCode.RMQHA_GET_HISTORY,
        RequestCode.RMQHA_GET_NAMESRV_STATE,
        RequestCode.RMQHA_GET_QUORUM,
        RequestCode.RMQHA_GET_REPLICA_STATE,
        RequestCode.RMQHA_GET_SECURITY_STATE,
    }
)
"""Looks that show no message: any account may. What is in none of these tables takes an admin."""
_ADMIN = Needs(admin=True)
_NOTHING = Needs()


def needs(command: Command) -> Needs:
    code, ext = command.code, command.ext
    if code in _ANY_ACCOUNT:
        return _NOTHING
    try:
        if (field := _TOPIC_FIELD.get(code)) is not None:
            return _needs(((ext[field], Permission.PUB),))
        if (fields := _SUB_FIELDS.get(code)) is not None:
            topic, group = fields
            return _needs(((ext[topic], Permission.SUB),) if topic else (), (ext[group],) if group else ())
        if code == RequestCode.END_TRANSACTION:
            # The answer to a check names the half topic; it must know the group and both offsets of the message.
            return _NOTHING if ext["topic"] == HALF_TOPIC else _needs(((ext["topic"], Permission.PUB),))
        if code == RequestCode.UNREGISTER_CLIENT:
            return _needs((), (ext["consumerGroup"],) if ext.get("consumerGroup") else ())
        if code in _EITHER_TOPIC:
            return _needs(((ext["topic"], Permission.PUB | Permission.SUB),))
        if code == RequestCode.VIEW_MESSAGE_BY_ID:
            return _needs(((ext["topic"], Permission.SUB),))
        if code == RequestCode.HEART_BEAT:
            return _heartbeat(loads(command.body))
        if code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            body = loads(command.body)
            topics = [str(item["topic"]) for item in body.get("mqSet") or ()]
            return _needs(((topic, Permission.SUB) for topic in topics), (str(body["consumerGroup"]),))
    except (KeyError, TypeError, AttributeError, RemoteProtocolError):
        return _ADMIN  # it does not say what it is about; the service will refuse it anyway
    return _ADMIN


def _heartbeat(body: Any) -> Needs:
    """Producers need nothing to say that they live; consumers what they subscribe to."""
    consumers = body.get("consumerDataSet") or ()
    topics = [str(data["topic"]) for item in consumers for data in item.get("subscriptionDataSet") or ()]
    return _needs(((topic, Permission.SUB) for topic in topics), [str(item["groupName"]) for item in consumers])


def _needs(topics: Iterable[tuple[str, Permission]], groups: Iterable[str] = ()) -> Needs:
    """A retry topic stands for its group."""
    plain: list[tuple[str, Permission]] = []
    of_groups = [(group, Permission.SUB) for group in groups]
    for topic, permission in topics:
        group = group_of_retry_topic(topic)
        if group is None:
            plain.append((topic, permission))
        else:
            of_groups.append((group, Permission.SUB))
    return Needs(topics=tuple(plain), groups=tuple(dict.fromkeys(of_groups)))
