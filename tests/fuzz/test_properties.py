"""Properties that no client writes, through a whole broker: separators, zeros, numbers beyond all bounds, bytes that
are no UTF-8. Whatever is acknowledged is read again as it was sent, its record is one that a replica copies, and the
broker goes on, also after a restart."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import MAGIC_BLANK, verify
from rmqha.wire.command import Command, HeaderCodec
from rmqha.wire.frame import FrameParser, encode_frame
from tests.broker.pop.world import pop_command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command
from tests.fuzz.budget import fuzz

PARSER_BYTES = 1 << 22
MAX_BYTES = 40_000
BODY = b"what was sent"
SURROGATE = "QQQQQQ"
"""Half of a character, as JSON may write it, in a frame of the same length."""
NAMES = (
    "KEYS", "TAGS", "UNIQ_KEY", "DELAY", "WAIT", "TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID", "INNER_NUM", "INNER_BASE", "__CRC32#", "POP_CK", "TIMER_DELAY_MS", "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "MIN_OFFSET", "MAX_OFFSET",
    "RECONSUME_TIME", "CLUSTER", "MSG_REGION", "MULTI_DISPATCH", "__SHARDINGKEY", "1ST_POP_TIME", "DUP_INFO", "x",
)  # fmt: skip
VALUES = (
    b"", b"0", b"-1", b"1", b"2147483648", b"9223372036854775807", b"9" * 400, b"1.5", b"nan", b" 7", b"true",
    b"\0", b"\0" * 600, b"\0" * 1100 + b"z", b"\x01", b"\x01\x01", b"a\x01b", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80",
    "ü✓".encode(), b"k", b"a b c " * 2000, b"k" * 30_000, b"0 1 1 0 0 broker-a 0 0", b"TBW102", b"SCHEDULE_TOPIC_XXXX",
    b"RMQ_SYS_TRANS_HALF_TOPIC", b"rmq_sys_wheel_timer", b"%RETRY%G", b"../../x",
)  # fmt: skip
PIECES = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)).map(lambda pair: pair[0].encode() + b"\x01" + pair[1]),
    st.binary(max_size=12),
    st.sampled_from([b"", b"\x01", b"\x01v", b"name", b"\0" * 513, b"KEYS\x01k\0"]),
)


@st.composite
def properties(draw: st.DrawFn) -> bytes:
    pieces = draw(st.lists(PIECES, max_size=5))
    return (b"\x02".join(pieces) + draw(st.sampled_from([b"", b"\x02", b"\x02\x02", b"\0"])))[:MAX_BYTES]


def binary_frame(command: Command, field: str, value: bytes) -> bytes:
    """Its frame with raw bytes in a field of the binary header."""
    mark = b"\x11" * len(value)
    command.codec, command.ext[field] = HeaderCodec.ROCKETMQ, mark.decode()
    frame = encode_frame(command)
    assert not value or frame.count(mark) == 1
    return frame.replace(mark, value) if value else frame


def batch_body(value: bytes, count: int) -> bytes:
    inner = (
        struct.pack(">iiii", 0, crc32(BODY) & 0x7FFFFFFF, 0, len(BODY)) + BODY + struct.pack(">H", len(value)) + value
    )
    return (struct.pack(">i", len(inner) + 4) + inner) * count


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One send, in each of the forms that there are."""
    value, form = draw(properties()), draw(st.sampled_from(["json", "binary", "plain", "batch"]))
    command = send_command(body=BODY)
    if form == "batch":
        command.code, command.ext["m"] = RequestCode.SEND_BATCH_MESSAGE, "true"
        command.body = batch_body(value[: MAX_BYTES // 4], draw(st.integers(1, 3)))
        return encode_frame(command)
    if form == "binary":
        return binary_frame(command, "i", value)
    if form == "plain":
        ext = {
            "producerGroup": "P",
            "topic": "T",
            "queueId": "0",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
        }
        command = Command(RequestCode.SEND_MESSAGE, {**ext, "sysFlag": "0", "bornTimestamp": "1", "flag": "0"}, BODY)
        return binary_frame(command, "properties", value)
    text = value.decode(draw(st.sampled_from(["latin-1", "utf-8"])), "replace")
    command.ext["i"] = text + draw(st.sampled_from(["", SURROGATE, f"{SURROGATE}KEYS\x01{SURROGATE}"]))
    return encode_frame(command).replace(SURROGATE.encode(), b"\\ud83d")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    keys = {"auto_create_topic_enable": True, "recall_message_enable": True, "timer_wheel_enable": True}
    directory = tmp_path_factory.mktemp("properties")
    found = Broker(directory, max_hash_slot_num=64, max_index_num=4096, **keys).start()
    yield found
    end, queue = found.store.max_phy_offset, found.store.queue_range("T", 0)
    found.close()
    again = Broker(directory, max_hash_slot_num=64, max_index_num=4096, **keys).start()
    # more, if the time of a timer message has come
    assert again.store.max_phy_offset >= end and again.store.queue_range("T", 0) >= queue
    assert again.core.driver.is_serving
    again.close()


def said(broker: Broker, frame: bytes) -> list[Command]:
    """The answers, as a session hands a frame over."""
    channel, processor = FakeChannel(), broker.core.processor
    ((end, count),) = processor.take([(channel, frame)], 64)
    if not count:
        with suppress(RemoteProtocolError):  # the end of the session
            processor.received(channel, FrameParser(PARSER_BYTES).feed(frame))
    else:
        assert end == len(frame)
    broker.run(20)
    while broker.store.index.build(1 << 20):
        pass
    processor.closed(channel)
    return [answer for answer in channel.take() if answer.is_response]


def every_record_is_copied(broker: Broker, at: int) -> None:
    """By a replica, which looks at each as `verify` does."""
    while at < broker.store.max_phy_offset:
        view = broker.store.view(PhyOffset(at), broker.store.max_phy_offset - at)
        size, magic = struct.unpack_from(">iI", view)
        if magic != MAGIC_BLANK:
            verify(view, 0, len(view), at)
        at += size


@fuzz
@given(frames())
def test_a_broker_takes_any_properties_or_refuses_them(broker: Broker, frame: bytes) -> None:
    began, (_, before) = broker.store.max_phy_offset, broker.store.queue_range("T", 0)
    answers = said(broker, frame)
    assert len(answers) <= 1
    every_record_is_copied(broker, began)
    _, after = broker.store.queue_range("T", 0)
    if answers and answers[0].code == ResponseCode.SUCCESS and after > before:
        (found,) = said(broker, encode_frame(pull_command(offset=before)))
        assert found.code == ResponseCode.SUCCESS and bytes(found.body).count(BODY) == after - before
    for look in (
        pop_command(),
        Command(RequestCode.PEEK_MESSAGE, dict(pop_command().ext)),
        Command(
            RequestCode.QUERY_MESSAGE,
            {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 60)},
        ),
    ):
        assert len(said(broker, encode_frame(look))) == 1
    broker.run(2000)  # what was delayed comes, what was popped comes again
    every_record_is_copied(broker, began)
    assert broker.core.driver.is_serving and not broker.store.index.has_failed
