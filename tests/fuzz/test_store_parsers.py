"""Any bytes as any file of a store: one sentence that refuses them, or a line that says what was done about them."""

from __future__ import annotations

import re
from zlib import crc32

from hypothesis import assume, given
from hypothesis import strategies as st

from rmqha.model.error import StoreError
from rmqha.model.message import encode_properties
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.log.record import BadRecordError, decode, verify
from rmqha.store.meta import epoch_file, sidecar
from rmqha.store.meta.epoch_file import BadEpochFileError, parse
from rmqha.store.meta.identity_file import IdentityFile
from rmqha.store.meta.sidecar import BadSidecarError
from rmqha.store.meta.sidecar import decode as decode_sidecar
from tests.fuzz.budget import fuzz, only
from tests.store.support import SMALL, commit_all, log_bytes, message, open_store

FILES = (
    f"commitlog/{0:020d}",
    f"commitlog/{4096:020d}",
    f"consumequeue/T/0/{0:020d}",
    f"consumequeue/T/1/{0:020d}",
    "checkpoint",
    "epochFileCheckpoint",
    "epochFileCheckpoint.bak",
    "rmqha.boot",
    "rmqha.end",
    "rmqha.epochChecksum",
    "rmqha.epochs",
    "rmqha.highestEpoch",
    "rmqha.progress",
    "config/topics.json",
    "abort",
    "lock",
)
INDEX_SENTENCE = re.compile(
    r"index/\d+( at byte \d+)?: expected .+, found .+;|index/\d+ (may miss|speaks of) .+;", re.DOTALL
)
SENTENCE = re.compile(r"sim/[\w/.%-]+( at byte \d+: expected .+, found .+;| has .+;| cannot )", re.DOTALL)


def golden_disk(seed: int) -> SimDisk:
    """A store with two log files, two queues, epochs and all sidecars, stopped by a kill."""
    disk = SimDisk(SimPrng(seed))
    store = open_store(disk)
    for number in range(12):
        store.append(message(number, queue_id=number % 2, body=b"b%d" % number * 150), number * 1000)
        if number in (0, 5):
            store.append_epoch(Epoch(number + 1), PhyOffset(number and store.max_phy_offset))
    store.accept_epoch(Epoch(7))
    commit_all(store)
    store.sync()
    disk.write_atomic("config/topics.json", b'{"topicConfigTable":{"T":{"attributes":{}}}}')
    count, _, *entries = disk.read(epoch_file.PATH).split(b"\n")
    unchecked = b"\n".join([count, b"0", *entries])  # only then our own checksum counts
    disk.write_atomic(epoch_file.PATH, unchecked)
    sidecar.write(disk, epoch_file.CHECKSUM_PATH, {"crc32": crc32(unchecked)})
    return disk


