"""Stores of one group compared offline: what proves that it may be switched, and what forbids it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.migration import Migration, MigrationTarget, check, common_history, give_epochs
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import UsageError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import NewMessage
from rmqha.store.meta.epoch_file import EpochFile
from rmqha.store.store import Store
from tests.store.support import HOST, SMALL
from tests.support.tracer import RecordingTracer

LOG_FILE = "commitlog/00000000000000000000"


def append(store: Store, count: int, body: bytes = b"b" * 300) -> None:
    for number in range(count):
        store.append(NewMessage("T", number % 2, body, b"", 1000 + number, HOST, HOST), 2000 + number)
    store.set_confirm_offset(store.max_phy_offset)


def make(path: Path, count: int, epoch: int = 0, config: StoreConfig = SMALL) -> Path:
    """A store with `count` messages that was stopped in order."""
    store = Store.open(HostDisk(path), config, RecordingTracer())
    if epoch:
        store.append_epoch(Epoch(epoch), store.max_phy_offset)
    append(store, count)
    store.close()
    return path


def copied(source: Path, name: str) -> Path:
    return Path(shutil.copytree(source, source.parent / name))


def compared(*paths: Path, target: MigrationTarget = MigrationTarget.CONTROLLER) -> Migration:
    return check([HostReadDisk(path) for path in paths], target, lambda done, total: None)


def said(found: Migration) -> str:
    return "\n".join(f"{item.words}; {item.to_do}" for member in found.members for item in member.problems)


def test_equal_logs_may_be_switched_both_ways(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 30)
    b = copied(a, "b")
    for target in MigrationTarget:
        found = compared(a, b, target=target)
        assert found.is_safe, said(found)
        assert [member.same_until for member in found.members] == [found.reference.end_offset] * 2


def test_a_shorter_log_is_safe_and_the_longest_is_named(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 5)
    b = make(copied(a, "b"), 20)
    found = compared(a, b)
    assert found.is_safe, said(found)
    assert found.reference.label == str(b)
    assert found.members[0].same_until == found.members[0].end_offset < found.reference.end_offset


def test_a_shorter_log_that_controllers_may_know_must_follow_first(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 5)
    b = make(copied(a, "b"), 20)
    (a / "brokerIdentity").write_text("DefaultCluster#broker-a#2")
    found = compared(a, b)
    short_bytes = found.reference.end_offset - found.members[0].end_offset
    assert f"it ends {short_bytes} bytes before {b}, and controllers that know it may elect it" in said(found)
    assert compared(a, b, target=MigrationTarget.STATIC).is_safe, "the configuration names the master there"
    (a / "brokerIdentity").unlink()
    (b / "brokerIdentity").write_text("DefaultCluster#broker-a#1")
    assert compared(a, b).is_safe, "the longest may be elected at once"


def test_logs_that_part_are_found_at_the_record(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 25)
    b = copied(a, "b")
    end = compared(a).reference.end_offset
    make(a, 3)
    store = Store.open(HostDisk(b), SMALL, RecordingTracer())
    append(store, 4, b"other" * 60)
    store.close()
    found = compared(a, b)
    assert not found.is_safe
    (shorter,) = [member for member in found.members if member is not found.reference]
    assert shorter.differs and shorter.same_until == end
    assert f"differs from that of {found.reference.label} from {end} on" in said(found)


def test_one_flipped_byte_anywhere_is_found(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 30)
    b = copied(a, "b")
    data = bytearray((b / LOG_FILE).read_bytes())
    data[1000] ^= 1
    (b / LOG_FILE).write_bytes(data)
    found = compared(a, b)
    assert not found.is_safe
    assert "differs" in said(found) or "at byte" in said(found)


def test_the_padding_of_a_blank_record_does_not_count(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 30)
    b = copied(a, "b")
    data = bytearray((b / LOG_FILE).read_bytes())
    data[-1] ^= 0xFF
    (b / LOG_FILE).write_bytes(data)
    assert compared(a).reference.end_offset > 2 * len(data)
    found = compared(a, b)
    assert found.is_safe, said(found)


def test_a_rotten_record_of_the_longest_log_is_no_proof(tmp_path: Path) -> None:
    """Both copies have the same wrong byte: only the CRC tells."""
    a = make(tmp_path / "a", 30)
    data = bytearray((a / LOG_FILE).read_bytes())
    data[120] ^= 1
    (a / LOG_FILE).write_bytes(data)
    found = compared(a, copied(a, "b"))
    assert not found.is_safe and "rmqha fsck" in said(found)


def test_a_store_in_use_or_not_stopped_in_order_must_be_stopped_first(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 3)
    b = copied(a, "b")
    (b / "abort").write_text("17")
    found = compared(a, b)
    assert not found.is_safe and "did not stop in order" in said(found)
    (b / "abort").unlink()
    store = Store.open(HostDisk(b), SMALL, RecordingTracer())
    found = compared(a, b)
    store.close()
    assert "a broker runs on it" in said(found)


def test_a_replica_that_lost_power_must_follow_first(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 3)
    b = copied(a, "b")
    store = Store.open(HostDisk(b), SMALL, RecordingTracer())
    store.mark_unclean()
    store.close()
    assert "may have lost its end" in said(compared(a, b))


def test_logs_without_a_common_offset_prove_nothing(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 40)
    b = copied(a, "b")
    store = Store.open(HostDisk(b), SMALL, RecordingTracer())
    store.restart_at(PhyOffset(4096 * 50))
    append(store, 3)
    store.close()
    found = compared(a, b)
    assert "shares no offset with" in said(found)


def test_other_file_sizes_are_told(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 30)
    b = make(tmp_path / "b", 30, config=StoreConfig(mapped_file_size_commit_log=8192, max_message_size=3000))
    assert "one mappedFileSizeCommitLog for the group" in said(compared(a, b))


def test_an_empty_member_copies_and_harms_nobody(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 3)
    b = make(tmp_path / "b", 0)
    (b / "commitlog").mkdir()
    found = compared(a, b)
    assert found.is_safe and not found.needs_epochs and found.reference.label == str(a)


def test_what_is_no_store_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no message store"):
        compared(tmp_path)


# --- epochs -----------------------------------------------------------------------------------------------------------
def history_of(path: Path) -> EpochHistory:
    file = EpochFile(HostDisk(path))
    file.load(1 << 40)
    return file.history


def test_logs_without_epochs_get_one_in_common_and_need_no_copy_then(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 5)
    b = make(copied(a, "b"), 20)
    found = compared(a, b)
    assert found.needs_epochs
    history = common_history(found)
    for path, member in zip((a, b), found.members, strict=True):
        assert give_epochs(HostDisk(path), member, history)
    assert history_of(a) == history_of(b) == EpochHistory([EpochEntry(Epoch(0), PhyOffset(0))])
    again = compared(a, b)
    assert again.is_safe and not again.needs_epochs
    assert not give_epochs(HostDisk(a), again.members[0], common_history(again))


def give_all(found: Migration, history: EpochHistory, *paths: Path) -> None:
    """What `rmqha migrate` does to each member."""
    for path, member in zip(paths, found.members, strict=True):
        give_epochs(HostDisk(path), member, history)


def test_a_slave_that_joined_while_static_gets_the_masters_epochs(tmp_path: Path) -> None:
    """Its log came by the plain protocol, which carries no epochs; the bytes before the first entry are covered too."""
    a = make(make(tmp_path / "a", 4), 10, epoch=3)
    b = make(copied(a, "b"), 0)
    EpochFile(HostDisk(b)).replace(EpochHistory())
    found = compared(a, b)
    assert found.is_safe and found.needs_epochs
    history = common_history(found)
    assert [entry.epoch for entry in history] == [0, 3]
    give_all(found, history, a, b)
    assert not compared(a, b).needs_epochs
    assert history_of(b) == history


def test_an_election_that_one_member_alone_heard_of_leads_to_no_cut(tmp_path: Path) -> None:
    """A hand-over in the last moments, then messages while the group was static: one member's epochs say that it wrote
    them under the last epoch, the other's under the one before."""
    a = make(tmp_path / "a", 5, epoch=2)
    b = copied(a, "b")
    end = compared(a, b).reference.end_offset
    EpochFile(HostDisk(b)).replace(
        EpochHistory([EpochEntry(Epoch(2), PhyOffset(0)), EpochEntry(Epoch(3), PhyOffset(end))])
    )
    for path in (a, b):
        make(path, 4)
    found = compared(a, b)
    assert found.is_safe and found.needs_epochs
    history = common_history(found)
    assert [entry.epoch for entry in history] == [2, 3]
    give_all(found, history, a, b)
    assert history_of(a) == history_of(b) == history
    assert not compared(a, b).needs_epochs


def test_members_with_the_same_epochs_need_nothing(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 5, epoch=2)
    b = copied(a, "b")
    make(a, 3)
    found = compared(a, b)
    assert found.is_safe and not found.needs_epochs and found.reference.label == str(a)


def test_a_table_that_ends_apaches_broker_forbids_it(tmp_path: Path) -> None:
    a = make(tmp_path / "a", 3)
    (a / "config").mkdir(exist_ok=True)
    (a / "config" / "consumerOffset.json").write_bytes(b'{"rmqhaOffsetVersions":{"T@G":{0:"1:2"}}}')
    found = compared(a, target=MigrationTarget.STATIC)
    assert not found.is_safe
    assert "config/consumerOffset.json has integer keys without quotes in rmqhaOffsetVersions" in said(found)
    assert f"rmqha fsck --repair {a}" in said(found)
