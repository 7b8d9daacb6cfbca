"""A broker's background tasks over a disk that refuses."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Semaphore, current_thread, main_thread
from typing import Any

import pytest
import trio
import trio.testing

from rmqha.broker import loops
from rmqha.broker.loops import BrokerLoops
from rmqha.broker.requests.change_gate import MAX_WAITING_COUNT
from rmqha.broker.tables.topics import TopicConfig
from rmqha.host.disk import HostDisk
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import Buffer
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.broker.support import Broker, FakeChannel, topic_table
from tests.support.patience import HANG_S


async def test_tables_that_cannot_be_written_are_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "SAVE_INTERVAL_MS", 10)
    broker = Broker(tmp_path).start()
    # nothing can be written below a directory that is a file, not even by root
    place = tmp_path / "config"
    broker.core.save()
    place.rename(tmp_path / "rmqha.aside")
    place.touch()
    broker.core.offsets.commit("G", "T", 0, 7)
    tried, tries = trio.open_memory_channel[str](1000)
    tell = broker.core.tables_saved

    def saved(trouble: str, which: str = "offsets") -> None:
        tell(trouble, which)
        if which == "offsets":
            tried.send_nowait(trouble)

    monkeypatch.setattr(broker.core, "tables_saved", saved)
    async with trio.open_nursery() as nursery:
        broker.shell.loops = BrokerLoops(broker.core, broker.clock)
        nursery.start_soon(broker.shell.loops.run)
        with trio.fail_after(HANG_S):
            for _ in range(3):
                assert await tries.receive(), "it cannot have been written"
            assert broker.tracer.names().count("tables_not_saved") == 1
            place.unlink()
            while await tries.receive():
                pass
        nursery.cancel_scope.cancel()
    assert broker.tracer.names().count("tables_saved") == 1
    body = loads((place / "consumerOffset.json").read_bytes())
    assert body["offsetTable"] == {"T@G": {"0": 7}}
    broker.close()


@asynccontextmanager
async def stopped_by(broker: Broker, monkeypatch: pytest.MonkeyPatch, table: object) -> AsyncIterator[BrokerLoops]:
    """Loops that are stopped while a thread writes `table`."""
    async with trio.open_nursery() as nursery:
        write = table.write  # type: ignore[attr-defined]

        def stop_and_write(data: object) -> None:
            trio.from_thread.run_sync(nursery.cancel_scope.cancel)
            write(data)

        monkeypatch.setattr(table, "write", stop_and_write)
        broker.shell.loops = running = BrokerLoops(broker.core, broker.clock)
        nursery.start_soon(running.run)
        yield running
    monkeypatch.undo()
    broker.close()


def saved(root: Path, name: str) -> dict[str, Any]:
    return dict(loads((root / "config" / f"{name}.json").read_bytes()))


async def test_a_stop_while_topics_are_written_leaves_no_group_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path).start()
    async with stopped_by(broker, monkeypatch, broker.core.topics.file):
        broker.core.topics.put(TopicConfig("T", 1, 1))
        broker.core.groups.put({"groupName": "G"})
    assert "T" in saved(tmp_path, "topics")["topicConfigTable"]
    assert "G" in saved(tmp_path, "subscriptionGroup")["subscriptionGroupTable"]


async def test_a_stop_while_offsets_are_written_leaves_no_delivery_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path).start()
    async with stopped_by(broker, monkeypatch, broker.core.offsets) as running:
        broker.core.offsets.commit("G", "T", 0, 7)
        broker.core.delay_offsets.put(1, 3)
        running.save_offsets_soon()
    assert saved(tmp_path, "consumerOffset")["offsetTable"] == {"T@G": {"0": 7}}
    assert saved(tmp_path, "delayOffset")["offsetTable"] == {"1": 3}


def create_command(topic: str) -> Command:
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1"})


class SlowDisk(HostDisk):
    """Each write of a table waits until it may go on, off the event loop."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun: list[str] = []
        self.go = Semaphore(0)
        self.fails = False

    def write_atomic(self, path: str, data: Buffer) -> None:
        self.begun.append(path)
        assert current_thread() is not main_thread()
        assert self.go.acquire(timeout=HANG_S)
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_atomic(path, data)


