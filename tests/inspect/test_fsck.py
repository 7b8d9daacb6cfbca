"""fsck: sound stores are called sound, damage is found and named, and a repair keeps every byte that it changes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.finding import FindingKind, Severity
from rmqha.inspect.fsck_repair import RepairOptions, repair
from rmqha.model.error import StoreError, UsageError
from rmqha.store.log.record import BLANK, MAGIC_BLANK
from rmqha.store.store import Store
from tests.golden.reader import manifest
from tests.store.damage.damaged import (
    NO_CHOICES,
    OWN,
    OWN_CHOICES,
    FailingDisk,
    contents,
    fsck,
    left,
    make_own,
    mend,
    records,
    unsaved_changes,
    with_cut,
)
from tests.store.support import commit_all, message, unpack
from tests.support.tracer import RecordingTracer

HARMLESS = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/T/0/00000000000000000000"
UNPROTECTED = (range(16, 20), range(36, 84))
"""Bytes of a record that no checksum covers and that nothing else repeats: flag, sysFlag, times, hosts and counters."""
FORMLESS = ("lock", "abort", "abort.bak", "rmqha.reserve", "compaction/position-checkpoint")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("golden")
    for archive in ("n0", "n1", "n0-killed", "mini-v6-v2-propcrc"):
        unpack(archive, target)
    return target


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own") / "store"
    make_own(root)
    return root


@pytest.fixture
def own(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "store")


def change(root: Path, path: str, at: int, data: bytes) -> None:
    content = bytearray((root / path).read_bytes())
    content[at : at + len(data)] = data
    (root / path).write_bytes(content)


# --- sound stores -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["n0", "n0-killed"])
def test_the_golden_stores_are_sound(golden: Path, name: str) -> None:
    before = contents(golden / name)
    report = fsck(golden / name)
    assert report.faults == []
    assert report.end_offset == report.store.committed_end == manifest()["maxPhyOffset"]
    assert contents(golden / name) == before


def test_ten_messages_are_not_in_the_index_of_the_golden_replica_that_was_killed_once(golden: Path) -> None:
    """RocketMQ itself lost them: no query by key finds these ten on n1."""
    (fault,) = fsck(golden / "n1").faults
    assert (fault.kind, fault.severity) == (FindingKind.INDEX, Severity.WARNING)
    assert fault.expected == "the entries of 10 records from 1626082 to 2024698"


@pytest.mark.parametrize("name", ["plain", "propcrc"])
def test_both_record_versions_and_ipv6_hosts_are_sound(golden: Path, name: str) -> None:
    report = fsck(golden / name)
    assert (report.faults, report.record_count) == ([], 64)


def test_a_store_of_ours_is_sound_and_stays_as_it_is(own: Path) -> None:
    before = contents(own)
    report = fsck(own)
    assert (report.findings, report.record_count) == ([], 60)
    assert contents(own) == before


def test_an_index_that_is_behind_after_a_stop_is_no_finding(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.store.index.index_service.CLOSE_LIMIT_BYTES", -1)
    store = Store.open(HostDisk(own), OWN, RecordingTracer())
    for number in range(20):
        store.append(message(number), 1_800_000_000_000 + number)
    commit_all(store)
    store.close()
    report = fsck(own)
    assert report.store.indexed_end < report.store.dispatched_end
    assert report.faults == []


def test_what_a_running_broker_leaves_beside_the_store_is_no_finding(own: Path) -> None:
    (own / "rmqha.probe").write_bytes(bytes(4096))
    for name in ("rmqha.deleted", "rmqha.cut-1", "replaced-1"):
        (own / name).mkdir()
        (own / name / "x").write_bytes(b"x")
    assert fsck(own).findings == []


def test_a_repair_of_a_sound_store_does_nothing(own: Path) -> None:
    before = contents(own)
    outcome = mend(own)
    assert (outcome.actions, outcome.directory, contents(own)) == ([], "", before)


# --- a store in use ---------------------------------------------------------------------------------------------------
def test_a_store_in_use_is_sound_while_it_moves_and_is_not_repaired(own: Path) -> None:
    store = Store.open(HostDisk(own), OWN, RecordingTracer())
    for number in range(100, 130):
        store.append(message(number, body=b"u" * 300), 1_800_000_000_000 + number)
        if number % 3 == 0:
            commit_all(store)
        report = fsck(own)
        assert report.store.live
        assert report.faults == []
        assert report.end_offset <= store.confirm_offset
    before = contents(own)
    with pytest.raises(UsageError, match="in use by a running broker: stop it"):
        mend(own)
    assert contents(own) == before
    store.close()
    assert fsck(own).faults == []


def test_damage_in_a_store_in_use_is_found(own: Path) -> None:
    store = Store.open(HostDisk(own), OWN, RecordingTracer())
    change(own, LOG, 88, b"\xff")
    assert [(fault.kind, fault.path) for fault in fsck(own).faults] == [(FindingKind.LOG_DAMAGE, LOG)]
    store.close()


def test_a_killed_store_is_sound_and_says_so(own: Path) -> None:
    store = Store.open(HostDisk(own), OWN, RecordingTracer())
    store.append(message(99), 1_800_000_000_000)
    commit_all(store)
    killed = shutil.copytree(own, own.with_name("killed"))
    store.close()
    report = fsck(killed)
    assert report.faults == []
    assert any("was killed or lost power" in finding.found for finding in report.findings)


# --- each kind of damage ----------------------------------------------------------------------------------------------
def test_a_bad_record_with_good_ones_behind_it_is_not_cut_without_a_choice(own: Path) -> None:
    before = records(own)
    places = sorted(before)
    at = places[10]
    change(own, LOG, at + 90, b"\xee\xee")
    damaged = contents(own)
    report = fsck(own)
    (fault,) = report.faults
    assert (fault.kind, fault.path, fault.at, fault.severity) == (FindingKind.LOG_DAMAGE, LOG, at, Severity.ERROR)
    assert fault.expected.startswith("a body with CRC")
    assert f"bytes {at} to {places[11]} of the log back from another replica" in fault.advice
    assert f"--cut-at {at}" in fault.advice
    outcome = mend(own)
    assert (outcome.actions, contents(own)) == ([], damaged)
    outcome = mend(own, RepairOptions(cut_at=at))
    assert outcome.after.faults == []
    assert records(own) == {place: data for place, data in before.items() if place < at}
    assert unsaved_changes(own, damaged) == []
    store = Store.open(HostDisk(own), OWN, RecordingTracer())
    assert store.unclean, "committed records are gone: it must follow a master first"
    assert store.max_phy_offset == at
    store.close()


def test_a_cut_must_be_asked_for_at_a_record_and_not_behind_damage(own: Path) -> None:
    places = sorted(records(own))
    with pytest.raises(UsageError, match="nothing has to be cut"):
        mend(own, RepairOptions(cut_at=places[3]))
    change(own, LOG, places[10] + 90, b"\xee\xee")
    before = contents(own)
    with pytest.raises(UsageError, match="is no record's start"):
        mend(own, RepairOptions(cut_at=places[3] + 1))
    with pytest.raises(UsageError, match="first damage at"):
        mend(own, RepairOptions(cut_at=places[12]))
    assert contents(own) == before


def test_garbage_behind_the_end_is_zeroed_and_kept(own: Path) -> None:
    end = fsck(own).end_offset
    path = f"commitlog/{end - end % 16384:020}"
    change(own, path, end % 16384, b"garbage")
    before = contents(own)
    (fault,) = fsck(own).faults
    assert (fault.kind, fault.path, fault.at) == (FindingKind.LOG_TAIL, path, end % 16384)
    outcome = mend(own)
    assert outcome.after.faults == []
    assert contents(own)[path][end % 16384 :].count(0) == 16384 - end % 16384
    assert unsaved_changes(own, before) == []
    assert not Store.open(HostDisk(own), OWN, RecordingTracer()).unclean


def test_files_behind_the_end_are_set_aside(own: Path) -> None:
    files = sorted(path.name for path in (own / "commitlog").iterdir())
    behind = f"commitlog/{int(files[-1]) + 16384:020}"
    (own / behind).write_bytes(b"\x01" + bytes(16383))
    before = contents(own)
    assert [(fault.kind, fault.path) for fault in fsck(own).faults] == [(FindingKind.LOG_TAIL, behind)]
    assert mend(own).after.faults == []
    assert not (own / behind).exists()
    assert unsaved_changes(own, before) == []


def test_a_hole_in_the_run_is_damage(own: Path) -> None:
    (own / "commitlog" / f"{16384:020}").unlink()
    kinds = {(fault.kind, fault.path) for fault in fsck(own).faults}
    assert (FindingKind.LOG_DAMAGE, LOG) in kinds
    outcome = mend(own, RepairOptions(cut_at=16384))
    assert left(outcome.after) == []
    assert outcome.after.end_offset == 16384


def test_a_file_that_ends_in_its_blank_record_is_completed(own: Path) -> None:
    content = (own / LOG).read_bytes()
    blank_at = max(at for at in range(16384 - 7) if BLANK.unpack_from(content, at) == (16384 - at, MAGIC_BLANK))
    (own / LOG).write_bytes(content[: blank_at + 9])
    assert {fault.kind for fault in fsck(own).faults} == {FindingKind.LOG_SIZE, FindingKind.LOG_DAMAGE}
    assert mend(own).after.faults == []
    assert (own / LOG).read_bytes()[:blank_at] == content[:blank_at]


def test_a_record_in_another_queue_than_it_says_needs_a_choice(own: Path) -> None:
    at = sorted(records(own))[10]
    change(own, LOG, at + 15, b"\x09")
    (fault,) = fsck(own).faults
    assert (fault.kind, fault.path, fault.at) == (FindingKind.LOG_DAMAGE, LOG, at + 12)
    before = contents(own)
    mend(own)
    assert contents(own) == before


def queue_of(root: Path) -> Callable[[], bytes]:
    return lambda: (root / QUEUE).read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: change(root, QUEUE, 45, b"\x7f"),
        lambda root: change(root, QUEUE, 40, bytes(20)),
        lambda root: (root / QUEUE).write_bytes(queue_of(root)()[:33]),
        lambda root: (root / QUEUE).unlink(),
        lambda root: shutil.rmtree(root / "consumequeue" / "T"),
        lambda root: shutil.rmtree(root / "consumequeue"),
        lambda root: change(root, QUEUE, 398, b"\x01"),
    ],
)
def test_a_damaged_queue_is_made_anew_from_the_log(own: Path, damage: Callable[[Path], None]) -> None:
    queues = {path: data for path, data in contents(own).items() if path.startswith("consumequeue/")}
    damage(own)
    before = contents(own)
    faults = fsck(own).faults
    assert faults
    assert {fault.kind for fault in faults} == {FindingKind.QUEUE}
    assert all(
        fault.path.startswith("consumequeue/T/") or fault.path.startswith("consumequeue/Other/") for fault in faults
    )
    assert mend(own, RepairOptions(queue_file_size_bytes=400)).after.faults == []
    now = {path: data for path, data in contents(own).items() if path.startswith("consumequeue/")}
    assert now == queues
    assert unsaved_changes(own, before) == []


def test_batch_queues_are_made_anew_as_rocketmq_wrote_them(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "n0", tmp_path / "n0")
    path = "batchconsumequeue/GoldBatchCQ/0/00000000000000000000"
    content = (root / path).read_bytes()
    change(root, path, 46 + 30, b"\x05")
    assert [(fault.kind, fault.path, fault.at) for fault in fsck(root).faults] == [(FindingKind.QUEUE, path, 46)]
    assert mend(root).after.faults == []
    assert (root / path).read_bytes() == content


@pytest.mark.parametrize("at", [36, 45, 541, 2059, 2063, 2071, 2095])
def test_a_byte_of_an_index_file_is_found(golden: Path, tmp_path: Path, at: int) -> None:
    root = shutil.copytree(golden / "n0", tmp_path / "n0")
    name = f"index/{sorted(path.name for path in (root / 'index').iterdir())[2]}"
    before = contents(root)
    change(root, name, at, bytes([before[name][at] ^ 0x40]))
    damaged = contents(root)
    faults = fsck(root).faults
    assert {(fault.kind, fault.path) for fault in faults} == {(FindingKind.INDEX, name)}
    outcome = mend(root)
    assert outcome.after.faults == []
    assert unsaved_changes(root, damaged) == []


def test_a_damaged_epoch_file_is_restored(own: Path) -> None:
    whole = (own / "epochFileCheckpoint").read_bytes()
    (own / "epochFileCheckpoint.bak").write_bytes(whole)
    (own / "epochFileCheckpoint").write_bytes(whole[:-3])
    before = contents(own)
    assert {fault.kind for fault in fsck(own).faults} == {FindingKind.EPOCHS}
    assert mend(own).after.faults == []
    assert (own / "epochFileCheckpoint").read_bytes() == whole
    assert unsaved_changes(own, before) == []


def test_a_checkpoint_beyond_the_log_is_lowered_and_the_replica_is_unclean(own: Path) -> None:
    change(own, "checkpoint", 32, b"\x00\x10")
    before = contents(own)
    faults = fsck(own).faults
    assert [(fault.kind, fault.at) for fault in faults] == [(FindingKind.CHECKPOINT, 32)]
    assert mend(own).after.faults == []
    assert unsaved_changes(own, before) == []
    store = Store.open(HostDisk(own), OWN, RecordingTracer())
    assert store.unclean
    store.close()


def test_a_table_comes_back_from_its_backup_and_an_identity_does_not(own: Path) -> None:
    (own / "config" / "topics.json").write_bytes(b'{"a":')
    (own / "brokerIdentity").write_bytes(b"nonsense")
    before = contents(own)
    assert {fault.kind for fault in fsck(own).faults} == {FindingKind.CONFIG, FindingKind.IDENTITY}
    outcome = mend(own)
    assert [fault.kind for fault in outcome.after.faults] == [FindingKind.IDENTITY]
    assert unsaved_changes(own, before) == []


OLD_OFFSETS = b"""{
	"dataVersion":{"counter":1,"stateVersion":2,"timestamp":3},
	"groupTopicMap":{"G":["T"]},
	"offsetTable":{"T@G":{0:7,1:8}},
	"rmqhaOffsetVersions":{"T@G":{0:"2:5",1:"2:6:reset"}},
	"rmqhaRemovedOffsets":{"U@G":{3:"2:4"}}
}"""


def test_queue_ids_without_quotes_are_found_and_quoted(own: Path) -> None:
    """Apache's broker ends on such a file and leaves an empty one."""
    path = own / "config" / "consumerOffset.json"
    path.write_bytes(OLD_OFFSETS)
    before = contents(own)
    (fault,) = fsck(own).faults
    assert fault.kind is FindingKind.CONFIG_KEYS and "rmqhaOffsetVersions, rmqhaRemovedOffsets" in fault.sentence
    outcome = mend(own)
    assert outcome.after.faults == [] and unsaved_changes(own, before) == []
    text = path.read_text()
    assert (
        '"offsetTable":{"T@G":{0:7,1:8}}' in text
        and '"rmqhaOffsetVersions":{"T@G":{"0":"2:5","1":"2:6:reset"}}' in text
    )


