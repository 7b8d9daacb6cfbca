"""`Store.verified_record_at`: only where a record starts, whatever the bytes look like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.host.disk import HostDisk
from rmqha.model.error import DamagedError
from rmqha.model.message import encode_properties
from rmqha.model.offset import PhyOffset
from rmqha.store.config import StoreConfig
from rmqha.store.integrity import record_starts
from rmqha.store.integrity.record_starts import LANDMARK_COUNT, MAX_OLD_WALK_COUNT, MAX_WALK_COUNT
from rmqha.store.log.record import SYS_INNER_BATCH, encode, topic_field
from rmqha.store.queue import dispatch_service
from rmqha.store.store import Store
from tests.store.support import GOLD, MINI, message, open_store, sim_disk, unpack

BODY_AT = 88
WIDE = StoreConfig(
    mapped_file_size_commit_log=1024 * 1024, mapped_file_size_consume_queue=20_000, message_index_enable=False
)


def whole(store: Store) -> None:
    store.set_confirm_offset(store.max_phy_offset)
    while store.dispatch(1 << 20):
        pass


def found(store: Store) -> list[int]:
    """Every offset at which a record starts, asked for byte by byte."""
    at = range(store.min_phy_offset, store.max_phy_offset + 2)
    return [offset for offset in at if store.verified_record_at(offset) is not None]


def planted(phy_offset: int, topic: str = "T", queue_offset: int = 0, sys_flag: int = 0) -> bytes:
    return encode(message(topic=topic, sys_flag=sys_flag), *topic_field(topic), queue_offset, phy_offset, 1)


def fill(store: Store) -> list[int]:
    """Records of several files and forms; each body holds a record that says it stands there."""
    starts = []
    for number in range(12):
        topic, sys_flag = ("T", "U")[number % 2], (0, 4, 8, 12)[number % 4]
        at = store.max_phy_offset + BODY_AT
        body = planted(at, topic, number // 2, sys_flag) + planted(at + 120, "RMQ_SYS_TRANS_HALF_TOPIC") + b"." * 400
        starts.append(store.append(message(topic=topic, body=body, sys_flag=sys_flag), number).phy_offset)
    return [int(start) for start in starts]


@pytest.mark.parametrize("dispatched", [True, False])
def test_of_all_offsets_only_the_starts_of_records_count(dispatched: bool) -> None:
    store = open_store(sim_disk())
    starts = fill(store)
    assert store.max_phy_offset > 4096, "more than one file, so that a blank record stands in between"
    if dispatched:
        whole(store)
        assert store.dispatched_offset == store.max_phy_offset
    assert found(store) == starts
    first = store.verified_record_at(starts[0])
    assert first is not None and bytes(first.data) == bytes(store.view(PhyOffset(starts[0]), len(first.data)))
    assert (first.record.topic, first.record.phy_offset) == ("T", 0)


@pytest.mark.parametrize("dispatched", [True, False])
def test_records_of_batch_queues_count(dispatched: bool) -> None:
    store = open_store(sim_disk())
    store.add_batch_topics(["B"])
    starts = []
    for number in range(4):
        sys_flag = SYS_INNER_BATCH if number % 2 else 0
        properties = encode_properties({"INNER_NUM": "3"})
        inner = planted(store.max_phy_offset + BODY_AT, "B", number)
        made = message(topic="B", body=inner, sys_flag=sys_flag, properties=properties)
        starts.append(int(store.append(made, number).phy_offset))
    if dispatched:
        whole(store)
    assert found(store) == starts


def test_a_record_whose_bytes_are_not_what_was_written_is_none() -> None:
    disk = sim_disk()
    store = open_store(disk)
    at = int(store.append(message(body=b"x" * 50), 1).phy_offset)
    whole(store)
    assert store.verified_record_at(at) is not None
    [file] = store._log.files.files
    file.region.write(BODY_AT + 10, b"y")
    assert store.verified_record_at(at) is None
    assert store.record_at(at) is not None


def test_a_cut_forgets_what_was_passed_over() -> None:
    """What is appended after it begins elsewhere."""
    store = open_store(sim_disk(), WIDE)
    starts = [int(store.append(message(body=b"a" * 50), 1).phy_offset) for _ in range(3 * LANDMARK_COUNT)]
    assert store.verified_record_at(starts[-1]) is not None
    store.truncate(PhyOffset(starts[10]))
    later = [int(store.append(message(body=b"a" * 51), 1).phy_offset) for _ in range(3 * LANDMARK_COUNT)]
    assert [start for start in starts[11:] if store.verified_record_at(start)] == sorted({*starts[11:]} & {*later})
    assert all(store.verified_record_at(start) for start in later)


def test_a_log_that_is_given_up_leaves_nothing_known() -> None:
    """Another stands at the same offsets: its records begin elsewhere, and none of them is damaged."""
    store = open_store(sim_disk(), WIDE)
    starts = [int(store.append(message(body=b"a" * 50), 1).phy_offset) for _ in range(3 * LANDMARK_COUNT)]
    assert store.verified_record_at(starts[-1]) is not None
    store.damage.found(DamagedError("it has rotted", starts[1]))
    store.restart_at(PhyOffset(0))
    assert store.damage.records == []
    later = [int(store.append(message(body=b"a" * 51), 1).phy_offset) for _ in range(3 * LANDMARK_COUNT)]
    assert all(store.verified_record_at(start) for start in later)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the records that were walked over."""
    found: list[int] = []
    walk = dispatch_service.walk

    def counted(*args: Any) -> Iterator[Any]:
        for item in walk(*args):
            found.append(item[0])
            yield item

    monkeypatch.setattr(record_starts, "walk", counted)
    return found


