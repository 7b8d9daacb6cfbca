"""A broker that two accounts share, each with its topic, groups and messages of every kind, behind the real guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.auth_filter import AuthFilter
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.model.access import AccessList, Account, Permission
from rmqha.model.code import RequestCode
from rmqha.model.identity import Credentials
from rmqha.model.message import encode_properties
from rmqha.model.principal import Principal
from rmqha.store.log.record import decode, verify
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.support import Broker, FakeChannel, pull_command, send_command
from tests.broker.transactions import HALF, prepared

PUB, SUB, DENY = Permission.PUB, Permission.SUB, Permission.DENY
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Side(NamedTuple):
    """What belongs to one account."""

    name: str

    @property
    def topic(self) -> str:
        return f"{self.name}Topic"

    @property
    def group(self) -> str:
        return f"{self.name}Group"

    @property
    def producers(self) -> str:
        return f"{self.name}Producers"

    @property
    def client_id(self) -> str:
        return f"{self.name}Client"

    @property
    def secret(self) -> bytes:
        """Stands in the body of each of its messages."""
        return f"{self.name}-secret".encode()

    @property
    def retry(self) -> str:
        return f"%RETRY%{self.group}"

    @property
    def dead_letters(self) -> str:
        return f"%DLQ%{self.group}"

    @property
    def popped_again(self) -> tuple[str, str]:
        """Topics in which messages of its topic come again that its group has popped, in both of RocketMQ's forms."""
        return f"{self.retry}_{self.topic}", f"{self.retry}+{self.topic}"


OWN, FOREIGN = Side("own"), Side("foreign")
READER = "reader"
"""An account that by default may everything, but nothing of what is foreign."""


def _account(key: str, **values: Any) -> Account:
    return Account(credentials=Credentials(access_key=key, secret_key=f"{key}-secret-key"), **values)


def _of(side: Side) -> Account:
    return _account(
        side.name, topics={side.topic: PUB | SUB}, groups={side.group: SUB, side.producers: PUB}, default_topic=DENY
    )


ACCOUNTS = {
    account.credentials.access_key: account
    for account in (
        _of(OWN),
        _of(FOREIGN),
        _account("operator", admin=True),
        _account(
            READER,
            default_topic=PUB | SUB,
            default_group=SUB,
            topics={FOREIGN.topic: DENY},
            groups={FOREIGN.group: DENY},
        ),
    )
}


@dataclass
class Accounts:
    access: AccessList


def principal(key: str) -> Principal:
    """One of these accounts."""
    return Principal(cast(AccessFile, Accounts(AccessList(ACCOUNTS))), key)


class Records(NamedTuple):
    """Where a side's messages stand in the log."""

    plain: int
    retried: int
    dead: int
    delayed: int
    half: int
    half_queue_offset: int

    @property
    def all(self) -> dict[str, int]:
        return {name: self[place] for place, name in enumerate(self._fields[:5])}


