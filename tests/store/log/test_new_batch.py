"""A batch of one client: the same log, queues and index as its messages one by one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import UsageError
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.store.log.new_batch import NewBatch
from rmqha.store.store import Store
from tests.store.support import HOST, commit_all, log_bytes, message, open_store, sim_disk

V6 = (bytes(range(16)), 10911)
PROPERTIES = st.one_of(
    st.sampled_from([b"", b"A\x01b", b"TAGS\x01t\x02", b"KEYS\x01a b\x02TAGS\x01u\x02", b"NOTAGS\x01x\x02"]),
    st.builds(
        lambda key, more: b"UNIQ_KEY\x01%s\x02WAIT\x01true\x02" % key + more,
        st.one_of(
            st.builds(lambda number: b"7F0000010001070DEA4E2A6761%06X" % number, st.integers(0, 0xFFFFFF)),
            st.sampled_from(
                [b"short", "ключ-ключ-ключ-ключ".encode(), b"x" * 300, b"7F0000010001070DEA4E2A67617600a~"]
            ),
        ),
        st.sampled_from([b"", b"TAGS\x01v", b"KEYS\x01k\x02"]),
    ),
)


def batch_of(parts: list[tuple[bytes, bytes, int]], **fields: object) -> NewBatch:
    joined = [(body, struct.pack(">h", len(properties)) + properties, flag) for body, properties, flag in parts]
    return replace(NewBatch("T", 0, joined, 77, HOST, HOST), **fields)  # type: ignore[arg-type]


def derived(store: Store, disk: SimDisk) -> dict[str, bytes]:
    """What every file of queues and index holds."""
    while store.index.build(1 << 20):
        pass
    found = {f"index/{name}": disk.read(f"index/{name}") for name in disk.list("index")}
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            path = f"consumequeue/{topic}/{queue_id}"
            found |= {f"{path}/{name}": disk.read(f"{path}/{name}") for name in disk.list(path)}
    return found


@given(
    st.lists(st.tuples(st.binary(max_size=900), PROPERTIES, st.integers(-5, 5)), min_size=1, max_size=30),
    st.sampled_from(["T", "U" * 200]),
    st.sampled_from([HOST, V6]),
    st.sampled_from([HOST, V6]),
    st.lists(st.integers(0, 30_000), max_size=3),
)
def test_a_batch_is_the_same_bytes_as_single_appends(
    parts: list[tuple[bytes, bytes, int]],
    topic: str,
    born_host: tuple[bytes, int],
    store_host: tuple[bytes, int],
    confirmed: list[int],
) -> None:
    """Dispatched in pieces that end anywhere."""
    disks = sim_disk(), sim_disk()
    together, single = open_store(disks[0]), open_store(disks[1])
    batch = batch_of(parts, topic=topic, born_host=born_host, store_host=store_host, reconsume_times=2)
    for wall_ms in (7, 9):
        found = together.append_batch(batch, wall_ms)
        expected = [single.append(item, wall_ms) for item in batch.messages()]
        assert list(found.phy_offsets) == [item.phy_offset for item in expected]
        assert list(found.queue_offsets) == [item.queue_offset for item in expected]
        assert (found.end_offset, found.store_timestamp_ms) == (expected[-1].end_offset, wall_ms)
        assert log_bytes(together) == log_bytes(single)
    for offset in sorted(confirmed):
        together.set_confirm_offset(PhyOffset(offset))
        together.dispatch(300)
        together.index.build(300)
    commit_all(together)
    commit_all(single)
    assert derived(together, disks[0]) == derived(single, disks[1])


@pytest.mark.parametrize(
    ("parts", "fields", "said"),
    [
        ([(b"x" * 3001, b"", 0)], {}, "3001 bytes .* maxMessageSize = 3000"),
        ([(b"x", b"KEYS\x01a\0", 0)], {}, "must neither end with a zero byte"),
        ([(b"x", b"KEYS\x01" + bytes(512) + b"\x02", 0)], {}, "nor hold 512 of them together"),
        ([(b"x", b"", 0)], {"queue_id": -1}, "queue -1"),
        ([(b"x", b"", 0)], {"topic": "../../etc/passwd"}, "letters, digits"),
    ],
)
def test_a_batch_that_cannot_be_stored_is_refused_and_nothing_is_written(
    parts: list[tuple[bytes, bytes, int]], fields: dict[str, object], said: str
) -> None:
    store = open_store(sim_disk())
    store.append(message(1), 1)
    with pytest.raises(UsageError, match=said):
        store.append_batch(batch_of([(b"good", b"", 0), *parts], **fields), 1)
    assert store.append(message(3), 1).queue_offset == 1