@asynccontextmanager
async def slow_tables(tmp_path: Path) -> AsyncIterator[tuple[Broker, SlowDisk]]:
    """A broker whose topics.json is written when the test says so."""
    broker, disk = Broker(tmp_path).start(), SlowDisk(tmp_path)
    broker.core.save()
    broker.core.topics.file._disk = disk
    async with trio.open_nursery() as nursery:
        broker.shell.loops = BrokerLoops(broker.core, broker.clock)
        nursery.start_soon(broker.shell.loops.run)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(HANG_S):
            yield broker, disk
        disk.go.release(100)
        nursery.cancel_scope.cancel()
    broker.core.topics.file._disk = HostDisk(tmp_path)
    broker.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (a thread changes it)
        await trio.sleep(0.001)


async def test_topics_made_while_a_write_is_under_way_share_the_next_one(tmp_path: Path) -> None:
    async with slow_tables(tmp_path) as (broker, disk):
        channels = [FakeChannel() for _ in range(50)]
        for number, channel in enumerate(channels):
            broker.core.processor.received(channel, [create_command(f"T{number}")])
            await until(lambda: bool(disk.begun))
        assert broker.core.topics.get("T49") is not None and not any(channel.take() for channel in channels)
        disk.go.release()
        await until(lambda: len(disk.begun) == 2)
        assert [channel.one().code for channel in channels[:1]] == [0]
        assert not any(channel.take() for channel in channels[1:]), "their write is still under way"
        disk.go.release()
        await until(lambda: broker.core.topics.file.is_saved)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert [channel.one().code for channel in channels[1:]] == [0] * 49
        assert len(disk.begun) == 2
        again = topic_table(HostDisk(tmp_path), broker.config, broker.clock)
        assert again.get("T49") == broker.core.topics.get("T49")


async def test_no_more_changes_wait_than_one_write_takes_at_once(tmp_path: Path) -> None:
    """Each costs the answers to all slaves, the next write and the registrations: whoever asks for more comes again."""
    async with slow_tables(tmp_path) as (broker, disk):
        channels = [FakeChannel() for _ in range(1000)]
        for number, channel in enumerate(channels):
            broker.core.processor.received(channel, [create_command(f"T{number}")])
        refused = [reply for channel in channels for reply in channel.take()]
        assert len(channels) - len(refused) == broker.core.metadata_leader.topic_waiting_count == MAX_WAITING_COUNT
        assert {reply.code for reply in refused} == {ResponseCode.SYSTEM_BUSY}
        assert broker.core.topics.get(f"T{MAX_WAITING_COUNT}") is None
        disk.go.release(100)
        await until(lambda: not broker.core.metadata_leader.topic_waiting_count)
        broker.core.processor.received(channels[-1], [create_command("T999")])
        assert broker.core.topics.get("T999") is not None


async def test_an_operator_hears_why_a_topic_is_not_on_the_disk(tmp_path: Path) -> None:
    async with slow_tables(tmp_path) as (broker, disk):
        disk.fails = True
        disk.go.release()
        channel = FakeChannel()
        broker.core.processor.received(channel, [create_command("T")])
        await until(lambda: bool(channel.sent))
        reply = channel.one()
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark is not None and reply.remark.startswith("the change is made here but this replica's disk")
        assert "No space left on device" in reply.remark
        disk.fails = False
        disk.go.release()
        broker.core.processor.received(channel, [create_command("T")])
        await until(lambda: bool(channel.sent))
        assert channel.one().code == 0
        assert topic_table(HostDisk(tmp_path), broker.config, broker.clock).get("T") is not None
        assert broker.tracer.names().count("tables_not_saved") == broker.tracer.names().count("tables_saved") == 1