def test_the_highest_epoch_needs_the_operators_word(own: Path) -> None:
    (own / "rmqha.highestEpoch").write_bytes(b"?")
    assert [fault.kind for fault in mend(own).after.faults] == [FindingKind.HIGHEST_EPOCH]
    assert mend(own, RepairOptions(highest_epoch=7)).after.faults == []


def test_a_disk_that_fails_at_any_step_of_a_repair_loses_nothing(own: Path, tmp_path: Path) -> None:
    end = fsck(own).end_offset
    change(own, f"commitlog/{end - end % 16384:020}", end % 16384 + 5, b"garbage")
    change(own, QUEUE, 45, b"\x7f")
    change(own, "checkpoint", 32, b"\x00\x10")
    change(own, "rmqha.boot", 3, b"\xff")
    (own / "epochFileCheckpoint").write_bytes(b"")
    (own / "index" / sorted(path.name for path in (own / "index").iterdir())[0]).write_bytes(b"short")
    before, whole = contents(own), records(own)
    step = 0
    while True:
        step += 1
        root = shutil.copytree(own, tmp_path / f"step-{step}")
        disk = FailingDisk(root, step)
        try:
            repair(disk, HostReadDisk(root), NO_CHOICES)
        except StoreError as error:
            assert "Input/output error" in str(error)
        assert unsaved_changes(root, before) == []
        assert mend(root).after.faults == []
        assert records(root) == whole
        assert unsaved_changes(root, before) == []
        if not disk.failed:
            break
        shutil.rmtree(root)
    assert step > 15


