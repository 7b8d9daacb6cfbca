"""A kernel knows nothing of before: what it is given at the call counts. Planted: one that remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from rmqha.broker.tables.topics import TopicConfig
from rmqha.kernel.batch_kernel import BatchKernel, QueueSlot, SendContext, SendRead, SendResults, SendRules
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.code import ResponseCode
from rmqha.model.offset import PhyOffset
from rmqha.store.appender import SendSource
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.record import decode
from rmqha.store.store import Store
from rmqha.wire.frame import encode_frame
from tests.broker.support import send_command
from tests.kernel.streams import PLAIN
from tests.kernel.support import KERNELS, Fed, broker_on, decoded, kernel_named, one_read
from tests.store.support import SMALL, bodies, commit_all, log_bytes, message, open_store, sim_disk
from tests.support.kernel_around import KernelAround

RULES = SendRules(1 << 24, 3000, 32767, b"CLUSTER\x01c\x02", (b"DELAY",), b"\x7f\0\0\1", 10911, (("TRACE_ON", "true"),))


class Remembering(KernelAround):
    """Planted: asks for a queue once, and counts on by itself."""

    def __init__(self, kernel: BatchKernel) -> None:
        super().__init__(kernel)
        self._slots: dict[tuple[bytes, int], QueueSlot] = {}

    def sends(self, read: SendRead, rules: SendRules, context: SendContext) -> SendResults:
        def slot(topic: bytes, queue_id: int) -> QueueSlot | None:
            known = self._slots.get((topic, queue_id)) or context.slot(topic, queue_id)
            if known is not None:
                self._slots[topic, queue_id] = known
            return known

        taken = self.kernel.sends(read, rules, context._replace(slot=slot))
        for run in taken.runs:
            key = run.topic.encode(), run.queue_id
            self._slots[key] = self._slots[key]._replace(next_offset=run.first_offset + run.unit_count)
        return taken


def send(store: Store, kernel: BatchKernel, count: int = 1, queue_id: int = 0, queue_count: int = 4) -> int:
    """How many of `count` plain sends the store takes."""
    data = b"".join([encode_frame(send_command("T", queue_id, b"s%d" % number, i=PLAIN)) for number in range(count)])
    read = one_read(data, 0, 64, b"\x7f\0\0\1", 5)
    taken = store.append_sends(SendSource(kernel, read, RULES, lambda topic: queue_count), 1)
    return 0 if taken is None else taken.taken_count


def queue_offsets(store: Store) -> list[int]:
    """Of all records, in the log's order."""
    data, at, found = memoryview(log_bytes(store)), 0, []
    while at < len(data):
        record = decode(data, at)
        found.append(record.queue_offset)
        at += record.size_bytes
    return found


def begun(kernel: BatchKernel) -> Store:
    store = open_store(sim_disk(), replace(SMALL, mapped_file_size_commit_log=64 * 1024))
    store.append(message(0), 1)
    assert send(store, kernel, 2) == 2
    return store


def _cut(kernel: BatchKernel) -> None:
    store = begun(kernel)
    commit_all(store)
    end = PhyOffset(decode(memoryview(log_bytes(store))).size_bytes)
    store.truncate(end)
    assert send(store, kernel) == 1
    assert queue_offsets(store) == [0, 1]


def _take_over(kernel: BatchKernel) -> None:
    """Another master's records come in between, as on a replica that is slave for a while."""
    store, other = begun(kernel), open_store(sim_disk(2), replace(SMALL, mapped_file_size_commit_log=64 * 1024))
    other.append_raw(PhyOffset(0), log_bytes(store))
    for number in (7, 8):
        other.append(message(number), 2)
    store.append_raw(store.max_phy_offset, log_bytes(other)[store.max_phy_offset :])
    assert send(store, kernel) == 1
    assert queue_offsets(store) == [0, 1, 2, 3, 4, 5]


