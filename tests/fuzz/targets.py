"""Every parser that reads bytes from a peer or from a disk: what it may raise, and inputs to begin with."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import cbor2

from controller.state.event import BrokerIdApplied, BrokerRegistered, Cause, MasterElected, decode_events, encode_events
from controller.state.image import decode_image, encode_image
from controller.state.replicas_info import ReplicasInfo
from nameserver.web.records import message_previews
from rmqha.broker.pop.checkpoint import Ack, CheckPoint, InOrder, bits_to_offsets, offsets_to_bits
from rmqha.broker.pop.modes import Mode, parse_modes
from rmqha.broker.pop.order_info import OrderInfo
from rmqha.broker.pop.order_table import parse_orders
from rmqha.broker.pop.requests.acks import batch_items
from rmqha.broker.requests.request import RequestError
from rmqha.broker.tables.config_table import DataVersion, mapping
from rmqha.broker.tables.queue_max_offsets import parse as parse_queue_ends
from rmqha.broker.timers import timer_check
from rmqha.broker.timers.recall_set import RecallSet
from rmqha.broker.timers.snapshot import TimerSnapshot
from rmqha.broker.timers.snapshot import decode as decode_snapshot
from rmqha.broker.timers.snapshot import encode as encode_snapshot
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.broker.timers.waiting import WaitingTimers
from rmqha.client.compression import decompress
from rmqha.client.consumers.message import decode_messages
from rmqha.client.consumers.pop_consumer import Receipts
from rmqha.client.route import parse_route
from rmqha.ha.group_info import parse_group_info, parse_set
from rmqha.model.config.servers import BrokerConfig, parse_properties
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import ConfigError, RemoteProtocolError, StoreError
from rmqha.model.message import decode_properties, encode_properties
from rmqha.model.offset import BrokerId, Epoch, PhyOffset, RaftIndex, Term
from rmqha.model.selector import SelectorError, parse_selector
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.log.record import BadRecordError, decode, verify
from rmqha.store.meta.epoch_file import BadEpochFileError
from rmqha.store.meta.epoch_file import parse as parse_epochs
from rmqha.store.meta.identity_file import IdentityFile
from rmqha.store.meta.sidecar import BadSidecarError
from rmqha.store.meta.sidecar import decode as decode_sidecar
from rmqha.store.meta.sidecar import encode as encode_sidecar
from rmqha.store.queue.queue_min_offsets import parse as parse_queue_starts
from rmqha.store.timer.timer_log import BadTimerLogError, check_numbers, files, units
from rmqha.store.timer.timer_wheel import SLOT_COUNT, WHEEL_BYTES, WheelSlot, slots
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from rmqha.wire.ha_stream import (
    MasterHandshake,
    MasterStreamParser,
    SlaveAck,
    SlaveHandshake,
    SlaveStreamParser,
    TransferHeader,
)
from rmqha.wire.json_header import decode_json_header
from rmqha.wire.legacy_ha import LegacyTransferParser, ReportParser
from rmqha.wire.lenient_json import loads, loads_in_steps
from rmqha.wire.raft_codec import decode_entry, decode_message, encode_entry, encode_message
from rmqha.wire.raft_message import AppendRequest, Entry, EntryKind, Heartbeat, SnapshotChunk
from rmqha.wire.registration import pack, parse_registration
from rmqha.wire.rocketmq_header import decode_rocketmq_header
from rmqha.wire.state.receipt import Receipt, real_topic
from tests.golden.reader import frames, raw
from tests.store.support import log_bytes, message, open_store
from tests.support.steps import done

SYS_FLAGS = (0, 1, 0x101, 0x201, 0x301)
PROPERTIES = {"TAGS": "a", "KEYS": "k1 k2", "n": "3.5", "b": "true"}


class Target(NamedTuple):
    parse: Callable[[bytes], object]
    refuses_with: tuple[type[Exception], ...]
    begin: Callable[[], Sequence[bytes]]
    """Good inputs."""


def _frames(data: bytes) -> None:
    for command in FrameParser(1 << 20).feed(data):
        encode_frame(command)


def _fed(
    make: Callable[[], MasterStreamParser | SlaveStreamParser | LegacyTransferParser | ReportParser],
) -> Callable[[bytes], None]:
    """In pieces of 7 bytes, as no sender sends."""

    def parse(data: bytes) -> None:
        parser = make()
        for at in range(0, len(data), 7):
            parser.feed(data[at : at + 7])

    return parse


def _sidecar(data: bytes) -> None:
    decode_sidecar(data, "x")


def _registration(data: bytes) -> None:
    ext = {"clusterName": "c", "brokerName": "b", "brokerId": "0", "brokerAddr": "a:1"}
    done(parse_registration(Command(103, ext, data)))


def _packed_registration(data: bytes) -> None:
    ext = {"clusterName": "c", "brokerName": "b", "brokerId": "0", "brokerAddr": "a:1", "compressed": "true"}
    done(parse_registration(Command(103, ext, data)))


def _large_json(data: bytes) -> None:
    done(loads_in_steps(data, ("topicConfigSerializeWrapper",), lambda name, value: None, max_member_count=100))


def _selector(data: bytes) -> None:
    parse_selector(data.decode("utf-8", "replace")).matches(PROPERTIES.get)


def _record(data: bytes) -> None:
    verify(memoryview(data), 0, len(data), 0)
    decode(memoryview(data))


def _bodies(data: bytes) -> None:
    for flag in SYS_FLAGS:
        decompress(data, flag)


def _configuration(data: bytes) -> None:
    BrokerConfig.from_properties(parse_properties(data.decode("utf-8", "replace"), "f"), "f")


def _timer_log(data: bytes) -> None:
    for _ in units(data, 1040):
        pass


def _timer_wheel(data: bytes) -> None:
    """The first slots, and those in the midst."""
    at = WHEEL_BYTES // 2 if data[:1] == b"\x01" else 0
    wheel = bytearray(WHEEL_BYTES)
    wheel[at : at + len(data)] = data
    for _ in slots(wheel[:WHEEL_BYTES]):
        pass


def _timer_snapshot(data: bytes) -> None:
    """CBOR that a checksum holds together, whatever it says."""
    try:
        fields = cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, RecursionError, MemoryError, OverflowError):
        return
    if not isinstance(fields, dict):
        return
    kept, waiting, recalls = decode_snapshot(fields), WaitingTimers(), RecallSet()
    for span in kept.spans:
        waiting.add_span(span)
    for entry in kept.late:
        waiting.add(*entry)
    recalls.take(kept.recalls, kept.recall_marks)
    assert len(waiting.take_all()) == sum(waiting.topic_counts.values()) + len(kept.late) + sum(
        len(span.topics) // 2 for span in kept.spans
    )


def _timer_kept() -> list[bytes]:
    waiting = WaitingTimers()
    for offset, slot_ms in enumerate((5000, 5000, 70_000, 5000, 1_000_000)):
        waiting.add(slot_ms, offset, offset % 2)
    progress = TimerProgress(4000, 0, 5, 0)
    kept = TimerSnapshot(progress, 5, 100, 7, [b"T", b"U"], {5000: bytes(16)}, waiting.spans(), [(3000, 4)], {})
    return [cbor2.dumps(encode_snapshot(kept))]


def _timer_progress() -> list[bytes]:
    progress = TimerProgress(5000, 3, 9, 2)
    version = DataVersion(7, 3, 1_800_000_000_000)
    return [timer_check.encode(progress, version), timer_check.encode_file(progress, version)[:128]]


def _timer_units() -> list[bytes]:
    entries = [(5000, 0, 0, 100), (5000, 2, 100, 100), (7000, 4, 200, 100), (5000, 0, 300, 100)]
    return list(files(entries, 1000, 1000, 172))


def _receipt(data: bytes) -> None:
    found = Receipt.decode(data.decode("utf-8", "replace"))
    real_topic("T", "G", found.kind)
    assert Receipt.decode(found.encode()) == found


def _pop_answer(data: bytes) -> None:
    """Two fields of an answer, one after the other."""
    starts, _, counts = data.decode("utf-8", "replace").partition("|")
    Receipts(Command(0, {"startOffsetInfo": starts, "orderCountInfo": counts}), "b")


def _checkpoint(data: bytes) -> None:
    found = CheckPoint.from_json(loads(data), "b")
    if found.put_times < 127:
        assert CheckPoint.from_json(found.to_json(), "b") == found


def _acknowledgement(data: bytes) -> None:
    """The first byte says which kind."""
    kind, value = data[:1], loads(data[1:])
    if kind == b"o":
        InOrder.from_json(value)
        return
    found = Ack.from_json(value, "b", is_batch=kind == b"b")
    if found.queue_offsets:
        assert Ack.from_json(found.to_json(), "b", is_batch=found.is_batch) == found


def _acknowledged_bits(data: bytes) -> None:
    assert offsets_to_bits(7, bits_to_offsets(7, data, 1024)) == data.rstrip(b"\0")


def _orders(data: bytes) -> None:
    for info in parse_orders(mapping(loads(data), "orders")).values():
        info.free_ms()
        info.settle(5)
        info.to_json()


def _modes(data: bytes) -> None:
    for mode in parse_modes(mapping(loads(data), "modes")).values():
        assert Mode.from_json(mode.to_json()) == mode


def _pop_entries() -> list[bytes]:
    batch = Ack("T", "G", 0, 5, 1700000000000, "b", (5, 7), is_batch=True)
    plain = Ack("T", "G", 0, 5, 1700000000000, "b", (5,))
    in_order = {"c": "G", "o": 9, "q": 0, "t": "T", "v": 1}
    return [
        b"b" + json.dumps(batch.to_json()).encode(),
        b"a" + json.dumps(plain.to_json()).encode(),
        b"o" + json.dumps(in_order).encode(),
    ]


def _ack_batch() -> list[bytes]:
    short = {"c": "G", "t": "T", "r": "1", "so": 5, "q": 0, "rq": 3, "pt": 17, "it": 60, "b": "BQ=="}
    names = ("consumerGroup", "topic", "retry", "startOffset", "queueId", "reviveQueueId", "popTime")
    long = dict(zip((*names, "invisibleTime", "bitSet"), short.values(), strict=True))
    return [json.dumps({"brokerName": "b", "acks": [short, long]}).encode()]


def _order_infos() -> list[bytes]:
    info = OrderInfo(1700000000000, 60000, (5, 6, 9), "attempt", 1, {6: 1700000000500}, {9: 2}, 1700000000000)
    return [json.dumps({"table": {"T@G": {"0": info.to_json()}}}).encode()]


def _queue_starts(data: bytes) -> None:
    """CBOR that a checksum holds together, whatever it says."""
    try:
        fields = cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, RecursionError, MemoryError, OverflowError):
        return
    if isinstance(fields, dict):
        parse_queue_starts(fields)


def _queue_ends(data: bytes) -> None:
    parse_queue_ends("1.2.3.4:5", Command(0, {"dispatchedOffset": "7"}, data))


def _identity(data: bytes) -> None:
    disk = SimDisk(SimPrng(1))
    disk.write_atomic("brokerIdentity", data)
    IdentityFile(disk).read()


def _answers(data: bytes) -> None:
    parse_group_info(_command(data))
    parse_set(_command(data))


def _command(data: bytes) -> Command:
    """`name=value` lines, an empty one, the body."""
    head, _, body = data.partition(b"\n\n")
    pairs = (line.partition("=") for line in head.decode("utf-8", "replace").splitlines())
    return Command(1005, {name: value for name, _, value in pairs}, body)


@cache
def _golden() -> tuple[bytes, ...]:
    return tuple(found for found in map(raw, frames()) if len(found) < 1500)


def _headers(codec: int) -> list[bytes]:
    """Of golden frames with this codec."""
    found = [data for data in _golden() if data[4] == codec]
    return [data[8 : 8 + int.from_bytes(data[5:8], "big")] for data in found[::7]]


@cache
def _log() -> bytes:
    store = open_store(SimDisk(SimPrng(1)))
    for number in range(3):
        store.append(message(number, body=b"b%d" % number * 20, properties=encode_properties(PROPERTIES)), number)
    return log_bytes(store)


def _registrations() -> list[bytes]:
    wrapper = {"dataVersion": VERSION, "topicConfigTable": {"T": TOPIC}}
    return [json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()]


def _ha_of_a_master() -> list[bytes]:
    entries = EpochHistory((EpochEntry(Epoch(1), PhyOffset(0)), EpochEntry(Epoch(3), PhyOffset(100))))
    hello = MasterHandshake(PhyOffset(200), Epoch(3), entries).encode()
    log = _log()
    transfer = TransferHeader(len(log), PhyOffset(200), Epoch(3), PhyOffset(100), PhyOffset(150)).encode() + log
    return [hello, hello[:-3], hello + transfer + transfer]


def _ha_of_a_slave() -> list[bytes]:
    return [SlaveHandshake(BrokerId(2)).encode() + SlaveAck(PhyOffset(7)).encode()]


SELECTORS = (
    b"TAGS = 'a' AND n BETWEEN 1 AND 4.5 OR NOT (b IS NULL)",
    b"n IN ('1','2') OR KEYS CONTAINS 'k'",
)
PROPERTIES_FILES = (b"brokerName=a\nhaMode=cp\ntotalReplicas=3\n", b"# x\nfileReservedTime = 72\n")
TOPIC = {
    "topicName": "T",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "attributes": {},
}
VERSION = {"counter": 1, "stateVersion": 2, "timestamp": 3}
ROUTE = {
    "brokerDatas": [{"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": "h:1"}}],
    "queueDatas": [{"brokerName": "b", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 0}],
}  # fmt: skip
ANSWER = b"masterBrokerId=1\nmasterAddress=a:1\nmasterEpoch=3\nsyncStateSetEpoch=2\nmasterHaAddress=a:2\n\n"
SET = b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}'


def _raft() -> list[bytes]:
    entry = Entry(RaftIndex(5), Term(2), b"x", EntryKind.DATA)
    append = AppendRequest("n1#1", "n2#2", Term(2), RaftIndex(4), Term(1), RaftIndex(4), (entry,))
    chunk = SnapshotChunk("n1#1", "n2#2", Term(2), RaftIndex(4), Term(1), 10, 0, b"abc", b"")
    beat = Heartbeat("n1#1", "n2#2", Term(2), RaftIndex(4), 7)
    return [encode_message(append), encode_message(chunk), encode_message(beat)]


def _begin(*data: bytes) -> Callable[[], Sequence[bytes]]:
    return lambda: data


def _packed() -> bytes:
    return done(pack(VERSION, 1, [TOPIC]))


def _entries() -> list[bytes]:
    return [encode_entry(Entry(RaftIndex(5), Term(2), b"x", EntryKind.DATA))]


ID_APPLIED = BrokerIdApplied("c", "g", BrokerId(1), "h:1", "code")
REGISTERED = BrokerRegistered("g", BrokerId(1), "h:1", "h:2", 3, "cp")
ELECTED = MasterElected("g", BrokerId(1), Epoch(1), (BrokerId(1),), Cause.FIRST_ELECTION)
EVENTS = (ID_APPLIED, REGISTERED, ELECTED)


def _image() -> list[bytes]:
    info = ReplicasInfo()
    for event in EVENTS:
        info.apply(event)
    return [encode_image(info)]


REMOTE = (RemoteProtocolError,)
TARGETS: dict[str, Target] = {
    "frame": Target(_frames, REMOTE, lambda: _golden()[::11]),
    "json-header": Target(decode_json_header, REMOTE, lambda: _headers(0)),
    "rocketmq-header": Target(decode_rocketmq_header, REMOTE, lambda: _headers(1)),
    "json": Target(loads, REMOTE, _begin(json.dumps(ROUTE).encode(), b'{0:"a",1:[1.5,true,null]}')),
    "large-json": Target(
        _large_json, REMOTE, _begin(json.dumps({"topicConfigSerializeWrapper": {"a": {"b": [1]}}, "c": "d"}).encode())
    ),
    "registration": Target(_registration, REMOTE, _registrations),
    "packed-registration": Target(_packed_registration, REMOTE, lambda: [_packed()]),
    "unpacked-registration": Target(
        lambda data: _packed_registration(zlib.compress(data)), REMOTE, lambda: [zlib.decompress(_packed())]
    ),
    "ha-of-a-master": Target(_fed(MasterStreamParser), REMOTE, _ha_of_a_master),
    "ha-of-a-slave": Target(_fed(SlaveStreamParser), REMOTE, _ha_of_a_slave),
    "plain-ha-of-a-master": Target(_fed(LegacyTransferParser), REMOTE, _begin(bytes(8) + b"\0\0\0\x05abcde")),
    "plain-ha-of-a-slave": Target(_fed(ReportParser), REMOTE, _begin(bytes(7) + b"\x09" + bytes(8))),
    "controller-answer": Target(_answers, REMOTE, _begin(ANSWER + SET)),
    "raft-message": Target(decode_message, REMOTE, _raft),
    "raft-entry": Target(decode_entry, REMOTE, _entries),
    "controllers-event": Target(decode_events, (StoreError,), lambda: [encode_events(EVENTS)]),
    "controllers-image": Target(decode_image, (StoreError,), _image),
    "selector": Target(_selector, (SelectorError,), _begin(*SELECTORS)),
    "properties": Target(decode_properties, (), lambda: [encode_properties(PROPERTIES)]),
    "route": Target(lambda data: parse_route("T", data, "h:1"), REMOTE, _begin(json.dumps(ROUTE).encode())),
    "looked-up": Target(lambda data: message_previews("b", data, 128), REMOTE, lambda: [_log()]),
    "pulled": Target(lambda data: decode_messages("b", data), REMOTE, lambda: [_log()]),
    "body": Target(_bodies, REMOTE, _begin(b"plain", zlib.compress(b"b" * 50))),
    "record": Target(_record, (BadRecordError,), lambda: [_log()]),
    "epochs": Target(parse_epochs, (BadEpochFileError,), _begin(b"2\n0\n1-0\n3-100\n", b"1\n0\n1-0\n")),
    "sidecar": Target(_sidecar, (BadSidecarError, StoreError), lambda: [encode_sidecar({"x": 1})]),
    "queue-starts": Target(
        _queue_starts, (BadSidecarError,), lambda: [cbor2.dumps({"lacks": False, "starts": [["T", 0, 5]]})]
    ),
    "queue-ends": Target(_queue_ends, (RemoteProtocolError,), _begin(b'{"queues":[["T",0,5],["%RETRY%g",3,1]]}')),
    "identity": Target(_identity, (StoreError,), _begin(b"DefaultCluster#broker-a#1")),
    "timer-log": Target(_timer_log, (BadTimerLogError,), _timer_units),
    "timer-wheel": Target(_timer_wheel, (BadTimerLogError,), lambda: [WheelSlot(SLOT_COUNT, 0, 52, 2).encode()]),
    "timer-check": Target(check_numbers, (BadTimerLogError,), _begin(bytes(55) + b"\x09")),
    "timer-progress": Target(timer_check.decode, (ValueError,), _timer_progress),
    "timer-snapshot": Target(_timer_snapshot, (BadSidecarError, StoreError, ValueError), _timer_kept),
    "receipt": Target(
        _receipt, (ValueError,), _begin(b"7 1700000000000 60000 3 1 broker-a 0 9", b"7 1 2 999 0 b 0 9 -1")
    ),
    "pop-answer": Target(_pop_answer, REMOTE, _begin(b"0 0 4;1 3 9|0 qo0%4 2;0 0 1", b"0 0 4|")),
    "checkpoint": Target(
        _checkpoint,
        (ValueError, RemoteProtocolError),
        lambda: [json.dumps(CheckPoint("T", "G", 0, 5, 17, 60, "b", (5, 7)).to_json()).encode()],
    ),
    "acknowledgement": Target(_acknowledgement, (ValueError, RemoteProtocolError), _pop_entries),
    "acknowledged-batch": Target(batch_items, (RequestError, RemoteProtocolError), _ack_batch),
    "acknowledged-bits": Target(_acknowledged_bits, (ValueError,), _begin(b"\x05\x80", b"\1" + bytes(9) + b"\1")),
    "orders": Target(_orders, (ValueError, TypeError, RemoteProtocolError), _order_infos),
    "request-modes": Target(
        _modes,
        (ValueError, TypeError, RemoteProtocolError),
        _begin(json.dumps({"messageRequestModeMap": {"T": {"G": Mode("T", "G", "POP", 3).to_json()}}}).encode()),
    ),
    "configuration": Target(_configuration, (ConfigError,), _begin(*PROPERTIES_FILES)),
}
"""By name, which is also its folder in the corpus."""