# --- timers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "at", "data", "found"),
    [
        ("config/timercheck", 8, b"\xff", "config/timercheck at byte 8: expected a time or an offset from 0"),
        ("timerlog/00000000000000000000", 52 * 3, b"\x01", "at byte 156: expected a unit, or zeros behind"),
        ("timerlog/00000000000000000000", 52 * 3 + 4, b"\x01", "at byte 160: expected a position below 156"),
        ("timerwheel", 7, b"\x09", "timerwheel at byte 0: expected a time whose remainder by 1209600 is 0, found 9"),
    ],
)
def test_what_rocketmq_keeps_of_timers(
    golden: Path, tmp_path: Path, path: str, at: int, data: bytes, found: str
) -> None:
    root = shutil.copytree(golden / "n0", tmp_path / "n0")
    unpack("n0-timerwheel", tmp_path)
    report = fsck(root)
    assert report.faults == [] and not any(note.path.startswith("timer") for note in report.findings)
    change(root, path, at, data)
    (fault,) = fsck(root).faults
    assert fault.kind is FindingKind.TIMER and found in fault.sentence and fault.advice


# --- any byte of any file ---------------------------------------------------------------------------------------------
def meaningful(path: str, old: bytes, new: bytes, places: dict[int, bytes]) -> bool:
    """Whether fsck must find it: a file without a form, a number that could be another, or a text in a table."""
    if new == old or path in FORMLESS or path.startswith(("config/", "brokerIdentity", "timerlog")):
        return False
    if path == "checkpoint":
        return len(new) != len(old) or any(new[40:])
    if path.startswith("index/"):
        return len(new) != len(old)
    if path == "rmqha.progress":
        return len(new) != len(old)
    if path.startswith("consumequeue/") and len(new) == len(old):
        return not _is_before_dispatch(old, new, max(places))
    if not path.startswith("commitlog/") or len(new) != len(old):
        return True
    changed = [at for at in range(len(old)) if old[at] != new[at]]
    start = int(path.rpartition("/")[2])
    return any(_is_checked(start + at, places) for at in changed)