def _role_change(kernel: BatchKernel) -> None:
    """What waited in memory (transientStorePoolEnable) goes with the mastership."""
    config = replace(SMALL, mapped_file_size_commit_log=64 * 1024, transient_store_pool_enable=True)
    store = open_store(sim_disk(), config)
    store.append(message(0), 1)
    store.commit()
    assert send(store, kernel, 2) == 2
    store.discard_uncommitted()
    assert send(store, kernel) == 1
    store.commit()
    assert queue_offsets(store) == [0, 1]


def _usual_way(kernel: BatchKernel) -> None:
    """A message that is not plain goes to the same queue."""
    store = begun(kernel)
    store.append(message(3), 1)
    assert send(store, kernel) == 1
    assert queue_offsets(store) == [0, 1, 2, 3, 4]


def _batch_queues(kernel: BatchKernel) -> None:
    store = begun(kernel)
    store.add_batch_topics(["T"])
    assert send(store, kernel) == 0


def _queue_count(kernel: BatchKernel) -> None:
    store = begun(kernel)
    assert send(store, kernel, queue_count=0) == 0


CHANGES: dict[str, Callable[[BatchKernel], None]] = {
    "a cut": _cut,
    "a take-over": _take_over,
    "a role change": _role_change,
    "the usual way": _usual_way,
    "other queues": _batch_queues,
    "no queues": _queue_count,
}


both_kernels = pytest.mark.parametrize("kernel", KERNELS)


@both_kernels
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_given_at_the_call_counts(kernel: str, change: str) -> None:
    CHANGES[change](kernel_named(kernel))


@both_kernels
@pytest.mark.parametrize("change", CHANGES)
def test_a_kernel_that_remembers_is_found(kernel: str, change: str) -> None:
    with pytest.raises(AssertionError):
        CHANGES[change](Remembering(kernel_named(kernel)))


# --- topics ---------------------------------------------------------------------------------------------------------
@contextmanager
def fed(directory: Path, kernel: BatchKernel) -> Iterator[Fed]:
    with broker_on(directory) as broker:
        broker.core.send._kernel = kernel
        made = Fed(broker, lean=True)
        assert answer(made) is ResponseCode.SUCCESS
        assert made.taken_count == 1
        yield made


def answer(fed: Fed) -> ResponseCode:
    (command,) = decoded(fed.read(encode_frame(send_command("T", 3, i=PLAIN))) + fed.settle())
    return ResponseCode(command.code)


TOPIC_CHANGES: dict[str, tuple[Callable[[Fed], None], ResponseCode]] = {
    "rights": (lambda fed: fed.broker.core.topics.put(TopicConfig("T", 4, 4, perm=4)), ResponseCode.NO_PERMISSION),
    "number of queues": (
        lambda fed: fed.broker.core.topics.put(TopicConfig("T", 3, 3)),
        ResponseCode.INVALID_PARAMETER,
    ),
    "removal": (lambda fed: fed.broker.core.topics.remove("T"), ResponseCode.TOPIC_NOT_EXIST),
}


@both_kernels
@pytest.mark.parametrize("change", TOPIC_CHANGES)
@pytest.mark.parametrize("remembers", [False, True])
def test_changes_of_a_topic_count_at_once(tmp_path: Path, kernel: str, change: str, remembers: bool) -> None:
    make, expected = TOPIC_CHANGES[change]
    asked = kernel_named(kernel)
    with fed(tmp_path / "store", Remembering(asked) if remembers else asked) as broker:
        broker.broker.core.topics.configure(replace(broker.broker.config, auto_create_topic_enable=False))
        make(broker)
        assert (answer(broker) is expected) is not remembers, "the planted kernel is found, the other is well"


