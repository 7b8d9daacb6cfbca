"""A damaged record is never made anew, never left out: it waits until a replica has given it back (request 52034)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import pytest

from rmqha.broker.replication.read_repair import NOBODY, ReadRepair
from rmqha.broker.tables.metadata_follower import CALL_TIMEOUT_MS
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.model.message import encode_properties
from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import body_crc, decode, locate
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command

T = TypeVar("T")
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
PEER = "127.0.0.1:2"


class PausedError(Exception):
    """The repair would sleep now."""


class Pair:
    """A master and a replica that has its log; `run` repairs until it pauses."""

    is_writing = False

    def __init__(self, master: Broker, peer: Broker) -> None:
        self.master, self.peer = master, peer
        self.addresses = [PEER]
        self.answer: Callable[[Command], Command | None] = lambda command: None
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while a thread makes a copy durable."""
        self.repair = ReadRepair(master.store, self, master.tracer, master.core._repair_settled)

    def holders(self, phy_offset: PhyOffset) -> list[str]:
        return self.addresses

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        assert (address, timeout_ms, command.code) == (PEER, CALL_TIMEOUT_MS, RequestCode.RMQHA_READ_RECORD)
        self.asked += 1
        channel = FakeChannel()
        answer = self.answer(command)
        if answer is None:
            self.peer.core.processor.received(channel, [command])
            answer = channel.one()
        return answer

    async def sleep(self, duration_ms: int) -> None:
        raise PausedError

    async def write(self, write: Callable[[T], None], data: T) -> None:
        write(data)
        self.meanwhile()

    def copy(self) -> None:
        """Bytes, epochs and the confirm offset, as HA brings them."""
        own, master = self.peer.store, self.master.store
        for entry in master.epochs:
            own.append_epoch(entry.epoch, entry.start_offset)
        while own.max_phy_offset < master.max_phy_offset:
            assert own.append_raw(own.max_phy_offset, master.view(own.max_phy_offset, 1 << 20)) == ""
        own.set_confirm_offset(own.max_phy_offset)
        while own.dispatch(1 << 20):
            pass

    def run(self) -> None:
        try:
            self.repair.run(self).send(None)
        except (StopIteration, PausedError):
            return
        raise AssertionError("the repair waits for something else")

    def damage(self) -> dict[str, Any]:
        return self.master.store.damage.state().to_json()


@pytest.fixture
def pair(make_broker: Callable[..., Broker]) -> Iterator[Pair]:
    yield Pair(make_broker().start(), make_broker("peer"))


def delayed(body: bytes) -> Command:
    return send_command(body=body, i=encode_properties({"DELAY": "1", "UNIQ_KEY": "ID"}).decode())


def bodies(broker: Broker, topic: str = "T") -> list[bytes]:
    return [bytes(decode(record).body) for record in broker.store.pull(topic, 0, 0, 100, 1 << 20).records]


def flip(broker: Broker, at: int, mask: int = 1) -> None:
    path: Path = broker.directory / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes((old ^ mask,)))


def places(broker: Broker, phy_offset: int) -> dict[str, int]:
    """Where the parts of the record there stand in the file."""
    view = broker.store.view(PhyOffset(phy_offset), 1 << 20)
    size, _, _, _, body_at, _, topic_at, _, properties_at, _, _ = locate(view, 0, len(view), phy_offset)
    parts = {"size": 3, "magic": 7, "crc": 9, "queue id": 15, "queue offset": 27, "own offset": 35, "sys flag": 39}
    parts |= {"body length": body_at - 1, "body": body_at, "topic": topic_at, "properties length": properties_at - 1}
    parts |= {"a name": properties_at, "the end": size - 1}
    return {name: phy_offset + at for name, at in parts.items()}


PARTS = ["size", "magic", "crc", "queue id", "queue offset", "own offset", "sys flag", "body length", "body", "topic"]
PARTS += ["properties length", "the end"]