def _is_before_dispatch(old: bytes, new: bytes, newest: int) -> bool:
    """The log's newest record has no entry yet: the next start makes it."""
    changed = [at for at in range(0, len(old), 20) if old[at : at + 20] != new[at : at + 20]]
    return all(not any(new[at : at + 20]) and int.from_bytes(old[at : at + 8], "big") == newest for at in changed)


def _is_checked(position: int, places: dict[int, bytes]) -> bool:
    for place, data in places.items():
        if place <= position < place + len(data):
            at = position - place
            body_size = int.from_bytes(data[84:88], "big")
            body_end = 88 + body_size
            if data[36 + 3] & 0x30:
                return at < 16
            return at < body_end + 1 and not any(at in free for free in UNPROTECTED)
    return False


DAMAGE = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 1 << 20), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 20), st.just(0)),
    st.tuples(st.just("zero"), st.integers(0, 1 << 20), st.integers(1, 700)),
)


def applied(old: bytes, damage: tuple[str, int, int]) -> bytes:
    how, place, number = damage
    at = place % (len(old) + 1)
    content = bytearray(old)
    if how == "cut":
        return old[:at]
    if at < len(old):
        if how == "flip":
            content[at] ^= 1 << number
        else:
            content[at : at + number] = bytes(len(content[at : at + number]))
    return bytes(content)


