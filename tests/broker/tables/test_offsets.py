"""Consumer offsets merge by the stamp of their last change, never by size or by who is asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.broker.tables import offsets as module
from rmqha.broker.tables.offsets import OffsetChange, OffsetTable, from_body, to_body
from rmqha.broker.tables.table_file import TableFile
from rmqha.broker.tables.table_version import NO_VERSION, TableVersion
from rmqha.host.disk import HostDisk
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.meta.config_file import unreadable_members
from tests.broker.support import TableListener


def table_of(directory: Path, epoch: int = 1) -> OffsetTable:
    table = OffsetTable(HostDisk(directory), TableListener())
    table.new_epoch(epoch, 100)
    return table


def change(offset: int | None, epoch: int, sequence: int, queue_id: int = 0) -> OffsetChange:
    return OffsetChange("T@G", queue_id, offset, TableVersion(epoch, sequence))


def test_a_stale_offset_never_overwrites_a_newer_one(tmp_path: Path) -> None:
    table = OffsetTable(HostDisk(tmp_path), TableListener())
    table.merge([change(50, 2, 7)])
    for stale in (change(90, 2, 6), change(99, 1, 1000), change(None, 2, 7), change(51, 2, 7)):
        table.merge([stale])
        assert table.query("G", "T", 0) == 50
    table.merge([change(10, 2, 8)])  # backwards, but newer
    assert table.query("G", "T", 0) == 10
    table.merge([change(3, 3, 1)])
    assert table.query("G", "T", 0) == 3


def test_a_removed_offset_does_not_come_back(tmp_path: Path) -> None:
    master, slave = table_of(tmp_path / "a"), OffsetTable(HostDisk(tmp_path / "b"), TableListener())
    master.commit("G", "T", 0, 5)
    old = master.changes_since(NO_VERSION, 10)
    slave.merge(old)
    list(master.remove_topic("T"))
    slave.merge(master.changes_since(old[-1].stamp, 10))
    slave.merge(old)
    assert slave.query("G", "T", 0) is None and slave.topics_of("G") == []
    master.commit("G", "T", 0, 1)
    slave.merge(master.changes_since(NO_VERSION, 10))
    assert slave.query("G", "T", 0) == 1


def test_only_so_many_removals_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMOVED_COUNT", 2)
    table = table_of(tmp_path)
    for number in range(4):
        table.commit("G", f"T{number}", 0, 1)
        list(table.remove_topic(f"T{number}"))
    assert [item.key for item in table.changes_since(NO_VERSION, 10)] == ["T2@G", "T3@G"]


def test_changes_come_in_pages_the_oldest_first(tmp_path: Path) -> None:
    master, slave = table_of(tmp_path / "a"), OffsetTable(HostDisk(tmp_path / "b"), TableListener())
    for queue_id in range(5):
        master.commit("G", "T", queue_id, 10 + queue_id)
    master.commit("G", "T", 0, 20)
    heard, pages = NO_VERSION, []
    while page := master.changes_since(heard, 2):
        slave.merge(page)
        heard = page[-1].stamp
        pages.append([item.queue_id for item in page])
    assert pages == [[1, 2], [3, 4], [0]]
    assert heard == master.stamp
    assert slave.to_json()["offsetTable"] == master.to_json()["offsetTable"]


def save(table: OffsetTable) -> None:
    data = table.unsaved()
    assert data is not None
    table.write(data)


def test_stamps_and_resets_come_back_after_a_restart(tmp_path: Path) -> None:
    table = table_of(tmp_path, epoch=4)
    table.commit("G", "T", 0, 5)
    table.commit("G", "Gone", 0, 5)
    list(table.remove_topic("Gone"))
    table.reset("G", "T", 1, 2)
    save(table)
    again = OffsetTable(HostDisk(tmp_path), TableListener())
    assert again.changes_since(NO_VERSION, 10) == table.changes_since(NO_VERSION, 10)
    again.commit("G", "T", 1, 9)
    assert again.query("G", "T", 1) == 2 and again.take_reset("G", "T", 1) == 2


def test_a_master_that_restarts_in_its_epoch_gives_no_stamp_twice(tmp_path: Path) -> None:
    """What it gave last was not on its disk; slaves have heard it."""
    first = table_of(tmp_path)
    first.commit("G", "T", 0, 5)
    slave = OffsetTable(HostDisk(tmp_path / "slave"), TableListener())
    slave.merge(first.changes_since(NO_VERSION, 10))
    again = OffsetTable(HostDisk(tmp_path), TableListener())
    again.new_epoch(1, 200)
    again.commit("G", "T", 0, 3)
    slave.merge(again.changes_since(NO_VERSION, 10))
    assert slave.query("G", "T", 0) == 3


def test_no_stamp_is_given_twice_though_the_wall_clock_was_set_back(tmp_path: Path) -> None:
    first = table_of(tmp_path)
    first.commit("G", "T", 0, 5)
    saved = first.unsaved()
    assert saved is not None
    first.write(saved)
    first.commit("G", "T", 0, 6)
    again = OffsetTable(HostDisk(tmp_path), TableListener())
    again.new_epoch(1, 50)
    again.commit("G", "T", 0, 3)
    slave = OffsetTable(HostDisk(tmp_path / "slave"), TableListener())
    slave.merge(first.changes_since(NO_VERSION, 10))
    slave.merge(again.changes_since(NO_VERSION, 10))
    assert slave.query("G", "T", 0) == 3


def test_what_a_slave_gives_back_does_not_undo_what_was_changed_since(tmp_path: Path) -> None:
    """A master is killed before it has saved anything, its clock is set back, and consumers commit again before a slave
    is there."""
    first = table_of(tmp_path)
    slave = OffsetTable(HostDisk(tmp_path / "slave"), TableListener())
    for queue_id in range(3):
        first.commit("G", "T", queue_id, 5)
    slave.merge(first.changes_since(NO_VERSION, 10))
    again = OffsetTable(HostDisk(tmp_path), TableListener())
    again.new_epoch(1, 50)
    again.commit("G", "T", 0, 3)
    again.commit("G", "U", 0, 4)
    list(again.remove_topic("U"))
    back = [*slave.changes_since(NO_VERSION, 10), OffsetChange("U@G", 0, 9, TableVersion(1, 90_000))]
    assert again.take_back(back, lambda *place: 1000) == 4
    slave.merge(again.changes_since(NO_VERSION, 10))
    for table in (again, slave):
        assert [table.query("G", "T", queue_id) for queue_id in range(3)] == [3, 5, 5]
        assert table.query("G", "U", 0) is None


def test_of_what_two_slaves_give_back_the_newer_counts(tmp_path: Path) -> None:
    for backs in ((change(5, 1, 200_000), change(6, 1, 200_001)), (change(6, 1, 200_001), change(5, 1, 200_000))):
        master = table_of(tmp_path)
        for back in backs:
            master.take_back([back], lambda *place: 1000)
        assert master.query("G", "T", 0) == 6
        assert not master.take_back(backs, lambda *place: 1000)


def test_a_file_without_stamps_counts_as_of_its_version(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    text = '{"dataVersion":{"counter":9,"stateVersion":3,"timestamp":1},"offsetTable":{"T@G":{0:7,1:8}}}'
    (tmp_path / "config" / "consumerOffset.json").write_text(text)
    table = OffsetTable(HostDisk(tmp_path), TableListener())
    table.merge([change(90, 2, 1 << 50), change(6, 4, 1, queue_id=1)])
    assert [table.query("G", "T", queue_id) for queue_id in (0, 1)] == [7, 6]


def test_a_table_of_apaches_master_replaces_all(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.commit("G", "Own", 0, 5)
    body = {"dataVersion": {"counter": 1, "stateVersion": 2, "timestamp": 1}, "offsetTable": {"T@G": {"0": 7}}}
    table.replace(body)
    assert table.to_json()["offsetTable"] == {"T@G": {0: 7}}
    assert table.stamp == TableVersion(2, 1)


def test_a_new_masters_clamp_reaches_its_slaves(tmp_path: Path) -> None:
    """Else a slave whose log was short, but not cut, would keep an offset behind messages that are yet to come."""
    master, slave = table_of(tmp_path / "a"), OffsetTable(HostDisk(tmp_path / "b"), TableListener())
    master.commit("G", "T", 0, 9)
    slave.merge(master.changes_since(NO_VERSION, 10))
    master.new_epoch(2, 100)
    assert master.clamp(lambda topic, queue_id: 4, stamped=True) == 1
    slave.merge(master.changes_since(NO_VERSION, 10))
    assert slave.query("G", "T", 0) == 4


CHANGES = st.lists(
    st.builds(change, st.none() | st.integers(0, 9), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2)),
    unique_by=lambda item: item.stamp,
)


@given(CHANGES.flatmap(lambda changes: st.tuples(st.permutations(changes), st.permutations(changes))))
def test_the_order_of_arrival_does_not_matter(orders: tuple[list[OffsetChange], list[OffsetChange]]) -> None:
    tables = []
    for changes in orders:
        table = OffsetTable(SimDisk(SimPrng(1)), TableListener())
        table.merge(changes)
        known = table.changes_since(NO_VERSION, 100)
        assert [item.stamp for item in known] == sorted(item.stamp for item in known)
        for place, item in enumerate(known):
            assert table.changes_since(item.stamp, 100) == known[place + 1 :]
        tables.append(known)
    assert tables[0] == tables[1]


def test_an_older_content_never_replaces_a_newer_one_in_the_file(tmp_path: Path) -> None:
    """Two threads may write: the loop that saves from time to time, and who waits for a strict commit."""
    table = table_of(tmp_path)
    table.commit("G", "T", 0, 1)
    first = table.unsaved()
    assert table.saved_stamp == NO_VERSION
    table.commit("G", "T", 0, 2)
    second = table.unsaved()
    assert first is not None and second is not None
    table.write(second)
    assert table.saved_stamp == table.stamp
    table.write(first)
    assert OffsetTable(HostDisk(tmp_path), TableListener()).query("G", "T", 0) == 2
    assert table.saved_stamp == table.stamp


def test_what_a_slave_gives_back_counts_for_all_though_the_wall_clock_was_set_back(tmp_path: Path) -> None:
    """A master that restarts in its epoch goes on from the wall clock: below what it gave in its former life."""
    slaves = [OffsetTable(HostDisk(tmp_path / name), TableListener()) for name in ("a", "b")]
    slaves[0].merge([change(50, 1, 9_000_000)])
    master = table_of(tmp_path / "m")
    assert master.take_back([change(50, 1, 9_000_000)], lambda topic, queue_id, epoch: 1000) == 1
    master.commit("G", "T", 0, 60)
    for slave in slaves:
        slave.merge(master.changes_since(NO_VERSION, 10))
        assert slave.query("G", "T", 0) == 60 and slave.stamp == master.stamp


def test_our_own_members_have_quoted_keys_and_the_old_form_is_written_anew(tmp_path: Path) -> None:
    """fastjson2 cannot pass over integer keys without quotes in a member that it does not know: the broker ends, and
    writes an empty table on its way out (ruling 32)."""
    table = table_of(tmp_path)
    table.commit("G", "T", 0, 5)
    table.reset("G", "T", 1, 6)
    table.commit("G", "U", 0, 1)
    list(table.remove_topic("U"))
    made = table.unsaved()
    assert made is not None
    table.write(made)
    path = tmp_path / "config" / "consumerOffset.json"
    text = path.read_bytes()
    assert unreadable_members(text) == [] and b"0:5" in text
    old = re.sub(rb'"([0-9]+)":"', rb'\1:"', text)
    assert unreadable_members(old) == ["rmqhaOffsetVersions", "rmqhaRemovedOffsets", "rmqhaSetBackMillis"]
    path.write_bytes(old)
    again = OffsetTable(HostDisk(tmp_path), TableListener())
    assert again.changes_since(NO_VERSION, 10) == table.changes_since(NO_VERSION, 10)
    rewritten = again.unsaved()
    assert rewritten is not None
    again.write(rewritten)
    assert path.read_bytes() == text
    assert OffsetTable(HostDisk(tmp_path), TableListener()).unsaved() is None


def test_a_commit_costs_its_own_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding a table of many groups kept the interpreter from the broker's loop, thread or not."""
    table = table_of(tmp_path)
    for number in range(500):
        table.commit(f"G{number}", f"T{number}", 0, number)
    saved(table)
    encoded: list[str] = []
    row_text = TableFile.row_text

    def counted(name: str, row: object) -> bytes:
        encoded.append(name)
        return row_text(name, row)

    monkeypatch.setattr(TableFile, "row_text", staticmethod(counted))
    for number in (7, 8, 7):
        table.commit(f"G{number}", f"T{number}", 0, number + 100)
    saved(table)
    assert sorted(encoded) == ["T7@G7", "T7@G7", "T8@G8", "T8@G8"]  # an offset and its stamp
    encoded.clear()
    table.commit("G7", "New", 0, 1)
    list(table.remove_group("G9"))
    saved(table)
    assert sorted(encoded) == ["G7", "New@G7", "New@G7", "T9@G9", "T9@G9"]  # when it was, too
    again = OffsetTable(HostDisk(tmp_path), TableListener())
    assert again.changes_since(NO_VERSION, 1000) == table.changes_since(NO_VERSION, 1000)
    assert sorted(again.topics_of("G7")) == ["New", "T7"] and again.groups_of("T9") == []


