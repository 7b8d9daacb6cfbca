"""Operators and consumers: they change topics, groups and offsets, one change after the other, and remember how each
ended. Like the producers they stay with a broker that refused, half of the time."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.sim.transport import Connection
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.simulation.clients.group_client import ClientPlace, GroupClient
from tests.simulation.history import History, Proposal
from tests.simulation.processes.process import Rpc

TIMEOUT_MS = 4000
INTERVAL_MS = 60
NAME_COUNT = 4
GROUP = "readers"
MOVED_GROUP = "moved"
"""Of which no member ever pulls: once its offset in a queue is set back, its commits there count no more."""
TOPIC = "SimTopic"


class TableClient(GroupClient):
    def __init__(self, place: ClientPlace, history: History, *, resets: bool) -> None:
        super().__init__(place)
        self._history = history
        self._resets = resets
        self._subscribed: set[tuple[str, str]] = set()
        """Brokers that have heard of a group, and which, as far as is known."""
        self.answered: Callable[[Proposal], None] = lambda change: None

    def boot(self) -> None:
        self.begin_life()
        self._subscribed = set()
        self._rpc = Rpc(self, self._unasked)
        self._next()

    def _next(self) -> None:
        if self._stopped:
            return
        change, command = self._draw(len(self._history.changes) + 1)
        change.begun_at_ms = self.scheduler.now_ms
        self._history.changes.append(change)
        address = self._brokers[self._target % len(self._brokers)]

        group = MOVED_GROUP if change.key.startswith("moved") else GROUP

        def ask() -> None:
            self._rpc.call(address, command, TIMEOUT_MS, lambda reply: self._answered(change, address, group, reply))

        if change.key.startswith(("moved", "offset")) and (address, group) not in self._subscribed:
            self._subscribe(address, group, ask)
        else:
            ask()

    def _subscribe(self, address: str, group: str, then: Callable[[], None]) -> None:
        """A group's heartbeat comes before its commits, which make no group."""
        consumer = {"groupName": group, "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "subVersion": 1}]}
        body = dumps({"clientID": self.host, "consumerDataSet": [consumer]})

        def heard(reply: Command | None) -> None:
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                self._subscribed.add((address, group))
            then()

        self._rpc.call(address, Command(RequestCode.HEART_BEAT, {}, body), TIMEOUT_MS, heard)

    def _draw(self, number: int) -> tuple[Proposal, Command]:
        """Change `number` and its request. Values tell one change of a key from another."""
        name = str(self._prng.below(NAME_COUNT))
        if self._resets and self._history.acked and self._prng.chance(1, 3):
            return self._draw_moved()
        match self._prng.below(5):
            case 0 | 1:
                queues = str(1 + number % 1000)
                ext = {"topic": f"T{name}", "readQueueNums": queues, "writeQueueNums": queues, "perm": "6"}
                return Proposal(f"topic T{name}", int(queues)), Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            case 2:
                command = Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": f"T{name}"})
                return Proposal(f"topic T{name}", None), command
            case 3 if acked := self._history.acked:
                # an offset behind the end of its queue is no offset: one is taken that an acknowledged message has
                send = acked[self._prng.below(len(acked))]
                ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(send.queue_id)}
                command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext | {"commitOffset": str(send.queue_offset)})
                return Proposal(f"offset {send.queue_id}", send.queue_offset), command
            case _:
                body = dumps({"groupName": f"G{name}", "retryMaxTimes": number})
                return Proposal(f"group G{name}", number), Command(
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body
                )

    def _draw_moved(self) -> tuple[Proposal, Command]:
        """A commit of the group, or an order that sets it back; the latter wins for good."""
        acked = self._history.acked
        send = acked[self._prng.below(len(acked))]
        key, queue = f"moved {send.queue_id}", {"topic": TOPIC, "queueId": str(send.queue_id)}
        if self._prng.chance(1, 4):
            ext = queue | {"group": MOVED_GROUP, "offset": str(send.queue_offset), "timestamp": "-1"}
            command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
            return Proposal(key, send.queue_offset, is_reset=True), command
        ext = queue | {"consumerGroup": MOVED_GROUP, "commitOffset": str(send.queue_offset)}
        return Proposal(key, send.queue_offset), Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    def _unasked(self, conn: Connection, command: Command) -> None:
        """A broker tells the group's members that they have changed."""
        assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, command

    def _answered(self, change: Proposal, address: str, group: str, reply: Command | None) -> None:
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            change.acked_at_ms, change.broker = self.scheduler.now_ms, address
            self.answered(change)
            self.after(INTERVAL_MS, self._next)
            return
        if reply is not None and reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            self._subscribed.discard((address, group))
        if self._prng.chance(1, 2):
            self._target += 1
        self.after(20, self._next)
