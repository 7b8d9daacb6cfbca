"""The table of delay offsets: its file, and that an offset counts only in a log that holds the delivered copies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from rmqha.broker.tables.delay_offsets import MAX_STATES, RECENT_STATES, DelayOffsetTable
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.host.disk import HostDisk
from rmqha.model.offset import Buffer, PhyOffset
from rmqha.wire import lenient_json
from tests.broker.support import FakeLog, TableListener
from tests.store.support import unpack
from tests.support.clock import ManualClock
from tests.support.patience import HANG_S


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def table(tmp_path: Path, log: FakeLog) -> DelayOffsetTable:
    return DelayOffsetTable(HostDisk(tmp_path), ManualClock(), log, TableListener())


def grow(log: FakeLog, end_offset: int) -> None:
    log.max_phy_offset = PhyOffset(end_offset)


def follow(slave: DelayOffsetTable, master: DelayOffsetTable) -> None:
    slave.replace(lenient_json.loads(lenient_json.dumps(master.to_follower())))


# --- the file ---------------------------------------------------------------------------------------------------------
def save(table: DelayOffsetTable) -> None:
    unsaved = table.unsaved()
    assert unsaved is not None
    table.write(unsaved)


def test_the_real_brokers_file_is_read_and_written_back_as_it_was(tmp_path: Path, log: FakeLog) -> None:
    unpack("n0", tmp_path)
    path = tmp_path / "n0" / "config" / "delayOffset.json"
    before = path.read_bytes()
    table = DelayOffsetTable(HostDisk(tmp_path / "n0"), ManualClock(), log, TableListener())
    assert {level: table.get(level) for level in table.levels()} == {1: 8, 2: 5, 18: 0}
    assert table.get(3) == 0 and table.unsaved() is None
    table.replace(table.to_json() | {"offsetTable": {"1": 7}})
    data = table.unsaved()
    assert data is not None and table.unsaved() is None
    table.replace(lenient_json.loads(before))
    again = table.unsaved()
    assert again is not None
    table.write(again)
    assert path.read_bytes() == before


def test_offsets_behind_a_queues_end_come_back_durably(tmp_path: Path, table: DelayOffsetTable, log: FakeLog) -> None:
    table.put(1, 10)
    table.put(2, 3)
    table.clamp({1: 8, 2: 3}.__getitem__, 0)
    found = DelayOffsetTable(HostDisk(tmp_path), ManualClock(), log, TableListener())
    assert (found.get(1), found.get(2)) == (8, 3)


def test_the_file_says_no_more_than_the_disk_has(tmp_path: Path, table: DelayOffsetTable, log: FakeLog) -> None:
    """A power loss takes the copies of what was delivered since the last sync."""
    grow(log, 300)
    table.put(1, 5, 100)
    table.put(1, 9, 300)
    assert table.unsaved() is None
    log.synced_offset = PhyOffset(299)
    data = table.unsaved()
    assert data is not None and table.unsaved() is None
    table.write(data)
    assert DelayOffsetTable(HostDisk(tmp_path), ManualClock(), log, TableListener()).get(1) == 5
    log.synced_offset = PhyOffset(300)
    unsaved = table.unsaved()
    assert unsaved is not None and b"1:9" in (unsaved.levels or b"")


def test_a_save_that_comes_behind_a_cut_writes_nothing(tmp_path: Path, table: DelayOffsetTable, log: FakeLog) -> None:
    """Both are threads. What the save was made of counts on copies that are gone (AP): after a kill this replica would
    leave those messages out."""
    grow(log, 300)
    log.synced_offset = PhyOffset(300)
    table.put(1, 5, 100)
    table.put(1, 9, 300)
    table.put_timer(TimerProgress(7000, 1, 2, 0), 300)
    late = table.unsaved()
    assert late is not None
    grow(log, 200)
    log.synced_offset = PhyOffset(200)
    table.log_cut(200, {1: 9}.__getitem__, 5)
    table.write(late)
    found = DelayOffsetTable(HostDisk(tmp_path), ManualClock(), log, TableListener())
    assert (found.get(1), found.timer) == (5, TimerProgress())


def test_what_a_late_save_alone_has_is_written(tmp_path: Path, table: DelayOffsetTable) -> None:
    table.put(1, 5)
    late = table.unsaved()
    table.put_timer(TimerProgress(7000, 1, 2, 0), 0)
    save(table)
    assert late is not None
    table.write(late)
    found = DelayOffsetTable(HostDisk(tmp_path), ManualClock(), FakeLog(), TableListener())
    assert (found.get(1), found.timer.read_ms) == (5, 7000)


class MeetingDisk(HostDisk):
    """The first write of a file waits whether another one begins meanwhile."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun, self.other = Event(), Event()
        self.have_met = False

    def write_atomic(self, path: str, data: Buffer) -> None:
        if self.begun.is_set():
            self.other.set()
        else:
            self.begun.set()
            self.have_met = self.other.wait(0.2)
        super().write_atomic(path, data)