# --- dispatch -------------------------------------------------------------------------------------------------------
def test_a_confirm_offset_within_a_block() -> None:
    """Consumers see no record that is not committed, and all that are, whatever piece the kernel made of them."""
    store = begun(PythonKernel())
    ends = [decode(memoryview(log_bytes(store))).size_bytes]
    for _ in range(2):
        ends.append(ends[-1] + decode(memoryview(log_bytes(store)), ends[-1]).size_bytes)
    for count, end in enumerate(ends, 1):
        store.set_confirm_offset(PhyOffset(end))
        while store.dispatch(1 << 20):
            pass
        assert store.queue_range("T", 0)[1] == count
    assert bodies(store) == [b"body-0", b"s0", b"s1"]


def test_a_topic_gets_batch_queues_while_its_records_wait() -> None:
    store = begun(PythonKernel())
    store.add_batch_topics(["T"])
    commit_all(store)
    assert store.queue_range("T", 0) == (0, 3)
    assert bodies(store) == [b"body-0", b"s0", b"s1"]


def test_a_block_makes_few_queues_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.store.queue.dispatch_service.MAX_MADE_COUNT", 3)
    store = begun(PythonKernel())
    data = b"".join(
        [encode_frame(send_command("T", queue_id, b"q%d" % queue_id, i=PLAIN)) for queue_id in range(1, 10)]
    )
    read = one_read(data, 0, 64, b"\x7f\0\0\1", 5)
    assert store.append_sends(SendSource(PythonKernel(), read, RULES, lambda topic: 10), 1) is not None
    store.set_confirm_offset(store.max_phy_offset)
    made = []
    while store.dispatch(1 << 20):
        made.append(len(store._queues.table))
    assert made == [3, 6, 9]
    assert [bodies(store, queue_id=number) for number in range(1, 10)] == [[b"q%d" % number] for number in range(1, 10)]


def test_no_slice_makes_more_queues_than_a_client_may_wait_for() -> None:
    """Blocks of sends to new topics, one behind the other: each queue is directories and a file."""
    store = begun(PythonKernel())
    commit_all(store)
    for first in range(1, 41, 10):
        queue_ids = range(first, first + 10)
        data = b"".join([encode_frame(send_command("T", queue_id, b"x", i=PLAIN)) for queue_id in queue_ids])
        read = one_read(data, 0, 64, b"\x7f\0\0\1", 5)
        assert store.append_sends(SendSource(PythonKernel(), read, RULES, lambda topic: 50), 1) is not None
    store.set_confirm_offset(store.max_phy_offset)
    more, made = True, []
    while more:
        before = len(store._queues.table)
        more = store.dispatch(1 << 20)
        made.append(len(store._queues.table) - before)
    assert sum(made) == 40 and max(made) <= 2, made


def test_a_block_for_many_queues_that_are_there_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = begun(PythonKernel())
    for is_there in (False, True):
        data = b"".join([encode_frame(send_command("T", queue_id, b"x", i=PLAIN)) for queue_id in range(1, 41)])
        read = one_read(data, 0, 64, b"\x7f\0\0\1", 5)
        assert store.append_sends(SendSource(PythonKernel(), read, RULES, lambda topic: 50), 1) is not None
        with monkeypatch.context() as patch:
            if is_there:
                patch.setattr(CommitLog, "file_view", _unread)
            commit_all(store)
    assert bodies(store, queue_id=40) == [b"x", b"x"]


def _unread(*_: object) -> NoReturn:
    raise AssertionError("the log was read")


def test_a_full_index_file_goes_on_in_the_next() -> None:
    """The index takes a block whose first keys are in a file that is full."""
    store = begun(PythonKernel())
    for batch in range(12):
        properties = [f"KEYS\x01k{batch}-{number}\x02{PLAIN}" for number in range(5)]
        frames = [encode_frame(send_command("T", 0, b"x", i=text)) for text in properties]
        read = one_read(b"".join(frames), 0, 64, b"\x7f\0\0\1", 5)
        assert store.append_sends(SendSource(PythonKernel(), read, RULES, lambda topic: 1), batch + 1) is not None
    commit_all(store)
    while store.index.build(700):
        pass
    for batch in range(12):
        assert [len(store.index.query("T", f"k{batch}-{number}").records) for number in range(5)] == [1] * 5
