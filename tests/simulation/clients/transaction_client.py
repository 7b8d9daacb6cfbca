"""A producer of transactions: half messages, the application's own part, ends, and answers to what masters ask.

All producers are of one group and share what their transactions have come to, so that any of them can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import (
    PROPERTY_CHECK_IMMUNITY_SECONDS,
    PROPERTY_KEYS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_PREPARED,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    encode_properties,
    parse_offset_message_id,
)
from rmqha.sim.transport import Connection
from rmqha.store.log.record import decode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.simulation.clients.client_process import PATIENCE_MS, QUEUE_COUNT, TIMEOUT_MS, send_fields
from tests.simulation.clients.group_client import ClientPlace, GroupClient
from tests.simulation.history import History, InvariantError, Send, Transaction
from tests.simulation.processes.process import Rpc

TOPIC = "SimTransactions"
GROUP = "deciders"
TAG = "t"
UNKNOWN, COMMIT, ROLLBACK = 0, SYS_FLAG_TRANSACTION_COMMIT, SYS_FLAG_TRANSACTION_ROLLBACK
INTERVAL_MS = 40
MOST_PREPARING = 20
HEARTBEAT_MS = 1000
HEARD_FOR_MS = 5000
"""A broker that has taken a heartbeat hears the next one so much later, or when its connection has broken."""
MOST_TRIES = 6
PAUSE_MS = 50
MOST_WORK_MS = 1500
_FINAL = (ResponseCode.ILLEGAL_OPERATION, ResponseCode.MESSAGE_ILLEGAL)


class TransactionClient(GroupClient):
    def __init__(self, place: ClientPlace, history: History) -> None:
        super().__init__(place)
        self._history = history
        self._preparing = 0
        self._count = 0
        self._heard: dict[str, int] = {}
        self.wants_immunity = True
        """Some messages say how long they are not to be asked about: that goes by a master's wall clock."""

    def boot(self) -> None:
        self.begin_life()
        self._rpc = Rpc(self, self._asked)
        self._rpc.lost = self._forget
        self._beat()
        self._next()

    def conclude(self) -> None:
        """The last ones: a calm group takes each, asks how it ended, and does what it is told."""
        for plan in (COMMIT, ROLLBACK, COMMIT):
            self._begin(plan, is_last=True)

    # --- what a master must know in order to ask ----------------------------------------------------------------------
    def _beat(self) -> None:
        now_ms = self.clock.now_ms()
        body = dumps({"clientID": self.host, "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []})
        for address in self._brokers:
            if self._heard.get(address, -HEARD_FOR_MS) + HEARD_FOR_MS <= now_ms:
                command = Command(RequestCode.HEART_BEAT, {}, body)
                self._rpc.call(address, command, TIMEOUT_MS, partial(self._beaten, address))
        self.after(HEARTBEAT_MS, self._beat)

    def _forget(self, address: str) -> None:
        """The connection is gone, and with it what the broker knew."""
        self._heard.pop(address, None)

    def _beaten(self, address: str, reply: Command | None) -> None:
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            self._heard[address] = self.clock.now_ms()

    # --- half messages ------------------------------------------------------------------------------------------------
    def _next(self) -> None:
        if self._stopped:
            return
        if self._preparing < MOST_PREPARING:
            draw = self._prng.below(8)
            self._begin(UNKNOWN if draw == 0 else ROLLBACK if draw < 3 else COMMIT, is_last=False)
        self.after(INTERVAL_MS, self._next)

    def _begin(self, plan: int, *, is_last: bool) -> None:
        self._count += 1
        key = f"{self.host}-{self._count}"
        body = key.encode() + b"." * self._prng.below(400)
        half = Send(key, self.scheduler.now_ms)
        item = Transaction(key, self._prng.below(QUEUE_COUNT), body, half, plan, is_last)
        item.doubts = self._prng.between(1, 2) if self._prng.chance(1, 4) else 0
        item.forgets = self._prng.chance(1, 2)
        self._history.transactions[key] = item
        self._preparing += 1
        immunity = {PROPERTY_CHECK_IMMUNITY_SECONDS: "1"} if self.wants_immunity and self._prng.chance(1, 8) else {}
        self._prepare(item, immunity, MOST_TRIES)

    def _prepare(self, item: Transaction, immunity: Mapping[str, str], tries: int) -> None:
        """The same message at each try, as a client that tries again does."""
        marks = {PROPERTY_UNIQUE_KEY: item.key, PROPERTY_KEYS: item.key, PROPERTY_TAGS: TAG, PROPERTY_WAIT: "true"}
        marks |= {PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: GROUP, **immunity}
        properties, born_at_ms = encode_properties(marks), self.clock.wall_ms()
        sys_flag = SYS_FLAG_TRANSACTION_PREPARED
        ext = send_fields(TOPIC, item.queue_id, born_at_ms, properties, sys_flag=sys_flag)
        address, called_at_ms = self._brokers[self._target % len(self._brokers)], self.scheduler.now_ms

        def answered(reply: Command | None) -> None:
            self._waited(item.key, address, called_at_ms, reply)
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                self._prepared(item, address, reply)
            elif tries > 1 or item.is_last:
                self._look_elsewhere()
                self.after(PAUSE_MS, lambda: self._prepare(item, immunity, tries - 1))
            else:
                self._preparing -= 1
                item.decision = ROLLBACK  # the application never begins; should the half message be there, it is asked

        self._rpc.call(
            address, Command(RequestCode.SEND_MESSAGE_V2, ext, item.body), TIMEOUT_MS + self.held_ms, answered
        )

    def _prepared(self, item: Transaction, address: str, reply: Command) -> None:
        self._preparing -= 1
        half = item.half
        half.acked_at_ms, half.offset_id, half.broker = self.scheduler.now_ms, reply.ext["msgId"], address
        half.queue_id, half.queue_offset = int(reply.ext["queueId"]), int(reply.ext["queueOffset"])
        if half.queue_id != item.queue_id:
            raise InvariantError(f"{address} answers {item.key}, which is for queue {item.queue_id}, with {reply.ext}")
        takes_long = self._prng.chance(1, 4) and not item.is_last
        work_ms = self._prng.below(MOST_WORK_MS if takes_long else 50)
        self.after(work_ms, lambda: self._decide(item))

    def _look_elsewhere(self) -> None:
        if self._prng.chance(1, 2):
            self._target += 1

    def _waited(self, key: str, address: str, called_at_ms: int, reply: Command | None) -> None:
        now_ms = self.scheduler.now_ms
        if reply is None and now_ms - called_at_ms >= PATIENCE_MS + self.held_ms:
            self.unanswered(key, address, called_at_ms, now_ms)

    # --- ends ---------------------------------------------------------------------------------------------------------
    def _decide(self, item: Transaction) -> None:
        item.decision = item.plan
        how = self._prng.below(4)
        if item.is_last or how == 0:
            return  # the master will ask
        place = {
            "commitLogOffset": str(parse_offset_message_id(item.half.offset_id)[1]),
            "tranStateTableOffset": str(item.half.queue_offset),
        }
        if how == 1 or item.plan == UNKNOWN:
            self._rpc.oneway(item.half.broker, self._end_command(item, item.plan, place, asked=False))
        else:
            self._end(item, place, self._brokers.index(item.half.broker), MOST_TRIES)

    def _end(self, item: Transaction, place: Mapping[str, str], target: int, tries: int) -> None:
        address, called_at_ms = self._brokers[target % len(self._brokers)], self.scheduler.now_ms

        def answered(reply: Command | None) -> None:
            self._waited(item.key, address, called_at_ms, reply)
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                item.ended_at_ms = self.scheduler.now_ms
            elif tries > 1 and (reply is None or reply.code not in _FINAL):
                further = target + self._prng.below(2)
                self.after(PAUSE_MS, lambda: self._end(item, place, further, tries - 1))

        command = self._end_command(item, item.plan, place, asked=False)
        self._rpc.call(address, command, TIMEOUT_MS + self.held_ms, answered)

    def _end_command(self, item: Transaction, outcome: int, place: Mapping[str, str], *, asked: bool) -> Command:
        item.commit_count += outcome == COMMIT
        item.rollback_count += outcome == ROLLBACK
        fields = {
            "producerGroup": GROUP,
            "topic": TOPIC,
            "msgId": item.key,
            "transactionId": item.key,
            "commitOrRollback": str(outcome),
            "fromTransactionCheck": str(asked).lower(),
        }
        return Command(RequestCode.END_TRANSACTION, {**fields, **place})

    # --- questions ----------------------------------------------------------------------------------------------------
    def _asked(self, conn: Connection, command: Command) -> None:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            raise AssertionError(f"a producer of transactions is asked how they ended, nothing else: {command}")
        item = self._history.transactions[command.ext["msgId"]]
        record = decode(memoryview(bytes(command.body)))
        if (record.topic, record.queue_id, bytes(record.body)) != (TOPIC, item.queue_id, item.body):
            raise InvariantError(f"{conn.peer_host} asks about {item.key} with {record}")
        outcome = item.decision or UNKNOWN
        if item.doubts and not self._stopped:
            item.doubts -= 1
            outcome = UNKNOWN
        if item.forgets and item.ended_at_ms is not None:
            outcome = UNKNOWN
        (address,) = [each for each in self._brokers if each.partition(":")[0] == conn.peer_host]
        place = {name: command.ext[name] for name in ("commitLogOffset", "tranStateTableOffset")}
        answer = self._end_command(item, outcome, place, asked=True)
        if outcome == UNKNOWN or self._prng.chance(1, 2):
            self._rpc.oneway(address, answer)
            return
        called_at_ms = self.scheduler.now_ms

        def answered(reply: Command | None) -> None:
            self._waited(item.key, address, called_at_ms, reply)
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                item.ended_at_ms = self.scheduler.now_ms

        self._rpc.call(address, answer, TIMEOUT_MS, answered)
