"""The driver: what interrupts a change of the machine or the log ends the process, a refusal does not."""

from __future__ import annotations

import pytest

from rmqha.model.code import RequestCode
from rmqha.model.error import BrokenInvariantError, RemoteProtocolError, StoreError, UsageError
from rmqha.model.offset import PhyOffset
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command
from tests.store.support import message


def broken(*arguments: object, **more: object) -> None:
    raise AssertionError("epochs fall")


def test_an_assertion_inside_the_machine_is_a_broken_invariant(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.core.replica, "appended", broken)
    with pytest.raises(BrokenInvariantError, match="AssertionError: epochs fall"):
        broker.core.processor.received(FakeChannel(), [send_command()])
    monkeypatch.undo()
    monkeypatch.setattr(broker.core.replica, "timeout", broken)
    with pytest.raises(BrokenInvariantError):
        broker.core.driver.timeout()


def test_an_assertion_of_the_log_is_a_broken_invariant(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.store, "append", broken)
    with pytest.raises(BrokenInvariantError):
        broker.core.processor.received(FakeChannel(), [send_command()])


def test_a_disk_that_fails_in_a_change_makes_the_log_unusable(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(broker.store, "commit", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        broker.core.driver.appended(PhyOffset(0), None)


def test_refusals_stay_what_they_are(broker: Broker) -> None:
    with pytest.raises(UsageError):
        broker.core.driver.append([message(topic="no/topic")])
    with pytest.raises(RemoteProtocolError):
        broker.core.driver.role_notified(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, {"masterEpoch": "x"}))


def test_a_held_pull_that_cannot_be_answered_takes_no_other_with_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again by the loop that dispatches the log, long after its request came."""

    class Failing(FakeChannel):
        errors: list[Exception]

        def fail(self, error: Exception, commands: object) -> None:
            self.errors = [error]

        def send_at_once(self, command: Command) -> None:
            raise KeyError("tags")

    hostile, honest = Failing(), FakeChannel("127.0.0.1:5")
    broker.ask(send_command())
    for channel in (hostile, honest):
        broker.core.processor.received(channel, [pull_command(offset=1, sysFlag="6")])
    broker.ask(send_command())
    assert [str(error) for error in hostile.errors] == ["'tags'"]
    assert honest.one().code == 0
    assert broker.core.pull.hold_count == 0