def test_a_cut_waits_for_a_save(tmp_path: Path, log: FakeLog) -> None:
    """Two writers of one file take the temporary file from each other, and an error in a cut ends the broker."""
    disk = MeetingDisk(tmp_path)
    table = DelayOffsetTable(disk, ManualClock(), log, TableListener())
    table.put(1, 5)
    late = table.unsaved()
    assert late is not None
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(table.write, late)
        assert disk.begun.wait(HANG_S)
        table.log_cut(0, {1: 3}.__getitem__, 0)
        saved.result()
    assert not disk.have_met
    assert DelayOffsetTable(HostDisk(tmp_path), ManualClock(), log, TableListener()).get(1) == 3


# --- the log ----------------------------------------------------------------------------------------------------------
def test_a_slave_counts_on_what_its_own_log_holds(tmp_path: Path, table: DelayOffsetTable, log: FakeLog) -> None:
    """Elected before the copies came it would leave those messages out (AP; simulation, theme delays)."""
    grow(log, 300)
    behind = FakeLog(PhyOffset(99))
    slave = DelayOffsetTable(HostDisk(tmp_path / "slave"), ManualClock(), behind, TableListener())
    for level, offset, end in ((1, 5, 100), (2, 7, 200), (1, 9, 300)):
        table.put(level, offset, end)
        follow(slave, table)
    assert slave.version == table.version, "it needs not be told again"
    found = []
    for end in (99, 100, 199, 200, 300):
        grow(behind, end)
        found.append((slave.get(1), slave.get(2), slave.levels()))
    assert found == [(0, 0, []), (5, 0, [1]), (5, 0, [1]), (5, 7, [1, 2]), (9, 7, [1, 2])]
    assert slave.to_json() == table.to_json()


def test_what_a_restarted_master_tells_counts_on_all_it_has(
    tmp_path: Path, table: DelayOffsetTable, log: FakeLog
) -> None:
    """The file does not say where the copies lie."""
    table.put(1, 5)
    save(table)
    grow(log, 300)
    again = DelayOffsetTable(HostDisk(tmp_path), ManualClock(), log, TableListener())
    assert again.get(1) == 5 and again.to_follower()["logEnd"] == 300
    grow(log, 200)
    again.log_cut(200, lambda level: 1000, 0)
    assert again.get(1) == 5 and again.to_follower()["logEnd"] == 200
    again.put(1, 6, 200)
    assert again.get(1) == 6


def test_another_master_makes_forget_what_was_ahead(tmp_path: Path, table: DelayOffsetTable, log: FakeLog) -> None:
    grow(log, 300)
    table.put(1, 5, 100)
    slave_log = FakeLog(PhyOffset(100))
    slave = DelayOffsetTable(HostDisk(tmp_path / "slave"), ManualClock(), slave_log, TableListener())
    follow(slave, table)
    version = slave.version
    table.put(1, 9, 300)
    follow(slave, table)
    slave.drop_future_states()
    grow(slave_log, 300)  # of another log
    assert slave.get(1) == 5 and slave.version == version


def test_a_cut_takes_back_what_counted_on_it(table: DelayOffsetTable, log: FakeLog) -> None:
    grow(log, 300)
    for offset, end in ((5, 100), (9, 200), (12, 300)):
        table.put(1, offset, end)
    grow(log, 250)
    table.log_cut(250, lambda level: 1000, 0)
    grow(log, 300)
    assert table.get(1) == 9
    table.put(1, 10)
    assert table.to_follower()["logEnd"] == 200, "an offset that counts on no copy counts on those before it"


def test_a_cut_is_durable(tmp_path: Path, table: DelayOffsetTable, log: FakeLog) -> None:
    grow(log, 300)
    table.put(1, 5, 100)
    table.put(1, 9, 300)
    log.synced_offset = PhyOffset(300)
    save(table)
    grow(log, 200)
    log.synced_offset = PhyOffset(200)
    table.log_cut(200, lambda level: 1000, 0)
    assert DelayOffsetTable(HostDisk(tmp_path), ManualClock(), log, TableListener()).get(1) == 5


def test_what_is_handed_out_counts_on_what_is_asked_for(table: DelayOffsetTable, log: FakeLog) -> None:
    grow(log, 300)
    table.put(1, 5, 100)
    table.put(1, 9, 300)
    assert table.to_json(299)["offsetTable"] == {1: 5}
    assert table.to_json()["offsetTable"] == {1: 9}


def test_of_many_states_the_last_lie_close_together(table: DelayOffsetTable, log: FakeLog) -> None:
    count = 20 * MAX_STATES
    grow(log, count)
    for end in range(1, count + 1):
        table.put(1, end, end)
    kept = sorted({table.to_json(end)["offsetTable"].get(1, 0) for end in range(count + 1)})
    assert len(kept) <= MAX_STATES and kept[0] == 0
    assert kept[-RECENT_STATES:] == list(range(count - RECENT_STATES + 1, count + 1))
    missing = [(end, end - table.to_json(end)["offsetTable"].get(1, 0)) for end in range(count // 10, count + 1)]
    # never more than is true, and the further back the less exactly
    assert all(0 <= lost <= count - end for end, lost in missing)
