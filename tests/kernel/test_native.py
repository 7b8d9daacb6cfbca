"""The native kernel takes what the one in Python takes, and makes the same of it.

RMQHA_KERNEL_CASES=10000000 is the long run (`make fuzz-kernel CASES=10000000`)."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.host import kernel_choice
from rmqha.host.kernel_choice import VARIABLE, choose_kernel, load_kernel
from rmqha.kernel.batch_kernel import (
    MAX_BATCH_COUNT,
    NEW_ENTRY,
    BatchKernel,
    QueueSlot,
    SendContext,
    SendPart,
    SendRead,
    SendResults,
    SendRules,
)
from rmqha.kernel.native_kernel import NativeKernel
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.code import RequestCode
from rmqha.model.error import ConfigError
from rmqha.store.log.record import MAGIC_V1, MAGIC_V2
from rmqha.wire.command import Command, HeaderCodec
from rmqha.wire.frame import FrameParser, encode_frame
from tests.broker.support import send_command
from tests.fuzz.budget import fuzz, fuzz_seconds
from tests.kernel.streams import (
    OPAQUES,
    PART_PROPERTIES,
    PLAIN,
    batch_command,
    damaged_sends,
    golden_streams,
    part,
    sends,
    stream_of,
)
from tests.kernel.support import kernel_named, one_read
from tests.support.seeds import drawn_seed

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
V4, V6 = b"\x7f\0\0\1", bytes(range(16))
SPECIAL = (b"WAIT\x01false", b"DELAY", b"TRAN_MSG", b"INNER_NUM", b"__CRC32#", b"MSG_REGION", b"CLUSTER")
RULES = SendRules(
    1 << 20, 100_000, 32_767, b"CLUSTER\x01c\x02", SPECIAL, V4, 10911, (("MSG_REGION", "d"), ("TRACE_ON", "true"))
)
ALL_RULES = (
    RULES,
    RULES._replace(store_address=V6, own_properties=b"", answer_fields=(("MSG_REGION", '50%@hole@"\\'),)),
    RULES._replace(max_body_bytes=30, max_properties_bytes=100, special_texts=(b"TAGS",)),
    RULES._replace(max_frame_bytes=600, special_texts=(), answer_fields=()),
)
LEAST_CASES, CASES_PER_SECOND = 4_000, 5_000


def slot(topic: bytes, queue_id: int) -> QueueSlot | None:
    """A queue of each topic that begins with other than R and N; its field is of either form."""
    if topic[:1] in b"RN" or queue_id > 1 << 20:
        return None
    if len(topic) > 100:
        return QueueSlot(topic.decode(), len(topic).to_bytes(2, "big") + topic, MAGIC_V2, (1 << 40) + queue_id)
    return QueueSlot(topic.decode(), bytes((len(topic),)) + topic, MAGIC_V1, queue_id)


def context(phy_offset: int = 1 << 33, room_bytes: int = 1 << 30) -> SendContext:
    return SendContext(phy_offset, phy_offset + room_bytes, 1_795_227_462_186, slot)


class Both:
    """Both kernels, which keep what they keep from call to call."""

    def __init__(self) -> None:
        self._python, self._native = PythonKernel(), kernel_named("native")
        self.taken_count = 0

    def sends(self, read: SendRead, rules: SendRules = RULES, at: SendContext | None = None) -> SendResults:
        at = at or context()
        expected, found = (kernel.sends(read, rules, at) for kernel in (self._python, self._native))
        assert found == expected, read
        self.taken_count += found.taken_count
        return found

    def all_of(self, stream: bytes, rules: SendRules = RULES) -> None:
        """Offer each frame in turn as the first one."""
        at = 0
        while at < len(stream):
            self.sends(one_read(stream, at, 64, V4, 5), rules)
            at += max(4 + int.from_bytes(stream[at : at + 4], "big"), 4)


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


@fuzz
@given(
    commands=st.lists(sends(), min_size=1, max_size=8),
    opaques=st.lists(OPAQUES, min_size=8, max_size=8),
    cut=st.none() | st.integers(0, 5000),
    max_count=st.integers(0, 70),
    born=st.sampled_from([V4, V6]),
    rules=st.sampled_from(ALL_RULES),
    offset=st.sampled_from([0, 1, 1 << 31, 1 << 33, (1 << 62) - 1]),
    room_bytes=st.sampled_from([0, 90, 500, 1 << 30]),
)
def test_both_make_the_same(
    both: Both,
    commands: list[Command],
    opaques: list[int],
    cut: int | None,
    max_count: int,
    born: bytes,
    rules: SendRules,
    offset: int,
    room_bytes: int,
) -> None:
    stream = stream_of(commands, opaques[: len(commands)])
    read = one_read(stream[:cut], 0, max_count, born, 65_535)
    both.sends(read, rules, context(offset, room_bytes))


@fuzz
@given(
    streams=st.lists(st.lists(sends(), max_size=4), max_size=12),
    cuts=st.lists(st.none() | st.integers(0, 2000), min_size=12, max_size=12),
    counts=st.lists(st.integers(0, 5), min_size=12, max_size=12),
    borns=st.lists(st.sampled_from([V4, V6]), min_size=12, max_size=12),
    rules=st.sampled_from(ALL_RULES),
    room_bytes=st.sampled_from([0, 90, 500, 1500, 1 << 30]),
)
def test_both_make_the_same_of_many_connections(
    both: Both,
    streams: list[list[Command]],
    cuts: list[int | None],
    counts: list[int],
    borns: list[bytes],
    rules: SendRules,
    room_bytes: int,
) -> None:
    parts, data = [], b""
    for number, (commands, cut, max_count, born) in enumerate(zip(streams, cuts, counts, borns, strict=False)):
        start = len(data)
        data += stream_of(commands, [number] * len(commands))[:cut]
        parts.append(SendPart(start, len(data), max_count, born, number))
    found = both.sends(SendRead(data, parts), rules, context(room_bytes=room_bytes))
    assert all(part.start <= taken.end <= part.end for part, taken in zip(parts, found.parts, strict=True))


def test_of_each_connection_as_much_as_is_plain(both: Both) -> None:
    """What is left of one stands in nobody's way."""
    frame = encode_frame(send_command("T", 0, b"x", i=PLAIN))
    other = encode_frame(Command(RequestCode.HEART_BEAT))
    streams = [frame * 2, other + frame, frame + other + frame, b"", frame[:-1], frame * 9]
    parts, data = [], b""
    for number, stream in enumerate(streams):
        parts.append(SendPart(len(data), len(data) + len(stream), 8, V4, number))
        data += stream
    found = both.sends(SendRead(data, parts))
    assert [part.frame_count for part in found.parts] == [2, 0, 1, 0, 0, 8]
    assert [taken.end - part.start for part, taken in zip(parts, found.parts, strict=True)] == [
        len(frame) * count for count in (2, 0, 1, 0, 0, 8)
    ]
    assert [len(FrameParser(1 << 24).feed(part.answers)) for part in found.parts] == [2, 0, 1, 0, 0, 8]
    (run,) = found.runs
    assert run.unit_count == 11, "one queue goes on through all of them"
    ports = [found.records[at - found.bounds[0] + 52 :][:4] for at in found.bounds[:-1]]
    assert [int.from_bytes(port, "big") for port in ports] == [0, 0, 2, *[5] * 8], "each has its own born host"


