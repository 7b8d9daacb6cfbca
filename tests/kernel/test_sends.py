"""A kernel takes plain sends as the way by commands does: the same answers, log, queues, index and counts.

The kernel in Python in all ways, the native one in those that concern what is around it: `test_native.py` compares the
two."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqha.broker.replication.waiter import Waiting
from rmqha.broker.services.traffic import Traffic
from rmqha.ha.action import AckStatus
from rmqha.model.offset import PhyOffset
from rmqha.wire.command import Command, HeaderCodec
from rmqha.wire.frame import encode_frame
from tests.broker.support import Broker, send_command
from tests.kernel.streams import OPAQUES, PART_PROPERTIES, PLAIN, batch_command, golden_streams, part, sends, stream_of
from tests.kernel.support import KERNELS, Fed, answers, broker_on, files, kernel_named

both_kernels = pytest.mark.parametrize("kernel", KERNELS)


def both_ways(stack: ExitStack, kernel: str = "python", **keys: Any) -> tuple[Fed, Fed]:
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)))
    brokers = [stack.enter_context(broker_on(root / name, **keys)) for name in ("lean", "usual")]
    for broker in brokers:
        broker.core.send.traffic = Traffic()
    brokers[0].core.send._kernel = kernel_named(kernel)
    return Fed(brokers[0], lean=True), Fed(brokers[1], lean=False)


def alike(lean: Fed, usual: Fed) -> None:
    """Everything that sends leave behind."""
    first, second = lean.broker, usual.broker
    assert files(first.directory) == files(second.directory)
    ours, theirs = first.core.send, second.core.send
    assert (ours.put_count, ours.refused_count) == (theirs.put_count, theirs.refused_count)
    puts = [
        {topic: item.counts for topic, item in broker.core.statistics.topic_puts._items.items()}
        for broker in (first, second)
    ]
    message_counts = [{topic: counts[0] for topic, counts in found.items()} for found in puts]
    assert message_counts[0] == message_counts[1]
    assert ours.traffic is not None and theirs.traffic is not None
    flows = [
        {key: (flow.count, flow.size_bytes, flow.size_counts) for key, flow in traffic.sent.items()}
        for traffic in (ours.traffic, theirs.traffic)
    ]
    if first.store.max_phy_offset < first.config.mapped_file_size_commit_log:
        # what fills a file up counts as bytes of a batch that goes on in the next one
        assert flows[0] == flows[1]
        assert puts[0] == puts[1]
        assert ours.put_bytes == theirs.put_bytes
    counts = [(fed.statistics.received_count, fed.statistics.received_bytes) for fed in (lean, usual)]
    assert counts[0] == counts[1]
    assert first.store.max_phy_offset == second.store.max_phy_offset


def chunks(stream: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds) if end > start]


@settings(max_examples=120, deadline=None)
@given(
    commands=st.lists(sends(), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=3),
    opaques=st.lists(OPAQUES, min_size=12, max_size=12, unique=False),
    keys=st.sampled_from([{}, {"message_index_enable": False}, {"region_id": "50%@hole@"}]),
)
@example(
    commands=[send_command("T", 0, b"x" * 400_000), send_command("T", 1, b"x")], cuts=[], opaques=[1] * 12, keys={}
)
def test_same_frames_leave_the_same(
    commands: list[Command], cuts: list[int], opaques: list[int], keys: dict[str, Any]
) -> None:
    stream = stream_of(commands, opaques[: len(commands)])
    with ExitStack() as stack:
        lean, usual = both_ways(stack, **keys)
        for data in chunks(stream, cuts):
            found = [answers(fed.read(data) + fed.settle()) for fed in (lean, usual)]
            assert sorted(found[0]) == sorted(found[1])
        alike(lean, usual)


@both_kernels
def test_plain_sends_are_taken_in_both_codecs(kernel: str) -> None:
    """Else nothing above would be proven of the kernel."""
    with ExitStack() as stack:
        lean, usual = both_ways(stack, kernel)
        commands = []
        for number in range(150):
            command = send_command("T", number % 4, b"b%d" % number, i=PLAIN, n="broker-a")
            command.codec = HeaderCodec(number % 2)
            commands.append(command)
        stream = stream_of(commands, list(range(150)))
        found = [fed.read(stream) for fed in (lean, usual)]
        assert found[0] == found[1]
        for fed in (lean, usual):
            assert fed.settle() == b""
        assert lean.taken_count == 150
        alike(lean, usual)
        assert lean.broker.store.queue_range("T", 3) == (0, 37)


@both_kernels
@pytest.mark.parametrize("peer", ["127.0.0.1:9", "[::1]:9"])
def test_producers_with_either_address(kernel: str, peer: str) -> None:
    with ExitStack() as stack:
        lean, usual = both_ways(stack, kernel)
        feds = [Fed(lean.broker, lean=True, peer=peer), Fed(usual.broker, lean=False, peer=peer)]
        stream = stream_of([send_command("T", 0, b"x", i=PLAIN) for _ in range(3)], [1, 2, 3])
        found = [fed.read(stream) + fed.settle() for fed in feds]
        assert found[0] == found[1]
        assert feds[0].taken_count == 3
        alike(lean, usual)


@both_kernels
def test_a_log_file_ends_in_the_midst_of_a_read(kernel: str) -> None:
    with ExitStack() as stack:
        lean, usual = both_ways(stack, kernel, mapped_file_size_commit_log=4096, max_message_size=3000)
        stream = stream_of(
            [send_command("T", number % 2, b"x" * 900, i=PLAIN) for number in range(30)], list(range(30))
        )
        found = [fed.read(stream) + fed.settle() for fed in (lean, usual)]
        assert sorted(answers(found[0])) == sorted(answers(found[1]))
        assert 0 < lean.taken_count < 30
        alike(lean, usual)


@both_kernels
def test_golden_sends_of_java_clients(kernel: str) -> None:
    """Recorded traffic, byte for byte as it came."""
    streams = golden_streams()
    assert len(streams) > 3
    with ExitStack() as stack:
        lean, usual = both_ways(stack, kernel)
        for stream in streams:
            found = [answers(fed.read(stream) + fed.settle()) for fed in (lean, usual)]
            assert sorted(found[0]) == sorted(found[1])
            again = [answers(fed.read(stream) + fed.settle()) for fed in (lean, usual)]
            assert sorted(again[0]) == sorted(again[1])
        assert lean.taken_count >= 30
        alike(lean, usual)


@both_kernels
@pytest.mark.parametrize("keys", [{}, {"max_message_size": 900, "mapped_file_size_commit_log": 65536}])
def test_plain_batches_are_taken_in_both_codecs(kernel: str, keys: dict[str, int]) -> None:
    """Records of a batch may take more than its body may."""
    with ExitStack() as stack:
        lean, usual = both_ways(stack, kernel, **keys)
        commands = []
        for number in range(60):
            parts = part(b"b%d" % number, PART_PROPERTIES[number % 4], number) * (1 + number % 7)
            command = batch_command(parts, number % 4) if number % 3 else send_command("T", number % 4, b"x", i=PLAIN)
            command.codec = HeaderCodec(number % 2)
            commands.append(command)
        stream = stream_of(commands, list(range(60)))
        found = [fed.read(stream) + fed.settle() for fed in (lean, usual)]
        assert found[0] == found[1]
        assert lean.taken_count == 60
        alike(lean, usual)
        traffic = lean.broker.core.send.traffic
        assert traffic is not None and traffic.sent["T", "fifo"].count > 20


@pytest.mark.parametrize("codec", list(HeaderCodec))
@pytest.mark.parametrize("is_batch", [False, True])
def test_damaged_frames_end_alike(codec: HeaderCodec, is_batch: bool) -> None:
    """A byte of a frame is another one: the kernel takes no frame that is none."""
    command = send_command("T", 1, b"body", i=PLAIN, n="broker-a")
    if is_batch:
        command = batch_command(part(b"body", PLAIN.encode()) + part(b"", b""))
    command.codec = codec
    whole = encode_frame(command)

    def outcome(broker: Broker, frame: bytes, *, lean: bool) -> tuple[bytes, int]:
        fed = Fed(broker, lean=lean)
        try:
            answer = fed.read(frame) + fed.settle()
        except Exception as error:  # noqa: BLE001  (compared)
            answer = type(error).__name__.encode()
        return answer, broker.store.max_phy_offset

    @settings(max_examples=1000)
    @given(st.integers(4, len(whole) - 5), st.integers(0, 255))
    def damage(at: int, byte: int) -> None:
        frame = whole[:at] + bytes((byte,)) + whole[at + 1 :]
        assert outcome(lean.broker, frame, lean=True) == outcome(usual.broker, frame, lean=False)

    with ExitStack() as stack:
        lean, usual = both_ways(stack)
        damage()
        alike(lean, usual)


def test_what_concerns_all_sends_is_decided_before(tmp_path: Path) -> None:
    """Each reason alone leaves them to the usual way."""
    stream = stream_of([send_command("T", 0, b"x", i=PLAIN)], [1])

    def count(broker: Broker, waited_ms: int = 0) -> int:
        fed = Fed(broker, lean=True)
        fed._session.waited_ms = waited_ms
        fed.read(stream)
        return fed.taken_count

    with broker_on(tmp_path / "a") as broker:
        assert count(broker) == 1
        broker.shell.holds = True
        assert count(broker) == 0
        broker.shell.holds = False
        broker.core.throttle._called_bytes = 1 << 30
        assert count(broker) == 0
        broker.core.throttle._called_bytes = 0
        broker.core.driver.stopping()
        assert count(broker) == 0
    with broker_on(tmp_path / "b", wait_time_mills_in_send_queue=200) as broker:
        assert count(broker, waited_ms=201) == 0
        assert count(broker, waited_ms=200) == 1
    with broker_on(tmp_path / "c") as broker:
        broker.store._appender._has_crc = True
        assert count(broker) == 0


@both_kernels
@pytest.mark.parametrize("status", list(AckStatus))
@pytest.mark.parametrize("codec", list(HeaderCodec))
def test_every_end_of_a_wait_is_told_alike(kernel: str, status: AckStatus, codec: HeaderCodec) -> None:
    with ExitStack() as stack:
        stores = both_ways(stack, kernel)
        told = []
        for fed in stores:
            waiters: list[tuple[PhyOffset, Waiting]] = []
            log = fed.broker.core.driver
            with patch.object(log, "appended", lambda end, waiter, into=waiters: into.append((end, waiter))):
                command = send_command("T", 1, b"x", i=PLAIN)
                command.codec = codec
                assert fed.read(stream_of([command], [77])) == b""
            ((end, waiter),) = waiters
            assert end == fed.broker.store.max_phy_offset
            waiter.finish(status)
            told.append(fed.settle())
        assert stores[0].taken_count == 1
        assert told[0] == told[1] != b""