def test_a_question_walks_so_far_and_the_next_one_goes_on(walked: list[int]) -> None:
    store = open_store(sim_disk(), WIDE)
    starts = [int(store.append(message(), 1).phy_offset) for _ in range(2 * MAX_WALK_COUNT + 2 * LANDMARK_COUNT)]
    last = starts[-1]
    answers = [store.verified_record_at(last) is not None for _ in range(4)]
    assert answers == [False, False, True, True]
    assert len(walked) < len(starts) + 3 * LANDMARK_COUNT
    walked.clear()
    assert all(store.verified_record_at(start) for start in starts[:: LANDMARK_COUNT // 2])
    assert len(walked) < len(starts) * 2
    whole(store)
    walked.clear()
    assert store.verified_record_at(last) is not None and not walked


def test_an_offset_that_is_none_costs_little_among_old_records(walked: list[int]) -> None:
    store = open_store(sim_disk(), WIDE)
    for _ in range(3 * MAX_OLD_WALK_COUNT):
        store.append(message(), 1)
    inner = store.max_phy_offset + BODY_AT
    store.append(message(body=planted(inner, sys_flag=4)), 1)
    whole(store)
    assert store.verified_record_at(inner) is None
    assert len(walked) <= MAX_OLD_WALK_COUNT + 1


def test_offsets_outside_the_log_are_none() -> None:
    store = open_store(sim_disk())
    fill(store)
    whole(store)
    for offset in (-1, -(1 << 63), store.max_phy_offset, store.max_phy_offset + 1, (1 << 63) - 1):
        assert store.verified_record_at(offset) is None


@pytest.mark.parametrize(
    ("archive", "path", "config"),
    [("n0", "n0", GOLD), ("mini-v6-v2-propcrc", "plain", MINI), ("mini-v6-v2-propcrc", "propcrc", MINI)],
)
def test_every_record_that_apaches_broker_stored_counts(
    tmp_path: Path, archive: str, path: str, config: StoreConfig
) -> None:
    """Half messages, delayed ones, batches, IPv6 hosts, long topics: each is known by its queue's entry alone."""
    unpack(archive, tmp_path)
    store = open_store(HostDisk(tmp_path / path), config)
    starts = [
        at for at, _, _, parts in dispatch_service.walk(store._log, store.min_phy_offset, store.max_phy_offset) if parts
    ]
    assert starts
    for start in starts:
        at = store.verified_record_at(start)
        assert at is not None and store._starts.has_entry(at.record), start
    store.close()
