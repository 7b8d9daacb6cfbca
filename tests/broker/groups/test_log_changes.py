"""A broker in whose disk a change of the log hangs: nothing looks at the log, and all else goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqha.broker.loops import BrokerLoops
from rmqha.broker.requests.request import FORWARDED, UNWRITTEN
from rmqha.ha.log_writes import WAITS_FOR_DISK
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import StoreError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.store.store import Store
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import MasterHandshake
from tests.broker.support import Broker, FakeChannel, pull_command, send_command


def state(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(broker.ask(Command(RequestCode.RMQHA_GET_REPLICA_STATE)).body))
    return found


@pytest.fixture
def hung(tmp_path: Path) -> Broker:
    """It was master, and another is: its disk hangs at the next epoch."""
    broker = Broker(tmp_path).start()
    broker.join_slave(2)
    assert broker.ask(send_command("T")).code == ResponseCode.SUCCESS
    broker.shell.disk_hangs = True
    broker.core.driver.role_notified(broker.controller.elect(2))
    assert not broker.core.driver.is_log_free
    return broker


def test_only_requests_that_look_at_no_log_are_answered_meanwhile(hung: Broker) -> None:
    for command in (send_command("T"), pull_command("T"), Command(RequestCode.GET_MAX_OFFSET, {"topic": "T"})):
        reply = hung.ask(command)
        assert (reply.code, reply.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, WAITS_FOR_DISK)
    channel = FakeChannel()
    assert hung.core.processor.take([(channel, b"")], 10) == [(0, 0)]
    found = state(hung)
    assert (found["role"], found["diskProblem"]) == ("SLAVE", WAITS_FOR_DISK)
    hung.shell.end_change()
    assert state(hung)["diskProblem"] == ""
    assert hung.ask(Command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "command",
    [
        send_command("T"),
        Command(RequestCode.END_TRANSACTION),
        Command(RequestCode.RECALL_MESSAGE),
        Command(RequestCode.ACK_MESSAGE),
        Command(RequestCode.BATCH_ACK_MESSAGE),
        Command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    ],
    ids=lambda command: str(command.code),
)
def test_sends_and_acks_wait_for_the_end_of_the_switch_meanwhile(hung: Broker, command: Command) -> None:
    """Apache's Java producer gives up after three refusals, which takes it less than the epoch's write."""
    hung.shell.holds = True
    channel = FakeChannel()
    hung.core.processor.received(channel, [command])
    assert (channel.sent, hung.shell.held) == ([], [command])


def test_who_has_passed_a_send_on_hears_that_nothing_of_it_is_written(hung: Broker) -> None:
    command = send_command("T")
    command.ext[FORWARDED] = "127.0.0.1:1"
    assert hung.ask(command).ext == {UNWRITTEN: "true"}


def test_no_loop_looks_at_the_log_meanwhile(hung: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **keys: object) -> None:
        raise AssertionError("the log is being changed")

    with monkeypatch.context() as guard:
        for name in ("dispatch", "commit", "trim", "trim_derived", "oldest_files", "schedule_unlink", "pull"):
            guard.setattr(Store, name, fail)
        hung.run(10_000)
        hung.core.retention.check()
        assert not hung.core.retention.schedule_unlink()
        assert not hung.core.driver.dispatch() and not hung.core.driver.dispatch_due
        assert list(hung.core.writes()) == []
    hung.shell.end_change()
    hung.core.retention.check()


def test_a_save_ends_where_a_change_of_the_log_begins(tmp_path: Path) -> None:
    """The thread that cuts the log changes the tables that are to be saved next."""
    broker = Broker(tmp_path).start()
    broker.join_slave(2)
    broker.core.offsets.commit("G", "T", 0, 0)
    broker.core.delay_offsets.put(1, 1)
    writes = broker.core.writes()
    next(writes)()
    broker.shell.disk_hangs = True
    broker.core.driver.role_notified(broker.controller.elect(2))
    assert not broker.core.driver.is_log_free
    assert list(writes) == []


async def test_a_stop_waits_for_the_change(hung: Broker) -> None:
    """Else the store is not closed, and its next start takes the replica for killed."""
    loops = hung.shell.loops = BrokerLoops(hung.core, hung.clock)
    hung.core.driver.stopping()
    assert hung.core.replica.may_stop
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loops.until_may_stop)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        hung.shell.end_change()
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks


def test_what_the_change_raises_ends_the_broker(hung: Broker) -> None:
    with pytest.raises(StoreError, match="Input/output"):
        hung.core.driver.log_written(OSError(5, "Input/output error"))


def test_a_slave_knows_its_master_while_it_cuts(tmp_path: Path) -> None:
    """Its tables follow by that alone, and nobody tells them again."""
    broker = Broker(tmp_path).start()
    broker.core.driver.role_notified(broker.controller.elect(2))
    (conn_id,) = [action[1] for action in broker.ports.ha_actions if action[0] == "open"]
    broker.core.driver.ha_opened(conn_id)
    broker.shell.disk_hangs = True
    epochs = EpochHistory([EpochEntry(Epoch(2), PhyOffset(0))])
    broker.core.driver.ha_received(conn_id, MasterHandshake(PhyOffset(0), Epoch(2), epochs).encode())
    assert not broker.core.driver.is_log_free and not broker.core.replica.is_following
    assert broker.core.followed_master is not None
    broker.shell.end_change()
    assert broker.core.replica.is_following
