"""The index, one law each: bytes, rolls, guards, cuts, stops, damage, queries."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqha.model.error import StoreError, UsageError
from rmqha.model.message import encode_properties
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.store.index.index import file_name
from rmqha.store.index.index_key import key_hash
from rmqha.store.index.index_service import WALK_COUNT, QueryResult
from rmqha.store.log.record import decode
from rmqha.store.meta import sidecar
from rmqha.store.meta.checkpoint import PROGRESS_PATH, SLOT_BYTES
from rmqha.store.store import Store
from tests.store.support import SMALL, commit_all, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer

T0 = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC."""
SLOTS, ENTRIES = SMALL.max_hash_slot_num, SMALL.max_index_num
ROOM = ENTRIES - 1
"""Entries that a file takes."""


def put(store: Store, number: int, keys: str = "", unique: str = "", tags: str = "", at_ms: int | None = None) -> int:
    """Append a record. Returns its offset."""
    pairs = {"KEYS": keys, "UNIQ_KEY": unique, "TAGS": tags}
    properties = encode_properties({name: value for name, value in pairs.items() if value})
    new = message(number, body=b"b%d" % number, properties=properties)
    return store.append(new, T0 + number * 1000 if at_ms is None else at_ms).phy_offset


def build(store: Store) -> None:
    commit_all(store)
    while store.index.build(1000):
        pass


def offsets(result: QueryResult) -> list[int]:
    return [decode(view).phy_offset for view in result.records]


def found(store: Store, key: str, **options: object) -> list[int]:
    return offsets(store.index.query("T", key, **options))  # type: ignore[arg-type]


def names(disk: SimDisk) -> list[str]:
    return disk.list("index")


def header(disk: SimDisk, place: int = -1) -> tuple[int, ...]:
    return struct.unpack(">4q2i", disk.read(f"index/{names(disk)[place]}")[:40])


def filled(disk: SimDisk, numbers: Iterable[int] = range(30)) -> tuple[Store, dict[str, list[int]]]:
    """A store whose records have two keys each; what must be found for each key."""
    store = open_store(disk)
    expected: dict[str, list[int]] = {}
    for number in numbers:
        offset = put(store, number, keys=f"k{number} g{number % 3}")
        for key in (f"k{number}", f"g{number % 3}"):
            expected.setdefault(key, []).insert(0, offset)
    build(store)
    return store, expected


def check(store: Store, expected: dict[str, list[int]]) -> None:
    while store.index.build(1 << 20):
        pass
    for key, wanted in expected.items():
        assert found(store, key) == wanted, key


# --- bytes ------------------------------------------------------------------------------------------------------------
def test_the_bytes_of_a_file() -> None:
    disk = sim_disk()
    store = open_store(disk)
    first = put(store, 0, keys="a  b", unique="U1", tags="tag", at_ms=T0 + 123)
    second = put(store, 1, keys="a", at_ms=T0 + 2122)
    build(store)
    assert names(disk) == ["20231114221320123"]
    data = disk.read("index/20231114221320123")
    assert len(data) == 40 + 4 * SLOTS + 20 * ENTRIES
    hashes = [key_hash("T", "U1"), key_hash("T", "a"), key_hash("T", "b"), key_hash("T", "tag", "T")]
    hashes.append(hashes[1])
    heads, entries = [0] * SLOTS, []
    for number, value in enumerate(hashes, 1):
        slot = value % SLOTS
        entries.append((value, first if number < 5 else second, 0 if number < 5 else 1, heads[slot]))
        heads[slot] = number
    used = sum(1 for head in heads if head)
    assert header(disk) == (T0 + 123, T0 + 2122, first, second, used, 6)
    assert struct.unpack(f">{SLOTS}i", data[40 : 40 + 4 * SLOTS]) == tuple(heads)
    assert list(struct.iter_unpack(">iqii", data[40 + 4 * SLOTS + 20 :][: 20 * 5])) == entries
    assert not any(data[40 + 4 * SLOTS + 20 * 6 :])


