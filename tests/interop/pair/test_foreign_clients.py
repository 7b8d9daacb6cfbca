"""Requests as small clients write them, which leave much to the broker: ours and Apache's give the same."""

from __future__ import annotations

import re

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, parse_offset_message_id
from rmqha.store.log.record import decode
from rmqha.wire.command import Command
from tests.broker.support import pull_command, send_command
from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.processes import call, until
from tests.interop.lab.same_commands import Laboratory

pytestmark = pytest.mark.interop


@pytest.fixture
def brokers(pair: list[Laboratory]) -> list[str]:
    """Addresses: ours, Apache's."""
    return [laboratory.master.address for laboratory in pair]


def asked(address: str, command: Command) -> Command:
    reply = call(address, command.code, command.ext, bytes(command.body))
    assert reply is not None
    return reply


@pytest.mark.parametrize("properties", ["", "KEYS\x01k\x02", "UNIQ_KEY\x01\x02"])
def test_a_message_without_unique_key_gets_one(brokers: list[str], properties: str) -> None:
    """Stored, and answered; 32 hexadecimal digits that begin with the broker's address."""
    names = []
    for address in brokers:
        reply = asked(address, send_command("Keyless", 0, b"body", i=properties))
        assert reply.code == ResponseCode.SUCCESS, reply
        key = reply.ext["transactionId"]
        assert re.fullmatch("[0-9A-F]{32}", key)
        _, phy_offset = parse_offset_message_id(reply.ext["msgId"])
        shown = asked(address, Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(phy_offset), "topic": "Keyless"}))
        stored = decode_properties(decode(memoryview(bytes(shown.body))).properties)
        assert stored["UNIQ_KEY"] == key
        names.append((sorted(reply.ext), sorted(stored)))
    ours, apaches = names
    assert ours == apaches


def test_a_pull_of_many_gets_32(brokers: list[str]) -> None:
    """However many are asked for, and as many bytes as RocketMQ's bound allows."""
    found = []
    for address in brokers:
        for number in range(60):
            size_bytes = 1 if number < 40 else 60_000
            assert asked(address, send_command("Many", 0, bytes(size_bytes))).code == ResponseCode.SUCCESS

        def pulled(offset: int, count: str, to: str = address) -> str:
            ext = {"subVersion": "1", "commitOffset": "0", "maxMsgNums": count}
            reply = asked(to, pull_command("Many", 0, offset, **ext))
            return f"{reply.code} {reply.ext['nextBeginOffset']}"

        until("all can be read", lambda ask=pulled: ask(59, "1") == "0 60", TIMEOUT_S)  # type: ignore[misc]
        found.append([pulled(0, "50"), pulled(0, "7"), pulled(40, "50"), pulled(58, "50")])
    ours, apaches = found
    assert ours == apaches == ["0 32", "0 7", "0 44", "0 60"]


def test_a_commit_below_0(brokers: list[str]) -> None:
    """Both say yes. Apache's forgets where the group was, ours does not."""
    place = {"consumerGroup": "G", "topic": "Many", "queueId": "0"}
    found = []
    for address in brokers:
        replies = [
            asked(address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": offset}))
            for offset in ("5", "-1")
        ]
        found.append([(reply.code, reply.remark) for reply in replies])
        kept = asked(address, Command(RequestCode.QUERY_CONSUMER_OFFSET, place)).ext["offset"]
        assert kept == ("5" if address == brokers[0] else "0")
    assert found[0] == found[1] == [(0, None), (0, None)]