class World:
    """`access`: accounts with the keys of ACCOUNTS."""

    def __init__(self, broker: Broker, access: AccessList | None = None) -> None:
        self.broker = broker
        self.accounts = Accounts(AccessList(ACCOUNTS) if access is None else access)
        self.statistics = Statistics()
        service = cast(Any, broker.core.processor)
        self.guard = AuthFilter(service, cast(AccessFile, self.accounts), self.statistics)
        self.channels = {side: FakeChannel(f"10.0.0.{number}:1000") for number, side in enumerate((OWN, FOREIGN), 1)}
        self.records = {side: self._fill(side) for side in (OWN, FOREIGN)}
        self._mix()
        for side in (OWN, FOREIGN):
            for topic in side.popped_again:
                assert self.broker.core.topics.create_internal(topic, 1)

    def ask(self, command: Command, key: str = OWN.name, channel: FakeChannel | None = None) -> list[Command]:
        """Everything that the account's connection is sent while the request is served."""
        sign(command, ACCOUNTS[key].credentials)
        if channel is None:
            channel = self.channels[FOREIGN if key == FOREIGN.name else OWN]
        channel.take()
        self.guard.received(cast(Session, channel), [command])
        self.broker.run()
        return channel.take()

    def state(self) -> dict[str, Any]:
        """All that a request could change."""
        core, store = self.broker.core, self.broker.store
        clients = core.clients
        groups = [clients.consumer_group(name) for name, _, _ in clients.consumer_connections()]
        return {
            "end": store.max_phy_offset,
            "topics": core.topics.to_json(),
            "groups": core.groups.to_json(),
            "offsets": core.offsets.to_json(),
            "locks": {side.group: core.locks.is_ordered(side.group) for side in (OWN, FOREIGN)},
            "producers": {name: dict(clients.producer_group(name) or {}) for name in clients.producer_groups()},
            "consumers": [(group.client_ids(), sorted(group.subscriptions)) for group in groups if group is not None],
            "config": core.live.current,
            "role": core.replica.role,
        }

    def foreign_state(self) -> dict[str, Any]:
        """All that is another account's, and that no request of this one may change."""
        core, store = self.broker.core, self.broker.store
        group = core.clients.consumer_group(FOREIGN.group)
        queues = (FOREIGN.topic, FOREIGN.retry, FOREIGN.dead_letters, *FOREIGN.popped_again)
        return {
            "queues": [store.queue_range(name, 0) for name in queues],
            "topics": [core.topics.get(name) for name in queues],
            "offsets": {
                topic: dict(core.offsets.queues_of(FOREIGN.group, topic))
                for topic in core.offsets.topics_of(FOREIGN.group)
            },
            "transactions": core.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0),
            "locks": core.locks.is_ordered(FOREIGN.group),
            "members": group and (group.client_ids(), group.message_model, dict(group.subscriptions)),
            "producers": dict(core.clients.producer_group(FOREIGN.producers) or {}),
            "replies": core.clients.producer_channel(FOREIGN.client_id),
            "settings": core.groups.get(FOREIGN.group),
            "in flight": {pair: count for pair, count in core.pops.in_flight().items() if FOREIGN.name in repr(pair)},
            "mode": core.modes.get(FOREIGN.topic, FOREIGN.group),
        }

    def stored_since(self, offset: int) -> list[bytes]:
        """Records from that place in the log on, each such as a slave copies and a start finds whole."""
        found = []
        while offset < self.broker.store.max_phy_offset:
            view = self.broker.store.record_at(offset)
            assert view is not None
            assert verify(view, 0, len(view), offset)[0] == len(view)
            found.append(bytes(view))
            offset += len(view)
        return found

    def deliver(self) -> None:
        """What waits for a second comes."""
        self.broker.run(2000)

    def _mix(self) -> None:
        """Each side's group has been at work in the other's topic, with rights that it had then; events name both."""
        core = self.broker.core
        for side, other in ((OWN, FOREIGN), (FOREIGN, OWN)):
            assert core.offsets.commit(side.group, other.topic, 0, 1)
            both = [{"topic": topic} for topic in (side.topic, side.retry, other.topic)]
            beat = {
                "clientID": side.client_id,
                "consumerDataSet": [{"groupName": side.group, "subscriptionDataSet": both}],
            }
            core.processor.received(self.channels[side], [Command(RequestCode.HEART_BEAT, {}, dumps(beat))])
            self.broker.tracer.event("delayed_message_not_delivered", producer_group=side.producers, topic=side.topic)
            self.broker.tracer.event("topics_restored", topics=[OWN.topic, side.topic])
        self.broker.tracer.event("request_failed", traceback=f"KeyError: {FOREIGN.topic}")
        self.broker.tracer.event("recovery", finding=f"consumequeue/{FOREIGN.topic}/0: entries below 9 are missing")
        self.broker.tracer.event("damaged", reason=f"consumequeue/{FOREIGN.topic}/0 at byte 20: expected an entry")
        for channel in self.channels.values():
            channel.take()

    # --- messages of every kind ---------------------------------------------------------------------------------------
    def _fill(self, side: Side) -> Records:
        broker, channel = self.broker, self.channels[side]

        def body(kind: str) -> bytes:
            return side.secret + b" " + kind.encode()

        def sent(kind: str, **properties: str) -> int:
            text = encode_properties({"KEYS": f"key-{side.name}", "UNIQ_KEY": f"ID-{kind}", **properties}).decode()
            reply = broker.ask(send_command(side.topic, 0, body(kind), i=text, a=side.producers))
            assert reply.code == 0, reply.remark
            return int(reply.ext["msgId"][16:], 16)

        beat = {
            "clientID": side.client_id,
            "producerDataSet": [{"groupName": side.producers}],
            "consumerDataSet": [
                {"groupName": side.group, "subscriptionDataSet": [{"topic": side.topic}, {"topic": side.retry}]}
            ],
        }
        plain = sent("plain")
        broker.core.processor.received(channel, [Command(RequestCode.HEART_BEAT, {}, dumps(beat))])
        assert channel.take()[-1].code == 0
        assert broker.ask(back(side.group, sent("retried"), 1)).code == 0
        broker.run(2000)
        assert broker.ask(back(side.group, sent("dead"), -1)).code == 0
        delayed = sent("delayed", DELAY="18")
        assert delayed == self._last(SCHEDULE, 17)
        half = prepared(broker, f"ID-half-{side.name}", side.topic, 0, PGROUP=side.producers)
        half.body = body("half")
        reply = broker.ask(half)
        assert reply.code == 0, reply.remark
        fields = {"consumerGroup": side.group, "topic": side.topic, "queueId": "0", "commitOffset": "1"}
        assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
        assert broker.ask(lock(side.group, side.client_id, side.topic)).code == 0
        return Records(
            plain,
            self._last(side.retry),
            self._last(side.dead_letters),
            delayed,
            self._last(HALF),
            int(reply.ext["queueOffset"]),
        )

    def _last(self, topic: str, queue_id: int = 0) -> int:
        end = self.broker.store.queue_range(topic, queue_id)[1]
        (record,) = self.broker.store.pull(topic, queue_id, end - 1, 1, 1 << 20, None).records
        return decode(record).phy_offset

    def bodies(self, topic: str) -> list[bytes]:
        config = self.broker.core.topics.get(topic)
        assert config is not None
        found = []
        for queue_id in range(config.read_queue_count):
            low, high = self.broker.store.queue_range(topic, queue_id)
            if high > low:
                records = self.broker.store.pull(topic, queue_id, low, 1000, 1 << 20, None).records
                found += [bytes(decode(record).body) for record in records]
        return found


def back(group: str, offset: int, level: int = 0, **ext: str) -> Command:
    """Request 36."""
    fields = {"group": group, "offset": str(offset), "delayLevel": str(level)}
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, **ext})


def end(world: World, side: Side, **ext: str) -> Command:
    """Request 37 for the side's half message, answered."""
    found = world.records[side]
    fields = {
        "producerGroup": side.producers,
        "commitLogOffset": str(found.half),
        "tranStateTableOffset": str(found.half_queue_offset),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": f"ID-half-{side.name}",
    }
    return Command(RequestCode.END_TRANSACTION, {**fields, **ext})


def lock(group: str, client_id: str, *topics: str, code: int = RequestCode.LOCK_BATCH_MQ) -> Command:
    queues = [{"brokerName": "b", "queueId": 0, "topic": topic} for topic in topics]
    return Command(code, {}, dumps({"clientId": client_id, "consumerGroup": group, "mqSet": queues}))


def pull(topic: str, group: str, **ext: str) -> Command:
    return pull_command(topic, 0, 0, consumerGroup=group, **ext)


Make = Callable[[World, Side, Side], Command]