@pytest.mark.parametrize("part", PARTS)
def test_a_delayed_message_waits_until_a_replica_gives_it_back(pair: Pair, part: str) -> None:
    """One bit anywhere that a CRC or the form of a record covers."""
    for body in (b"first", b"amount=1000", b"last"):
        pair.master.ask(delayed(body))
    pair.copy()
    (_, (at, _, _), _) = pair.master.store.units(SCHEDULE, 0, 0, 10)
    mask = 0x10 if part == "sys flag" else 1
    flip(pair.master, places(pair.master, at)[part], mask)
    pair.master.run(1000)
    pair.master.run(1000)
    assert bodies(pair.master) == [b"first"], "what stands before it comes, nothing is made of it, nothing passes it"
    assert pair.master.tracer.names().count("damaged") == 1
    assert (pair.damage()["waitingCount"], pair.damage()["lackedCount"]) == (1, 0)
    pair.run()
    pair.master.run(1000)
    assert bodies(pair.master) == [b"first", b"amount=1000", b"last"]
    assert "record_repaired" in pair.master.tracer.names() and pair.damage()["waitingCount"] == 0
    assert bytes(pair.master.store.view(PhyOffset(0), 1 << 20)).startswith(
        bytes(pair.peer.store.view(PhyOffset(0), 1 << 20))
    )


def test_a_name_among_the_properties_of_a_delayed_message(pair: Pair) -> None:
    pair.master.ask(delayed(b"x"))
    pair.copy()
    ((at, size, _),) = pair.master.store.units(SCHEDULE, 0, 0, 10)
    data = bytes(pair.master.store.view(PhyOffset(at), size))
    flip(pair.master, at + data.index(b"REAL_TOPIC"))
    pair.master.run(1000)
    assert bodies(pair.master) == [] and pair.damage()["waitingCount"] == 1
    pair.run()
    pair.master.run(1000)
    assert bodies(pair.master) == [b"x"]


def test_what_no_replica_has_is_told_and_waits(pair: Pair) -> None:
    pair.master.ask(delayed(b"amount=1000"))
    ((at, _, _),) = pair.master.store.units(SCHEDULE, 0, 0, 10)
    flip(pair.master, places(pair.master, at)["body"])
    pair.master.run(1000)
    pair.addresses = []
    pair.run()
    pair.master.run(1000)
    assert bodies(pair.master) == []
    assert pair.damage()["records"][0]["lacked"] == NOBODY
    assert pair.master.tracer.names().count("damage_not_repaired") == 1
    assert pair.master.core.driver.state().to_json()["damage"]["lackedCount"] == 1


def test_neighbours_that_rotted_together_are_mended_together(pair: Pair) -> None:
    """A lost sector takes several records. Nobody sees where one begins whose predecessor has lost its head."""
    for number in range(6):
        pair.master.ask(send_command(body=b"number %d" % number))
    pair.copy()
    struck = [at for at, _, _ in pair.master.store.units("T", 0, 1, 4)][:3]
    for at in struck:
        flip(pair.master, places(pair.master, at)["magic"])
    pair.master.ask(pull_command(offset=1))
    assert pair.damage()["waitingCount"] == 1
    pair.run()
    assert (pair.damage()["waitingCount"], pair.damage()["repairedCount"]) == (0, 3)
    size = int(pair.peer.store.max_phy_offset)
    assert pair.master.store.view(PhyOffset(0), size) == pair.peer.store.view(PhyOffset(0), size)


def test_a_pull_waits_for_the_record_and_gets_it(pair: Pair) -> None:
    for number in range(3):
        pair.master.ask(send_command(body=b"number %d" % number))
    pair.copy()
    ((at, _, _),) = pair.master.store.units("T", 0, 1, 1)
    flip(pair.master, places(pair.master, at)["body"])
    told = pair.master.ask(pull_command(offset=1))
    assert told.code == ResponseCode.SYSTEM_ERROR and "pull again" in (told.remark or "")
    channel = FakeChannel()
    pair.master.core.processor.received(channel, [pull_command(offset=1, sysFlag="6")])
    assert channel.take() == [], "it is held"
    pair.run()
    reply = channel.one()
    assert reply.code == ResponseCode.SUCCESS and b"number 1" in bytes(reply.body) and b"number 2" in bytes(reply.body)