def test_a_full_file_is_followed_by_another_in_the_middle_of_a_record() -> None:
    """Its first entry counts its seconds from the end of the file before, as RocketMQ's does."""
    disk = sim_disk()
    store = open_store(disk)
    places = [put(store, number, keys=f"a{number} b{number} c{number}") for number in range(8)]
    build(store)
    assert names(disk) == ["20231114221320000", "20231114221327000"]
    assert header(disk, 0)[:4] == (T0, T0 + 7000, places[0], places[7])
    assert header(disk, 0)[5] == ENTRIES
    assert header(disk, 1)[:4] == (T0 + 7000, T0 + 7000, places[7], places[7])
    assert header(disk, 1)[5] == 2
    later = put(store, 8, keys="late", at_ms=T0 + 99_000)
    build(store)
    seconds = struct.unpack_from(">iqii", disk.read(f"index/{names(disk)[1]}"), 40 + 4 * SLOTS + 40)[2]
    assert (seconds, found(store, "late")) == (92, [later])
    for number, place in enumerate(places):
        assert [found(store, f"{letter}{number}") for letter in "abc"] == [[place]] * 3


def test_file_names_rise() -> None:
    assert file_name(T0 + 7, "") == "20231114221320007"
    assert file_name(T0 + 7, "20231114221320007") == "20231114221320008"
    assert file_name(T0 + 7, "20991231235959999") == "20991231235960000"
    assert file_name(-1, "") == "19700101000000000"
    assert file_name(1 << 62, "") == "99991231235959999"


