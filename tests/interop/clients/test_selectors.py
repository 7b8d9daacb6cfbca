"""SQL92 selectors: the real broker, ours and `rmqha.model.selector` give the same messages for the same expressions."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.selector import SelectorError, parse_selector
from rmqha.wire.lenient_json import dumps
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.lines import tries
from tests.interop.lab.processes import call, until
from tests.model.test_selector import INVALID, MESSAGE, NOT_WANTED, WANTED

pytestmark = pytest.mark.interop

# The Java client sends neither blank values nor blank expressions.
FULL = {name: value for name, value in MESSAGE.items() if value}
MESSAGES = [
    FULL,
    {"i": "6", "text": "pear", "f": "1e400", "t": "TRUE"},
    {"i": "05", "text": "Äpfel 😀", "neg": "7", "big": "2147483648"},
    {"i": "٥", "text": "5", "f": "x"},
    {"TAGS": "TagB"},
]
EXPRESSIONS = [item for item in (*WANTED, *NOT_WANTED, *INVALID) if item.strip()]


def expected(of_invalid: str) -> list[str]:
    """What the pure selectors say, as Select.java prints it; `of_invalid` with the number put in for the others."""
    found = []
    for number, expression in enumerate(EXPRESSIONS):
        try:
            selector = parse_selector(expression)
        except SelectorError:
            found.append(of_invalid.format(number))
            continue
        numbers = [str(place) for place, message in enumerate(MESSAGES) if selector.matches(message.get)]
        found.append(f"RESULT {number} {','.join(numbers) or '-'}")
    return found


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(b64encode(line.encode()).decode() + "\n" for line in lines))
    return str(path)


def selected(lab: Lab, broker: Node, scratch: Path) -> list[str]:
    lab.run(broker)
    is_master(lab, broker)
    messages = write(
        scratch / "messages", ["\n".join(f"{name}={value}" for name, value in m.items()) for m in MESSAGES]
    )
    client = lab.client("Select", "Selected", messages, write(scratch / "selectors", EXPRESSIONS))
    assert client.wait(TIMEOUT_S) == 0, client.tail()
    return client.lines()


def check(broker: Node, expression: str) -> int:
    """The broker's answer when a consumer asks whether its selector will do."""
    subscription = {"topic": "Selected", "subString": expression, "expressionType": "SQL92"}
    body = dumps({"clientId": "c", "group": "G", "subscriptionData": subscription})
    reply = call(broker.address, RequestCode.CHECK_CLIENT_CONFIG, body=body)
    assert reply is not None
    return reply.code


def described(lines: list[str]) -> dict[str, str]:
    return {EXPRESSIONS[int(row.split()[1])]: row for row in lines}


@pytest.mark.parametrize("whose", ["apaches", "ours"])
def test_the_same_expressions_choose_the_same_messages(lab: Lab, tmp_path: Path, whose: str) -> None:
    lab.start_our_name_server()
    if whose == "apaches":
        broker = lab.java_broker(whose, enablePropertyFilter="true", compressedRegister="true")
    else:
        broker = lab.our_broker(whose, totalReplicas="1", enablePropertyFilter="true")
    # a pull with a wrong expression of its own gets everything from Apache's broker, which logs it; ours refuses it
    of_invalid = "RESULT {} 0,1,2,3,4" if whose == "apaches" else "ERROR {} 23"
    assert described(selected(lab, broker, tmp_path)) == described(expected(of_invalid))
    assert {item: check(broker, item) for item in EXPRESSIONS} == {
        item: ResponseCode.SUBSCRIPTION_PARSE_FAILED if item in INVALID else ResponseCode.SUCCESS
        for item in EXPRESSIONS
    }


def test_a_push_consumer_with_a_selector(lab: Lab) -> None:
    """It asks whether its selector will do (46), subscribes by heartbeat, and gets every second message."""
    lab.start_our_name_server()
    broker = lab.our_broker("ours", totalReplicas="1", enablePropertyFilter="true")
    lab.run(broker)
    is_master(lab, broker)
    count = 200
    producer = lab.client("Produce", "Pushed", "0", str(count), "32", "0")
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    consumer = lab.client("Work", "Pushed", "concurrently", "pushed", "0", "16", "sql:parity = 'even' AND n >= 100")
    wanted = set(range(100, count, 2))
    until("all are here", lambda: {item.number for item in tries(consumer)} >= wanted, TIMEOUT_S, consumer)
    assert {item.number for item in tries(consumer)} == wanted
    wrong = lab.client("Work", "Pushed", "concurrently", "wrong", "0", "16", "sql:parity == 'even'")
    assert wrong.wait(TIMEOUT_S) != 0
    assert "Invalid MessageSelector" in wrong.tail()