@fuzz
@given(st.binary(max_size=300), st.integers(0, 300))
def test_bytes_of_any_kind(both: Both, data: bytes, at: int) -> None:
    both.sends(one_read(data, min(at, len(data)), 64, V4, 5))


def test_golden_sends(both: Both) -> None:
    before = both.taken_count
    for stream in golden_streams():
        for rules in ALL_RULES:
            both.all_of(stream, rules)
    assert both.taken_count - before > 100


def test_the_fuzz_corpus(both: Both) -> None:
    paths = sorted(path for path in CORPUS.rglob("*") if path.is_file())
    assert len(paths) > 100
    for path in paths:
        data = path.read_bytes()
        both.all_of(data)
        for codec in HeaderCodec:
            word = (codec << 24 | len(data)).to_bytes(4, "big")
            both.sends(one_read((4 + len(data)).to_bytes(4, "big") + word + data, 0, 64, V4, 5))


@pytest.mark.parametrize("codec", list(HeaderCodec))
def test_every_byte_of_a_frame_in_turn(both: Both, codec: HeaderCodec) -> None:
    command = send_command("T", 1, b"body", i=PLAIN, n="broker-a")
    command.codec = codec
    whole = encode_frame(command)
    for at in range(len(whole)):
        for byte in {0, 1, 2, 0x22, 0x2D, 0x30, 0x5C, 0x7F, 0xFF, whole[at] ^ 1, whole[at] ^ 0x20}:
            both.sends(one_read(whole[:at] + bytes((byte,)) + whole[at + 1 :], 0, 64, V4, 5))
        both.sends(one_read(whole[:at], 0, 64, V4, 5))


