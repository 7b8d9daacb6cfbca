"""Every request code that a name server serves, for the account's own topic and for another's.

A code without a row here fails: whoever adds one says what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pytest

from nameserver.config import NamesrvConfig
from nameserver.kv_config import ORDER_TOPIC_NAMESPACE, KvConfig
from nameserver.server import UNIT, UNIT_SUB, NameServer
from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.auth_filter import AuthFilter
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.host.tracer import HostTracer
from rmqha.model.access import AccessList, Account, Permission
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Credentials
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.nameserver.registration import register_broker_request
from tests.support.clock import ManualClock

OWN, FOREIGN = "ownTopic", "foreignTopic"
TOPICS = (OWN, "%RETRY%ownGroup", FOREIGN, "%RETRY%foreignGroup", "%DLQ%foreignGroup", "TBW102")
ACCOUNT = Account(
    credentials=Credentials(access_key="orders", secret_key="12345678"),
    topics={OWN: Permission.PUB},
    groups={"ownGroup": Permission.SUB},
)


@dataclass
class Accounts:
    access: AccessList


class FakeSession:
    id = 7
    peer = "10.0.0.2:1000"

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def work(self, steps: Iterator[None]) -> None:
        for _ in steps:
            pass

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def mark_verified(self) -> None:
        """As of a session."""

    def charge_to(self, owner: str) -> None:
        """As of a session."""


class World:
    def __init__(self) -> None:
        kv_config = KvConfig()
        self.kv_config = kv_config
        tracer = HostTracer(write=lambda _: None)
        self.server = NameServer(NamesrvConfig(), tracer, ManualClock(0, 0), kv_config)
        tracer.event("transaction_check_withheld", producer_group="ownGroup", topic=FOREIGN)
        tracer.event("request_failed", traceback=f"KeyError: {FOREIGN}")
        accounts = Accounts(AccessList({"orders": ACCOUNT}))
        self.guard = AuthFilter(cast(Any, self.server), cast(AccessFile, accounts), Statistics())
        topic = {"perm": 6, "readQueueNums": 2, "writeQueueNums": 3}
        flags = (UNIT | UNIT_SUB, UNIT_SUB)  # each of the lists of such topics has some of both accounts
        registration = register_broker_request(
            cluster_name="c",
            broker_name="g",
            broker_id=0,
            address="127.0.0.1:10911",
            ha_address="127.0.0.1:10912",
            topic_config_table={name: {**topic, "topicSysFlag": flags[place % 2]} for place, name in enumerate(TOPICS)},
            data_version={"counter": 1, "stateVersion": 1, "timestamp": 5},
        )
        assert self.server.handle(1, registration).code == 0
        for name in (OWN, FOREIGN):
            kv_config.put(ORDER_TOPIC_NAMESPACE, name, "g:2")

    def ask(self, command: Command) -> Command:
        sign(command, ACCOUNT.credentials)
        session = FakeSession()
        self.guard.received(cast(Session, session), [command])
        (answer,) = session.sent
        return answer

    def state(self) -> tuple[Any, ...]:
        routes = self.server.routes
        order = self.kv_config.namespace(ORDER_TOPIC_NAMESPACE)
        route = [repr(routes.route(name)) for name in TOPICS]
        return sorted(routes.topic_names), routes.broker_count, route, order, self.server.live.current


class Row(NamedTuple):
    """`needs`: "topic", "any" for what every account may, "admin" for what takes one."""

    needs: str
    ext: dict[str, str]


C = RequestCode
BROKER = {"brokerName": "g", "brokerAddr": "127.0.0.1:10911", "clusterName": "c", "brokerId": "0"}
ORDER = {"namespace": ORDER_TOPIC_NAMESPACE}
ROWS: dict[int, Row] = {
    C.REGISTER_BROKER: Row("admin", {**BROKER, "haServerAddr": "127.0.0.1:1"}),
    C.UNREGISTER_BROKER: Row("admin", BROKER),
    C.BROKER_HEARTBEAT: Row("admin", BROKER),
    C.QUERY_DATA_VERSION: Row("admin", BROKER),
    C.GET_BROKER_MEMBER_GROUP: Row("any", BROKER),
    C.REGISTER_TOPIC_IN_NAMESRV: Row("admin", {}),
    C.GET_UNIT_TOPIC_LIST: Row("any", {}),
    C.GET_HAS_UNIT_SUB_TOPIC_LIST: Row("any", {}),
    C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Row("any", {}),
    C.GET_ROUTEINFO_BY_TOPIC: Row("topic", {}),
    C.GET_BROKER_CLUSTER_INFO: Row("any", {}),
    C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Row("any", {}),
    C.PUT_KV_CONFIG: Row("admin", {**ORDER, "key": OWN, "value": "x"}),
    C.GET_KV_CONFIG: Row("topic", ORDER),
    C.DELETE_KV_CONFIG: Row("admin", {**ORDER, "key": OWN}),
    C.GET_KVLIST_BY_NAMESPACE: Row("admin", ORDER),
    C.GET_TOPICS_BY_CLUSTER: Row("any", {"cluster": "c"}),
    C.GET_SYSTEM_TOPIC_LIST_FROM_NS: Row("any", {}),
    C.WIPE_WRITE_PERM_OF_BROKER: Row("admin", BROKER),
    C.ADD_WRITE_PERM_OF_BROKER: Row("admin", BROKER),
    C.DELETE_TOPIC_IN_NAMESRV: Row("admin", {"topic": OWN}),
    C.UPDATE_NAMESRV_CONFIG: Row("admin", {}),
    C.GET_NAMESRV_CONFIG: Row("any", {}),
    C.RMQHA_GET_HISTORY: Row("any", {}),
    C.RMQHA_GET_NAMESRV_STATE: Row("any", {}),
    C.RMQHA_GET_SECURITY_STATE: Row("any", {}),
    C.RMQHA_READ_LOG_FILE: Row("admin", {}),
}


def test_each_code_that_is_served_has_a_row() -> None:
    assert ROWS.keys() == World().server.codes


@pytest.mark.parametrize("code", [pytest.param(code, id=RequestCode(code).name) for code in sorted(ROWS)])
def test_own_topics_are_served_and_no_others(code: int) -> None:
    row, world = ROWS[code], World()

    def command(topic: str) -> Command:
        return Command(code, {"topic": topic, "key": topic, **row.ext})

    for topic in (FOREIGN, OWN):
        before = world.state()
        answer = world.ask(command(topic))
        refused = row.needs == "admin" or (row.needs == "topic" and topic == FOREIGN)
        assert (answer.code == ResponseCode.NO_PERMISSION) is refused, answer
        assert not refused or world.state() == before
        assert b"foreign" not in bytes(answer.body), "no name of others is told"
    unsigned = FakeSession()
    world.guard.received(cast(Session, unsigned), [command(OWN)])
    assert [answer.code for answer in unsigned.sent] == [ResponseCode.NO_PERMISSION]


@pytest.mark.parametrize(("topic", "refused"), [(name, "foreign" in name) for name in TOPICS])
def test_a_retry_topic_is_its_groups(topic: str, refused: bool) -> None:
    """The pattern of new topics is everybody's."""
    answer = World().ask(Command(C.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
    assert answer.code == (ResponseCode.NO_PERMISSION if refused else ResponseCode.SUCCESS)


@pytest.mark.parametrize("code", [C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, C.GET_TOPICS_BY_CLUSTER])
def test_lists_show_what_the_account_may_use(code: int) -> None:
    world = World()
    answer = world.ask(Command(code, {"cluster": "c"}))
    assert sorted(loads(answer.body)["topicList"]) == sorted([OWN, "%RETRY%ownGroup"])
    everything = world.server.handle(1, Command(code, {"cluster": "c"}))
    assert set(TOPICS) <= set(loads(everything.body)["topicList"])
