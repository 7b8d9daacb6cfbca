"""A consumer: it pulls every queue of the topic with long polling, from slaves too, commits how far it has read, and
dies now and then, to go on from what the brokers have kept. Stopped, it lives and reads what is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.simulation.checkers.clients.consumption import Consumption
from tests.simulation.clients.client_process import PATIENCE_MS, QUEUE_COUNT, TIMEOUT_MS, TOPIC
from tests.simulation.clients.group_client import ClientPlace, GroupClient
from tests.simulation.processes.process import Rpc

GROUP = "consumers"
SUSPEND_MS = 1000
PAUSE_MS = 50
MOST_MESSAGES = 32
COMMITS, MAY_WAIT, SUBSCRIBES = 1, 2, 4
"""Bits of a pull's sysFlag."""
_STAYS = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class ConsumerProcess(GroupClient):
    def __init__(self, place: ClientPlace, consumption: Consumption) -> None:
        super().__init__(place)
        self._consumption = consumption
        self.offsets: dict[int, int] = {}
        """Where each queue goes on, in this life."""

    def boot(self) -> None:
        self.begin_life()
        self._rpc = Rpc(self, self._unasked)
        self.offsets = {}
        for queue_id in range(QUEUE_COUNT):
            self._find_start(queue_id)

    def _call(
        self, code: RequestCode, ext: dict[str, str], queue_id: int, then: Callable[[str, Command], None]
    ) -> None:
        """Ask the present target, and `then` with its answer; without one another broker is asked for a start."""
        address = self._brokers[self._target % len(self._brokers)]
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)} | ext
        called_at_ms, key = self.scheduler.now_ms, f"{code.name} of queue {queue_id}"

        def answered(reply: Command | None) -> None:
            if reply is not None:
                then(address, reply)
                return
            ended_at_ms = self.scheduler.now_ms
            if ended_at_ms - called_at_ms >= PATIENCE_MS:
                self.unanswered(key, address, called_at_ms, ended_at_ms)
            self._turn_away(queue_id)

        self._rpc.call(address, Command(code, ext), TIMEOUT_MS, answered)

    def _turn_away(self, queue_id: int) -> None:
        """From a broker that refuses or is silent."""
        self._target += self._prng.below(2)
        self._later(PAUSE_MS, queue_id)

    def _later(self, delay_ms: int, queue_id: int) -> None:
        go_on = self._pull if queue_id in self.offsets else self._find_start
        self.after(delay_ms, partial(go_on, queue_id))

    # --- where a life begins ----------------------------------------------------------------------------------------
    def _find_start(self, queue_id: int) -> None:
        self._call(RequestCode.QUERY_CONSUMER_OFFSET, {}, queue_id, partial(self._found, queue_id))

    def _found(self, queue_id: int, address: str, reply: Command) -> None:
        if reply.code == ResponseCode.SUCCESS:
            offset = int(reply.ext["offset"])
            self._consumption.begins(queue_id, offset, address)
        elif reply.code == ResponseCode.QUERY_NOT_FOUND:
            offset = 0
        else:
            self._turn_away(queue_id)
            return
        self.offsets[queue_id] = offset
        self._pull(queue_id)

    # --- reading ----------------------------------------------------------------------------------------------------
    def _pull(self, queue_id: int) -> None:
        offset = self.offsets[queue_id]
        commits = self._prng.chance(1, 4)
        if commits:
            self._consumption.committed(queue_id, offset)
        ext = {
            "queueOffset": str(offset),
            "maxMsgNums": str(1 + self._prng.below(MOST_MESSAGES)),
            "sysFlag": str(MAY_WAIT | SUBSCRIBES | (COMMITS if commits else 0)),
            "commitOffset": str(offset if commits else 0),
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        self._call(RequestCode.PULL_MESSAGE, ext, queue_id, partial(self._pulled, queue_id, offset))

    def _pulled(self, queue_id: int, asked: int, address: str, reply: Command) -> None:
        if reply.code == ResponseCode.SUCCESS:
            self.offsets[queue_id] = self._consumption.read(queue_id, asked, reply, address)
            if not self._stopped and self._prng.chance(1, 300):
                self._die()
                return
            if self._prng.chance(1, 8):
                self._commit(queue_id, address)
            self._later(self._prng.below(20), queue_id)
        elif reply.code == ResponseCode.PULL_OFFSET_MOVED:
            self.offsets[queue_id] = self._consumption.moved(queue_id, asked, reply, address)
            self._later(PAUSE_MS, queue_id)
        elif reply.code in _STAYS:
            self.offsets[queue_id] = self._consumption.waited(queue_id, asked, reply, address)
            self._target += self._prng.chance(1, 4)
            self._later(self._prng.below(20), queue_id)
        else:
            self._turn_away(queue_id)

    def _commit(self, queue_id: int, address: str) -> None:
        offset = self.offsets[queue_id]
        self._consumption.committed(queue_id, offset)
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), "commitOffset": str(offset)}
        self._rpc.oneway(address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext))

    def _die(self) -> None:
        self.end_life(power_loss=False)
        self.scheduler.after(self._prng.between(1, 500), self.boot)
