"""Old log files leave a broker: what operators ask and read, what senders are told."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import StoreError
from rmqha.store.log.retention import HOUR_MS
from rmqha.store.meta.boot_file import LastStop
from rmqha.wire.command import Command
from tests.broker.support import Broker, send_command

FILE = 64 * 1024


def grown(broker: Broker, count: int = 12) -> Broker:
    """Three to a file."""
    for _ in range(count):
        broker.ask(send_command(body=b"z" * 20_000))
        broker.clock.ms += 1000
    broker.run(1000)
    broker.store.sync()
    return broker


def small(make_broker: Callable[..., Broker], **keys: object) -> Broker:
    return grown(make_broker(mapped_file_size_commit_log=FILE, max_message_size=30_000, **keys).start())


def clean(broker: Broker) -> None:
    retention = broker.core.retention
    retention.check()
    while retention.schedule_unlink():
        pass


def state(broker: Broker) -> dict[str, object]:
    found: dict[str, object] = json.loads(bytes(broker.ask(Command(RequestCode.RMQHA_GET_REPLICA_STATE)).body))
    return found


def fill(broker: Broker, percent: int) -> None:
    broker.core.retention._disk = _Full(percent)  # type: ignore[assignment]


class _Full:
    def __init__(self, percent: int) -> None:
        self._percent = percent

    def space(self, path: str = "") -> tuple[int, int]:
        return self._percent * 1 << 20, (100 - self._percent) * 1 << 20


def test_a_log_over_its_size_loses_its_oldest_files(make_broker: Callable[..., Broker]) -> None:
    broker = small(make_broker, commit_log_max_bytes=2 * FILE)
    assert broker.store.min_phy_offset == 0
    clean(broker)
    assert broker.store.max_phy_offset - broker.store.min_phy_offset <= 2 * FILE
    told = dict(broker.tracer.events)["log_trimmed"]
    assert told["reason"] == "the log is larger than commitLogMaxBytes"
    assert told["start_offset"] == broker.store.min_phy_offset > 0
    low, high = broker.store.queue_range("T", 0)
    assert 0 < low < high == 12


def test_expired_files_go_on_demand_and_the_last_one_is_ended_first(make_broker: Callable[..., Broker]) -> None:
    broker = small(make_broker, delete_when="")
    end = broker.store.max_phy_offset
    broker.clock.ms += 73 * HOUR_MS
    clean(broker)
    assert broker.store.min_phy_offset == 0
    assert broker.ask(Command(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
    assert broker.shell.woken["retention"]
    clean(broker)
    broker.run(1000)
    broker.store.sync()
    clean(broker)
    assert broker.store.min_phy_offset == broker.store.max_phy_offset == -(-end // FILE) * FILE
    assert [name for name in broker.tracer.names() if name.startswith("log_")] == [
        "log_trimmed",
        "log_rolled",
        "log_trimmed",
    ]
    reply = broker.ask(send_command(body=b"after"))
    assert (reply.code, reply.ext["queueOffset"]) == (ResponseCode.SUCCESS, "12")


def test_files_below_a_start_offset_go_on_demand(make_broker: Callable[..., Broker]) -> None:
    broker = small(make_broker)
    request = Command(RequestCode.DELETE_EXPIRED_COMMITLOG, {"startOffset": str(2 * FILE + 1)})
    broker.ask(request)
    clean(broker)
    assert broker.store.min_phy_offset == 2 * FILE


@pytest.mark.parametrize("code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC])
def test_the_requests_of_mqadmin_for_queues_end_those_without_records(broker: Broker, code: RequestCode) -> None:
    """Of a topic that is there or gone: a queue goes with the last of its records."""
    broker.ask(send_command("Used"))
    broker.core.topics.remove("Used")
    broker.shell.woken.clear()
    assert broker.ask(Command(code)).code == ResponseCode.SUCCESS
    assert broker.shell.woken["retention"] == 1
    assert broker.store.queue_range("Used", 0) == (0, 1), "its record is still in the log"


def test_a_full_disk_refuses_sends_until_it_has_room(make_broker: Callable[..., Broker]) -> None:
    broker = small(make_broker, clean_file_forcibly_enable=False)
    fill(broker, 95)
    clean(broker)
    reply = broker.ask(send_command())
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert str(reply.remark).startswith("the disk is full: 95.0 % are in use, diskSpaceWarningLevelRatio is 90;")
    assert state(broker)["writable"] is False
    assert "disk_full" in broker.tracer.names()
    fill(broker, 90)
    clean(broker)
    assert broker.ask(send_command()).code == ResponseCode.SUCCESS
    assert "disk_has_room" in broker.tracer.names()


def test_a_full_disk_of_the_queues_refuses_sends_though_the_logs_has_room(make_broker: Callable[..., Broker]) -> None:
    """What has no room there cannot be dispatched."""
    broker = small(make_broker)

    class Two:
        def space(self, path: str = "") -> tuple[int, int]:
            used = 40 if path else 95
            return used << 20, (100 - used) << 20

    broker.core.retention._disk = Two()  # type: ignore[assignment]
    clean(broker)
    assert broker.ask(send_command()).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_full_disk_refuses_sends_also_where_no_file_can_be_made(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = small(make_broker)

    def no_room() -> None:
        raise StoreError("no room for the next file")

    monkeypatch.setattr(broker.core.driver, "roll", no_room)
    broker.clock.ms += 100 * HOUR_MS
    fill(broker, 95)
    broker.core.retention.check()
    assert broker.ask(send_command()).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_log_whose_next_file_cannot_be_made_refuses_sends_until_it_can(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is not full by the levels has no room for a log file, or the process may map no more files. A send
    that needs the file would end the broker; the controllers hear of it, and let a replica lead that can go on."""

    def no_room(fd: int, *_: int) -> None:
        if "commitlog" in Path(f"/proc/self/fd/{fd}").readlink().parts:
            raise OSError(errno.ENOSPC, "No space left on device")

    broker = small(make_broker)
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    broker.store.allocation.allocate_ahead()
    assert broker.ask(send_command()).code == ResponseCode.SUCCESS
    for _ in range(2):
        clean(broker)
        broker.core.retention.pending_unlink()
        reply = broker.ask(send_command())
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"cannot create or map a file of {FILE} bytes: No space left on device; free some" in str(reply.remark)
        assert state(broker)["writable"] is False
        assert state(broker)["diskProblem"] == reply.remark
    assert broker.tracer.names().count("disk_full") == 1
    monkeypatch.undo()
    clean(broker)
    broker.core.retention.pending_unlink()
    assert broker.ask(send_command()).code == ResponseCode.SUCCESS
    assert state(broker)["diskProblem"] == ""
    assert broker.tracer.names().count("disk_has_room") == 1