def saved(table: OffsetTable) -> None:
    data = table.unsaved()
    assert data is not None
    table.write(data)


def test_what_may_not_be_on_the_disk_is_written_again_before_it_counts(tmp_path: Path) -> None:
    """Linux calls pages clean that it could not write (ruling 29): a process that comes after a kill cannot tell."""
    table = table_of(tmp_path)
    table.commit("G", "T", 0, 5)
    saved(table)
    path = tmp_path / "config" / "consumerOffset.json"
    text, inode = path.read_bytes(), path.stat().st_ino
    again = OffsetTable(HostDisk(tmp_path), TableListener(), is_synced=False)
    assert again.saved_stamp == NO_VERSION and again.stamp == table.stamp
    saved(again)
    assert again.saved_stamp == again.stamp
    assert path.read_bytes() == text and path.stat().st_ino != inode
    assert OffsetTable(HostDisk(tmp_path), TableListener()).unsaved() is None


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.integers(0, 9)),
        st.tuples(st.just("reset"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.integers(0, 9)),
        st.tuples(st.just("told"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("group"), st.integers(0, 2), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("topic"), st.just(0), st.integers(0, 2), st.just(0), st.just(0)),
        st.tuples(st.just("clamp"), st.just(0), st.just(0), st.just(0), st.integers(0, 9)),
        st.tuples(st.just("replace"), st.integers(0, 2), st.integers(0, 2), st.just(0), st.integers(0, 9)),
        st.tuples(st.just("save"), st.just(0), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("fail"), st.just(0), st.just(0), st.just(0), st.just(0)),
    )
)


