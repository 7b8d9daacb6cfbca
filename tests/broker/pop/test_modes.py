"""Requests 400 to 402: modes are kept, and queues are divided by the route that a name server tells."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any

import pytest

from rmqha.broker.pop.modes import Mode, ModeTable, parse_modes
from rmqha.broker.tables import config_table
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.port import Disk
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.support import Broker, FakeChannel, send_command

ROUTE = {
    "brokerDatas": [],
    "queueDatas": [
        {"brokerName": "b", "perm": 6, "readQueueNums": 2, "writeQueueNums": 2},
        {"brokerName": "a", "perm": 6, "readQueueNums": 2, "writeQueueNums": 2},
        {"brokerName": "c", "perm": 2, "readQueueNums": 2, "writeQueueNums": 2},
    ],
}


def set_mode(broker: Broker, **fields: Any) -> Command:
    body = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0, **fields}
    return broker.ask(Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, dumps(body)))


def query(broker: Broker, route: Command | str, client: str = "c1") -> Any:
    channel = FakeChannel()
    fields = {
        "topic": "T",
        "consumerGroup": "G",
        "clientId": client,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    broker.core.processor.received(channel, [Command(RequestCode.QUERY_ASSIGNMENT, {}, dumps(fields))])
    asked, broker.shell.asked = broker.shell.asked, []
    for command, done in asked:
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and command.ext == {"topic": "T"}
        done(route)
    return loads(channel.one().body)


def joined(broker: Broker, *clients: str) -> None:
    for client in clients:
        group = {"groupName": "G", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
        broker.core.processor.received(
            FakeChannel(),
            [Command(RequestCode.HEART_BEAT, {}, dumps({"clientID": client, "consumerDataSet": [group]}))],
        )


@pytest.fixture
def asked(broker: Broker) -> Broker:
    assert broker.ask(send_command("T")).code == 0
    joined(broker, "c1", "c2")
    return broker


def test_pulled_queues_are_divided_among_the_members(asked: Broker) -> None:
    found = [query(asked, Command(0, {}, dumps(ROUTE)), client)["messageQueueAssignments"] for client in ("c1", "c2")]
    queues = [[(row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"]) for row in rows] for rows in found]
    assert queues == [[("a", 0), ("a", 1)], [("b", 0), ("b", 1)]]
    assert {row["mode"] for rows in found for row in rows} == {"PULL"}


def test_each_member_pops_from_all_queues(asked: Broker) -> None:
    assert set_mode(asked).code == 0
    rows = query(asked, Command(0, {}, dumps(ROUTE)))["messageQueueAssignments"]
    assert [(row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"], row["mode"]) for row in rows] == [
        ("a", -1, "POP"),
        ("b", -1, "POP"),
    ]


@pytest.mark.parametrize("route", ["no name server answers", Command(17, {}, b""), Command(0, {}, b"[")])
def test_without_a_route_a_client_keeps_what_it_has(asked: Broker, route: Command | str) -> None:
    assert query(asked, route) == {}


def test_modes_outlive_the_process_in_rocketmqs_form(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(send_command("T"))
    assert set_mode(broker, popShareQueueNum=2).code == 0
    broker.close()
    broker = make_broker().start()
    mode = {"consumerGroup": "G", "mode": "POP", "popShareQueueNum": 2, "topic": "T"}
    reply = broker.ask(Command(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
    assert loads(reply.body) == {"messageRequestModeMap": {"T": {"G": mode}}}


def begin_to_set(broker: Broker, group: str) -> FakeChannel:
    channel, body = FakeChannel(), {"topic": "T", "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    broker.core.processor.received(channel, [Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, dumps(body))])
    return channel


def test_one_write_in_a_thread_serves_all_modes_that_were_set_before(
    asked: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wrote and synced the file of all modes on the event loop."""
    asked.shell.saves_tables = False
    written, write = list[str](), config_table.write

    def counted(disk: Disk, name: str, data: bytes) -> None:
        written.append(name)
        write(disk, name, data)

    monkeypatch.setattr(config_table, "write", counted)
    before = asked.core.modes.digest
    channels = [begin_to_set(asked, f"G{number}") for number in range(5)]
    assert not any(channel.take() for channel in channels) and "messageRequestMode" not in written
    assert asked.core.modes.digest == before, "slaves are told what is on the disk"
    writes = list(asked.core.table_writes())
    late = begin_to_set(asked, "G5")
    for task in writes:
        task()
    asked.core.tables_written("")
    assert [channel.one().code for channel in channels] == [0] * 5 and not late.take()
    assert written.count("messageRequestMode") == 1
    asked.core.save_tables()
    assert late.one().code == 0


def test_a_mode_that_cannot_be_written_is_told_so_and_written_later(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker().start()
    broker.ask(send_command("T"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(config_table, "write", full)
        reply = set_mode(broker)
    assert reply.code == ResponseCode.SYSTEM_ERROR and "No space left" in str(reply.remark)
    broker.core.save_tables()
    broker.close()
    assert make_broker().core.modes.get("T", "G") is not None


def test_the_digest_is_that_of_the_release_before() -> None:
    """It is compared with a slave's, which may be of that release."""
    disk, draws = SimDisk(SimPrng(1)), Random(5)
    table = ModeTable(disk)

    def check() -> None:
        assert table.digest == blake2b(dumps(table.to_json()), digest_size=16).hexdigest()

    check()
    for number in range(60):
        mode = Mode(f"T{draws.randrange(9)}", f"G\u00fc{draws.randrange(9)}", "POP", number)
        if number % 20 == 19:
            table.replace({(mode.topic, mode.group): mode, ("A", "B"): Mode("A", "B")})
        assert table.put(mode)
        data = table.unsaved()
        assert data is not None
        table.write(data)
        check()
        assert parse_modes(table.to_json()) == table.all == ModeTable(disk).all


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "%RETRY%G"}, ResponseCode.NO_PERMISSION),
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"mode": "PUSH"}, ResponseCode.SYSTEM_ERROR),
        ({"popShareQueueNum": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": ""}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_mode_that_cannot_be_is_refused(asked: Broker, fields: dict[str, Any], code: ResponseCode) -> None:
    assert set_mode(asked, **fields).code == code
    assert loads(asked.ask(Command(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body) == {"messageRequestModeMap": {}}
