"""The loop's time for the costliest body that each code admits, a code of tomorrow included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from rmqha.model.authorization.policy import from_json
from rmqha.model.authorization.users import AuthorizationRules, User, UserDirectory
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.auth.accesses import request_refusal
from rmqha.wire.body_bound import BOUNDS, DEFAULT_BOUND, LISTS, UNBOUNDED, BodyBound, body_refusal
from rmqha.wire.command import Command
from tests.broker.bounds.slices import longest_turn_ms
from tests.broker.support import Broker
from tests.support.machine_speed import reference_ms

LIMIT_MS = 100
"""CPU time of one piece of work on the reference machine. It was 590 for 4 MiB of lists in a heartbeat."""
LIMITS_MS: dict[int, int] = {RequestCode.HEART_BEAT: 35}
"""Of anybody, and at any time: only its JSON is read in one step. It was 60 for the wide groups."""
SLOW = frozenset({RequestCode.RMQHA_FOLLOW_TABLES})
"""Of replicas of the group only, and a slave asks so once after its master was killed."""
FIELDS = {"topic": "T", "queueId": "0", "group": "G", "consumerGroup": "G", "groupName": "G", "b": "T", "e": "0"}

WIDE = [f'{{"topic":"T{number:04d}"}}' for number in range(900)]
Shape = tuple[str, Callable[[int], str], str]
SHAPES: dict[str, Shape] = {
    "locks": (
        '{"clientId":"c","consumerGroup":"G","mqSet":[',
        lambda n: f'{{"brokerName":"b","queueId":{n},"topic":"T"}}',
        "]}",
    ),
    "subscriptions": (
        '{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[',
        lambda n: f'{{"topic":"T{n}","subString":"*","subVersion":1}}',
        "]}]}",
    ),
    "groups": (
        '{"clientID":"c","consumerDataSet":[',
        lambda n: f'{{"groupName":"G{n}","subscriptionDataSet":[]}}',
        "]}",
    ),
    "wide groups": (
        '{"clientID":"c","consumerDataSet":[',
        lambda n: f'{{"groupName":"W{n}","subscriptionDataSet":[{",".join(WIDE)}]}}',
        "]}",
    ),
    "producers": ('{"clientID":"c","producerDataSet":[', lambda n: f'{{"groupName":"G{n}"}}', "]}"),
    "offsets": ('{"offsets":[', lambda n: f'["T@G{n}",0,1,1,{n},false]', "]}"),
    "integer keys": ('{"a":{', lambda n: f"{n}:[]", "}}"),
    "object keys": ('{"a":{', lambda n: f"{{}}:{n}", "}}"),
    "lists": ("[", lambda n: "[0]", "]"),
    "numbers": ("[", lambda n: "1e9", "]"),
    "properties": ("", lambda n: f"k{n}=v\n", ""),
}


def body_of(shape: Shape, bound: BodyBound) -> bytes:
    """As many items as `bound` admits."""
    head, item, tail = shape
    values = sum(item(0).count(mark) for mark in ",[{") + 1
    room = bound.size_bytes - len(head) - len(tail)
    count = min(room // (len(item(100_000)) + 1), bound.value_count // values - 3)
    return (head + ",".join(map(item, range(count))) + tail).encode()


def test_the_largest_admitted_body_of_each_code(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.core.topics.create_internal("T", 4)
    broker.shell.saves_tables = False  # a thread's work
    slow = []
    for code in sorted(broker.core.processor.codes - UNBOUNDED - SLOW):
        for name, shape in SHAPES.items():
            body = body_of(shape, BOUNDS.get(code, DEFAULT_BOUND))
            command = Command(code, FIELDS, body)
            assert not body_refusal(command), (code, name)
            limit_ms = LIMITS_MS.get(code, LIMIT_MS)
            longest_ms = reference_ms(partial(longest_turn_ms, broker, command), limit_ms)
            if longest_ms >= limit_ms:
                slow.append((code, name, len(body), round(longest_ms)))
    assert not slow


@pytest.mark.parametrize("code", [*BOUNDS, RequestCode.GET_BROKER_CONFIG, RequestCode.PULL_MESSAGE, 4711])
def test_a_body_beyond_the_bound_is_refused_unread(broker: Broker, code: int) -> None:
    bound = BOUNDS.get(code, DEFAULT_BOUND)
    for body in (b" " * (bound.size_bytes + 1), b"[" * (bound.value_count + 1)):
        reply = broker.ask(Command(code, FIELDS, body))
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark is not None and f"the body of request {code} has" in reply.remark


@pytest.mark.parametrize(("code", "field"), [(code, field) for code, (field, _) in LISTS.items()])
def test_a_list_of_names_beyond_the_bound_is_refused_before_its_rights_are_looked_at(
    broker: Broker, code: int, field: str
) -> None:
    """120,000 names cost a second."""
    _, separator = LISTS[code]
    command = Command(code, {**FIELDS, "compareGroup": "G", field: separator.join(["T"] * 120_000)})
    assert "has 119999 names" in (broker.ask(command).remark or "")
    rules = AuthorizationRules(is_on=True, cluster="C")
    policies = from_json([{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}])
    account = UserDirectory.of([User("u", "p")], {"u": policies}, rules).accounts["u"]
    assert "has 119999 names" in request_refusal(account, command, "10.0.0.1")
    command.ext[field] = separator.join(["T"] * 1000)
    assert request_refusal(account, command, "10.0.0.1") == ""


def test_what_honest_clients_send_is_taken() -> None:
    """256 groups, each with ten subscriptions as a Java client writes them."""
    row = (
        '{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1795228555707,'
        '"tagsSet":[],"topic":"a-topic-with-a-long-name"}'
    )
    group = f'{{"groupName":"a-group-with-a-long-name","subscriptionDataSet":[{",".join([row] * 10)}]}}'
    body = f'{{"clientID":"10.0.0.1@4711","consumerDataSet":[{",".join([group] * 256)}]}}'.encode()
    assert not body_refusal(Command(RequestCode.HEART_BEAT, {}, body))
    queue = '{"brokerName":"a-broker","queueId":1000,"topic":"a-topic-with-a-long-name"}'
    queues = f'{{"clientId":"c","consumerGroup":"G","mqSet":[{",".join([queue] * 3000)}]}}'.encode()
    assert not body_refusal(Command(RequestCode.LOCK_BATCH_MQ, {}, queues))