@given(st.integers(0, 253_402_300_799_999))
@example(951_782_400_000)  # February 29, 2000
@example(951_868_799_999)
@example(4_107_542_400_000)  # March 1, 2100, behind no leap day
def test_a_file_name_is_a_moment(timestamp_ms: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    assert file_name(timestamp_ms, "") == f"{moment:%Y%m%d%H%M%S}{timestamp_ms % 1000:03d}".rjust(17, "0")


def test_records_that_are_not_indexed() -> None:
    disk = sim_disk()
    store = open_store(disk)
    put(store, 0)
    build(store)
    assert names(disk) == [], "a record without keys makes no file"
    for number, flag in enumerate((0, 4, 8, 12), 1):
        new = message(number, sys_flag=flag, properties=encode_properties({"KEYS": f"k{flag}"}))
        store.append(new, T0)
    build(store)
    assert [len(found(store, f"k{flag}")) for flag in (0, 4, 8, 12)] == [1, 1, 1, 0], "all but a rollback"
    assert store.index.position == store.max_phy_offset


# --- behind the queues ------------------------------------------------------------------------------------------------
def test_the_index_follows_the_queues_and_never_leads() -> None:
    disk = sim_disk()
    store = open_store(disk)
    places = [put(store, number, keys="k") for number in range(4)]
    store.set_confirm_offset(PhyOffset(places[3]))
    assert not store.index.build(1000), "nothing is dispatched yet"
    assert store.dispatch_behind_bytes == places[3]
    while store.dispatch(1000):
        pass
    assert (store.dispatch_behind_bytes, store.index.behind_bytes) == (0, places[3])
    assert store.index.build(1)
    assert store.index.position == places[1]
    assert found(store, "k") == places[2::-1], "a query lets the index take a step"
    assert store.index.behind_bytes == 0


def test_without_an_index_nothing_is_built_and_a_query_says_so() -> None:
    disk = sim_disk()
    store = open_store(disk, replace(SMALL, message_index_enable=False))
    put(store, 0, keys="k")
    build(store)
    assert (names(disk), store.index.behind_bytes, store.index.build(1000)) == ([], 0, False)
    with pytest.raises(UsageError, match="messageIndexEnable=false"):
        store.index.query("T", "k")
    store.close()
    later = open_store(disk)
    assert found(later, "k") == [0], "with it again what is missing is built"


def test_a_missing_index_is_built_behind_the_opening() -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    store.close()
    for name in names(disk):
        disk.remove(f"index/{name}")
    store = open_store(disk)
    assert store.index.behind_bytes == store.max_phy_offset
    check(store, expected)


@pytest.mark.parametrize("lost", [-1, -2])
def test_a_missing_last_file_is_built_again(lost: int) -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    store.close()
    for name in names(disk)[lost:]:
        disk.remove(f"index/{name}")
    check(open_store(disk), expected)


def test_a_clean_start_builds_nothing_again() -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    store.close()
    before = {name: disk.read(f"index/{name}") for name in names(disk)}
    store = open_store(disk)
    assert store.max_phy_offset - store.index.position < 400, "the last record at most"
    check(store, expected)
    assert {name: disk.read(f"index/{name}") for name in names(disk)} == before


# --- cuts and trims ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kept", [0, 1, 7, 11, 12, 20, 29])
def test_a_cut_takes_its_entries_along(kept: int) -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    end = expected[f"k{kept}"][0]
    store.truncate(PhyOffset(end))
    left = {key: [place for place in places if place < end] for key, places in expected.items()}
    assert store.index.position == end
    check(store, left)
    for number in range(kept, 40):
        place = put(store, number, keys=f"k{number} g{number % 3}")
        for key in (f"k{number}", f"g{number % 3}"):
            left.setdefault(key, []).insert(0, place)
    build(store)
    check(store, left)
    fresh, _ = filled(sim_disk(), range(40))
    for place, name in enumerate(names(disk)[:-1]):
        whole = disk.read(f"index/{name}")
        assert struct.unpack(">2q2i", whole[16:40]) == tuple(list(fresh.index.files)[place].header)[2:]


def test_old_files_go_with_the_log_but_never_the_last() -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    last = names(disk)[-1]
    assert store.index.files.trim(0) == []
    gone = store.index.files.trim(expected["k15"][0])
    assert [file.path for file in gone] == [f"index/{names(disk)[0]}"]
    assert [file.path for file in store.index.files.trim(1 << 40)] == [f"index/{name}" for name in names(disk)[1:-1]]
    assert [file.path for file in store.index.files] == [f"index/{last}"]


def test_a_log_that_is_set_aside_takes_its_index_along() -> None:
    disk = sim_disk()
    store, _ = filled(disk)
    old = names(disk)
    store.restart_at(PhyOffset(40960))
    assert (names(disk), disk.list("replaced-1/index")) == ([], old)
    assert (found(store, "k1"), store.index.position) == ([], 40960)
    place = put(store, 50, keys="k1")
    build(store)
    assert found(store, "k1") == [place]


# --- stops ------------------------------------------------------------------------------------------------------------
def test_a_kill_at_every_write_leaves_every_key_findable() -> None:
    """And none twice: the entries are those that an undisturbed life makes."""
    undisturbed = sim_disk()
    plain, expected = filled(undisturbed)
    entries = [file.entry(number) for file in plain.index.files for number in range(1, file.header.index_count)]
    stop = 0
    while True:
        disk = sim_disk(stop)
        store, _ = filled(disk, range(5))
        for number in range(5, 30):
            put(store, number, keys=f"k{number} g{number % 3}")
        commit_all(store)
        store.sync()
        stop += 1
        disk.stop_after = disk.operations + stop
        try:
            while store.index.build(700):
                pass
        except DiskStopped:
            pass  # the stop that was asked for; without one all places have been tried
        else:
            break
        disk.crash(power_loss=False)
        store = open_store(disk)
        assert not any("damaged" in line or "anew" in line for line in store.recovery.lines), store.recovery.lines
        build(store)
        check(store, expected)
        after = [file.entry(number) for file in store.index.files for number in range(1, file.header.index_count)]
        assert [entry[:2] for entry in after] == [entry[:2] for entry in entries], stop
        assert {name: disk.read(f"index/{name}") for name in names(disk)} == {
            name: undisturbed.read(f"index/{name}") for name in names(undisturbed)
        }
    assert stop > 40


def test_what_was_synced_survives_a_loss_of_power() -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    store.sync()
    due = [store.index.sync_due]
    store.index.sync()
    assert [*due, store.index.sync_due] == [True, False]
    store.append(message(99), T0 + 99_000)
    commit_all(store)
    store.sync()  # what is durable is saved with the store's marks
    whole = names(disk)[:-1]
    disk.crash(power_loss=True)
    store = open_store(disk)
    assert names(disk) == whole
    assert [line for line in store.recovery.lines if line.startswith("index/")] == [
        f"index/{file_name(T0 + 23_000, '')} may miss what was written before the last stop;"
        " it and the index files behind it were dropped and are made anew."
    ]
    assert 0 < store.index.position < store.max_phy_offset
    commit_all(store)
    check(store, expected)


def test_a_cut_before_a_loss_of_power_leaves_no_changed_file_behind() -> None:
    for seed in range(40):
        disk = sim_disk(seed)
        store, expected = filled(disk)
        store.sync()
        store.index.sync()
        store.append(message(98), T0 + 98_000)
        commit_all(store)
        store.sync()
        end = expected["k9"][0]
        store.truncate(PhyOffset(end))
        left = {key: [place for place in places if place < end] for key, places in expected.items()}
        for number in range(9, 24):
            put(store, number + 100, keys=f"n{number}")
        build(store)
        store.sync()
        disk.crash(power_loss=True)
        store = open_store(disk)
        commit_all(store)
        for key, wanted in left.items():
            assert found(store, key) == wanted


def test_a_full_disk_stops_the_index_and_nothing_else() -> None:
    disk, trace = sim_disk(), RecordingTracer()
    store = open_store(disk, tracer=trace)
    for number in range(12):
        put(store, number, keys=f"k{number} l{number}")
    commit_all(store)
    disk.capacity_bytes = disk.used_bytes + 400
    assert not store.index.build(1 << 20)
    assert trace.names().count("index_stopped") == 1
    with pytest.raises(StoreError, match=r"the index of keys ends at 0: sim/index/2.* No space left"):
        store.index.query("T", "k1")
    assert store.index.has_failed
    place = put(store, 12, keys="k12")
    commit_all(store)
    disk.capacity_bytes = None
    assert not store.index.build(1 << 20)
    store.index.retry()
    check(store, {"k0": [0], "k12": [place]})


def test_a_write_that_failed_is_taken_back_before_the_next() -> None:
    disk = sim_disk()
    store, expected = filled(disk, range(8))
    for number in range(8, 11):
        place = put(store, number, keys=f"k{number} g{number % 3}")
        expected[f"k{number}"] = [place]
        expected[f"g{number % 3}"].insert(0, place)
    commit_all(store)
    files = store.index.files
    file = list(files)[-1]
    region, writes = file.region, 0

    class Failing:
        size_bytes = region.size_bytes

        def write(self, position: int, data: bytes) -> None:
            nonlocal writes
            writes += 1
            if writes == 4:
                raise OSError(errno.EIO, "Input/output error")
            region.write(position, data)

        def __getattr__(self, name: str) -> object:
            return getattr(region, name)

    file._region = Failing()  # type: ignore[assignment]
    assert not store.index.build(1 << 20)
    store.index.retry()
    check(store, expected)


@pytest.mark.parametrize("power_loss", [False, True])
def test_marks_of_an_older_release_say_nothing_of_an_index(power_loss: bool) -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    store.index.sync()
    store.sync()
    disk.crash(power_loss=power_loss)
    slots = disk.read(PROGRESS_PATH)
    older = b""
    for at in range(0, len(slots), SLOT_BYTES):
        size = int.from_bytes(slots[at : at + 2], "big")
        fields = sidecar.decode(slots[at + 2 : at + 2 + size], "") if size else {}
        fields.pop("index", None)
        data = sidecar.encode(fields) if size else b""
        older += (len(data).to_bytes(2, "big") + data).ljust(SLOT_BYTES, b"\0")
    disk.write_atomic(PROGRESS_PATH, older)
    before = names(disk)
    store = open_store(disk)
    assert names(disk) == ([] if power_loss else before)
    commit_all(store)
    check(store, expected)


def test_an_index_that_another_program_left_by_a_kill_is_not_trusted() -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    store.sync()
    region = disk.map("checkpoint", 4096)
    region.write(0, (T0 + 1).to_bytes(8, "big"))
    disk.remove(f"index/{names(disk)[0]}")
    disk.crash(power_loss=False)
    store = open_store(disk)
    assert names(disk) == []
    check(store, expected)


# --- damage -----------------------------------------------------------------------------------------------------------
def damaged_at(disk: SimDisk, place: int, at: int, data: bytes) -> str:
    path = f"index/{names(disk)[place]}"
    old = disk.read(path)
    disk.write_atomic(path, old[:at] + data + old[at + len(data) :])
    return path


@pytest.mark.parametrize(
    ("at", "data", "sentence"),
    [
        (36, b"\x7f\0\0\0", "at byte 36: expected an index count from 1 to 24, found 2130706432"),
        (36, b"\xff\xff\xff\xff", "at byte 36: expected an index count from 1 to 24, found -1"),
        (32, b"\0\0\1\0", "at byte 32: expected up to 23 slots in use, found 256"),
        (16, b"\x70", "at byte 16: expected offsets that rise from 0, found 8070450532247928832 and 1157"),
        (0, b"\xff" * 8, "at byte 0: expected times from 0, found -1 and 1700000011000"),
        (24, b"\0\0\0\0\0\0\5\0", "at byte 536: expected the header's last offset 1280, found 1157"),
    ],
)
def test_a_damaged_header_costs_the_file_and_those_behind_it(at: int, data: bytes, sentence: str) -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    store.close()
    path = damaged_at(disk, 0, at, data)
    store = open_store(disk)
    (line,) = [line for line in store.recovery.lines if line.startswith("index/")]
    assert line == f"{path} {sentence}; it and the index files behind it were dropped and are made anew."
    assert names(disk) == []
    check(store, expected)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_count_that_hides_entries_costs_the_last_file(lost: int) -> None:
    """A record has two keys: without its last entry the header's last offset is still right."""
    disk = sim_disk()
    store, expected = filled(disk)
    store.close()
    count = header(disk)[5]
    assert count < 24, "the last file is not full"
    path = damaged_at(disk, -1, 36, (count - lost).to_bytes(4, "big"))
    store = open_store(disk)
    (line,) = [line for line in store.recovery.lines if line.startswith("index/")]
    assert line.startswith(f"{path} at byte ") and line.endswith("were dropped and are made anew.")
    check(store, expected)


def test_other_sizes_and_names() -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    store.close()
    path = f"index/{names(disk)[1]}"
    disk.write_atomic(path, disk.read(path)[:100])
    disk.write_atomic("index/notes.txt", b"x")
    store = open_store(disk)
    size = 40 + 4 * SLOTS + 20 * ENTRIES
    lines = [line for line in store.recovery.lines if line.startswith("index/")]
    assert lines[0] == "index/notes.txt is not one of the store's files and is left alone."
    assert lines[1].startswith(f"{path} at byte 100: expected {size} bytes, found 100 bytes; it and")
    assert len(names(disk)) == 2
    check(store, expected)
    assert disk.exists("index/notes.txt")


@pytest.mark.parametrize("field", [0, 4, 16])
def test_damage_inside_is_met_by_the_query_that_walks_over_it(field: int) -> None:
    disk, trace = sim_disk(), RecordingTracer()
    store, expected = filled(disk)
    store.close()
    slot = key_hash("T", "g1") % SLOTS
    data = disk.read(f"index/{names(disk)[0]}")
    head = struct.unpack_from(">i", data, 40 + 4 * slot)[0]
    at = 40 + 4 * SLOTS + 20 * head + field
    wrong = struct.unpack_from(">i", data, at)[0] ^ 0x8011
    damaged_at(disk, 0, at, struct.pack(">i", wrong))
    store = open_store(disk, tracer=trace)
    with pytest.raises(StoreError, match=r"index/\d+.*: expected .*, found .*made anew, ask again later"):
        for key in expected:
            store.index.query("T", key)
    assert trace.names().count("index_dropped") == 1
    check(store, expected)


# --- queries ----------------------------------------------------------------------------------------------------------
def test_a_query_gives_the_newest_first_up_to_sixty_four() -> None:
    store = open_store(sim_disk())
    places = [put(store, number, keys="hot", unique=f"U{number}", tags="tag") for number in range(80)]
    put(store, 80, keys="tag")
    build(store)
    assert found(store, "hot") == places[:15:-1]
    assert found(store, "hot", max_count=3) == places[:76:-1]
    assert found(store, "hot", max_count=0) == []
    assert found(store, "U7", index_type="U") == [places[7]]
    assert found(store, "U7") == [places[7]], "an older client names no type"
    assert found(store, "hot", index_type="U") == []
    assert found(store, "tag", index_type="T") == places[:15:-1]
    assert len(found(store, "tag")) == 1
    assert offsets(store.index.query("Other", "hot")) == []
    result = store.index.query("T", "none")
    assert (result.last_timestamp_ms, result.last_phy_offset) == (T0 + 80_000, store.index.files.end_offset)


def test_times_are_those_of_the_records() -> None:
    store = open_store(sim_disk())
    places = [put(store, number, keys=f"k{number % 4} x", at_ms=T0 + number * 700) for number in range(40)]
    build(store)
    for low, high in ((0, 39), (3, 3), (10, 30), (11, 12), (0, 0), (39, 39)):
        begin, end = T0 + low * 700, T0 + high * 700
        assert found(store, "x", begin_ms=begin, end_ms=end) == places[low : high + 1][::-1]
        assert found(store, "x", begin_ms=begin + 1, end_ms=end - 1) == places[low + 1 : high][::-1]
    assert found(store, "x", begin_ms=T0 + 40 * 700) == []
    assert found(store, "x", end_ms=T0 - 1) == []


def test_a_key_that_collides_is_not_given() -> None:
    """ "Aa" and "BB" have one hash."""
    store = open_store(sim_disk())
    first, second = put(store, 0, keys="Aa"), put(store, 1, keys="BB")
    build(store)
    assert key_hash("T", "Aa") == key_hash("T", "BB")
    assert (found(store, "Aa"), found(store, "BB")) == ([first], [second])


def test_a_record_with_a_key_twice_is_given_once() -> None:
    store = open_store(sim_disk())
    place = put(store, 0, keys="k k", unique="k")
    build(store)
    assert found(store, "k") == [place]


def test_a_search_gives_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WALK_COUNT > 1000
    monkeypatch.setattr("rmqha.store.index.index_service.WALK_COUNT", 5)
    store = open_store(sim_disk(), replace(SMALL, max_hash_slot_num=1))
    place = put(store, 0, keys="old")
    for number in range(1, 5):
        put(store, number, keys="new")
    build(store)
    assert found(store, "old") == [place]
    put(store, 5, keys="new")
    build(store)
    result = store.index.query("T", "old")
    assert (result.records, result.is_complete) == ([], False)


def test_hits_that_are_gone_or_not_committed_are_not_given() -> None:
    disk = sim_disk()
    store, expected = filled(disk)
    end = expected["k20"][0]
    store._dispatch_service.position = end
    assert found(store, "g0") == [place for place in expected["g0"] if place < end]