def test_many_damaged_sends(both: Both) -> None:
    count = int(os.environ.get("RMQHA_KERNEL_CASES", LEAST_CASES + int(fuzz_seconds() * CASES_PER_SECOND)))
    seed = drawn_seed()
    random, before = Random(seed), both.taken_count
    for number in range(count):
        both.sends(one_read(damaged_sends(random), 0, 64, V4, 5), ALL_RULES[number % 8 % len(ALL_RULES)])
    assert both.taken_count - before > count // 10, f"seed {seed}: too few of the damaged ones are plain"


def test_a_read_that_is_larger_than_the_kept_memory(both: Both) -> None:
    frames = [encode_frame(send_command("T", number % 3, b"x" * 90_000, i=PLAIN)) for number in range(30)]
    found = both.sends(one_read(b"".join(frames), 0, 1000, V4, 5))
    assert found.taken_count == 30
    many = b"".join([encode_frame(send_command("T", number, b"", i=PLAIN)) for number in range(500)])
    assert both.sends(one_read(many, 0, 1000, V4, 5)).taken_count == 500
    assert both.sends(one_read(many, 0, 64, V4, 5)).taken_count == 64
    keys = " ".join(map(str, range(5_000)))
    keyed = send_command("T", 0, b"", i=f"{PLAIN}KEYS\x01{keys}\x02")
    found = both.sends(one_read(encode_frame(keyed) * 10, 0, 64, V4, 5))
    assert len(found.entries) > 10 * 5_000 * NEW_ENTRY.size, "more than the records take"


@pytest.mark.parametrize("codec", list(HeaderCodec))
def test_batches(both: Both, codec: HeaderCodec) -> None:
    """Taken whole or not at all, with singles between."""
    commands = [send_command("T", 1, b"first", i=PLAIN)]
    for number in range(40):
        commands.append(batch_command(part(b"b%d" % number, PLAIN.encode(), number) * (1 + number % 5), number % 3))
    for command in commands:
        command.codec = codec
    data = stream_of(commands, list(range(41)))
    found = both.sends(one_read(data, 0, 64, V4, 5))
    assert (found.taken_count, found.parts[0].end) == (41, len(data))
    assert found.message_counts == [1] + [1 + number % 5 for number in range(40)]
    assert found.record_count == 121 and sum(run.unit_count for run in found.runs) == 121
    entries = [entry[1] for entry in NEW_ENTRY.iter_unpack(found.entries)]
    assert len(set(entries)) == 121, "each record has keys"
    assert entries == sorted(entries) and entries[0] == found.bounds[0]
    assert both.sends(one_read(data, 0, 64, V4, 5), at=context()._replace(is_keyed=False)) == found._replace(
        entries=b""
    )
    for room_bytes in range(0, 4000, 7):
        taken = both.sends(one_read(data, 0, 64, V6, 5), at=context(room_bytes=room_bytes))
        assert taken.message_counts == found.message_counts[: taken.taken_count]
        assert len(taken.topics) == len(taken.bounds) - 1 == taken.taken_count
        assert {tail[2:] for tail in taken.tails()} <= {PLAIN.encode(), PLAIN.encode() + RULES.own_properties}