@given(CHANGES)
def test_the_file_is_the_table_after_any_changes(changes: list[tuple[str, int, int, int, int]]) -> None:
    """And a table that is read from it is written as the same bytes."""
    disk = SimDisk(SimPrng(1))
    table = OffsetTable(disk, TableListener())
    table.new_epoch(1, 100)
    for what, group, topic, queue_id, offset in changes:
        place = f"G{group}", f"T{topic}", queue_id
        match what:
            case "commit":
                table.commit(*place, offset)
            case "reset":
                table.reset(*place, offset)
            case "told":
                table.take_reset(*place)
            case "group":
                list(table.remove_group(f"G{group}"))
            case "topic":
                list(table.remove_topic(f"T{topic}"))
            case "clamp":
                table.clamp(lambda name, number, end=offset: end)  # type: ignore[misc]
            case "replace":
                table.replace({"offsetTable": {f"T{topic}@G{group}": {0: offset}}, "dataVersion": {"counter": offset}})
            case "save" if data := table.unsaved():
                table.write(data)
            case "fail" if data := table.unsaved():
                disk.failing = frozenset(("create",))
                with pytest.raises(OSError):
                    table.write(data)
                disk.failing = frozenset()
        for number in range(3):
            assert sorted(table.topics_of(f"G{number}")) == [
                f"T{name}"
                for name in range(3)
                if any(table.query(f"G{number}", f"T{name}", q) is not None for q in (0, 1))
            ]
    if data := table.unsaved():
        table.write(data)
    assert table.saved_stamp == table.stamp
    if not disk.exists("config/consumerOffset.json"):
        return
    text = disk.read("config/consumerOffset.json")
    again = OffsetTable(disk, TableListener(), is_synced=False)
    assert set(again.changes_since(NO_VERSION, 1000)) == set(table.changes_since(NO_VERSION, 1000))
    if data := again.unsaved():
        again.write(data)
    assert disk.read("config/consumerOffset.json") == text