def test_a_pull_for_what_nobody_has_is_told(pair: Pair) -> None:
    pair.master.ask(send_command(body=b"number"))
    ((at, _, _),) = pair.master.store.units("T", 0, 0, 1)
    flip(pair.master, places(pair.master, at)["body"])
    channel = FakeChannel()
    pair.master.core.processor.received(channel, [pull_command(sysFlag="6")])
    assert channel.take() == []
    pair.addresses = []
    pair.run()
    reply = channel.one()
    assert reply.code == ResponseCode.SYSTEM_ERROR and "expected a body with CRC" in (reply.remark or "")


def _unreachable(command: Command) -> Command:
    raise UnreachableError("it does not answer")


def _changed(pair: Pair, command: Command, change: Callable[[Command, bytearray], None]) -> Command:
    channel = FakeChannel()
    pair.peer.core.processor.received(channel, [command])
    reply = channel.one()
    data = bytearray(bytes(reply.body))
    change(reply, data)
    reply.body = bytes(data)
    if change is not _torn_on_the_wire:
        reply.ext["crc32"] = str(crc32(data))
    return reply


def _torn_on_the_wire(reply: Command, data: bytearray) -> None:
    data[-20] ^= 1


def _set(name: str, value: str) -> Callable[[Command, bytearray], None]:
    return lambda reply, data: reply.ext.__setitem__(name, value)


def _another_body(reply: Command, data: bytearray) -> None:
    """A sound record, of the same size at the same place, with other words in it."""
    at = data.index(b"number 0")
    data[at : at + 8] = b"number 9"
    data[8:12] = body_crc(b"number 9").to_bytes(4, "big")


OFFERS: list[tuple[Callable[[Command, bytearray], None], str]] = [
    (_torn_on_the_wire, "what came is not what was sent"),
    (lambda reply, data: data.__setitem__(90, 0), "it is not sound"),
    (lambda reply, data: data.append(0), "has no room for"),
    (lambda reply, data: data.clear(), "it is not sound"),
    (_set("epoch", "7"), "it was written under"),
    (_set("epochStartOffset", "9"), "it was written under"),
    (_set("epoch", "x"), "has no epoch that can be read"),
    (_another_body, "the bodies differ"),
]


@pytest.mark.parametrize(("change", "reason"), OFFERS)
def test_what_is_not_the_record_is_not_written(
    pair: Pair, change: Callable[[Command, bytearray], None], reason: str
) -> None:
    pair.master.ask(send_command(body=b"number 0"))
    pair.copy()
    flip(pair.master, places(pair.master, 0)["body"])
    before = bytes(pair.master.store.view(PhyOffset(0), 1 << 20))
    pair.master.ask(pull_command())
    pair.answer = lambda command: _changed(pair, command, change)
    pair.run()
    assert bytes(pair.master.store.view(PhyOffset(0), 1 << 20)) == before
    assert reason in pair.damage()["records"][0]["lacked"]
    pair.answer = lambda command: None
    pair.run()
    assert bodies(pair.master) == [b"number 0"], "the next offer is right"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_unreachable, "it does not answer"),
        (lambda command: command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), "does not know request 52034"),
        (lambda command: command.reply(ResponseCode.SYSTEM_ERROR, remark="busy"), "busy"),
    ],
)
def test_who_cannot_give_it(pair: Pair, answer: Callable[[Command], Command], reason: str) -> None:
    pair.master.ask(send_command(body=b"number 0"))
    flip(pair.master, places(pair.master, 0)["body"])
    pair.master.ask(pull_command())
    pair.answer = answer
    pair.run()
    assert reason in pair.damage()["records"][0]["lacked"]


