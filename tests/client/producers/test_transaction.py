"""Transactions against scripted brokers: what is said to them, and when the application is asked."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from rmqha.client.consumers.message import Message
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.transaction import MAX_CHECK_COUNT, Outcome, TransactionProducer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UsageError
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.client.fake import Do, FakeCluster, InTurn, encode_stored
from tests.support.patience import HANG_MS, HANG_S

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "wire" / "java-producer.jsonl"
COMMIT, ROLLBACK = "8", "12"
END_FIELDS = {
    "bname", "commitLogOffset", "commitOrRollback", "fromTransactionCheck", "msgId", "producerGroup", "topic",
    "transactionId", "tranStateTableOffset",
}  # fmt: skip
MESSAGE = OutgoingMessage("T", b"paid", keys="order-1", queue_id=2)


async def never(message: Message) -> Outcome:
    raise AssertionError(message)


def answering(outcome: Outcome, asked: list[Message]) -> Callable[[Message], Awaitable[Outcome]]:
    async def check(message: Message) -> Outcome:
        await trio.lowlevel.checkpoint()
        asked.append(message)
        return outcome

    return check


async def until(what: Callable[[], object]) -> None:
    with trio.fail_after(HANG_S):
        while not what():  # noqa: ASYNC110 (the fake tells nobody what it has got)
            await trio.sleep(0.005)


async def test_leaving_the_block_commits() -> None:
    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", never) as producer:
        async with producer.transaction(MESSAGE) as transaction:
            (half,) = fake.stored
            assert fake.group.ends == []
        assert half.sys_flag == 4
        assert half.properties == {
            "KEYS": "order-1",
            "PGROUP": "P",
            "TRAN_MSG": "true",
            "UNIQ_KEY": transaction.msg_id,
            "WAIT": "true",
        }
        (end,) = fake.group.ends
        assert transaction.confirmed and transaction.half.queue_id == 2
        assert end.ext == {
            "bname": "g-a",
            "commitLogOffset": "0",
            "commitOrRollback": COMMIT,
            "fromTransactionCheck": "false",
            "msgId": transaction.msg_id,
            "producerGroup": "P",
            "topic": "T",
            "transactionId": transaction.msg_id,
            "tranStateTableOffset": "0",
        }
        assert producer.statistics()["confirmed"] == 1


def test_the_end_has_the_fields_of_javas() -> None:
    said = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    ends = [item["header"]["extFields"] for item in said if item["code"] == RequestCode.END_TRANSACTION]
    assert {ext["commitOrRollback"] for ext in ends} >= {COMMIT, ROLLBACK}
    assert all(set(ext) == END_FIELDS for ext in ends)


async def test_a_long_half_message_is_compressed() -> None:
    long = replace(MESSAGE, body=b"x" * 5000)
    async with (
        FakeCluster() as fake,
        TransactionProducer(fake.namesrv, "P", never) as producer,
        producer.transaction(long),
    ):
        assert fake.stored[0].sys_flag == 0x301 | 4


async def test_a_rollback_is_said_also_when_the_block_fails() -> None:
    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", never) as producer:
        async with producer.transaction(MESSAGE) as transaction:
            transaction.rollback()
        with pytest.raises(KeyError):
            async with producer.transaction(MESSAGE) as transaction:
                transaction.rollback()
                raise KeyError("the till is empty")
        assert [end.ext["commitOrRollback"] for end in fake.group.ends] == [ROLLBACK, ROLLBACK]
        assert transaction.confirmed


async def test_an_error_or_an_open_end_decides_nothing() -> None:
    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", never) as producer:
        with pytest.raises(KeyError):
            async with producer.transaction(MESSAGE):
                raise KeyError("did the bank book it?")
        async with producer.transaction(MESSAGE) as transaction:
            transaction.leave_open()
        assert not transaction.confirmed
        assert len(fake.stored) == 2 and fake.group.ends == []


async def test_a_commit_goes_on_through_a_lost_answer_and_a_failover() -> None:
    async with FakeCluster({"g-a": 2}) as fake, TransactionProducer(fake.namesrv, "P", never) as producer:
        fake.group.master.end_script = InTurn(Do.CLOSE_BEFORE, (ResponseCode.SERVICE_NOT_AVAILABLE, False))
        async with producer.transaction(MESSAGE) as transaction:
            pass
        assert transaction.confirmed and len(fake.group.ends) == 1
        async with producer.transaction(MESSAGE) as transaction:
            fake.fail_over(after_ms=100)
        assert transaction.confirmed and len(fake.group.ends) == 2


async def test_an_end_that_nobody_takes_is_left_to_the_check() -> None:
    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", never) as producer:
        fake.group.master.end_script = lambda node, command: (ResponseCode.ILLEGAL_OPERATION, False)
        async with producer.transaction(MESSAGE) as transaction:
            pass
        assert not transaction.confirmed
        assert "scripted" in producer.last_error
        fake.group.master.end_script = lambda node, command: (ResponseCode.SYSTEM_BUSY, False)
        async with producer.transaction(MESSAGE, timeout_ms=200) as transaction:
            pass
        assert not transaction.confirmed and producer.statistics()["confirmed"] == 0


async def ask(fake: FakeCluster, **more: str) -> None:
    """As a broker asks about what was stored first."""
    await until(lambda: fake.group.master.producers)
    ((group, session),) = fake.group.master.producers.values()
    assert group == "P"
    stored = fake.stored[0]
    key = stored.properties["UNIQ_KEY"]
    ext = {"bname": "g-a", "commitLogOffset": "77", "tranStateTableOffset": "5", "msgId": key, "transactionId": key}
    command = Command(RequestCode.CHECK_TRANSACTION_STATE, {**ext, **more}, encode_stored(stored), flag=FLAG_ONEWAY)
    session.send(command)


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ROLLBACK])
async def test_a_question_is_answered_to_who_asks(outcome: Outcome) -> None:
    asked: list[Message] = []
    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", answering(outcome, asked)) as producer:
        async with producer.transaction(MESSAGE) as transaction:
            transaction.leave_open()
        await ask(fake)
        await until(lambda: fake.group.ends)
        (message,) = asked
        assert (message.topic, message.body, message.keys) == ("T", b"paid", "order-1")
        ext = fake.group.ends[0].ext
        assert (ext["commitOrRollback"], ext["fromTransactionCheck"]) == (str(int(outcome)), "true")
        assert (ext["commitLogOffset"], ext["tranStateTableOffset"]) == ("77", "5")
        assert ext["msgId"] == ext["transactionId"] == transaction.msg_id
        await until(lambda: producer.statistics()["confirmed"] == 1)


async def test_who_does_not_know_says_nothing() -> None:
    asked: list[Message] = []
    check = answering(Outcome.UNKNOWN, asked)
    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", check) as producer:
        async with producer.transaction(MESSAGE) as transaction:
            transaction.leave_open()
        await ask(fake)
        await until(lambda: producer.statistics()["failed_checks"] == 1)
        assert len(asked) == 1 and fake.group.ends == []


async def test_a_check_that_fails_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    async def check(message: Message) -> Outcome:
        nonlocal calls
        await trio.lowlevel.checkpoint()
        calls += 1
        if calls == 1:
            raise ValueError("the table is locked")
        return Outcome.COMMIT

    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", check) as producer:
        async with producer.transaction(MESSAGE) as transaction:
            transaction.leave_open()
        with caplog.at_level(logging.WARNING, "rmqha.client"):
            await ask(fake)
            await until(lambda: producer.statistics()["failed_checks"] == 1)
        assert producer.last_error == "ValueError: the table is locked"
        assert transaction.msg_id in caplog.text and "the table is locked" in caplog.text
        await ask(fake)
        await until(lambda: fake.group.ends)


async def test_a_question_that_is_no_message_is_an_error_and_no_more() -> None:
    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", never, topics=["T"]) as producer:
        await until(lambda: fake.group.master.producers)
        ((_, session),) = fake.group.master.producers.values()
        for body in (b"", b"no record"):
            session.send(Command(RequestCode.CHECK_TRANSACTION_STATE, {}, body, flag=FLAG_ONEWAY))
        await until(lambda: producer.statistics()["failed_checks"] == 2)
        async with producer.transaction(MESSAGE) as transaction:
            pass
        assert transaction.confirmed


async def test_questions_beyond_the_bound_are_passed_over() -> None:
    go = trio.Event()

    async def check(message: Message) -> Outcome:
        await go.wait()
        return Outcome.COMMIT

    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", check) as producer:
        async with producer.transaction(MESSAGE) as transaction:
            transaction.leave_open()
        for _ in range(MAX_CHECK_COUNT + 3):
            await ask(fake)
        await until(lambda: producer.statistics()["checks"] == MAX_CHECK_COUNT + 3)
        assert producer.statistics()["failed_checks"] == 3
        go.set()
        await until(lambda: len(fake.group.ends) == MAX_CHECK_COUNT)


async def test_brokers_know_who_to_ask_from_the_start_and_after_they_were_lost() -> None:
    async with FakeCluster({"g-a": 2}) as fake:
        async with TransactionProducer(fake.namesrv, "P", never, topics=["T"]):
            beats = [lambda node=node: count(node) == 1 for node in fake.group.nodes.values()]
            for heard in beats:
                await until(heard)
            ((_, session),) = fake.group.master.producers.values()
            session.close()
            await until(lambda: sum(count(node) for node in fake.group.nodes.values()) == 3)
        await until(lambda: all(node.producers == {} for node in fake.group.nodes.values()))


async def test_a_broker_that_heard_and_did_not_answer_yet_is_told_that_the_producer_goes() -> None:
    async with FakeCluster() as fake:
        fake.group.master.answers_heartbeats = False
        async with TransactionProducer(fake.namesrv, "P", never, topics=["T"]):
            await until(lambda: fake.group.master.producers)
        await until(lambda: fake.group.master.producers == {})


async def test_a_broker_that_does_not_answer_keeps_no_heartbeat_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rmqha.client.heartbeat.CALL_TIMEOUT_MS", 10 * HANG_MS)
    async with FakeCluster({"g-a": 2}) as fake:
        fake.group.master.answers_heartbeats = False
        async with TransactionProducer(fake.namesrv, "P", never, topics=["T"]):
            await until(lambda: fake.group.nodes[2].producers)


def count(node: object) -> int:
    requests: list[Command] = node.requests  # type: ignore[attr-defined]
    return sum(command.code == RequestCode.HEART_BEAT for command in requests)


async def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="group"):
        TransactionProducer("127.0.0.1:9876", "", never)
    with pytest.raises(UsageError, match="topic"):
        TransactionProducer("127.0.0.1:9876", "P", never, topics=["no topic"])
    async with FakeCluster() as fake, TransactionProducer(fake.namesrv, "P", never) as producer:
        with pytest.raises(UsageError, match="delay"):
            async with producer.transaction(replace(MESSAGE, properties={"DELAY": "3"})):
                pass
        transaction = producer.transaction(MESSAGE)
        with pytest.raises(UsageError, match="not begun"):
            transaction.half  # noqa: B018
        async with transaction:
            pass
        with pytest.raises(UsageError, match="once"):
            async with transaction:
                pass
        with pytest.raises(UsageError, match="COMMIT or ROLLBACK"):
            await producer.end(transaction.half, "T", Outcome.UNKNOWN)
        assert len(fake.stored) == 1
