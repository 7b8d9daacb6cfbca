"""Pulls with SQL92 selectors, and request 46."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties
from rmqha.store.log.record import decode
from rmqha.store.reader import MAX_MATCHED_COUNT
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(enable_property_filter=True).start()


def send(broker: Broker, **properties: str) -> None:
    body = properties.get("n", "").encode()
    assert broker.ask(send_command(body=body, i=encode_properties(properties).decode())).code == 0


def sql_pull(expression: str, offset: int = 0, **ext: Any) -> Command:
    return pull_command(offset=offset, subscription=expression, expressionType="SQL92", **ext)


def bodies(reply: Command) -> list[bytes]:
    view, found = memoryview(bytes(reply.body)), []
    while view:
        record = decode(view)
        found.append(bytes(record.body))
        view = view[record.size_bytes :]
    return found


def beat(expression: str, expression_type: str = "SQL92") -> Command:
    subscription = {"topic": "T", "subString": expression, "subVersion": 1, "expressionType": expression_type}
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [subscription]}]}
    return Command(RequestCode.HEART_BEAT, {}, lenient_json.dumps(body))


def test_a_pull_with_its_own_selector(broker: Broker) -> None:
    for number in range(6):
        send(broker, n=str(number), color="red" if number % 2 else "blau ü")
    assert bodies(broker.ask(sql_pull("color = 'red'"))) == [b"1", b"3", b"5"]
    assert bodies(broker.ask(sql_pull("color = 'blau ü' AND n > 1"))) == [b"2", b"4"]
    reply = broker.ask(sql_pull("color = 'red'", maxMsgNums="2"))
    assert bodies(reply) == [b"1", b"3"] and reply.ext["nextBeginOffset"] == "4"
    nothing = broker.ask(sql_pull("color = 'green'"))
    assert (nothing.code, nothing.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "6")


def test_a_pull_looks_at_so_many_records_and_no_more(broker: Broker) -> None:
    channel = FakeChannel()
    count = MAX_MATCHED_COUNT + 5
    commands = [send_command(body=b"%d" % number) for number in range(count)]
    broker.core.processor.received(channel, commands)
    broker.run()
    first = broker.ask(sql_pull("color IS NOT NULL"))
    assert (first.code, first.ext["nextBeginOffset"]) == (20, str(MAX_MATCHED_COUNT))


def test_a_held_pull_waits_for_what_it_wants(broker: Broker) -> None:
    send(broker, n="0")
    channel = FakeChannel()
    broker.core.processor.received(channel, [sql_pull("color = 'red'", offset=1, sysFlag="6")])
    send(broker, n="1", color="blue")
    assert channel.take() == []
    send(broker, n="2", color="red")
    assert bodies(channel.one()) == [b"2"]


def test_the_selector_of_the_heartbeat(broker: Broker) -> None:
    send(broker, n="0", color="blue")
    send(broker, n="1", color="red")
    broker.core.processor.received(FakeChannel(), [beat("color = 'red'")])
    assert bodies(broker.ask(pull_command(sysFlag="0", subVersion="1"))) == [b"1"]


def test_a_heartbeat_with_a_wrong_selector_is_taken_and_its_pulls_are_refused(broker: Broker) -> None:
    send(broker, n="0")
    channel = FakeChannel()
    broker.core.processor.received(channel, [beat("color == 'red'")])
    assert channel.take()[-1].code == 0
    reply = broker.ask(pull_command(sysFlag="0", subVersion="1"))
    assert reply.code == ResponseCode.FILTER_DATA_NOT_EXIST


@pytest.mark.parametrize("expression_type", ["SQL92", "XPATH"])
def test_wrong_expressions(broker: Broker, expression_type: str) -> None:
    send(broker, n="0")
    reply = broker.ask(pull_command(subscription="a ==", expressionType=expression_type))
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert reply.remark == "parse the consumer's subscription failed"


def check(broker: Broker, subscription: Any) -> Command:
    body = {"clientId": "c", "group": "G", "subscriptionData": subscription}
    return broker.ask(Command(RequestCode.CHECK_CLIENT_CONFIG, {}, lenient_json.dumps(body)))


def test_consumers_ask_before_they_start(broker: Broker) -> None:
    assert check(broker, None).code == 0
    assert broker.ask(Command(RequestCode.CHECK_CLIENT_CONFIG)).code == 0
    assert check(broker, {"expressionType": "TAG", "subString": "a ||"}).code == 0
    assert check(broker, {"expressionType": "SQL92", "subString": "a = 1"}).code == 0
    for expression_type, expression in (("SQL92", "a =="), ("SQL92", None), ("XPATH", "/a")):
        reply = check(broker, {"expressionType": expression_type, "subString": expression})
        assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert (reply.remark or "").startswith("Invalid MessageSelector. ")


def test_without_the_key_only_tags_count(make_broker: Callable[..., Broker]) -> None:
    plain = make_broker("plain").start()
    send(plain, n="0")
    words = "The broker does not support consumer to filter message by SQL92"
    plain.core.processor.received(FakeChannel(), [beat("n = 0")])
    pulls = (sql_pull("n = 0"), pull_command(sysFlag="0", subVersion="1"))
    for reply in (*map(plain.ask, pulls), check(plain, {"expressionType": "SQL92", "subString": "n = 0"})):
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, words)
    plain.core.live.update("enablePropertyFilter=true")
    assert bodies(plain.ask(sql_pull("n = 0"))) == [b"0"]
    assert check(plain, {"expressionType": "SQL92", "subString": "n = 0"}).code == 0