def examine(source: Path, path: str, new: bytes, choices: RepairOptions) -> None:
    old = (source / path).read_bytes()
    with tempfile.TemporaryDirectory() as temporary:
        root = shutil.copytree(source, Path(temporary) / "store")
        places = records(root)
        (root / path).write_bytes(new)
        report = fsck(root)
        whole, before = records(root), contents(root)
        if meaningful(path, old, new, places):
            assert any(path.startswith(fault.path) for fault in report.faults) or path.startswith("commitlog/")
            assert report.faults
        chosen = with_cut(choices, report)
        outcome = mend(root, chosen)
        allowed = (FindingKind.OTHER,)
        assert [fault for fault in left(outcome.after) if fault.kind not in allowed] == []
        assert unsaved_changes(root, before) == []
        kept = whole if chosen.cut_at is None else {at: data for at, data in whole.items() if at < chosen.cut_at}
        now = records(root)
        assert {at: now.get(at) for at in kept} == kept


@settings(max_examples=60, suppress_health_check=HARMLESS)
@given(data=st.data())
def test_any_damage_is_found_named_and_mended(pristine: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(contents(pristine))))
    damage = data.draw(DAMAGE)
    examine(pristine, path, applied((pristine / path).read_bytes(), damage), OWN_CHOICES)


