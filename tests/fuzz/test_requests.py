"""Requests that decode and mean nothing: real ones with fields and bodies changed. Every server answers each at most
once, with a code, and lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameserver.config import NamesrvConfig
from nameserver.kv_config import KvConfig
from nameserver.server import NameServer
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import FLAG_RESPONSE, Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.broker.support import Broker, FakeChannel
from tests.controller.harness import group_of
from tests.fuzz.budget import fuzz
from tests.golden.reader import frames, raw
from tests.support.clock import ManualClock

PARSER_BYTES = 1 << 24
KEPT_PER_CODE = 4
ROLE_CODES = (RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.RMQHA_HAND_OVER)
"""A real one of these ends the mastership, as it should."""
VALUES = st.sampled_from(
    [
        "", "0", "1", "-1", "2147483647", "-2147483648", "2147483648", "9223372036854775807", "-9223372036854775809",
        "9" * 400, "1.5", "nan",
        "true", "%RETRY%", "%DLQ%G", "TBW102", "SCHEDULE_TOPIC_XXXX", "../../etc/passwd", "a\x01b\x02c", "ü✓",
        "x" * 40_000,
        "127.0.0.1:1", "[::1]:70000", "DELAY\x0118\x02", "KEYS\x01\x02", "TAG", "SQL92", "a > ", "*",
    ]
)  # fmt: skip
BODIES = st.sampled_from(
    [b"", b"{}", b"[]", b"null", b"1", b'"x"', b"[" * 200, b'{"a":' * 90, b"\xff\xfe", b"x" * 5000, b'{0:{"x":1}}']
)


def known_requests() -> list[Command]:
    """A few of each code that a real client, broker or tool sent, and one bare request of each code that we know."""
    kept: dict[int, list[Command]] = {}
    for entry in frames():
        [command] = FrameParser(PARSER_BYTES).feed(raw(entry))
        if not command.is_response:
            kept.setdefault(command.code, []).append(command)
    found = [command for commands in kept.values() for command in commands[:: max(1, len(commands) // KEPT_PER_CODE)]]
    return found + [Command(code) for code in RequestCode]


REQUESTS = known_requests()
FIELDS = sorted({name for command in REQUESTS for name in command.ext})


@st.composite
def changed_requests(draw: st.DrawFn) -> Command:
    origin = draw(st.sampled_from(REQUESTS))
    ext, body = dict(origin.ext), bytes(origin.body)
    for _ in range(draw(st.integers(0, 3))):
        how = draw(st.sampled_from(["drop", "change", "add", "body", "flip", "cut"]))
        if how == "drop" and ext:
            del ext[draw(st.sampled_from(sorted(ext)))]
        elif how == "change" and ext:
            ext[draw(st.sampled_from(sorted(ext)))] = draw(VALUES)
        elif how == "add":
            ext[draw(st.sampled_from(FIELDS))] = draw(VALUES)
        elif how == "body":
            body = draw(BODIES)
        elif how == "flip" and body:
            at = draw(st.integers(0, min(len(body), 400) - 1))
            body = body[:at] + draw(st.binary(min_size=1, max_size=2)) + body[at + 1 :]
        elif how == "cut":
            body = body[: draw(st.integers(0, len(body)))]
    code = draw(st.sampled_from([origin.code] * 9 + [0, 65_535]))
    return Command(code, ext, body, flag=origin.flag, opaque=7, language=origin.language, version=origin.version)


def check(command: Command, answers: list[Command]) -> None:
    assert len(answers) <= (0 if command.is_oneway else 1), command
    for answer in answers:
        assert answer.opaque == 7 and answer.flag & FLAG_RESPONSE
        [decoded] = FrameParser(PARSER_BYTES).feed(encode_frame(answer))
        assert decoded.code == answer.code


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("fuzz"), total_replicas=1, auto_create_topic_enable=True).start()
    yield found
    found.close()


@fuzz
@given(changed_requests().filter(lambda command: command.code not in ROLE_CODES))
def test_a_broker_lives_through_any_request(broker: Broker, command: Command) -> None:
    channel = FakeChannel()
    broker.core.processor.received(channel, [command])
    broker.run(20)
    broker.store.index.build(1 << 20)  # what is made of it later must not end anything either
    check(command, [item for item in channel.take() if item.flag & FLAG_RESPONSE])
    broker.core.processor.closed(channel)
    assert broker.core.driver.is_serving and not broker.store.index.has_failed


@fuzz
@given(st.lists(changed_requests(), min_size=1, max_size=4))
def test_a_name_server_lives_through_any_request(commands: list[Command]) -> None:
    clock = ManualClock(0, 0)
    server = NameServer(NamesrvConfig(), HostTracer(clock=clock, write=lambda _: None), clock, KvConfig())
    for command in commands:
        answer = server.handle(1, command)
        check(command, [] if command.is_oneway else [answer])
        clock.ms += 100
        server.routes.scan(clock.ms)
    server.routes.session_closed(1)


@pytest.fixture(scope="module")
def slave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("fuzz-slave"), total_replicas=2, slave_read_enable=True)
    found.controller.master = 7
    found.start()
    assert not found.core.replica.is_master
    yield found
    found.close()


@fuzz
@given(changed_requests().filter(lambda command: command.code not in ROLE_CODES))
def test_a_slave_lives_through_any_request_and_appends_none(slave: Broker, command: Command) -> None:
    channel, end = FakeChannel(), slave.store.max_phy_offset
    slave.core.processor.received(channel, [command])
    slave.run(20)
    check(command, [item for item in channel.take() if item.flag & FLAG_RESPONSE])
    slave.core.processor.closed(channel)
    assert slave.store.max_phy_offset == end and not slave.core.replica.is_master


@fuzz
@given(st.lists(changed_requests(), min_size=1, max_size=4))
def test_a_controller_lives_through_any_request(commands: list[Command]) -> None:
    """What is no Raft message is the end of its session."""
    cluster, _ = group_of(2)
    for session_id, command in enumerate(commands, 1):
        token = 0
        with suppress(RemoteProtocolError):
            token = cluster.send(command, session_id)
        cluster.run(100)
        check(command, [cluster.replies[token]] if token in cluster.replies else [])
        cluster.leader.machine.session_closed(cluster.now_ms, session_id)
    assert cluster.call(RequestCode.CONTROLLER_GET_METADATA_INFO).ext["isLeader"] == "true"
