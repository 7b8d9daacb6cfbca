"""Any byte string as any file of a store: it opens with a line, or one sentence names the file; nothing else."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.model.epoch import EpochHistory
from rmqha.model.error import StoreError, UsageError
from rmqha.model.identity import Identity
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.meta.identity_file import IdentityFile
from rmqha.store.store import Store
from tests.store.model import LogModel, check_queues, is_prefix
from tests.store.support import commit_all, log_bytes, message, open_store, sim_disk

TOPICS = b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"topicConfigTable":{"T":{"topicName":"T"}}}'


@cache
def lived() -> tuple[SimDisk, LogModel, EpochHistory]:
    """Several log files, two queues of two files, two epochs, everything flushed; it was killed."""
    disk, model = sim_disk(), LogModel()
    IdentityFile(disk).confirm(Identity("c", "b", BrokerId(1)))
    store = open_store(disk)
    store.accept_epoch(Epoch(2))
    for number in range(200):
        if number in (0, 100):
            store.append_epoch(Epoch(number // 100 + 1), store.max_phy_offset)
        new = message(number, queue_id=number % 2, body=b"x%d" % number)
        model.add(new, store.append(new, number * 100).store_timestamp_ms)
    commit_all(store)
    while store.index.build(1 << 20):
        pass
    store.sync()
    disk.write_atomic("config/topics.json", TOPICS)
    disk.crash(power_loss=False)
    return disk, model, store.epochs


def made() -> tuple[SimDisk, LogModel, EpochHistory]:
    """The same, for one test to spoil."""
    disk, model, epochs = lived()
    return disk.copy(SimPrng(1)), model.copy(), epochs


def files(disk: SimDisk, directory: str = "") -> Iterator[str]:
    for name in disk.list(directory):
        path = f"{directory}/{name}" if directory else name
        children = list(files(disk, path)) if disk._is_directory(path) else []
        yield from children or [path]


@cache
def paths() -> list[str]:
    return [path for path in files(lived()[0]) if path != "lock"]


QUEUE_OFFSET_AT = 20
"""In a record of the log."""


def replace(disk: SimDisk, path: str, content: bytes) -> None:
    disk.remove(path)
    disk.write_atomic(path, content)


def opened(disk: SimDisk, path: str) -> Store | None:
    """None if it was refused in one sentence that names the file, its directory or what it stands for."""
    try:
        IdentityFile(disk).read()
        return open_store(disk)
    except (StoreError, UsageError) as refusal:
        named = [path, *(path.rsplit("/", count)[0] for count in range(1, path.count("/") + 1))]
        assert any(name in str(refusal) for name in named), f"{path}: {refusal}"
        assert "\n" not in str(refusal)
        return None


def check(store: Store, path: str, model: LogModel, epochs: EpochHistory, damaged_from: int) -> None:
    """Nothing that stands before the damage is lost, and what is there is right."""
    found = log_bytes(store)
    if path.startswith("commitlog"):
        sure = model.whole(min(damaged_from, len(model.image)))
        assert found[:sure] == model.image[:sure]
        return
    assert found == model.image
    if not path.startswith("epochFileCheckpoint"):
        assert store.epochs == epochs
    else:
        assert is_prefix(store.epochs, epochs) or path == "epochFileCheckpoint"
    commit_all(store)
    try:
        check_queues(store, model)
    except StoreError as found:
        # after a kill only the newest entries are looked at: an older one is found when it is asked for
        assert path.startswith("consumequeue")
        assert path in str(found)


def spoilt(path: str, content: bytes) -> None:
    disk, model, epochs = made()
    old = disk.read(path)
    replace(disk, path, content)
    store = opened(disk, path)
    if store is None:
        return
    same = next(
        (at for at, (a, b) in enumerate(zip(old, content, strict=False)) if a != b), min(len(old), len(content))
    )
    check(store, path, model, epochs, int(path[-20:]) + same if path.startswith("commitlog") else 0)
    store.close()


@settings(max_examples=400)
@given(data=st.data())
def test_any_file_may_hold_anything(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(paths()))
    old = lived()[0].read(path)
    at = data.draw(st.integers(0, max(len(old) - 1, 0)))
    content = data.draw(
        st.one_of(
            st.binary(max_size=64),
            st.just(old[:at]),
            st.binary(min_size=1, max_size=16).map(lambda noise: old[:at] + noise + old[at + len(noise) :]),
            st.binary(min_size=1, max_size=16).map(lambda noise: old[:at] + noise + old[at:]),
            st.just(bytes(len(old))),
            st.sampled_from(paths()).map(lambda other: lived()[0].read(other)),
        )
    )
    spoilt(path, content)


def test_a_record_may_have_any_queue_offset() -> None:
    """The refusal named the queue, which is well, and not the record."""
    for path in paths():
        if path.startswith("commitlog"):
            old, start = lived()[0].read(path), 0
            while size := int.from_bytes(old[start : start + 4]):
                at = start + QUEUE_OFFSET_AT
                spoilt(path, old[:at] + b"\x01" + old[at + 1 :])
                start += size


def test_a_queue_may_have_the_file_of_another() -> None:
    """Its entries lead to whole records with the right queue offsets, and only the newest file is looked at."""
    spoilt("consumequeue/T/1/00000000000000000000", lived()[0].read("consumequeue/T/0/00000000000000000000"))


@pytest.mark.parametrize("path", paths())
def test_any_file_may_be_missing(path: str) -> None:
    disk, model, epochs = made()
    disk.remove(path)
    store = opened(disk, path)
    if store is not None:
        check(store, path, model, epochs, int(path[-20:]) if path.startswith("commitlog") else 0)


@pytest.mark.parametrize("path", paths())
def test_any_file_may_be_empty(path: str) -> None:
    spoilt(path, b"")


@pytest.mark.parametrize("path", paths())
def test_a_directory_may_stand_in_any_files_place(path: str) -> None:
    disk, model, epochs = made()
    disk.remove(path)
    disk.make_dirs(path)
    store = opened(disk, path)
    if store is not None:
        check(store, path, model, epochs, int(path[-20:]) if path.startswith("commitlog") else 0)


class Forbidding(SimDisk):
    """Refuses one path, as the system does without the right to it."""

    forbidden = ""
    number = errno.EACCES

    def _deny(self, path: str) -> None:
        if path == self.forbidden:
            raise OSError(self.number, "Permission denied")

    def size_bytes(self, path: str) -> int:
        self._deny(path)
        return super().size_bytes(path)

    def read(self, path: str) -> bytes:
        self._deny(path)
        return super().read(path)

    def exists(self, path: str) -> bool:
        self._deny(path)
        return super().exists(path)

    def list(self, path: str) -> list[str]:
        self._deny(path)
        return super().list(path)

    def map(self, path: str, size_bytes: int, *, create: bool = False, reserve: bool = True, durable: bool = True):  # type: ignore[no-untyped-def]
        self._deny(path)
        return super().map(path, size_bytes, create=create, reserve=reserve, durable=durable)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("path", [*paths(), "commitlog", "consumequeue", "consumequeue/T", "config", "index", ""])
def test_a_file_that_cannot_be_read_is_named(path: str, number: int) -> None:
    disk = made()[0]
    disk.__class__ = Forbidding
    assert isinstance(disk, Forbidding)
    disk.forbidden, disk.number = path or "nowhere", number
    opened(disk, path)


def test_a_strange_file_in_the_log_is_named() -> None:
    disk = made()[0]
    for name in ("x", "00000000000000000000.bak", "9" * 20):
        disk.write_atomic(f"commitlog/{name}", b"?")
    with pytest.raises(StoreError, match=f"commitlog/{'9' * 20} at byte 0: expected a multiple of mappedFileSize"):
        open_store(disk)
    disk.remove(f"commitlog/{'9' * 20}")
    lines = open_store(disk).recovery.lines
    for name in ("x", "00000000000000000000.bak"):
        assert f"commitlog/{name} is not one of the store's files and is left alone." in lines


@pytest.mark.parametrize("index", [1, 2])
def test_a_missing_log_file_in_the_middle_is_named_with_the_choices(index: int) -> None:
    disk = made()[0]
    disk.remove(f"commitlog/{index * 4096:020d}")
    with pytest.raises(StoreError) as refusal:
        open_store(disk)
    assert f"sim/commitlog at byte {index * 4096}: expected a file named {index * 4096:020d}" in str(refusal.value)
    assert "or remove this replica's store and let it copy the group's" in str(refusal.value)


def test_a_missing_first_log_file_is_a_shorter_log() -> None:
    """As after retention: it cannot be told apart."""
    disk, model, _ = made()
    disk.remove("commitlog/" + "0" * 20)
    store = open_store(disk)
    assert store.min_phy_offset == 4096
    assert log_bytes(store) == model.image[4096:]


@pytest.mark.parametrize("size", [0, 1, 700, 1599, 1601, 1620])
@pytest.mark.parametrize("file", [0, 1])
def test_a_queue_file_of_another_size_is_made_anew(file: int, size: int) -> None:
    disk, model, epochs = made()
    path = f"consumequeue/T/1/{file * 1600:020d}"
    image = {name: disk.read(name) for name in paths() if name.startswith("consumequeue")}
    replace(disk, path, image[path][:size].ljust(size, b"\xee"))
    store = open_store(disk)
    check(store, path, model, epochs, 0)
    assert {name: disk.read(name) for name in image} == image
    if image[path][size:].strip(b"\0"):
        said = (f"{path}: expected 1600 bytes from", f"{path} held {size} of 1600 bytes")
        assert any(line.startswith(said) for line in store.recovery.lines)


def test_a_missing_queue_is_made_anew() -> None:
    disk, model, epochs = made()
    for name in disk.list("consumequeue/T/1"):
        disk.remove(f"consumequeue/T/1/{name}")
    store = open_store(disk)
    assert "consumequeue: only 100 of 200 entries are there." in store.recovery.lines
    check(store, "consumequeue", model, epochs, 0)


def test_a_log_file_that_was_cut_short_keeps_what_is_there() -> None:
    disk, model, _ = made()
    last = sorted(path for path in paths() if path.startswith("commitlog"))[-2:]
    for path in reversed(last):
        if not any(disk.read(path)):
            disk.remove(path)
            continue
        replace(disk, path, disk.read(path)[:500])
        start = int(path[-20:])
        break
    store = open_store(disk)
    assert store.max_phy_offset == model.whole(start + 500)
    assert store.unclean
    assert PhyOffset(start) < store.max_phy_offset