def test_when_an_offset_was_set_back_goes_to_replicas_and_the_disk(tmp_path: Path) -> None:
    log_ms = 1000
    master = OffsetTable(HostDisk(tmp_path / "a"), TableListener(), lambda: log_ms)
    master.new_epoch(1, 100)
    slave = table_of(tmp_path / "b")
    for queue_id, offset in ((0, 5), (1, 6), (2, 7)):
        master.commit("G", "T", queue_id, offset)
    assert "setBackMillis" not in to_body(master.changes_since(NO_VERSION, 10))
    master.commit("G", "T", 0, 4)
    log_ms = 2000
    master.reset("G", "T", 1, 9)
    list(master.remove_topic("other"))
    body = to_body(master.changes_since(NO_VERSION, 10))
    slave.merge(from_body(body))
    assert [slave.set_back_ms("G", "T", queue_id) for queue_id in range(4)] == [1000, 2000, 0, 0]
    data = slave.unsaved()
    assert data is not None
    slave.write(data)
    again = OffsetTable(HostDisk(tmp_path / "b"), TableListener())
    assert [again.set_back_ms("G", "T", queue_id) for queue_id in range(4)] == [1000, 2000, 0, 0]
    assert '"rmqhaSetBackMillis":{"T@G":{"0":"1000","1":"2000"}}' in re.sub(
        r"\s", "", (tmp_path / "b/config/consumerOffset.json").read_text()
    )
    master.take_back([change(1, 9, 9)._replace(set_back_ms=3000)], lambda *place: 100)
    assert master.set_back_ms("G", "T", 0) == 3000


