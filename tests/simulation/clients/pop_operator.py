"""An operator who sets back where a group goes on that pops: one queue at a time, to a message that it was given."""

from __future__ import annotations

from functools import partial

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.simulation.checkers.clients.popping import GROUP, Popping, SetBack
from tests.simulation.clients.client_process import TIMEOUT_MS, TOPIC, is_refused
from tests.simulation.clients.group_client import ClientPlace, GroupClient
from tests.simulation.processes.process import Rpc

NOT_THE_MASTER = "this broker is not the master"
LEAST_PAUSE_MS = 500
FURTHEST = 30
"""Messages that come again at most, of those that the group was given so far; now and then all of them may."""


class PopOperator(GroupClient):
    def __init__(self, place: ClientPlace, popping: Popping, pause_ms: int) -> None:
        super().__init__(place)
        self._pause_ms = pause_ms
        self._popping = popping

    def boot(self) -> None:
        self.begin_life()
        self._rpc = Rpc(self, self._unasked)
        self._rest()

    def _rest(self) -> None:
        self.after(LEAST_PAUSE_MS + self._prng.below(self._pause_ms), self._next)

    def _next(self) -> None:
        if self._stopped:
            return
        ends = sorted(self._popping.ends.items())
        if not ends:
            self._rest()
            return
        queue_id, end = ends[self._prng.below(len(ends))]
        offset = max(0, end - 1 - self._prng.below(end if self._prng.chance(1, 2) else FURTHEST))
        address = self._brokers[self._target % len(self._brokers)]
        ext = {"topic": TOPIC, "group": GROUP, "queueId": str(queue_id), "offset": str(offset), "timestamp": "-1"}
        asked = self._popping.set_back_begins(queue_id, offset)
        answered = partial(self._answered, asked)
        self._rpc.call(address, Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext), TIMEOUT_MS, answered)

    def _answered(self, asked: SetBack, reply: Command | None) -> None:
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            asked.is_answered = True
        else:
            if is_refused(reply) or (reply is not None and (reply.remark or "").startswith(NOT_THE_MASTER)):
                self._popping.set_back_refused(asked)
            self._target += self._prng.below(2)
        self._rest()
