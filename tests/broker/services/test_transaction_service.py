"""Transactions at a broker: what consumers see when, who is asked, and what a switch and a lost ack leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rmqha.broker.requests.request import FORWARDED, UNWRITTEN
from rmqha.broker.services import transaction_service
from rmqha.ha.action import AckStatus
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.log.record import decode
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.broker.support import Broker, FakeChannel, ack, golden_frames, send_command
from tests.broker.transactions import (
    COMMIT,
    GIVEN_UP,
    HALF,
    OP,
    ROLLBACK,
    ROUND_MS,
    UNKNOWN,
    bodies,
    end_of,
    offsets,
    oneway,
    prepared,
    producer,
    records,
)
from tests.store.support import message


# --- ends -------------------------------------------------------------------------------------------------------------
def test_a_commit_shows_the_message_and_a_rollback_does_not(broker: Broker) -> None:
    committed, rolled_back = broker.ask(prepared(broker, "A", TAGS="x")), broker.ask(prepared(broker, "B"))
    assert (committed.code, committed.ext["queueId"], committed.ext["queueOffset"]) == (0, "1", "0")
    assert committed.ext["transactionId"] == "A" and rolled_back.ext["queueOffset"] == "1"
    assert bodies(broker) == [] and bodies(broker, HALF, 0) == [b"A", b"B"]
    oneway(broker, end_of(committed, COMMIT))
    oneway(broker, end_of(rolled_back, ROLLBACK))
    (record,) = records(broker)
    first = records(broker, HALF, 0)[0]
    assert bytes(record.body) == b"A" and record.sys_flag == 8
    assert record.prepared_transaction_offset == first.phy_offset
    found = decode_properties(record.properties)
    assert found["TAGS"] == "x" and "REAL_TOPIC" not in found
    assert bodies(broker, OP, 0) == [b"0,", b"1,"]
    broker.run(60_000)
    assert offsets(broker) == (2, 2) and bodies(broker) == [b"A"] and len(bodies(broker, HALF, 0)) == 2


def test_the_mark_stands_behind_the_message(broker: Broker) -> None:
    """A log that is cut between them has the message."""
    oneway(broker, end_of(broker.ask(prepared(broker)), COMMIT))
    (record,), (mark,) = records(broker), records(broker, OP, 0)
    assert mark.phy_offset == record.phy_offset + record.size_bytes


def test_an_end_that_wants_an_answer_gets_one(broker: Broker) -> None:
    half = broker.ask(prepared(broker))
    assert broker.ask(end_of(half, COMMIT)).code == 0
    assert broker.ask(end_of(half, COMMIT)).code == 0 and len(bodies(broker)) == 1, "the second counts no more"
    oneway(broker, end_of(half, COMMIT))
    assert len(bodies(broker)) == 1


def test_refused_ends(broker: Broker) -> None:
    half = broker.ask(prepared(broker))
    plain = broker.ask(send_command(queue_id=1, i="PGROUP\x01P\x02"))
    for command, code, words in (
        (end_of(half, "4"), ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong"),
        (end_of(half, COMMIT, producerGroup="Q"), ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        (end_of(half, COMMIT, tranStateTableOffset="7"), ResponseCode.SYSTEM_ERROR,
         "The transaction state table offset wrong"),
        (end_of(half, COMMIT, commitLogOffset="5"), ResponseCode.SYSTEM_ERROR,
         "Find prepared transaction message failed"),
        (end_of(plain, COMMIT), ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        (end_of(half, COMMIT, commitLogOffset="x"), ResponseCode.SYSTEM_ERROR, "64 bit integer"),
    ):  # fmt: skip
        end = broker.store.max_phy_offset
        reply = broker.ask(command)
        assert (reply.code, broker.store.max_phy_offset) == (code, end) and words in (reply.remark or "")
        oneway(broker, command)
    channel = FakeChannel()
    broker.core.processor.received(channel, [end_of(half, UNKNOWN)])
    assert channel.take() == [] and bodies(broker) == [b"x"] and bodies(broker, OP, 0) == []


def test_an_end_of_another_message_at_that_place(broker: Broker) -> None:
    """A new master of an AP group may have lost the half message that is meant, and stored another one there."""
    half = broker.ask(prepared(broker, "B"))
    for message_id in ("A", "ID"):
        other = end_of(half, COMMIT, transactionId="A", msgId=message_id)
        reply = broker.ask(other)
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "The transaction id wrong")
        oneway(broker, other)
    assert bodies(broker) == [] and bodies(broker, OP, 0) == []
    assert broker.ask(end_of(half, COMMIT, transactionId="other", msgId="B")).code == 0 and bodies(broker) == [b"B"]


def test_a_slave_takes_no_end(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    half = broker.ask(prepared(broker))
    controller = broker.controller
    controller.epoch, controller.master = 2, 2
    broker.ask(controller.notice())
    assert broker.ask(end_of(half, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.run(60_000)
    assert len(bodies(broker, HALF, 0)) == 1


def test_sends_and_ends_that_were_held_keep_their_order(broker: Broker) -> None:
    """As in a hand-over that comes to nothing."""
    broker.shell.holds, held = True, broker.shell.held
    channel, half = FakeChannel(), prepared(broker)
    broker.core.processor.received(channel, [half, Command(RequestCode.END_TRANSACTION, {})])
    assert [command.code for command in held] == [RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION]
    broker.core.admit(channel, held[:1])
    broker.run()
    broker.core.admit(channel, [end_of(channel.one(), COMMIT)])
    broker.run()
    assert channel.one().code == 0 and bodies(broker) == [b"ID"]


def test_an_end_within_its_own_immunity_only(broker: Broker) -> None:
    half = broker.ask(prepared(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="10"))
    broker.run(10_001)
    assert broker.ask(end_of(half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
    assert broker.ask(end_of(half, COMMIT, fromTransactionCheck="true")).code == 0
    assert bodies(broker) == [b"ID"]


# --- sends ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ext", "code", "words"),
    [
        ({"f": "4", "i": "TRAN_MSG\x01false\x02"}, ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG=true"),
        ({"f": "12"}, ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG=true"),
        ({"i": "TRAN_MSG\x01true\x02DELAY\x013\x02"}, ResponseCode.MESSAGE_ILLEGAL, "neither a batch nor delayed"),
        ({"i": "TRAN_MSG\x01true\x02", "m": "true"}, ResponseCode.MESSAGE_ILLEGAL, "neither a batch nor delayed"),
        ({"i": "TRAN_MSG\x01true\x02A\x01" + "x" * 32_640 + "\x02"}, ResponseCode.MESSAGE_ILLEGAL, "room"),
    ],
)
def test_refused_sends(broker: Broker, ext: dict[str, Any], code: ResponseCode, words: str) -> None:
    reply = broker.ask(send_command(**ext))
    assert reply.code == code and words in (reply.remark or "") and broker.store.max_phy_offset == 0


def test_the_property_makes_the_transaction(broker: Broker) -> None:
    """As in RocketMQ, whatever the flag; a message that a consumer sends back still has it."""
    assert broker.ask(send_command(i="TRAN_MSG\x01TRUE\x02")).code == 0
    assert len(bodies(broker, HALF, 0)) == 1
    assert broker.ask(send_command(i="TRAN_MSG\x01false\x02")).code == 0 and len(bodies(broker, queue_id=0)) == 1
    back = send_command("%RETRY%G", f="4", j="1", i="TRAN_MSG\x01true\x02DELAY\x011\x02")
    assert broker.ask(back).code == 0
    broker.run(1000)
    (record,) = records(broker, "%RETRY%G", 0)
    assert record.sys_flag == 0 and len(bodies(broker, HALF, 0)) == 1


def test_transactions_may_be_refused(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    half = broker.ask(prepared(broker))
    text = b"rejectTransactionMessage=true"
    assert broker.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, text)).code == 0
    reply = broker.ask(prepared(broker))
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark == "the broker[127.0.0.1] sending transaction message is forbidden"
    assert broker.ask(send_command()).code == 0 and broker.ask(end_of(half, COMMIT)).code == 0


# --- checks -----------------------------------------------------------------------------------------------------------
def test_nobody_ends_it_so_its_producer_is_asked(broker: Broker) -> None:
    channel, other = producer(broker), producer(broker, "Q")
    broker.ask(prepared(broker, "A", TAGS="x", queue_id=2))
    broker.run(ROUND_MS - 1)
    assert channel.take() == []
    broker.run(1)
    check = channel.one()
    older, newer = records(broker, HALF, 0)
    assert (check.code, check.flag, other.take()) == (RequestCode.CHECK_TRANSACTION_STATE, FLAG_ONEWAY, [])
    assert check.ext == {
        "bname": "broker-a",
        "commitLogOffset": str(newer.phy_offset),
        "msgId": "A",
        "offsetMsgId": f"7F000001{20911:08X}{newer.phy_offset:016X}",
        "topic": HALF,
        "tranStateTableOffset": "1",
        "transactionId": "A",
    }
    assert decode_properties(newer.properties) == {
        **decode_properties(older.properties),
        "TRANSACTION_CHECK_TIMES": "1",
    }
    # the body is a record, but its place is that of the half message
    assert b"\x01T" in bytes(check.body) and bytes(check.body)[4:8] == b"\xda\xa3\x20\xa7"
    oneway(broker, end_of(check, COMMIT, check=True, topic=HALF))
    assert bodies(broker, queue_id=2) == [b"A"]
    broker.run(10 * ROUND_MS)
    assert channel.take() == [] and offsets(broker) == (2, 2)


def test_a_fresh_one_and_an_immune_one_are_not_asked_for(broker: Broker) -> None:
    channel = producer(broker)
    broker.ask(prepared(broker, "immune", CHECK_IMMUNITY_TIME_IN_SECONDS="70"))
    broker.run(ROUND_MS - 6000)
    broker.ask(prepared(broker, "fresh"))
    broker.run(6000)
    assert channel.take() == [] and len(bodies(broker, HALF, 0)) == 2
    broker.run(ROUND_MS)
    assert [item.ext["msgId"] for item in channel.take()] == ["fresh"]
    assert offsets(broker) == (None, None), "the immune one holds them back"
    broker.run(ROUND_MS)
    assert [item.ext["msgId"] for item in channel.take()] == ["immune", "fresh"]


def test_a_wall_clock_that_is_set_back_holds_nothing_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = producer(broker)
    broker.run(ROUND_MS - 1000)
    broker.ask(prepared(broker))
    broker.run(2000)
    assert channel.take() == []
    wall_ms = broker.clock.wall_ms
    monkeypatch.setattr(broker.clock, "wall_ms", lambda: wall_ms() - 3_600_000)
    broker.run(ROUND_MS)
    assert len(channel.take()) == 1


def test_a_shorter_time_out_holds_at_once(broker: Broker) -> None:
    assert broker.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"transactionTimeOut=100000")).code == 0
    channel = producer(broker)
    broker.ask(prepared(broker))
    broker.run(ROUND_MS)
    assert channel.take() == []
    assert broker.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"transactionTimeOut=6000")).code == 0
    broker.run(ROUND_MS)
    assert len(channel.take()) == 1


def test_rounds_until_it_is_given_up(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(transaction_check_max=3).start()
    channel = producer(broker)
    broker.ask(prepared(broker))
    for turn in range(1, 4):
        broker.run(ROUND_MS)
        check = channel.one()
        assert check.ext["tranStateTableOffset"] == str(turn)
        oneway(broker, end_of(check, UNKNOWN, check=True))
    broker.run(ROUND_MS)
    assert channel.take() == [] and bodies(broker, GIVEN_UP, 0) == [b"ID"]
    assert decode_properties(records(broker, GIVEN_UP, 0)[0].properties)["TRANSACTION_CHECK_TIMES"] == "3"
    broker.run(ROUND_MS)
    assert broker.core.topics.get(GIVEN_UP) is not None and len(bodies(broker, GIVEN_UP, 0)) == 1
    assert offsets(broker) == (4, 4) and bodies(broker) == []


def test_one_that_was_given_up_is_asked_about_anew(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(transaction_check_max=1).start()
    channel = producer(broker)
    half = broker.ask(prepared(broker))
    broker.run(ROUND_MS)
    channel.take()
    broker.run(ROUND_MS)
    (given_up,) = records(broker, GIVEN_UP, 0)

    def resume(phy_offset: int) -> Command:
        named = f"7F000001{20911:08X}{phy_offset:016X}"
        return broker.ask(Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": GIVEN_UP, "msgId": named}))

    assert resume(given_up.phy_offset).code == 0
    assert decode_properties(records(broker, HALF, 0)[-1].properties)["TRANSACTION_CHECK_TIMES"] == "0"
    broker.run(ROUND_MS)
    check = channel.one()
    oneway(broker, end_of(check, COMMIT, check=True))
    assert bodies(broker) == [b"ID"]
    for phy_offset in (int(half.ext["msgId"][16:], 16), given_up.phy_offset + 1):
        reply = resume(phy_offset)
        assert (reply.code, "TRANS_CHECK_MAX_TIME_TOPIC" in (reply.remark or "")) == (1, True)
    assert broker.ask(Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": GIVEN_UP, "msgId": "x"})).code == 1


def test_too_old_is_given_up_too(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(file_reserved_time=1).start()
    broker.ask(prepared(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="99999"))
    broker.run(ROUND_MS)
    assert bodies(broker, GIVEN_UP, 0) == []
    broker.run(3_600_000)
    assert bodies(broker, GIVEN_UP, 0) == [b"ID"]


def test_connections_take_turns(broker: Broker) -> None:
    channels = [producer(broker), producer(broker)]
    for number in range(4):
        broker.ask(prepared(broker, f"K{number}"))
    broker.run(ROUND_MS)
    assert [len(channel.take()) for channel in channels] == [2, 2]


def test_an_end_of_an_older_copy_counts_for_the_newest_one(broker: Broker) -> None:
    """A local transaction that takes longer than a check: RocketMQ would store the message twice."""
    channel = producer(broker)
    half = broker.ask(prepared(broker))
    broker.run(ROUND_MS)
    check = channel.one()
    oneway(broker, end_of(half, COMMIT))
    oneway(broker, end_of(check, COMMIT, check=True))
    broker.run(10 * ROUND_MS)
    assert bodies(broker) == [b"ID"] and channel.take() == []
    assert bodies(broker, OP, 0) == [b"0,", b"1,"]


def test_many_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_service, "MAX_CHECK_COUNT", 3)
    monkeypatch.setattr(transaction_service, "SLICE_COUNT", 5)
    channel = producer(broker)
    halves = [broker.ask(prepared(broker, f"K{number}")) for number in range(20)]
    for half in halves[::2]:
        oneway(broker, end_of(half, ROLLBACK))
    broker.run(ROUND_MS)
    for _ in range(10):
        broker.run()
    asked = [item.ext["msgId"] for item in channel.take()]
    assert asked == [f"K{number}" for number in range(1, 20, 2)]


def test_big_ones_are_asked_for_a_few_at_a_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_service, "MAX_CHECK_BYTES", 1)
    channel = producer(broker)
    for number in range(3):
        broker.ask(prepared(broker, f"K{number}"))
    broker.run(ROUND_MS)
    assert len(channel.take()) == 3 and bodies(broker, OP, 0) == [b"0,", b"1,", b"2,"]


def test_half_messages_that_say_nothing_are_passed_over(broker: Broker) -> None:
    store, wall_ms = broker.store, broker.clock.wall_ms()
    store.append(message(topic=HALF, properties=b"PGROUP\x01P\x02"), wall_ms)
    broker.core.driver.appended(store.max_phy_offset, None)
    half = broker.ask(prepared(broker))
    (first, _) = records(broker, HALF, 0)
    stray = Command(RequestCode.END_TRANSACTION, {"producerGroup": "P", "commitOrRollback": COMMIT,
                    "commitLogOffset": str(first.phy_offset), "tranStateTableOffset": "0"})  # fmt: skip
    assert "does not say" in (broker.ask(stray).remark or "")
    broker.run(ROUND_MS)
    assert "half_message_unusable" not in broker.tracer.names(), "it may be damaged"
    store.damage.lacked(first.phy_offset, "a replica has the same", as_written=True)
    broker.run(ROUND_MS)
    assert "half_message_unusable" in broker.tracer.names()
    oneway(broker, end_of(half, ROLLBACK))
    broker.run(ROUND_MS)
    assert offsets(broker)[0] == 4


def test_a_damaged_half_message_is_neither_committed_nor_passed(broker: Broker) -> None:
    """A copy would have a sound checksum over bytes that nobody sent."""
    channel = producer(broker)
    half = broker.ask(prepared(broker, "damaged-body"))
    (path,) = (broker.directory / "commitlog").iterdir()
    at = path.read_bytes().index(b"damaged-body")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"D")
    assert broker.ask(end_of(half, COMMIT)).remark == "Find prepared transaction message failed"
    broker.run(ROUND_MS)
    assert channel.take() == [] and bodies(broker, OP, 0) == [] and offsets(broker) == (None, None)
    assert "half_message_damaged" in broker.tracer.names()


def test_one_that_cannot_be_stored_again_waits_on(make_broker: Callable[..., Broker]) -> None:
    """It is told, tried again, and still ends when its producer says so."""
    broker = make_broker().start()
    channel = producer(broker)
    wall_ms = broker.clock.wall_ms()
    full = encode_properties({"PGROUP": "P", "REAL_TOPIC": "T", "REAL_QID": "1"})
    full += b"A\x01" + b"x" * (32_767 - len(full) - 3) + b"\x02"
    stored = broker.store.append(replace(message(topic=HALF, properties=full), born_at_ms=wall_ms), wall_ms)
    broker.core.driver.appended(broker.store.max_phy_offset, None)
    broker.ask(prepared(broker, "B"))
    broker.run(ROUND_MS)
    assert [item.ext["msgId"] for item in channel.take()] == ["B"]
    assert broker.tracer.names().count("half_message_not_renewed") == 1 and offsets(broker)[0] is None
    broker.run(ROUND_MS)
    assert broker.tracer.names().count("half_message_not_renewed") == 2
    ext = {"commitLogOffset": str(stored.phy_offset), "tranStateTableOffset": "0", "producerGroup": "P"}
    oneway(broker, Command(RequestCode.END_TRANSACTION, {**ext, "commitOrRollback": COMMIT}))
    assert len(bodies(broker)) == 1
    broker.run()
    assert (offsets(broker)[0] or 0) >= 1


# --- what must not be lost --------------------------------------------------------------------------------------------
def acked(broker: Broker, command: Command) -> Command:
    channel = FakeChannel()
    broker.core.processor.received(channel, [command])
    broker.run()
    assert channel.take() == []
    ack(broker)
    return channel.one()


def test_consumers_and_offsets_wait_for_the_group(pair: Broker) -> None:
    half = acked(pair, prepared(pair))
    oneway(pair, end_of(half, COMMIT))
    pair.run(ROUND_MS)
    assert bodies(pair) == [] and offsets(pair) == (None, None), "an end that is on its way is not asked for"
    assert len(bodies(pair, HALF, 0)) == 1
    ack(pair)
    assert bodies(pair) == [b"ID"] and offsets(pair) == (1, 1)


def test_an_end_that_wants_an_answer_waits_for_the_group(pair: Broker) -> None:
    half = acked(pair, prepared(pair))
    assert acked(pair, end_of(half, COMMIT)).code == 0


def test_an_end_that_comes_again_waits_for_the_group_too(pair: Broker) -> None:
    """The first one is in this log, and may go with it: who is answered SUCCESS may forget the transaction."""
    half = acked(pair, prepared(pair))
    channels = FakeChannel(), FakeChannel()
    for channel in channels:
        pair.core.processor.received(channel, [end_of(half, COMMIT)])
    pair.run()
    assert [channel.take() for channel in channels] == [[], []]
    ack(pair)
    assert [[answer.code for answer in channel.take()] for channel in channels] == [[0], [0]]
    assert bodies(pair) == [b"ID"]


def test_the_producer_is_asked_when_the_group_has_the_copy(pair: Broker) -> None:
    channel = producer(pair)
    acked(pair, prepared(pair))
    pair.run(ROUND_MS)
    end = pair.store.max_phy_offset
    for _ in range(5):
        pair.run(1000)  # each wait ends with FLUSH_SLAVE_TIMEOUT: no second copy
    assert pair.store.max_phy_offset == end and channel.take() == [] and offsets(pair) == (None, None)
    ack(pair)
    assert channel.one().ext["tranStateTableOffset"] == "1"
    assert offsets(pair) == (1, 1)


def test_in_ap_too_the_offsets_wait_for_the_set(make_broker: Callable[..., Broker]) -> None:
    """The master acknowledges alone; one that is elected without the copy still has the half message to ask for."""
    patience = {
        "ha_ack_stall_bound_ms": 2000,
        "ha_max_time_slave_not_catchup": 10**9,
        "ha_housekeeping_interval": 10**9,
    }
    broker = make_broker(ha_mode="ap", total_replicas=2, **patience)
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    channel = producer(broker)
    assert broker.ask(prepared(broker)).code == 0
    ack(broker)
    broker.run(ROUND_MS)
    assert records(broker, HALF, 0)[0].queue_offset == 0 and channel.take() == [] and offsets(broker) == (None, None)
    ack(broker)
    assert len(channel.take()) == 1 and offsets(broker) == (1, 1)


def test_under_sync_flush_the_copy_is_synced_first(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(flush_disk_type="SYNC_FLUSH").start()
    channel = producer(broker)
    broker.ask(prepared(broker))
    broker.run(ROUND_MS)
    assert broker.store.synced_offset < broker.store.max_phy_offset and channel.take() == []
    broker.run()
    assert len(channel.take()) == 1


def test_too_few_replicas_take_no_end_and_ask_nobody(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(ha_mode="cp", total_replicas=3, ha_max_time_slave_not_catchup=1000).start()
    broker.controller.members = [1]
    reply = broker.ask(prepared(broker))
    assert reply.code == ResponseCode.SYSTEM_ERROR and "in-sync replicas not enough" in (reply.remark or "")
    oneway(broker, Command(RequestCode.END_TRANSACTION, {"commitOrRollback": COMMIT}))
    broker.run(ROUND_MS)
    end = Command(RequestCode.END_TRANSACTION, {"commitOrRollback": COMMIT, FORWARDED: "127.0.0.1:7"})
    assert broker.ask(end).ext == {UNWRITTEN: "true"}
    assert broker.store.max_phy_offset == 0


def test_copies_of_an_abandoned_mastership(broker: Broker) -> None:
    """What answers come later for it changes nothing, and who is asked about is found again."""
    channel = producer(broker)
    broker.ask(prepared(broker))
    kept: list[Any] = []
    appended = broker.core.driver.appended
    broker.core.driver.appended = lambda end_offset, waiter: kept.append(waiter)  # type: ignore[method-assign]
    broker.run(ROUND_MS)
    broker.core.driver.appended = appended  # type: ignore[method-assign]
    (copies,) = kept
    copies.finish(AckStatus.SERVICE_NOT_AVAILABLE)
    broker.core.transactions.role_changed()
    for status in AckStatus:
        copies.finish(status)
    assert offsets(broker) == (None, None)
    broker.core.driver.appended(broker.store.max_phy_offset, None)
    broker.run()
    broker.run(ROUND_MS)
    assert channel.one().ext["tranStateTableOffset"] == "2"


# --- beside the real broker -------------------------------------------------------------------------------------------
def test_checks_are_those_that_a_real_broker_sent(make_broker: Callable[..., Broker]) -> None:
    """The capture's producer against ours: the same requests 39, but for positions and times."""
    broker = make_broker(broker_cluster_name="GoldCluster", broker_name="gold-a", listen_port=20911).start()
    sends = {}
    theirs = []
    for _, command in golden_frames("java-producer"):
        if "TRAN_MSG" in command.ext.get("i", ""):
            sends[command.opaque] = command
        elif command.code == RequestCode.CHECK_TRANSACTION_STATE:
            theirs.append(command)
    channel = producer(broker, "PID_wiretx")
    for command in sends.values():
        command.ext["g"] = str(broker.clock.wall_ms())
        assert broker.ask(command).code == 0
    broker.run(ROUND_MS)
    ours = channel.take()
    assert len(ours) == len(theirs) == 3
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.flag == expected.flag and mine.ext.keys() == expected.ext.keys()
        for name in ("bname", "topic", "msgId", "transactionId", "tranStateTableOffset"):
            assert mine.ext[name] == expected.ext[name]
        assert shown(mine) == shown(expected)


def shown(check: Command) -> tuple[Any, ...]:
    """What a producer reads of the record in a check."""
    record = decode(memoryview(bytes(check.body)))
    properties = decode_properties(record.properties)
    del properties["WAIT"]  # their broker asks with WAIT=false, which it stores nowhere
    return (record.topic, record.queue_id, record.queue_offset, record.sys_flag, bytes(record.body), properties)
