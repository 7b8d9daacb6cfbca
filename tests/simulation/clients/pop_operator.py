"""An operator who sets back where a group goes on that pops: one queue at a time, to a message that it was given."""

from __future__ import annotations

from functools import partial

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.simulation.checkers.clients.popping import Popping, PoppingInOrder, SetBack, SetBacks
from tests.simulation.clients.client_process import TIMEOUT_MS, TOPIC, is_refused
from tests.simulation.clients.group_client import ClientPlace, GroupClient
from tests.simulation.processes.process import Rpc

NOT_THE_MASTER = "this broker is not the master"
LEAST_PAUSE_MS = 500
FURTHEST = 30
"""Messages that come again at most, of those that the group was given so far; now and then all of them may."""


class PopOperator(GroupClient):
    """With `both` the group that pops in order is set back too, and a client of the other one does it by a commit."""

    def __init__(
        self, place: ClientPlace, popping: Popping, in_order: PoppingInOrder, pause_ms: int, *, both: bool
    ) -> None:
        super().__init__(place)
        self._pause_ms = pause_ms
        self._groups: list[Popping | PoppingInOrder] = [popping, in_order] if both else [popping]

    def boot(self) -> None:
        self.begin_life()
        self._rpc = Rpc(self, self._unasked)
        self._rest()

    def _rest(self) -> None:
        self.after(LEAST_PAUSE_MS + self._prng.below(self._pause_ms), self._next)

    def _next(self) -> None:
        if self._stopped:
            return
        both = len(self._groups) > 1
        popping = self._groups[self._prng.below(2) if both else 0]
        ends = sorted(popping.ends.items())
        if not ends:
            self._rest()
            return
        queue_id, end = ends[self._prng.below(len(ends))]
        offset = max(0, end - 1 - self._prng.below(end if self._prng.chance(1, 2) else FURTHEST))
        asked = popping.set_backs.begins(queue_id, offset)
        ext = {"topic": TOPIC, "queueId": str(queue_id)}
        is_order = not (both and self._prng.chance(1, 2))
        if not is_order:
            fields = ext | {"consumerGroup": asked.group, "commitOffset": str(offset)}
            command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        else:
            fields = ext | {"group": asked.group, "offset": str(offset), "timestamp": "-1"}
            command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        address = self._brokers[self._target % len(self._brokers)]
        self._rpc.call(address, command, TIMEOUT_MS, partial(self._answered, popping.set_backs, asked, is_order))

    def _answered(self, set_backs: SetBacks, asked: SetBack, is_order: bool, reply: Command | None) -> None:
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            asked.is_answered = is_order  # a commit counts for nothing until members know of an order before it
        else:
            if is_refused(reply) or (reply is not None and (reply.remark or "").startswith(NOT_THE_MASTER)):
                set_backs.refused(asked)
            self._target += self._prng.below(2)
        self._rest()
