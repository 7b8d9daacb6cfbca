"""A session of clients that pop is answered by ours as by Apache's broker; what Apache's said is kept in
tests/golden/pop-answers.json, for tests that need no Java. RECORD=1 writes it anew."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.broker.pop.session import GOLDEN, WITHOUT_ROUTES, Session
from tests.broker.pop.world import pop_command
from tests.broker.support import send_command
from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.lab import GROUP as BROKER_NAME
from tests.interop.lab.lab import Node
from tests.interop.lab.processes import call, calls, until
from tests.interop.lab.same_commands import WHOSE, Laboratory

pytestmark = pytest.mark.interop

PROBED = "Probed"


def keeps_what_is_popped(node: Node) -> None:
    """In its first seconds Apache's broker drops which offsets were popped (`test_pops_swapped.py`)."""

    def is_committed() -> bool:
        command = send_command(PROBED, 0, b"probe", d="1")
        call(node.address, command.code, dict(command.ext), b"probe")
        popped = pop_command(PROBED, "Probe", maxMsgNums=1, invisibleTime=600_000)
        call(node.address, popped.code, dict(popped.ext))
        ext = {"consumerGroup": "Probe", "topic": PROBED, "queueId": "0"}
        reply = call(node.address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        return reply is not None and reply.code == ResponseCode.SUCCESS and int(reply.ext["offset"]) > 0

    until("it commits what is popped", is_committed, TIMEOUT_S, node.running)


def asked(node: Node, command: Command) -> Command:
    (reply,) = calls(node.address, command)
    return reply


@pytest.mark.parametrize("whose", WHOSE)
def test_the_session_is_answered_as_apaches_broker_did(pair: list[Laboratory], whose: str) -> None:
    broker = pair[WHOSE.index(whose)].master
    keeps_what_is_popped(broker)
    found: dict[str, Any] = Session(partial(asked, broker), BROKER_NAME, has_routes=True).run()
    if whose == "apaches" and os.environ.get("RECORD"):
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    expected = json.loads(GOLDEN.read_text())
    assert {name: answer for name, answer in found.items() if answer != expected[name]} == {}
    assert found.keys() == expected.keys() >= WITHOUT_ROUTES
