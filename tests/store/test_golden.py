"""Stores that a real RocketMQ 5.4.0 wrote: opened, read, rebuilt."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rmqha.client.consumers.message import decode_messages
from rmqha.host.disk import HostDisk
from rmqha.model.code import ResponseCode
from rmqha.model.message import decode_properties, offset_message_id
from rmqha.store.log.record import SYS_INNER_BATCH, Record, decode
from rmqha.store.meta.epoch_file import encode as encode_epochs
from rmqha.store.store import Store
from tests.golden.reader import manifest
from tests.store.support import GOLD, MINI, unpack
from tests.support.tracer import RecordingTracer

REPLICAS = ("n0", "n1", "n0-killed")
MINIS = ("plain", "propcrc")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("golden")
    for archive in (*REPLICAS, "mini-v6-v2-propcrc"):
        unpack(archive, target)
    return target


def copy(golden: Path, name: str, tmp_path: Path) -> Path:
    return shutil.copytree(golden / name, tmp_path / name)


@pytest.fixture(params=REPLICAS)
def replica(request: pytest.FixtureRequest, golden: Path, tmp_path: Path) -> Iterator[Store]:
    store = Store.open(HostDisk(copy(golden, request.param, tmp_path)), GOLD, RecordingTracer())
    yield store
    store.close()


def host_text(host: tuple[bytes, int]) -> str:
    address, port = host
    if len(address) == 4:
        return f"/{'.'.join(map(str, address))}:{port}"
    groups = ":".join(f"{int.from_bytes(address[at : at + 2], 'big'):x}" for at in range(0, 16, 2))
    return f"/[{groups}]:{port}"


def plain_body(record: Record) -> bytes | None:
    """Decompressed, None where that needs LZ4."""
    body = bytes(record.body)
    if not record.sys_flag & 1:
        return body
    kind = record.sys_flag >> 8 & 7
    if kind == 1:
        return None
    return zstandard.ZstdDecompressor().stream_reader(body).read() if kind == 2 else zlib.decompress(body)


def check(record: Record, expected: dict[str, Any]) -> None:
    found = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.phy_offset,
        "storeSize": record.size_bytes,
        "storeTimestamp": record.store_timestamp_ms,
        "bornTimestamp": record.born_at_ms,
        "bornHost": host_text(record.born_host),
        "storeHost": host_text(record.store_host),
        "sysFlag": record.sys_flag & ~1,  # the client clears the bit when it has decompressed
        "flag": record.flag,
        "bodyCRC": record.body_crc,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "offsetMsgId": offset_message_id(record.store_host, record.phy_offset),
    }
    assert found == {name: expected[name] for name in found}
    wanted = {name: text for name, text in expected["properties"].items() if name not in ("MIN_OFFSET", "MAX_OFFSET")}
    assert decode_properties(record.properties) == wanted
    body = plain_body(record)
    if body is not None:
        assert (len(body), hashlib.sha256(body).hexdigest()) == (expected["bodySize"], expected["bodySha256"])


def test_every_message_is_found_by_queue_and_offset(replica: Store) -> None:
    messages = [entry for entry in manifest()["messages"] if entry["topic"] != "GoldBatchCQ"]
    assert len(messages) > 600
    for expected in messages:
        result = replica.pull(expected["topic"], expected["queueId"], expected["queueOffset"], 1, 1 << 20)
        assert result.status is ResponseCode.SUCCESS
        (view,) = result.records
        check(decode(view), expected)
        assert replica.record_at(expected["commitLogOffset"]) == view


def test_every_message_of_a_batch_queue_is_found_by_its_offset(replica: Store) -> None:
    """A pull at any offset gives the record that holds it, as the real consumer got it."""
    messages = [entry for entry in manifest()["messages"] if entry["topic"] == "GoldBatchCQ"]
    assert len(messages) == 45
    for expected in messages:
        queue_offset = expected["queueOffset"]
        result = replica.pull("GoldBatchCQ", expected["queueId"], queue_offset, 1, 1 << 20)
        assert result.status is ResponseCode.SUCCESS
        (view,) = result.records
        record = decode(view)
        assert record.phy_offset == expected["commitLogOffset"]
        assert record.queue_offset <= queue_offset < result.next_begin_offset
        if not record.sys_flag & SYS_INNER_BATCH:
            check(record, expected)
            continue
        found = {message.queue_offset: message for message in decode_messages("b", view)}
        assert set(found) == set(range(record.queue_offset, result.next_begin_offset))
        message = found[queue_offset]
        assert hashlib.sha256(message.body).hexdigest() == expected["bodySha256"]
        assert message.properties == {
            name: text for name, text in expected["properties"].items() if name not in ("MIN_OFFSET", "MAX_OFFSET")
        }


def test_a_batch_queue_is_searched_by_time(replica: Store) -> None:
    entries = [entry for entry in manifest()["messages"] if (entry["topic"], entry["queueId"]) == ("GoldBatchCQ", 0)]
    entries.sort(key=lambda entry: entry["queueOffset"])
    for stamp in sorted({entry["storeTimestamp"] + late for entry in entries for late in (-1, 0, 1)}):
        expected = sum(1 for entry in entries if entry["storeTimestamp"] < stamp)
        assert replica.offset_by_time("GoldBatchCQ", 0, stamp) == expected


def test_queues_reach_as_far_as_the_client_saw(replica: Store) -> None:
    expected = {name: tuple(bounds) for name, bounds in manifest()["queues"].items()}
    found = {
        f"{topic}/{queue_id}": replica.queue_range(topic, queue_id)
        for topic, ids in replica.queues().items()
        for queue_id in ids
    }
    assert found == expected


def test_the_end_and_the_epochs(replica: Store) -> None:
    assert replica.max_phy_offset == replica.confirm_offset == replica.dispatched_offset == manifest()["maxPhyOffset"]
    assert [(entry.epoch, entry.start_offset) for entry in replica.epochs] == [
        (entry["epoch"], entry["startOffset"]) for entry in manifest()["epochs"]
    ]


def test_only_the_killed_replica_is_unclean(golden: Path, tmp_path: Path) -> None:
    for name, unclean in (("n0", False), ("n1", False), ("n0-killed", True)):
        store = Store.open(HostDisk(copy(golden, name, tmp_path)), GOLD, RecordingTracer())
        assert store.unclean is unclean
        store.close()


def test_time_finds_the_offset(replica: Store) -> None:
    entries = [entry for entry in manifest()["messages"] if (entry["topic"], entry["queueId"]) == ("GoldNormal", 1)]
    entries.sort(key=lambda entry: entry["queueOffset"])
    stamps = [entry["storeTimestamp"] for entry in entries]
    for stamp in (0, stamps[0], stamps[40], stamps[40] + 1, stamps[-1], stamps[-1] + 1):
        expected = sum(1 for other in stamps if other < stamp)
        assert replica.offset_by_time("GoldNormal", 1, stamp) == expected


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*REPLICAS, *MINIS])
def test_rebuilt_queues_are_the_same_bytes(golden: Path, tmp_path: Path, name: str) -> None:
    root = copy(golden, name, tmp_path)
    expected, batches = files_below(root / "consumequeue"), files_below(root / "batchconsumequeue")
    assert bool(batches) == (name in REPLICAS)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "batchconsumequeue", ignore_errors=True)
    store = Store.open(HostDisk(root), MINI if name in MINIS else GOLD, RecordingTracer())
    assert "The queues are made anew from 0 on." in store.recovery.lines
    store.set_confirm_offset(store.max_phy_offset)
    while store.dispatch(10_000):
        pass
    store.close()
    assert files_below(root / "consumequeue") == expected
    assert files_below(root / "batchconsumequeue") == batches


@pytest.mark.parametrize("name", [*REPLICAS, *MINIS])
def test_nothing_is_changed_by_an_opening_but_the_marks(golden: Path, tmp_path: Path, name: str) -> None:
    root = copy(golden, name, tmp_path)
    before = files_below(root)
    store = Store.open(HostDisk(root), MINI if name in MINIS else GOLD, RecordingTracer())
    store.close()
    after = files_below(root)
    ours = {"abort", "checkpoint", "rmqha.boot", "rmqha.progress", "rmqha.end", "commitlog/00000000000004194304"}
    if name == "n0-killed":  # no boot id: power may have been lost, so the index is made anew
        ours |= {path for path in before if path.startswith("index/")}
    for path in sorted(set(before) - ours):
        assert after[path] == before[path], path
    assert not (root / "consumequeue/GoldBatchCQ").exists()


def test_epoch_files_of_both_replicas(golden: Path, tmp_path: Path) -> None:
    histories = []
    for name in ("n0", "n1"):
        store = Store.open(HostDisk(copy(golden, name, tmp_path)), GOLD, RecordingTracer())
        histories.append(store.epochs)
        assert encode_epochs(store.epochs) == (golden / name / "epochFileCheckpoint").read_bytes()
        store.close()
    assert histories[0] == histories[1]


@pytest.mark.parametrize("name", MINIS)
def test_ipv6_long_topics_and_record_checksums(golden: Path, tmp_path: Path, name: str) -> None:
    lines = (golden / f"{name}-manifest.jsonl").read_text().splitlines()
    store = Store.open(HostDisk(copy(golden, name, tmp_path)), MINI, RecordingTracer())
    kinds = set()
    for expected in map(json.loads, lines):
        (view,) = store.pull(expected["topic"], expected["queueId"], expected["queueOffset"], 1, 1 << 20).records
        record = decode(view)
        kinds.add((record.version, record.sys_flag))
        assert record.phy_offset == expected["physicalOffset"]
        assert (record.size_bytes, record.body_crc) == (expected["storeSize"], expected["bodyCRC"])
        assert (host_text(record.born_host), host_text(record.store_host)) == (
            expected["bornHost"],
            expected["storeHost"],
        )
        assert str(record.body, "utf-8") == expected["body"]
        properties = decode_properties(record.properties)
        assert ("__CRC32#" in properties) == (name == "propcrc")
        properties.pop("__CRC32#", None)
        assert properties == {k: v for k, v in expected["properties"].items() if k != "__CRC32#"}
    assert kinds == {(version, flag) for version in (1, 2) for flag in (0, 16, 32, 48)}
    store.close()


def test_the_next_start_begins_where_the_last_one_was_saved(golden: Path, tmp_path: Path) -> None:
    root = copy(golden, "n1", tmp_path)
    Store.open(HostDisk(root), GOLD, RecordingTracer()).close()
    store = Store.open(HostDisk(root), GOLD, RecordingTracer())
    end = manifest()["maxPhyOffset"]
    assert store.recovery.checked_from == end
    assert f"After a clean stop the log was checked from {end} to {end}." in store.recovery.lines
    store.close()


def index_entries(root: Path, slot_count: int) -> list[tuple[int, int]]:
    """(key hash, physical offset) of every entry, in order."""
    found = []
    for path in sorted((root / "index").iterdir()):
        data = path.read_bytes()
        count = int.from_bytes(data[36:40], "big")
        at = 40 + 4 * slot_count
        found += [entry[:2] for entry in struct.iter_unpack(">iqii", data[at + 20 : at + 20 * count])]
    return found


def rebuilt_index(golden: Path, tmp_path: Path, name: str) -> tuple[Path, list[bytes], list[tuple[int, int]]]:
    """A store whose index was made anew, the old files' content and the old entries."""
    root = copy(golden, name, tmp_path)
    config = MINI if name in MINIS else GOLD
    old = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    entries = index_entries(root, config.max_hash_slot_num)
    shutil.rmtree(root / "index")
    store = Store.open(HostDisk(root), config, RecordingTracer())
    store.set_confirm_offset(store.max_phy_offset)
    while store.dispatch(1 << 20):
        pass
    while store.index.build(10_000):
        pass
    store.close()
    return root, old, entries


