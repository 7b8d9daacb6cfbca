"""Clients that pop: they acknowledge what they are given, one by one or many at once, late or never, or want it at
another time. Stopped, they live, take what is left and acknowledge all of it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial

from rmqha.broker.pop.checkpoint import offsets_to_bits
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from rmqha.wire.state.receipt import Receipt
from tests.broker.pop.world import Popped, messages, named, pop_command
from tests.simulation.checkers.clients.popping import GROUP, IN_ORDER, Delivery, Popping, PoppingInOrder
from tests.simulation.clients.client_process import PATIENCE_MS, TIMEOUT_MS, TOPIC
from tests.simulation.clients.group_client import ClientPlace, GroupClient
from tests.simulation.processes.process import Rpc

INVISIBLE_MS = (1200, 2500, 4000)
MOST_CHANGE_MS = 3000
POLL_MS = 500
PAUSE_MS = 50
MOST_TRIES = 5
LATE_MS = 10_000
"""A request that was not answered may arrive so much later."""
MOST_MESSAGES = 16


class Popper(GroupClient):
    """What both kinds share."""

    def __init__(self, place: ClientPlace, group: str, broker_name: str) -> None:
        super().__init__(place)
        self._group = group
        self._broker_name = broker_name
        self.working_count = 0
        """Messages that it has and is not done with."""

    def boot(self) -> None:
        self.begin_life()
        self._rpc = Rpc(self, self._unasked)
        self._next()

    def _next(self) -> None:
        raise NotImplementedError

    @property
    def _address(self) -> str:
        return self._brokers[self._target % len(self._brokers)]

    def _call(self, command: Command, answered: Callable[[str, Command | None], None]) -> None:
        """Ask the present target, and turn away from one that refuses or is silent."""
        address, called_at_ms = self._address, self.scheduler.now_ms

        def done(reply: Command | None) -> None:
            ended_at_ms = self.scheduler.now_ms
            if reply is None and ended_at_ms - called_at_ms >= PATIENCE_MS:
                self.unanswered(f"request {command.code}", address, called_at_ms, ended_at_ms)
            if reply is None or reply.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR):
                self._target += self._prng.below(2)
            answered(address, reply)

        self._rpc.call(address, command, TIMEOUT_MS, done)

    def _pop(self, answered: Callable[[str, Command | None], None], *, count: int, **ext: object) -> None:
        fields = {"invisibleTime": INVISIBLE_MS[self._prng.below(3)], "maxMsgNums": count, "pollTime": POLL_MS, **ext}
        self._call(pop_command(TOPIC, self._group, **fields), answered)

    def _messages(self, reply: Command) -> list[Popped]:
        return messages(reply, TOPIC, self._group, self._broker_name)


class PopClient(Popper):
    """It has one pop under way, and any number of messages."""

    def __init__(self, place: ClientPlace, broker_name: str, popping: Popping, *, is_late: bool) -> None:
        """`is_late`: it wants messages at another time also when their time is over."""
        super().__init__(place, GROUP, broker_name)
        self._popping = popping
        self._is_late = is_late

    def _next(self) -> None:
        self._pop(self._popped, count=1 + self._prng.below(MOST_MESSAGES))

    def _popped(self, address: str, reply: Command | None) -> None:
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            given = self._messages(reply)
            deliveries = [self._popping.deliver(message, address) for message in given]
            if not self._stopped and self._prng.chance(1, 5):
                self._ack_many(deliveries)
            else:
                for delivery in deliveries:
                    self._treat(delivery)
            self.after(self._prng.below(60), self._next)
        else:
            self.after(PAUSE_MS, self._next)

    def _treat(self, delivery: Delivery) -> None:
        what = 0 if self._stopped else self._prng.below(10)
        if what < 5:
            self._work(self._prng.below(300), partial(self._ack, delivery, MOST_TRIES))
        elif what < 7:
            self._work(self._prng.below(300), partial(self._change, delivery))
        elif what == 8 and self._is_late:
            late_ms = delivery.receipt.invisible_ms - 100 + self._prng.below(800)
            self._work(late_ms, partial(self._change, delivery))
        elif what == 7:
            late_ms = delivery.receipt.invisible_ms - 300 + self._prng.below(1800)
            self._work(late_ms, partial(self._ack, delivery, MOST_TRIES))

    def _work(self, delay_ms: int, then: Callable[[], None]) -> None:
        self.working_count += 1
        self.after(delay_ms, then)

    def _done(self) -> None:
        self.working_count -= 1

    def _ack(self, delivery: Delivery, tries: int) -> None:
        delivery.is_tried = True

        def answered(address: str, reply: Command | None) -> None:
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                self._popping.acknowledged(delivery)
            elif tries > 1:
                self.after(PAUSE_MS, lambda: self._ack(delivery, tries - 1))
                return
            self._done()

        self._call(self._named(RequestCode.ACK_MESSAGE, delivery), answered)

    def _named(self, code: RequestCode, delivery: Delivery, **ext: object) -> Command:
        fields = {
            "consumerGroup": self._group,
            "topic": delivery.place.topic,
            "queueId": delivery.place.queue_id,
            "offset": delivery.place.queue_offset,
            "extraInfo": delivery.receipt.encode(),
            **ext,
        }
        return Command(code, {name: str(value) for name, value in fields.items()})

    def _ack_many(self, deliveries: list[Delivery]) -> None:
        """Some of them, all with one request."""
        chosen = [delivery for delivery in deliveries if self._prng.chance(2, 3)]
        by_receipt: dict[tuple[str, Receipt], list[Delivery]] = {}
        for delivery in chosen:
            receipt = delivery.receipt._replace(queue_offset=None)
            by_receipt.setdefault((delivery.place.topic, receipt), []).append(delivery)
            delivery.is_tried = True
        if not chosen:
            return
        acks = [
            {
                "c": self._group,
                "t": TOPIC,
                "r": receipt.kind,
                "so": receipt.start_offset,
                "q": receipt.queue_id,
                "rq": receipt.revive_queue_id,
                "pt": receipt.pop_ms,
                "it": receipt.invisible_ms,
                "b": base64.b64encode(
                    offsets_to_bits(receipt.start_offset, [item.place.queue_offset for item in items])
                ).decode(),
            }
            for (_, receipt), items in by_receipt.items()
        ]
        self._work(
            self._prng.below(300),
            lambda: self._call(
                Command(RequestCode.BATCH_ACK_MESSAGE, {}, dumps({"brokerName": self._broker_name, "acks": acks})),
                partial(self._acked_many, chosen),
            ),
        )

    def _acked_many(self, chosen: list[Delivery], address: str, reply: Command | None) -> None:
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            for delivery in chosen:
                self._popping.acknowledged(delivery)
        self._done()

    def _change(self, delivery: Delivery) -> None:
        invisible_ms = self._prng.below(MOST_CHANGE_MS)

        def answered(address: str, reply: Command | None) -> None:
            self._done()
            if reply is None or reply.code != ResponseCode.SUCCESS:
                delivery.is_unclear = reply is None or reply.code != ResponseCode.NO_MESSAGE  # refused: its time stays
                return
            changed = reply.ext
            delivery.receipt = delivery.receipt._replace(
                start_offset=delivery.place.queue_offset,
                pop_ms=int(changed["popTime"]),
                invisible_ms=int(changed["invisibleTime"]),
                revive_queue_id=int(changed["reviveQid"]),
            )
            if self._stopped or self._prng.chance(1, 2):
                self._work(self._prng.below(200), partial(self._ack, delivery, MOST_TRIES))

        command = self._named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, delivery, invisibleTime=invisible_ms)
        self._call(command, answered)


class OrderedPopClient(Popper):
    """It has one pop under way, or works off what that has given, in its order."""

    def __init__(self, place: ClientPlace, broker_name: str, popping: PoppingInOrder, *, is_late: bool) -> None:
        """`is_late`: what it has given up it acknowledges when it has come again, by the receipt of before, which
        counts for nothing."""
        super().__init__(place, IN_ORDER, broker_name)
        self._popping = popping
        self._is_late = is_late
        self._given_up: list[Popped] = []
        self._attempt = 0
        self._has_lost_answer = False
        self._unclear_until_ms = 0

    def _next(self) -> None:
        if not (self._has_lost_answer and self._prng.chance(1, 2)):
            self._attempt += 1
            self._has_lost_answer = False
        is_repeated = self._has_lost_answer

        def popped(address: str, reply: Command | None) -> None:
            self._has_lost_answer = reply is None
            if reply is None:
                self._unclear_until_ms = self.scheduler.now_ms + LATE_MS
            if reply is None or reply.code != ResponseCode.SUCCESS:
                self.after(PAUSE_MS, self._next)
                return
            given = self._messages(reply)
            self._popping.deliver(given, address, is_repeated=is_repeated)
            self.working_count = len(given)
            self._ack_by_old_receipts(given)
            self.after(self._prng.below(60), lambda: self._treat(given, 0))

        attempt_id = f"{self.host}-{self._attempt}"
        self._pop(popped, count=1 + self._prng.below(MOST_MESSAGES), order="true", attemptId=attempt_id)

    def _treat(self, given: list[Popped], place: int) -> None:
        """The next one, and those behind it. Given up, they come again."""
        self.working_count = len(given) - place
        if place == len(given):
            self._next()
        elif not self._stopped and self._prng.chance(1, 8 if self._is_late else 40):
            self.working_count = 0
            self._given_up = given[place:] if self._is_late else []
            self.after(self._prng.below(200), self._next)
        elif not self._stopped and self._prng.chance(1, 40):
            self._delay(given[place])
        else:
            self._ack(given, place, MOST_TRIES)

    def _ack_by_old_receipts(self, given: list[Popped]) -> None:
        """Of no checker's concern: nothing is done by it."""
        again = {(message.topic, message.record.queue_id, message.record.queue_offset) for message in given}
        for old in self._given_up:
            if (old.topic, old.record.queue_id, old.record.queue_offset) in again and not self._stopped:
                self._call(named(RequestCode.ACK_MESSAGE, old, self._group), lambda address, reply: None)
        self._given_up = []

    def _ack(self, given: list[Popped], place: int, tries: int) -> None:
        message = given[place]
        self._popping.trying(message)

        def answered(address: str, reply: Command | None) -> None:
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                self._popping.acknowledged(message, is_clear=self.scheduler.now_ms > self._unclear_until_ms)
                self.after(self._prng.below(40), lambda: self._treat(given, place + 1))
            elif tries > 1:
                self.after(PAUSE_MS, lambda: self._ack(given, place, tries - 1))
            else:
                self.working_count = 0
                self._next()

        self._call(named(RequestCode.ACK_MESSAGE, message, self._group), answered)

    def _delay(self, message: Popped) -> None:
        invisible_ms = self._prng.below(MOST_CHANGE_MS)

        def answered(address: str, reply: Command | None) -> None:
            # until then it may come, or at the time that it had
            self._popping.delayed(message, message.receipt.pop_ms)
            self.working_count = 0
            self._next()

        fields = {"invisibleTime": invisible_ms}
        self._call(named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, message, self._group, **fields), answered)
