"""What a master has just appended is dispatched without being read again, and never in place of what the log says."""

from __future__ import annotations

from typing import NoReturn

import pytest

from rmqha.model.offset import PhyOffset
from rmqha.store.queue import dispatch_cache
from tests.store.support import bodies, commit_all, message, open_store, sim_disk


def _unread(*_: object) -> NoReturn:
    raise AssertionError("the log was read")


def test_own_records_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(sim_disk())
    monkeypatch.setattr("rmqha.store.queue.dispatch_service.locate", _unread)
    store.append(message(1), 1)
    store.append_encoded(store.encode_batch([message(2), message(3, queue_id=1)]), 2)
    commit_all(store)
    assert store.index.query("T", "3").records
    monkeypatch.undo()
    assert (bodies(store), bodies(store, queue_id=1)) == ([b"body-1", b"body-2"], [b"body-3"])


def test_only_what_is_confirmed_is_dispatched_and_the_rest_later() -> None:
    store = open_store(sim_disk())
    batch = store.append_encoded(store.encode_batch([message(number) for number in range(4)]), 1)
    for count in range(1, 5):
        end = batch.phy_offsets[count] if count < 4 else batch.end_offset
        store.set_confirm_offset(PhyOffset(end - 1))
        assert not store.dispatch(1 << 20)
        assert len(bodies(store)) == count - 1
        store.set_confirm_offset(PhyOffset(end))
        assert not store.dispatch(1 << 20)
        assert bodies(store) == [b"body-%d" % number for number in range(count)]


def test_a_small_limit_leaves_the_rest_for_the_next_call() -> None:
    store = open_store(sim_disk())
    store.append_encoded(store.encode_batch([message(number) for number in range(4)]), 1)
    store.set_confirm_offset(store.max_phy_offset)
    assert [store.dispatch(1) for _ in range(4)] == [True, True, True, False]
    assert len(bodies(store)) == 4


def test_what_was_read_in_the_log_is_not_kept() -> None:
    """A dispatch that begins further in front reads its way over what waits (make sim SEED=25 THEME=delays)."""
    disk = sim_disk()
    store = open_store(disk)
    store.append(message(1), 1)
    disk.crash(power_loss=False)
    store = open_store(disk)
    store.append(message(2), 2)
    waiting = store._dispatch_service._pending
    assert waiting.record_count == 1
    commit_all(store)
    assert bodies(store) == [b"body-1", b"body-2"]
    assert (len(waiting), waiting.record_count) == (0, 0)


def test_after_a_cut_the_log_decides() -> None:
    """The second record is as long as the first one and stands in its place, of another queue."""
    store = open_store(sim_disk())
    store.append(message(1), 1)
    store.truncate(PhyOffset(0))
    store.append(message(2, queue_id=1), 2)
    commit_all(store)
    assert (bodies(store), bodies(store, queue_id=1)) == ([], [b"body-2"])


def test_over_a_cut_the_bytes_of_another_master_decide() -> None:
    other = open_store(sim_disk(2))
    other.append(message(2, queue_id=1), 2)
    data = bytes(other.view(PhyOffset(0), 1 << 20))
    store = open_store(sim_disk())
    store.append(message(1), 1)
    store.truncate(PhyOffset(0))
    store.append_raw(PhyOffset(0), data)
    commit_all(store)
    assert (bodies(store), bodies(store, queue_id=1)) == ([], [b"body-2"])


@pytest.mark.parametrize("max_count", [0, 1, 3])
def test_what_was_given_up_is_read(monkeypatch: pytest.MonkeyPatch, max_count: int) -> None:
    monkeypatch.setattr(dispatch_cache, "MAX_COUNT", max_count)
    store = open_store(sim_disk())
    for number in range(30):
        store.append(message(number, body=b"x" * 300 + b"%d" % number), number)
        if number % 11 == 0:
            commit_all(store)
    commit_all(store)
    assert bodies(store) == [b"x" * 300 + b"%d" % number for number in range(30)]
    assert all(store.index.query("T", f"{number}").records for number in range(30))


@pytest.mark.parametrize("read", [False, True])
def test_a_batch_makes_few_queues_at_a_time(monkeypatch: pytest.MonkeyPatch, read: bool) -> None:
    """Each makes a file: a client that writes to very many new ones must not hold up everybody."""
    monkeypatch.setattr("rmqha.store.queue.dispatch_service.MAX_MADE_COUNT", 3)
    disk = sim_disk()
    store = open_store(disk)
    for number in range(10):
        store.append(message(number, queue_id=number), 1)
    if read:
        store._offsets.dispatch_cache.clear()
    store.set_confirm_offset(store.max_phy_offset)
    made = []
    while store.dispatch(1 << 20):
        made.append(len(store._queues.table))
    assert made == [3, 6, 9]
    assert [bodies(store, queue_id=number) for number in range(10)] == [[b"body-%d" % n] for n in range(10)]