@pytest.mark.parametrize("name", MINIS)
def test_a_rebuilt_index_is_the_same_bytes(golden: Path, tmp_path: Path, name: str) -> None:
    root, old, _ = rebuilt_index(golden, tmp_path, name)
    assert [path.read_bytes() for path in sorted((root / "index").iterdir())] == old


def test_a_rebuilt_index_has_every_entry_of_a_broker_that_was_killed(golden: Path, tmp_path: Path) -> None:
    """n0 was killed and entered one record twice; its files up to then must come out as the same bytes. n1 lost some
    entries at a change of its role: ours has them all."""
    root, old, entries = rebuilt_index(golden, tmp_path, "n0")
    found = index_entries(root, 500)
    assert len(entries) == 2060
    assert [path.read_bytes() for path in sorted((root / "index").iterdir())][:10] == old[:10]
    assert list(dict.fromkeys(entries)) == list(dict.fromkeys(found))
    assert len(entries) - len(found) == 4
    _, _, others = rebuilt_index(golden, tmp_path, "n1")
    assert set(others) < set(found)
    assert index_entries(tmp_path / "n1", 500) == found


@pytest.mark.parametrize("replica", ["n0", "n0-killed"], indirect=True)
def test_every_message_is_found_by_key_unique_key_and_tags(replica: Store) -> None:
    """In n1's own index, which was left as it is, some are missing."""
    messages = [entry for entry in manifest()["messages"] if entry["topic"] != "GoldBatchCQ"]
    wanted: dict[tuple[str, str, str], list[int]] = {}
    for entry in messages:
        properties, topic, offset = entry["properties"], entry["topic"], entry["commitLogOffset"]
        for key in properties.get("KEYS", "").split(" "):
            wanted.setdefault((topic, key, "K"), []).append(offset)
        wanted.setdefault((topic, properties.get("UNIQ_KEY", ""), "U"), []).append(offset)
        wanted.setdefault((topic, properties.get("TAGS", ""), "T"), []).append(offset)
    assert len(wanted) > 1000
    while replica.index.build(1 << 20):
        pass
    for (topic, key, index_type), offsets in wanted.items():
        if not key:
            continue
        result = replica.index.query(topic, key, index_type=index_type)
        found = [decode(view).phy_offset for view in result.records]
        assert result.is_complete
        assert found == sorted({*offsets, *found}, reverse=True)[:64]
    assert not replica.index.query("GoldNormal", "no-such-key").records
