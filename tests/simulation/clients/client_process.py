"""A producer: one send at a time, each record once unless its outcome stayed open. It often stays with a broker that
refused, as one would whose routes are old: that is what a cut-off master must withstand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rmqha.broker.replication.forward import MASTER_CHANGED
from rmqha.drill.history import Attempt, AttemptOutcome
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import (
    PROPERTY_DELAY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_UNIQUE_KEY,
    RecallHandle,
    encode_properties,
)
from rmqha.wire.command import Command
from tests.simulation.clients.group_client import ClientPlace, GroupClient
from tests.simulation.history import History, Send, TakenBack
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.process import Rpc

TIMEOUT_MS = 4000
PATIENCE_MS = 3800
"""Of a client whose clock runs fast: a connection that breaks tells it earlier."""
TOPIC = "SimTopic"
QUEUE_COUNT = 2
RECALL_TRIES = 6
REFUSED_BEFORE_THE_WRITE = (
    "in-sync replicas not enough",
    "this broker is not the master of its group",
    "this broker is stopping",
    "the new master has not taken over yet",
    MASTER_CHANGED,
)
"""How remarks begin that say of a send, also of one that was passed on, that nothing of it is written."""

SURVIVAL_UNKNOWN = "this broker is no longer the master; whether the message survives is not known"
"""Remark of an answer with code 14 of who was master when it took the send."""


def is_refused(reply: Command | None) -> bool:
    """Whether the answer to a send says that nothing of it is written."""
    return reply is not None and (reply.remark or "").startswith(REFUSED_BEFORE_THE_WRITE)


def is_unwritten(reply: Command | None) -> bool:
    """Whether the answer to a send lets its client believe that nothing of it is written: code 14 does, on which all
    try again, unless it says that the message may be there."""
    if reply is None or reply.code != ResponseCode.SERVICE_NOT_AVAILABLE:
        return is_refused(reply)
    says_open = (reply.remark or "").startswith(SURVIVAL_UNKNOWN) or reply.ext.get("duplicatePossible") == "true"
    return not says_open


def send_fields(
    topic: str, queue_id: int, born_at_ms: int, properties: bytes, *, sys_flag: int = 0, is_batch: bool = False
) -> dict[str, str]:
    """Of requests 310 and 320."""
    return {
        "a": "sim",
        "b": topic,
        "c": "TBW102",
        "d": str(QUEUE_COUNT),
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": str(born_at_ms),
        "h": "0",
        "i": properties.decode(),
        "j": "0",
        "k": "false",
        "m": str(is_batch).lower(),
    }


class ClientProcess(GroupClient):
    def __init__(self, place: ClientPlace, interval_ms: int, history: History, first_target: int) -> None:
        super().__init__(place)
        self._interval_ms = interval_ms
        self._history = history
        self._target = first_target
        self.delayed_per_mille = self.timed_per_mille = self.waitless_per_mille = 0
        self.acknowledged: Callable[[str, int], None] = lambda address, phy_offset: None
        """Told of each SEND_OK: whose it is and where the record lies."""

    def boot(self) -> None:
        self.begin_life()
        self._rpc = Rpc(self, self._unasked)
        self._next()

    def elect_unclean(self, controllers: Mapping[str, str], broker_name: str, broker: BrokerProcess) -> None:
        """Operator's 1002, to every controller: the leader acts on it."""
        for address in controllers.values():
            ext = {
                "clusterName": broker.config.broker_cluster_name,
                "brokerName": broker_name,
                "brokerId": str(broker.replica.broker_id),
                "designateElect": "true",
                "unclean": "true",
                "invokeTime": str(self.clock.wall_ms()),
            }
            command = Command(RequestCode.CONTROLLER_ELECT_MASTER, ext)
            self._rpc.call(address, command, TIMEOUT_MS, lambda reply: None)

    def _next(self) -> None:
        if self._stopped:
            return
        send = Send(f"{self.host}-{len(self._history.sends)}", self.scheduler.now_ms)
        self._history.sends.append(send)
        self._attempt(send)

    def _waits(self, send: Send) -> bool:
        """For the group; False: told as soon as the master has taken the message. The same at each attempt."""
        return int(send.key.rpartition("-")[2]) * 5003 % 1000 >= self.waitless_per_mille

    def _more_properties(self, send: Send) -> dict[str, str]:
        """Of a message, beside its key: the same at each attempt, as with a client that tries again."""
        number = int(send.key.rpartition("-")[2]) * 7919
        drawn = number % 1000
        if drawn < self.delayed_per_mille:
            return {PROPERTY_DELAY: "2" if number % 5 == 0 else "1"}
        if drawn < self.delayed_per_mille + self.timed_per_mille:
            return {PROPERTY_TIMER_DELAY_MS: str(number % 7 * 700 + 100)}
        return {}

    def fields(self, properties: bytes, *, is_batch: bool) -> dict[str, str]:
        """Of a request that sends, to a drawn queue."""
        return send_fields(TOPIC, self._prng.below(QUEUE_COUNT), self.clock.wall_ms(), properties, is_batch=is_batch)

    def _address(self) -> str:
        """Where the next send goes."""
        return self._brokers[self._target % len(self._brokers)]

    def _attempt(self, send: Send) -> None:
        body = send.key.encode() + b"." * self._prng.below(400)
        wait = str(self._waits(send)).lower()
        properties = encode_properties({PROPERTY_UNIQUE_KEY: send.key, "WAIT": wait} | self._more_properties(send))
        ext = self.fields(properties, is_batch=False)
        address = self._address()
        command = Command(RequestCode.SEND_MESSAGE_V2, ext, body)
        attempt = Attempt(send.key, self.scheduler.now_ms)
        self._history.attempts.append(attempt)
        timeout_ms = TIMEOUT_MS + self.held_ms
        self._rpc.call(address, command, timeout_ms, lambda reply: self._answered(send, attempt, address, reply))

    def _answered(self, send: Send, attempt: Attempt, address: str, reply: Command | None) -> None:
        attempt.ended_at_ms = self.scheduler.now_ms
        if reply is None and attempt.ended_at_ms - attempt.called_at_ms >= PATIENCE_MS + self.held_ms:
            self.unanswered(send.key, address, attempt.called_at_ms, attempt.ended_at_ms)
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            send.offset_id = reply.ext["msgId"]
            if self._waits(send):
                send.acked_at_ms = self.scheduler.now_ms
                self.acknowledged(address, send.phy_offset)
            else:
                self._history.taken.add(send.key)
            send.queue_id = int(reply.ext["queueId"])
            send.queue_offset = int(reply.ext["queueOffset"])
            send.broker = address
            attempt.outcome, attempt.queue_offset = AttemptOutcome.ACKED, send.queue_offset
            attempt.queue = f"{TOPIC} {send.queue_id}"
            self._may_take_back(send, reply.ext.get("recallHandle", ""))
            self.after(self._interval_ms, self._next)
            return
        if is_unwritten(reply):
            attempt.outcome = AttemptOutcome.REFUSED
        if self._prng.chance(1, 2):
            self._target += 1
        self.after(20, lambda: self._retry(send))

    def _retry(self, send: Send) -> None:
        if not self._stopped:
            self._attempt(send)

    def _may_take_back(self, send: Send, handle: str) -> None:
        """Of the messages with a handle, every third is taken back, half of them late."""
        if not handle or self._prng.below(3):
            return
        found = RecallHandle.decode(handle)
        taken = TakenBack(send.key, found.at_ms - found.at_ms % 1000)
        self._history.taken_back.append(taken)
        left_ms = int(self._more_properties(send)[PROPERTY_TIMER_DELAY_MS])
        wait_ms = max(0, left_ms - self._prng.below(1000)) if self._prng.chance(1, 2) else self._prng.below(left_ms)
        self.after(wait_ms, lambda: self._take_back(taken, handle, RECALL_TRIES))

    def _take_back(self, taken: TakenBack, handle: str, tries: int) -> None:
        command = Command(RequestCode.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": handle})

        def answered(reply: Command | None) -> None:
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                taken.is_acked = True
            elif (reply is None or reply.code != ResponseCode.ILLEGAL_OPERATION) and tries > 1:
                self.after(200, lambda: self._take_back(taken, handle, tries - 1))

        if not self._stopped:
            self._rpc.call(self._address(), command, TIMEOUT_MS + self.held_ms, answered)
