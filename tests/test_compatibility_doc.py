"""docs/use/requests.md is what the lists say, and the lists are what our servers answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from nameserver.config import NamesrvConfig
from nameserver.kv_config import KvConfig
from nameserver.server import NameServer
from rmqha.host.clock import HostClock
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel
from tests.controller.harness import group_of
from tools.compatibility_doc import COMMANDS, PAGE, UNSERVED, command_names, page, request_names, unserved

RUN = "run: .venv/bin/python tools/compatibility_doc.py"
NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), RUN


def test_each_command_and_code_is_one_of_rocketmqs_and_given_once() -> None:
    assert len(command_names()) == 90 and COMMANDS.keys() <= set(command_names())
    codes = [code for item in UNSERVED for code in item.codes]
    assert len(codes) == len(set(codes)) and set(codes) <= request_names().keys()


def test_names_of_codes_are_rocketmqs() -> None:
    """Those of the controllers have their prefix here."""
    names = request_names()
    ours = {code.value: code.name for code in RequestCode if code.value < 52000}
    differ = {code: (name, names.get(code)) for code, name in ours.items() if name != names.get(code)}
    assert {code: theirs for code, (_, theirs) in differ.items()} == {
        1009: "UPDATE_CONTROLLER_CONFIG",
        1010: "GET_CONTROLLER_CONFIG",
        1011: "CLEAN_BROKER_DATA",
    }


@pytest.fixture
def name_server() -> NameServer:
    return NameServer(NamesrvConfig(), HostTracer(write=lambda _: None), HostClock(), KvConfig(None))


def test_every_code_is_served_or_answered_3(tmp_path: Path, name_server: NameServer) -> None:
    """By each of our servers, in one sentence that names it; a code that is served is in no row of the page."""
    broker, (controllers, _) = Broker(tmp_path / "store").start(), group_of(1)
    of_controllers: set[int] = set()
    for code in request_names():
        if code in unserved():
            channel = FakeChannel()
            broker.core.processor.received(channel, [Command(code)])
            answers = [channel.one(), name_server.handle(1, Command(code)), controllers.call(code)]  # type: ignore[arg-type]
            assert [answer.code for answer in answers] == [NOT_SUPPORTED] * 3, f"{code} is served now: {RUN}"
            assert all(str(code) in (answer.remark or "") for answer in answers)
        elif controllers.call(code).code != NOT_SUPPORTED:  # type: ignore[arg-type]
            of_controllers.add(code)
    broker.close()
    served = broker.core.processor.codes | name_server.codes | of_controllers
    assert request_names().keys() - unserved().keys() <= served
    assert len(of_controllers) > 10, "a controller answers no more than it serves"