def test_a_peer_that_is_damaged_too_gives_nothing_and_mends_its_own(pair: Pair) -> None:
    pair.master.ask(send_command(body=b"number 0"))
    pair.copy()
    for broker in (pair.master, pair.peer):
        flip(broker, places(broker, 0)["magic"])
    pair.master.ask(pull_command())
    pair.run()
    assert "no sound record begins at 0 here" in pair.damage()["records"][0]["lacked"]
    peers = pair.peer.core.read_repair
    with pytest.raises(PausedError):
        peers.run(pair).send(None)
    with pytest.raises((PausedError, StopIteration)):
        peers.run(pair).send(None)
    assert [record.phy_offset for record in pair.peer.store.damage.records] == [0]


def test_a_claim_that_no_record_bears_out_is_no_damage(pair: Pair) -> None:
    pair.master.ask(send_command(body=b"number 0"))
    ext = {"version": "1", "phyOffset": "17"}
    assert pair.master.ask(Command(RequestCode.RMQHA_READ_RECORD, ext)).code == ResponseCode.SYSTEM_ERROR
    for _ in range(2):
        with pytest.raises((PausedError, StopIteration)):
            pair.master.core.read_repair.run(pair).send(None)
    assert pair.damage()["foundCount"] == 0


def test_the_entry_of_a_queue_is_told_from_the_record(pair: Pair) -> None:
    pair.master.ask(send_command(body=b"number 0"))
    pair.copy()
    path = pair.master.directory / "consumequeue" / "T" / "0" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(11)
        (old,) = file.read(1)
        file.seek(11)
        file.write(bytes((old ^ 1,)))
    assert pair.master.ask(pull_command()).code == ResponseCode.SYSTEM_ERROR
    pair.run()
    assert pair.damage()["lackedCount"] == 1


def test_a_file_may_go_while_a_copy_is_made_durable(pair: Pair) -> None:
    """Retention looks at the log meanwhile; a disk takes its time over a sync."""
    store = pair.master.store
    pair.master.ask(send_command(body=b"number 0"))
    pair.copy()
    store.roll()
    pair.master.ask(send_command(body=b"number 1"))
    flip(pair.master, places(pair.master, 0)["body"])
    pair.master.ask(pull_command())
    assert pair.damage()["waitingCount"] == 1

    def trim() -> None:
        store.sync()
        store.trim(PhyOffset(1 << 20))

    pair.meanwhile = trim
    pair.run()
    assert (pair.damage()["waitingCount"], pair.damage()["repairedCount"]) == (0, 0)


def test_a_copy_counts_once_no_thread_changes_the_log(pair: Pair) -> None:
    """Nobody else looks at it, or at what is known to be damaged."""
    pair.master.ask(send_command(body=b"number 0"))
    pair.copy()
    flip(pair.master, places(pair.master, 0)["body"])
    pair.master.ask(pull_command())

    def hang() -> None:
        pair.is_writing = True

    pair.meanwhile = hang
    repair = pair.repair.run(pair)
    with pytest.raises(PausedError):
        repair.send(None)
    assert pair.damage()["repairedCount"] == 0


def test_a_cut_ends_the_damage(pair: Pair) -> None:
    pair.master.ask(send_command(body=b"number 0"))
    flip(pair.master, places(pair.master, 0)["body"])
    pair.master.ask(pull_command())
    pair.master.store.truncate(PhyOffset(0))
    assert pair.damage()["waitingCount"] == 0
    pair.run()
    assert pair.asked == 0


def test_the_scrubber_has_what_nobody_reads_mended(pair: Pair) -> None:
    for number in range(3):
        pair.master.ask(send_command(body=b"number %d" % number))
    pair.copy()
    pair.master.store.sync()
    ((at, _, _),) = pair.master.store.units("T", 0, 1, 1)
    flip(pair.master, places(pair.master, at)["magic"])
    scrubber = pair.master.core.scrubber
    while (piece := scrubber.next_piece(50)) is not None:
        scrubber.check(piece, scrubber.read(piece))
    assert pair.damage()["waitingCount"] == 1
    pair.run()
    assert bodies(pair.master) == [b"number 0", b"number 1", b"number 2"]
    assert pair.master.core.driver.state().to_json()["scrub"]["passCount"] == 1