def no_room_for_queues(fd: int, *_: int) -> None:
    """`os.posix_fallocate` of a disk that has none left for another file of a queue."""
    if "consumequeue" in Path(f"/proc/self/fd/{fd}").readlink().parts:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_queues_without_room_refuse_sends_and_end_no_broker(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's next file is there, and something else fills the disk."""
    broker = small(make_broker)
    monkeypatch.setattr(os, "posix_fallocate", no_room_for_queues)
    assert broker.ask(send_command("New")).code == ResponseCode.SUCCESS
    for _ in range(3):
        broker.core.driver.dispatch()
        broker.core.retention.allocated()
        reply = broker.ask(send_command("New"))
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "consumequeue" in str(reply.remark) and "No space left on device; free some" in str(reply.remark)
        assert not broker.core.driver.dispatch_due, "it waits for a moment"
        broker.clock.ms += 1000
    assert state(broker)["diskProblem"] == reply.remark
    monkeypatch.undo()
    broker.clock.ms += 1000
    assert broker.core.driver.dispatch_due
    broker.core.driver.dispatch()
    broker.core.retention.allocated()
    assert broker.store.queue_range("New", 0)[1] == 1
    assert broker.ask(send_command("New")).code == ResponseCode.SUCCESS
    assert state(broker)["diskProblem"] == ""


def test_queues_lack_no_room_for_what_was_cut(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to dispatch, and as long as sends are refused nothing comes."""
    broker = small(make_broker)
    end = broker.store.max_phy_offset
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room_for_queues)
        assert broker.ask(send_command("New")).code == ResponseCode.SUCCESS
        broker.core.driver.dispatch()
        broker.core.retention.allocated()
        assert broker.ask(send_command("New")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        broker.store.truncate(end)
    broker.core.retention.allocated()
    assert broker.ask(send_command("New")).code == ResponseCode.SUCCESS
    broker.clock.ms += 1000
    broker.core.driver.dispatch()
    assert broker.store.queue_range("New", 0)[1] == 1


def test_a_stop_is_clean_though_queues_have_no_room(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = small(make_broker)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room_for_queues)
        assert broker.ask(send_command("New")).code == ResponseCode.SUCCESS
        broker.core.driver.dispatch()
        assert broker.store.queue_refusal
        broker.close()
    broker = small(make_broker)
    assert broker.store.recovery.last_stop is LastStop.CLEAN
    assert broker.store.queue_range("New", 0)[1] == 1


def test_the_disk_counts_that_the_log_lies_on(make_broker: Callable[..., Broker]) -> None:
    """`commitlog` may be a link to a disk of its own."""

    class TwoDisks:
        def space(self, path: str = "") -> tuple[int, int]:
            return (95, 5) if path == "commitlog" else (10, 90)

    broker = small(make_broker, clean_file_forcibly_enable=False)
    broker.core.retention._disk = TwoDisks()  # type: ignore[assignment]
    clean(broker)
    assert str(broker.ask(send_command()).remark).startswith("the disk is full: 95.0 % are in use")


def test_what_a_slave_still_copies_stays_and_the_state_says_so(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(
        mapped_file_size_commit_log=FILE, max_message_size=30_000, total_replicas=2, commit_log_max_bytes=2 * FILE
    ).start()
    grown(broker)
    broker.join_slave(2, at=FILE + 7)
    clean(broker)
    assert broker.store.min_phy_offset == FILE
    said = f"the log file at {FILE} stays, the log is larger than commitLogMaxBytes: needed by broker 2, which has the"
    assert str(state(broker)["heldLogFile"]).startswith(said)
    assert broker.tracer.names().count("log_file_held") == 1
    clean(broker)
    assert broker.tracer.names().count("log_file_held") == 1
    fill(broker, 95)
    clean(broker)
    assert broker.store.min_phy_offset > FILE
    assert dict(broker.tracer.events)["slaves_passed_over"]["brokers"] == [2]
    assert state(broker)["heldLogFile"] == ""


def test_a_disk_that_cannot_be_asked_is_told_once(make_broker: Callable[..., Broker]) -> None:
    broker = small(make_broker)

    class Broken:
        label = "here"

        def space(self, path: str = "") -> tuple[int, int]:
            raise OSError(5, "Input/output error")

    broker.core.retention._disk = Broken()  # type: ignore[assignment]
    clean(broker)
    clean(broker)
    told = [fields["reason"] for name, fields in broker.tracer.events if name == "old_files_not_removed"]
    assert len(told) == 1
    assert told[0].startswith("here: cannot ask how full the disk is: Input/output error;")