def test_a_pop_lies_behind_each_set_back_before_it_whatever_clocks_say(tmp_path: Path) -> None:
    table = OffsetTable(HostDisk(tmp_path), TableListener(), lambda: 50)
    table.commit("G", "T", 0, 5)
    assert table.pop_ms(100) == 100
    table.reset("G", "T", 0, 1)
    assert table.set_back_ms("G", "T", 0) == 100, "none of before lies behind it"
    assert table.pop_ms(20) == 101
    table.reset("G", "T", 0, 0)
    assert table.set_back_ms("G", "T", 0) == 101 and table.pop_ms(500) == 500


def test_a_new_master_sets_back_behind_what_the_one_before_may_have_popped(tmp_path: Path) -> None:
    table = OffsetTable(HostDisk(tmp_path), TableListener(), lambda: 50)
    table.merge([change(1, 1, 1)._replace(set_back_ms=100)])
    table.new_epoch(2, 50)
    table.reset("G", "T", 0, 0)
    assert table.set_back_ms("G", "T", 0) == 101


def test_times_that_are_none_are_refused() -> None:
    body = to_body([change(1, 1, 1)])
    for times in ([], [1, 2], ["1"], [-1], [True], 5, [2**63]):
        with pytest.raises((ValueError, TypeError)):
            from_body({**body, "setBackMillis": times})


def test_a_removed_offset_keeps_its_time_until_it_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMOVED_COUNT", 1)
    table = OffsetTable(HostDisk(tmp_path), TableListener(), lambda: 50)
    for topic in ("T", "U"):
        table.commit("G", topic, 0, 5)
    list(table.remove_topic("T"))
    assert table.set_back_ms("G", "T", 0) == 50
    list(table.remove_topic("U"))
    assert table.set_back_ms("G", "T", 0) == 0 and table.set_back_ms("G", "U", 0) == 50


@given(st.lists(st.sampled_from(("pull", "lost answer", "commit", "switch")), max_size=module.MAX_TOLD_COUNT - 2))
def test_no_lost_answer_and_no_switch_takes_an_order_along(steps: list[str]) -> None:
    """A member at 9 pulls and commits where it is until it has heard that it must go on at 2."""
    table, place = OffsetTable(SimDisk(SimPrng(1)), TableListener()), 9
    table.new_epoch(1, 100)
    table.commit("G", "T", 0, place)
    table.reset("G", "T", 0, 2)
    for epoch, step in enumerate((*steps, "pull", "commit"), 2):
        match step:
            case "pull":
                place = table.reset_for("G", "T", 0, place) or place
            case "lost answer":
                table.reset_for("G", "T", 0, place)
            case "commit":
                table.commit("G", "T", 0, place)
            case "switch":
                changes = table.changes_since(NO_VERSION, 10)
                table = OffsetTable(SimDisk(SimPrng(epoch)), TableListener())
                table.merge(changes)
                table.new_epoch(epoch, 100)
        assert table.query("G", "T", 0) == 2
    assert place == 2