@fuzz
@given(
    path=st.sampled_from(FILES),
    data=st.data(),
    power_loss=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_bytes_as_any_file(path: str, data: st.DataObject, power_loss: bool, seed: int) -> None:
    disk = golden_disk(seed)
    disk.crash(power_loss=power_loss)
    assume(disk.exists(path))  # rmqha.end is never synced: a loss of power may take it, or all its bytes
    old = disk.read(path)
    kind = data.draw(st.sampled_from(["flip", "splice", "replace", "resize"] if old else ["replace"]))
    if kind == "flip":
        for _ in range(data.draw(st.integers(1, 3))):
            disk.rot(path, data.draw(st.integers(0, len(old) - 1)), data.draw(st.integers(1, 255)))
    elif kind == "splice":
        at = data.draw(st.integers(0, len(old)))
        patch = data.draw(st.binary(min_size=1, max_size=64))
        disk.write_atomic(path, (old[:at] + patch + old[at + len(patch) :])[: len(old)])
    elif kind == "replace":
        disk.write_atomic(path, data.draw(st.binary(max_size=300)))
    else:
        disk.write_atomic(path, old[: data.draw(st.integers(0, len(old)))])
    try:
        store = open_store(disk)
    except StoreError as error:
        assert SENTENCE.match(str(error)), str(error)
        return
    assert all(line.endswith(".") for line in store.recovery.lines)
    with only(StoreError):
        commit_all(store)
        store.append(message(99), 10**6)
    for queue_id in (0, 1):
        low, high = store.queue_range("T", queue_id)
        for offset in range(low, high):
            with only(StoreError):
                store.pull("T", queue_id, offset, 1, 1000)
        with only(StoreError):
            store.offset_by_time("T", queue_id, 5000)
    assert len(log_bytes(store)) == store.max_phy_offset - store.min_phy_offset
    store.close()


@fuzz
@given(st.binary(max_size=400), st.integers(0, 2**40))
def test_records(data: bytes, phy_offset: int) -> None:
    with only(BadRecordError):
        decode(memoryview(data))
    with only(BadRecordError):
        verify(memoryview(data), 0, len(data), phy_offset)


@fuzz
@given(st.binary(max_size=200), st.integers(0, 150), st.sampled_from([7, 150]))
def test_damaged_records(patch: bytes, at: int, topic_size: int) -> None:
    store = open_store(SimDisk(SimPrng(1)), SMALL)
    store.append(message(topic="t" * topic_size, body=b"b" * 50), 1)
    good = log_bytes(store)
    bad = bytearray(good)
    bad[at : at + len(patch)] = patch
    with only(BadRecordError):
        decode(memoryview(bad))
    with only(BadRecordError):
        verify(memoryview(bad), 0, len(bad), 0)


@fuzz
@given(st.one_of(st.binary(max_size=200), st.text("0123456789-\n", max_size=60).map(str.encode)))
def test_epoch_files(data: bytes) -> None:
    with only(BadEpochFileError):
        parse(data)


@fuzz
@given(st.binary(max_size=100))
def test_sidecars(data: bytes) -> None:
    with only(BadSidecarError, StoreError):
        decode_sidecar(data, "x")


@fuzz
@given(st.one_of(st.binary(max_size=60), st.text("ab#19 ", max_size=20).map(str.encode)))
def test_identities(data: bytes) -> None:
    disk = SimDisk(SimPrng(1))
    disk.write_atomic("brokerIdentity", data)
    disk.write_atomic("brokerIdentity-temp", data)
    with only(StoreError):
        IdentityFile(disk).read()
    IdentityFile(disk).read_pending()


def keyed_disk(seed: int, clean: bool) -> tuple[SimDisk, dict[str, set[int]]]:
    """A store with three index files, and which records have which key."""
    disk = SimDisk(SimPrng(seed))
    store = open_store(disk)
    expected: dict[str, set[int]] = {}
    for number in range(30):
        keys = [f"k{number}", f"g{number % 3}"]
        properties = encode_properties({"KEYS": " ".join(keys)})
        done = store.append(message(number, properties=properties), number * 1000)
        for key in keys:
            expected.setdefault(key, set()).add(done.phy_offset)
    commit_all(store)
    while store.index.build(1000):
        pass
    store.sync()
    if clean:
        store.close()
    else:
        disk.crash(power_loss=False)
    return disk, expected


@fuzz
@given(
    place=st.integers(0, 2),
    data=st.data(),
    kind=st.sampled_from(["flip", "header", "splice", "replace", "resize"]),
    clean=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_bytes_as_an_index_file(place: int, data: st.DataObject, kind: str, clean: bool, seed: int) -> None:
    """Never a wrong message. What is seen to be damaged is named and made anew; the format has no checksum, so that a
    chain which a changed byte cut short may hide its older entries."""
    disk, expected = keyed_disk(seed, clean)
    names = disk.list("index")
    path = f"index/{names[place]}"
    old = disk.read(path)
    if kind in ("flip", "header"):
        disk.rot(
            path, data.draw(st.integers(0, 39 if kind == "header" else len(old) - 1)), data.draw(st.integers(1, 255))
        )
    elif kind == "splice":
        at = data.draw(st.integers(0, len(old)))
        patch = data.draw(st.binary(min_size=1, max_size=64))
        disk.write_atomic(path, (old[:at] + patch + old[at + len(patch) :])[: len(old)])
    elif kind == "replace":
        disk.write_atomic(path, data.draw(st.binary(max_size=len(old) + 40).filter(lambda new: len(new) != len(old))))
    else:
        disk.write_atomic(path, old[: data.draw(st.integers(0, len(old) - 1))])
    store = open_store(disk)
    lines = [line for line in store.recovery.lines if line.startswith("index/")]
    assert all(INDEX_SENTENCE.match(line) for line in lines), lines
    if kind in ("replace", "resize"):
        assert lines and lines[0].startswith(path)
    commit_all(store)
    while store.index.build(1000):
        pass
    for key, wanted in expected.items():
        try:
            found = {decode(view).phy_offset for view in store.index.query("T", key).records}
        except StoreError as error:
            assert INDEX_SENTENCE.match(str(error).partition("; it and")[0] + ";"), str(error)
            while store.index.build(1000):  # the file was dropped: it is made anew before anybody asks again
                pass
            continue
        assert found <= wanted
        assert found == wanted or kind in ("flip", "splice"), key
    store.close()
