"""Requests as small clients write them, which leave much to the broker: ours and Apache's give the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, parse_offset_message_id
from rmqha.store.log.record import decode
from rmqha.wire.command import Command
from tests.broker.support import send_command
from tests.interop.java import Java
from tests.interop.lab import Lab
from tests.interop.processes import call
from tests.interop.same_commands import filled, opened

pytestmark = pytest.mark.interop

WHOSE = ("ours", "apaches")


@pytest.fixture(scope="module")
def brokers(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses: ours, Apache's."""
    labs: list[Lab] = []
    try:
        for whose in WHOSE:
            scratch: Path = tmp_path_factory.mktemp(whose)
            labs.append(opened(java, scratch, whose))
        with ThreadPoolExecutor(2) as pool:
            ours, apaches = pool.map(filled, labs, WHOSE, (1, 1))
        yield ours.master.address, apaches.master.address
    finally:
        for lab in labs:
            lab.close()


def asked(address: str, command: Command) -> Command:
    reply = call(address, command.code, command.ext, bytes(command.body))
    assert reply is not None
    return reply


@pytest.mark.parametrize("properties", ["", "KEYS\x01k\x02", "UNIQ_KEY\x01\x02"])
def test_a_message_without_unique_key_gets_one(brokers: tuple[str, str], properties: str) -> None:
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