def test_a_file_that_ends_within_its_blank_record_is_completed_not_cut(pristine: Path) -> None:
    """`--cut-at` at the blank record, as fsck has told, is no error once nothing has to be cut."""
    path = "commitlog/00000000000000016384"
    examine(pristine, path, (pristine / path).read_bytes()[:16182], OWN_CHOICES)


@settings(max_examples=40, suppress_health_check=HARMLESS)
@given(data=st.data())
def test_any_byte_string_as_any_file_is_found_and_mended(pristine: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(contents(pristine))))
    examine(pristine, path, data.draw(st.binary(max_size=600)), OWN_CHOICES)


@settings(max_examples=30, suppress_health_check=HARMLESS)
@given(data=st.data())
def test_any_damage_to_a_store_of_rocketmq_is_found_and_mended(golden: Path, data: st.DataObject) -> None:
    source = golden / "propcrc"
    path = data.draw(st.sampled_from(sorted(contents(source))))
    choices = RepairOptions(file_size_bytes=16384, queue_file_size_bytes=200)
    examine(source, path, applied((source / path).read_bytes(), data.draw(DAMAGE)), choices)


def test_a_store_of_rocketmq_whose_newest_record_has_no_entry_is_sound(golden: Path) -> None:
    source = golden / "propcrc"
    newest = max(records(source))
    for path in (path for path in contents(source) if path.startswith("consumequeue/")):
        old = (source / path).read_bytes()
        at = next((at for at in range(0, len(old), 20) if int.from_bytes(old[at : at + 8], "big") == newest), None)
        if at is not None:
            new = old[:at] + bytes(20) + old[at + 20 :]
            assert not meaningful(path, old, new, records(source))
            examine(source, path, new, RepairOptions(file_size_bytes=16384, queue_file_size_bytes=200))
            return
    raise AssertionError("no queue has the newest record")
