"""Sends of several connections that are served in one turn are settled once, at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.model.code import ResponseCode
from rmqha.wire.frame import encode_frame
from tests.broker.support import Broker, send_command
from tests.kernel.streams import PLAIN
from tests.kernel.support import Fed, broker_on, decoded
from tests.store.support import bodies

FRAMES = b"".join([encode_frame(send_command("T", number, b"m", i=PLAIN)) for number in range(3)])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with broker_on(tmp_path / "store") as found:
        yield found


def connections(broker: Broker) -> list[Fed]:
    return [Fed(broker, lean=True, peer=f"127.0.0.1:{port}") for port in (5, 6)]


def late(fed: Fed) -> list[int]:
    """Codes of the answers that wait for the connection's writer."""
    return [answer.code for answer in decoded(fed._session._take_queue()[0])]


def test_they_are_answered_together_at_its_end(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[int] = []
    appended = broker.core.replica.appended

    def counted(now_ms: int) -> None:
        settled.append(now_ms)
        appended(now_ms)

    monkeypatch.setattr(broker.core.replica, "appended", counted)
    first, second = connections(broker)
    broker.shell.turn = []
    assert (first.read(FRAMES), second.read(FRAMES)) == (b"", b"")
    assert not settled and len(broker.shell.turn) == 1
    broker.shell.end_turn()
    assert len(settled) == 1
    assert late(first) == late(second) == [ResponseCode.SUCCESS] * 3
    assert decoded(first.read(FRAMES)) and len(settled) == 2, "outside of such a turn at once"
    broker.run()
    assert sum(len(bodies(broker.store, "T", number)) for number in range(3)) == 9 + 1, "and one of before"


def test_a_send_by_commands_in_the_turn_settles_all_before_it(broker: Broker) -> None:
    first, second = connections(broker)
    broker.shell.turn = []
    assert first.read(FRAMES) == b""
    slow = encode_frame(send_command("T", 0, b"late", i=PLAIN + "DELAY\x011\x02"))
    assert [answer.code for answer in decoded(second.read(slow))] == [ResponseCode.SUCCESS]
    assert late(first) == [ResponseCode.SUCCESS] * 3
    broker.shell.end_turn()
    assert late(first) == late(second) == []


def test_a_master_that_steps_down_in_the_turn_answers_all_who_wait(broker: Broker) -> None:
    (first, _) = connections(broker)
    broker.shell.turn = []
    assert first.read(FRAMES) == b""
    broker.core.driver.role_notified(broker.controller.elect(2))
    assert late(first) == [ResponseCode.SERVICE_NOT_AVAILABLE] * 3
    broker.shell.end_turn()
    assert late(first) == []


def test_a_log_that_changes_in_a_thread_is_left_alone_until_it_has(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _) = connections(broker)
    broker.shell.turn = []
    assert first.read(FRAMES) == b""
    is_writing = [True]
    monkeypatch.setattr(type(broker.core.replica), "is_writing", property(lambda replica: is_writing[0]))
    broker.shell.end_turn()
    assert late(first) == []
    is_writing.clear()
    is_writing.append(False)
    monkeypatch.setattr(broker.core.replica, "log_written", lambda now_ms: None)
    broker.core.driver.log_written()
    assert late(first) == [ResponseCode.SUCCESS] * 3
