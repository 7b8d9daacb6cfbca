"""A session of clients that pop, the same for any broker, and what it is answered: for comparing brokers."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmqha.broker.pop.checkpoint import offsets_to_bits
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.pop.world import Popped, ack_command, messages, named, pop_command
from tests.broker.support import send_command

TOPIC, GROUP, ORDERED = "Session", "Poppers", "InOrder"
BODIES = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
LONG_MS = 600_000
MADE = {
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
GOLDEN = Path(__file__).parents[2] / "golden" / "pop-answers.json"
"""Apache's broker's answers."""
WITHOUT_ROUTES = {"how are they divided"}
"""What only a broker that has routes is asked."""
_TIMES = ("popTime",)
_OF_A_REFUSAL = ("popTime", "invisibleTime", "reviveQid", "restNum")
"""Fields that say nothing where nothing was done: Apache's broker sends them, with zeros."""
Ask = Callable[[Command], Command]


class Session:
    """`broker_name`: of the broker that `ask` asks. `has_routes`: it finds a name server that tells routes."""

    def __init__(self, ask: Ask, broker_name: str, *, has_routes: bool = False) -> None:
        self._ask = ask
        self._has_routes = has_routes
        self._broker_name = broker_name
        self.answers: dict[str, Any] = {}
        """What was answered, by what was asked, without times and addresses."""

    def _told(self, name: str, command: Command) -> Command:
        reply = self._ask(command)
        ext = {key: "a time" if key in _TIMES else value for key, value in sorted(reply.ext.items())}
        if reply.code not in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT):
            ext = {key: value for key, value in ext.items() if key not in _OF_A_REFUSAL}
        if ext.get("reviveQid") not in (None, "999"):
            ext["reviveQid"] = "a queue"
        self.answers[name] = {"code": int(reply.code), "ext": ext}
        return reply

    def _pop(self, name: str, group: str = GROUP, **ext: Any) -> list[Popped]:
        reply = self._told(name, pop_command(TOPIC, group, **{"invisibleTime": LONG_MS, "queueId": 0, **ext}))
        found = messages(reply, TOPIC, group, self._broker_name) if reply.code == 0 else []
        self.answers[name]["bodies"] = [message.body.decode() for message in found]
        return found

    def _peek(self, name: str, **ext: Any) -> None:
        command = pop_command(TOPIC, GROUP, **{"queueId": 0, **ext})
        self._told(name, Command(RequestCode.PEEK_MESSAGE, command.ext))

    def _ask_whether(self, name: str, group: str, **ext: Any) -> None:
        fields = {"consumerGroup": group, "topic": TOPIC, "queueId": "0", "pollTime": "0", "bornTime": "0"}
        self._told(name, Command(RequestCode.NOTIFICATION, {**fields, "order": "false", **ext}))

    def _batch(self, name: str, given: list[Popped], group: str = GROUP) -> None:
        start, receipt = given[0].receipt.start_offset, given[0].receipt
        bits = offsets_to_bits(start, [message.record.queue_offset for message in given])
        item = {
            "c": group, "t": TOPIC, "r": "0", "so": start, "q": 0, "rq": receipt.revive_queue_id,
            "pt": receipt.pop_ms, "it": receipt.invisible_ms, "b": base64.b64encode(bits).decode(),
        }  # fmt: skip
        body = dumps({"brokerName": self._broker_name, "acks": [item]})
        self._told(name, Command(RequestCode.BATCH_ACK_MESSAGE, {}, body))

    def _change(self, name: str, message: Popped, invisible_ms: int, group: str = GROUP) -> Command:
        command = named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, message, group, invisibleTime=invisible_ms)
        reply = self._told(name, command)
        if message.receipt.is_ordered:
            self.answers[name]["ext"].pop("invisibleTime", None)  # it counts from the pop
        return reply

    def run(self) -> dict[str, Any]:
        """The whole session."""
        assert self._ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, dict(MADE))).code == 0
        for number, body in enumerate(BODIES):
            properties = encode_properties({"UNIQ_KEY": f"KEY{number}", "TAGS": "odd" if number % 2 else "even"})
            assert self._ask(send_command(TOPIC, 0, body, i=properties.decode())).code == 0
        self._pops()
        self._in_order()
        self._wrong()
        self._modes()
        return self.answers

    def _pops(self) -> None:
        self._ask_whether("is there anything", GROUP)
        self._peek("look at two", maxMsgNums=2)
        polling = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"}
        self._told("who waits", Command(RequestCode.POLLING_INFO, polling))
        first, second = self._pop("pop two", maxMsgNums=2)
        self._told("acknowledge one", ack_command(first, GROUP))
        self._told("acknowledge it again", ack_command(first, GROUP))
        self._told("acknowledge what is beyond", ack_command(second, GROUP, offset=99))
        self._change("another time", second, LONG_MS)
        found = self._pop("pop odd ones", exp="odd", maxMsgNums=2)
        # ours begins with the first one that it gives, Apache's where it began to look
        del self.answers["pop odd ones"]["ext"]["startOffsetInfo"]
        self._batch("acknowledge both", found)
        self._pop("pop the rest")
        self._pop("pop when there is nothing")
        self._ask_whether("is there anything more", GROUP)
        self._pop("another group begins at the front", "Other", maxMsgNums=3)

    def _in_order(self) -> None:
        first, second = self._pop("pop two in order", ORDERED, order="true", maxMsgNums=2)
        self._pop("pop in order while they are out", ORDERED, order="true")
        self._told("acknowledge the first in order", ack_command(first, ORDERED))
        self._pop("pop in order while one is out", ORDERED, order="true")
        self._change("another time in order", second, LONG_MS, ORDERED)
        self._told("acknowledge the second in order", ack_command(second, ORDERED))
        self._pop("pop on in order", ORDERED, order="true", maxMsgNums=1)

    def _wrong(self) -> None:
        self._told("pop, too many", pop_command(TOPIC, GROUP, queueId=0, maxMsgNums=33))
        self._told("pop, no such queue", pop_command(TOPIC, GROUP, queueId=7))
        self._told("pop, no such topic", pop_command("Nope", GROUP, queueId=0))
        (given,) = self._pop("pop one for what is wrong", "Wrong", maxMsgNums=1)
        wrong: dict[str, dict[str, Any]] = {"no such queue": {"queueId": 7}, "no such topic": {"topic": "Nope"}}
        for name, ext in wrong.items():
            self._told(f"acknowledge, {name}", ack_command(given, "Wrong", **ext))
            changed = named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given, "Wrong", invisibleTime=1000, **ext)
            self._told(f"another time, {name}", changed)
        self._told("acknowledge nothing", Command(RequestCode.BATCH_ACK_MESSAGE, {}, b""))

    def _modes(self) -> None:
        mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0}
        self._told("let the broker divide", Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, dumps(mode)))
        if not self._has_routes:
            return
        asked = {
            "topic": TOPIC, "consumerGroup": GROUP, "clientId": "one", "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        }  # fmt: skip
        reply = self._told("how are they divided", Command(RequestCode.QUERY_ASSIGNMENT, {}, dumps(asked)))
        self.answers["how are they divided"]["body"] = loads(bytes(reply.body)) if reply.body else None