@pytest.mark.parametrize(("body", "is_taken"), [
    (part(b"", b"") * MAX_BATCH_COUNT, True),
    (part(b"", b"") * (MAX_BATCH_COUNT + 1), False),
    (b"", False),
    (part(b"a", PART_PROPERTIES[-1]), True),
    (part(b"a", PLAIN.encode()) + part(b"b", b"__CRC32#\x010000000000\x02"), False),
    (part(b"a", PLAIN.encode()) + part(b"b", "TAGS\x01\u4f60\x02".encode()), False),
    (part(b"a", PLAIN.encode()) + part(b"b", b"zero\x01\0"), False),
    (part(b"a", PLAIN.encode()) + b"\0" * 21, False),
    (part(b"a", PLAIN.encode())[:-1], False),
])  # fmt: skip
def test_which_batches_are_plain(both: Both, body: bytes, is_taken: bool) -> None:
    for codec in HeaderCodec:
        command = batch_command(body)
        command.codec = codec
        for born in (V4, V6):
            for rules in ALL_RULES[:2]:
                found = both.sends(one_read(encode_frame(command), 0, 64, born, 5), rules)
                assert found.taken_count == is_taken
                if is_taken:
                    assert len(FrameParser(1 << 24).feed(found.parts[0].answers)) == 1, "as `FramesWaiter` may need it"


def test_a_slot_that_raises_leaves_nothing_behind(both: Both) -> None:
    read = one_read(encode_frame(send_command("T", 0, b"x", i=PLAIN)), 0, 64, V4, 5)

    def broken(topic: bytes, queue_id: int) -> QueueSlot | None:
        raise LookupError(topic)

    for kernel in (PythonKernel(), kernel_named("native")):
        with pytest.raises(LookupError):
            kernel.sends(read, RULES, context()._replace(slot=broken))
        assert kernel.sends(read, RULES, context()).taken_count == 1
    both.sends(read)


# --- which one ------------------------------------------------------------------------------------------------------
CHOICES: dict[str, tuple[str, bool, str]] = {
    "by default the native one": ("", True, "native"),
    "by default Python, and why": ("", False, "python: there is no "),
    "Python if asked for": ("python", True, "python"),
    "the native one if asked for": ("native", True, "native"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_which_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, is_there, words = CHOICES[name]
    kernel_named("native" if is_there else "python")
    monkeypatch.setenv(VARIABLE, asked)
    if not is_there:
        monkeypatch.setattr(kernel_choice.load_kernel, "__defaults__", (tmp_path / "none.so",))
    choice = choose_kernel()
    assert choice.description.startswith(words) and (choice.fallback_reason == "") == (":" not in words)
    kind: type[BatchKernel] = NativeKernel if choice.name == "native" else PythonKernel
    assert isinstance(choice.kernel, kind)


@pytest.mark.parametrize("value", ["Native", "c"])
def test_a_kernel_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ConfigError, match="one of native, python"):
        choose_kernel()


def test_a_library_that_is_asked_for_and_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "native")
    monkeypatch.setattr(kernel_choice.load_kernel, "__defaults__", (tmp_path / "none.so",))
    with pytest.raises(ConfigError, match="make native"):
        choose_kernel()


def test_a_library_of_another_processor_says_so(tmp_path: Path) -> None:
    """The linker says that there is no such file."""
    head = bytearray(Path("/proc/self/exe").read_bytes()[:64])
    head[18:20] = b"\xfa\xfa"
    path = tmp_path / "librmqha_kernel.so"
    path.write_bytes(head)
    with pytest.raises(OSError, match="was built for another processor: make native builds one for this"):
        load_kernel(path)


def test_a_library_that_may_not_be_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "librmqha_kernel.so"
    path.write_bytes(b"no library")
    found = os.statvfs(path)
    flags = found.f_flag | os.ST_NOEXEC
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*found[:8], flags, *found[9:])))
    with pytest.raises(OSError, match="lies on a file system that is mounted noexec: install rmqha on another one"):
        load_kernel(path)


def test_a_library_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "librmqha_kernel.so"
    path.write_bytes(b"no library")
    with pytest.raises(OSError, match="make native"):
        load_kernel(path)
