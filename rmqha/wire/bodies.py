"""JSON bodies between brokers, name servers and clients (formats.md §14 and §15), built and parsed. Control plane.

Members are written in the order of Apache RocketMQ's encoder, so that a body equals the captured one byte for byte.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rmqha.model.error import RemoteProtocolError
from rmqha.wire.lenient_json import Entries, dumps, dumps_in_steps

ONLY_EXISTING = "rmqhaOnlyExisting"
"""Field of our own in request 352: "true" for a query that must not create the group."""

SUBSCRIBED_ALIKE = "rmqhaSubscribedAlike"
"""Member of our own in the answer to request 203 if the members of a group have different subscriptions: lists of the
ids of those with equal ones. RocketMQ's tools ignore it."""


class TopicTableVersion(NamedTuple):
    """Version stamp of a broker's topic table. Two tables are the same if all three numbers are."""

    counter: int = 0
    state_version: int = 0
    """The master epoch under which the table was last changed."""
    timestamp: int = 0

    def to_json(self) -> dict[str, int]:
        """The three numbers by the names of RocketMQ's DataVersion."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


class QueueData(NamedTuple):
    """The queues of one topic on one group."""

    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class GroupData:
    """One broker group as clients see it. `addresses` by broker id; 0 is the master."""

    broker_name: str
    cluster_name: str
    addresses: Mapping[int, str]
    enable_acting_master: bool = False


@dataclass(frozen=True, slots=True)
class Registration:
    """Request 103: identity of a broker, and its topics. `version` None: the request has no body."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: TopicTableVersion | None
    topics: Mapping[str, QueueData]
    enable_acting_master: bool = False
    timeout_ms: int | None = None
    """Time (ms) without a heartbeat after which the broker is removed; None: the name server's default."""
    digest: str = ""
    """Digest of the topics without their version, from a broker of rmqha. If it is the known one, `topics` is empty."""


def encode_topic_route(
    groups: Iterable[GroupData],
    queues: Mapping[str, QueueData],
    *,
    order_topic_conf: str | None = None,
    standard_json: bool,
) -> bytes:
    """Body of answer 105. Without `standard_json` broker ids are unquoted, which old clients expect (§15.1)."""
    order = {} if order_topic_conf is None else {"orderTopicConf": order_topic_conf}
    route = {
        "brokerDatas": [_group_json(group) for group in groups],
        "filterServerTable": {},
        **order,
        "queueDatas": [
            {
                "brokerName": broker_name,
                "perm": data.perm,
                "readQueueNums": data.read_queue_count,
                "topicSysFlag": data.topic_sys_flag,
                "writeQueueNums": data.write_queue_count,
            }
            for broker_name, data in queues.items()
        ],
    }
    return dumps(route, unquoted_integer_keys=not standard_json)


def encode_cluster_info(groups: Iterable[GroupData]) -> Generator[None, None, bytes]:
    """Body of answer 106, in steps; broker ids are unquoted, as Apache's name server always writes them here."""
    groups = list(groups)
    clusters: dict[str, list[str]] = {}
    for group in groups:
        clusters.setdefault(group.cluster_name, []).append(group.broker_name)
    table = Entries((group.broker_name, _group_json(group)) for group in groups)
    members = {"brokerAddrTable": table, "clusterAddrTable": clusters}
    return (yield from dumps_in_steps(members, unquoted_integer_keys=True))


def encode_member_group(cluster: str, broker_name: str, addresses: Mapping[int, str]) -> bytes:
    """Body of answer 901; broker ids are unquoted."""
    members = {"brokerAddrs": dict(sorted(addresses.items())), "brokerName": broker_name, "cluster": cluster}
    return dumps({"brokerMemberGroup": members}, unquoted_integer_keys=True)


def _group_json(group: GroupData) -> dict[str, Any]:
    return {
        "brokerAddrs": {key: group.addresses[key] for key in sorted(group.addresses)},
        "brokerName": group.broker_name,
        "cluster": group.cluster_name,
        "enableActingMaster": group.enable_acting_master,
    }


def required(ext: Mapping[str, str], name: str) -> str:
    """Value of a field that a request must have. Raises RemoteProtocolError."""
    value = ext.get(name)
    if not value:
        raise RemoteProtocolError(f"the request has no {name}")
    return value
