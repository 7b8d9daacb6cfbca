"""Properties that clients choose: whatever they say, what a broker does with the message later ends nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.broker.services.transaction import PROPERTY_WAITING_FROM
from rmqha.broker.timers.message import PROPERTY_DUE, ROLL_WINDOW_MS
from rmqha.model import message
from rmqha.model.code import ResponseCode
from rmqha.model.message import encode_properties
from rmqha.wire.command import Command
from tests.broker.pop.world import INVISIBLE_MS, later, messages, pop_command
from tests.broker.rights.acl_world import back
from tests.broker.support import Broker, pull_command, send_command

HOUR_MS = 3_600_000
NAMES = sorted(
    {value for name, value in vars(message).items() if name.startswith("PROPERTY_") and isinstance(value, str)}
    | {PROPERTY_DUE, PROPERTY_WAITING_FROM}
)
VALUES = ("²", "٣", "1_0", "-1", "9" * 40, "9" * 5000, "x", "\x01", "\ud7ff")
"""The first is a digit to `str.isdigit` and no number to `int`."""
FAR_MS = ROLL_WINDOW_MS * 5 // 4
"""A timer message of that delay is stored again once before its time."""


def sent(broker: Broker, number: int, body: bytes = b"x", topic: str = "T", **properties: str) -> Command:
    given = {"UNIQ_KEY": f"ID-{number}", **properties}
    return broker.ask(send_command(topic, 0, body, i=encode_properties(given).decode()))


KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "delayed": {"DELAY": "1"},
    "far ahead": {"TIMER_DELAY_MS": str(FAR_MS)},
    "prepared": {"TRAN_MSG": "true", "PGROUP": "P"},
}


def bodies(broker: Broker) -> bytes:
    """All messages of the topic, as one."""
    found, offset = b"", 0
    while (answer := broker.ask(pull_command("T", 0, offset, consumerGroup="R"))).code == ResponseCode.SUCCESS:
        found, offset = found + bytes(answer.body), int(answer.ext["nextBeginOffset"])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_property_ends_what_is_done_with_messages_later(make_broker: Callable[..., Broker], kind: str) -> None:
    """A timer message with TIMER_ROLL_TIMES "²" ended every master a day later, and every one after it."""
    broker = make_broker(mapped_file_size_commit_log=16 * 1024 * 1024).start()
    for number, (name, value) in enumerate((name, value) for name in NAMES for value in VALUES):
        answer = sent(broker, number, b"x", **{**KINDS[kind], name: value})
        if answer.code == 0 and kind == "plain":
            broker.ask(back("G", int(answer.ext["msgId"][16:], 16)))
    if kind == "plain":
        for _ in range(8):
            broker.ask(pop_command("T", "Popping", maxMsgNums=32, invisibleTime=INVISIBLE_MS))
    sent(broker, -1, b"honest one of the same kind", **KINDS[kind])
    for _ in range(FAR_MS // HOUR_MS + 2):
        broker.run(HOUR_MS)
        broker.run(1000)
    for number in range(20):
        broker.run(1000 + number)
    if kind != "prepared":
        assert b"honest one of the same kind" in bodies(broker)
    assert sent(broker, -2, b"and the next").code == 0 and b"and the next" in bodies(broker)


JUNK = ("no pair", "\x01no name\x02", "TAGS\x01a\x02and no pair", "a\x02\x02b", "\0\0\0\0")
"""Properties that no broker writes."""


def test_no_form_of_properties_is_told_as_damage(broker: Broker) -> None:
    """A thousand popped messages of that kind filled the table of damaged records, so that true damage was neither told
    nor repaired; and in a group of one they never came again."""
    for number, text in enumerate(JUNK):
        assert broker.ask(send_command("T", 0, b"%d" % number, i=text)).code == 0
    answer = broker.ask(pop_command("T", "G"))
    assert answer.code == 0
    later(broker, INVISIBLE_MS + 5000)
    again = broker.ask(pop_command("T", "G"))
    assert again.code == 0 and [message.body for message in messages(again)] == [b"%d" % n for n in range(len(JUNK))]
    assert broker.store.damage.found_count == 0
