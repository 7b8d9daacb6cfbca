"""Door of a master's HA port: acks count only of replicas that the controllers have registered. Machine.

    KNOCKING ──handshake of a replica registered at this host──▶ admitted
        │ any other handshake: the controllers are asked, and the system what names stand for
        ▼
    ASKING ──it is registered here──▶ admitted          it is not, or nobody answers in time ──▶ refused

Who waits here is sent nothing and counts for nothing. A true replica whose registration this master has not heard of
yet waits for one round trip; the oldest is pushed out when too many wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmqha.ha.action import Action, CloseHa, ResolveHosts
from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.ha.stream.registered import RegisteredReplicas, host_of, is_name, parse_sync_state_data
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, Buffer
from rmqha.port import Tracer
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import SlaveHandshake, SlaveStreamParser
from rmqha.wire.state.replica_state import DoorState

WAIT_MS = 3000
"""Time (ms) for which a peer may stand at the door."""
MAX_WAITING_COUNT = 16
MAX_WAITING_BYTES = 256
"""Most bytes of one visitor: a handshake, and perhaps the first acks."""
ASK_INTERVAL_MS = 200
"""Between two questions to the controllers, whoever knocks how often."""
TRACE_INTERVAL_MS = 1000


@dataclass(slots=True)
class Visitor:
    conn_id: int
    peer: str
    claim: HaClaim | None
    since_ms: int
    data: bytes = b""
    broker_id: BrokerId | None = None
    question: int = 0
    """Number of the first question to the controllers that was put after the handshake: its answer decides."""


class Door:
    def __init__(self, config: BrokerConfig, link: ControllerClient, tracer: Tracer) -> None:
        self.refused_count = 0
        self._broker_name = config.broker_name
        self._link = link
        self._tracer = tracer
        self._registered = RegisteredReplicas()
        self._waiting: dict[int, Visitor] = {}
        """In the order of arrival."""
        self._inside: dict[int, Visitor] = {}
        """Visitors that have been let in."""
        self._question = 0
        """Number of the newest question to the controllers."""
        self._is_asking = False
        self._ask_at_ms = 0
        self._resolving: tuple[str, ...] = ()
        self._traced_at_ms: int | None = None
        self._refusal = ""
        self._actions: list[Action] = []

    def actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    # --- visitors ---------------------------------------------------------------------------------------------------
    def knocked(self, now_ms: int, conn_id: int, peer: str, claim: HaClaim | None) -> None:
        while len(self._waiting) >= MAX_WAITING_COUNT:
            self._refuse(now_ms, next(iter(self._waiting.values())), "too many wait to be let in: the oldest goes")
        self._waiting[conn_id] = Visitor(conn_id, peer, claim, now_ms)

    def left(self, conn_id: int) -> None:
        self._waiting.pop(conn_id, None)
        self._inside.pop(conn_id, None)

    def received(self, now_ms: int, conn_id: int, data: Buffer) -> list[Visitor]:
        """Connections that may come in, each with the bytes that it has sent."""
        visitor = self._waiting.get(conn_id)
        if visitor is None:
            return []
        visitor.data += bytes(data[: MAX_WAITING_BYTES + 1 - len(visitor.data)])
        try:
            if len(visitor.data) > MAX_WAITING_BYTES:
                raise RemoteProtocolError("it went on before it was answered")
            if visitor.broker_id is not None:
                return []
            frames = frames_of(SlaveStreamParser().feed, visitor.data)
            if not frames:
                return []
            if not isinstance(frames[0], SlaveHandshake):
                raise RemoteProtocolError("it did not begin with a handshake")
            visitor.broker_id = frames[0].broker_id
        except RemoteProtocolError as error:
            self._refuse(now_ms, visitor, str(error), is_breach=True)
            return []
        if not self._refusal_of(visitor):
            return self._let_in([visitor])
        visitor.question = self._question + 1
        self._ask(now_ms)
        return []

    def _refusal_of(self, visitor: Visitor) -> str:
        assert visitor.broker_id is not None
        return self._registered.refusal(visitor.broker_id, host_of(visitor.peer), visitor.claim)

    # --- what the controllers say -----------------------------------------------------------------------------------
    def told(self, now_ms: int, registered: str) -> list[Visitor]:
        """The field `registered` of any answer. Who may come in. Raises RemoteProtocolError."""
        if not self._registered.told(registered):
            return []
        self._look_again(now_ms)
        return self._welcome()

    def address_of(self, broker_id: BrokerId) -> str:
        """Address at which this replica takes requests by the controllers' word; "" if they have not said."""
        return next(iter(self._registered.replicas.get(broker_id, ())), "")

    def addresses_beside(self, broker_id: BrokerId | None) -> list[str]:
        """Addresses of all registered replicas but this one."""
        return [self.address_of(other) for other in self._registered.replicas if other != broker_id]

    def _look_again(self, now_ms: int) -> None:
        """The table has changed: a replica that was removed, or is elsewhere now, is believed no longer. What names
        stand for is looked up for newcomers only."""
        for visitor in list(self._inside.values()):
            assert visitor.broker_id is not None
            by_name = visitor.claim is None and any(map(is_name, self._registered.hosts(visitor.broker_id)))
            if not by_name and (reason := self._refusal_of(visitor)):
                self._refuse(now_ms, visitor, reason)

    @property
    def _may_ask(self) -> bool:
        """Somebody waits for an answer, and none is under way."""
        known = any(visitor.broker_id is not None for visitor in self._waiting.values())
        return known and not self._is_asking and not self._resolving

    def _ask(self, now_ms: int) -> None:
        if self._may_ask and now_ms >= self._ask_at_ms:
            self._question += 1
            self._is_asking = True
            self._ask_at_ms = now_ms + ASK_INTERVAL_MS
            self._link.ask_registered()

    def answered(self, now_ms: int, reply: Command | None) -> list[Visitor]:
        """The answer to 1006. Raises RemoteProtocolError."""
        self._is_asking = False
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return []
        self._registered.replicas = parse_sync_state_data(reply, self._broker_name)
        self._look_again(now_ms)
        ids = sorted({visitor.broker_id for visitor in self._waiting.values() if visitor.broker_id is not None})
        names = {host for broker_id in ids for host in self._registered.hosts(broker_id) if is_name(host)}
        admitted = self._welcome()
        if names and self._waiting:
            self._resolving = tuple(sorted(names))
            self._actions.append(ResolveHosts(self._resolving))
        else:
            self._dismiss(now_ms)
        return admitted

    def resolved(self, now_ms: int, numbers: Mapping[str, tuple[str, ...]]) -> list[Visitor]:
        """The answer to ResolveHosts; names that stand for nothing may be left out."""
        self._registered.resolved = {name: numbers.get(name, ()) for name in self._resolving}
        self._resolving = ()
        admitted = self._welcome()
        self._dismiss(now_ms)
        return admitted

    def _welcome(self) -> list[Visitor]:
        asking = [visitor for visitor in self._waiting.values() if visitor.broker_id is not None]
        admitted = [visitor for visitor in asking if not self._refusal_of(visitor)]
        return self._let_in(admitted)

    def _let_in(self, visitors: list[Visitor]) -> list[Visitor]:
        for visitor in visitors:
            self._inside[visitor.conn_id] = self._waiting.pop(visitor.conn_id)
        return visitors

    def _dismiss(self, now_ms: int) -> None:
        """Turn away those that the newest answer does not know; later ones wait for the next."""
        for visitor in list(self._waiting.values()):
            if visitor.broker_id is not None and visitor.question <= self._question:
                self._refuse(now_ms, visitor, self._refusal_of(visitor))
        self._ask(now_ms)

    # --- end --------------------------------------------------------------------------------------------------------
    def _refuse(self, now_ms: int, visitor: Visitor, reason: str, *, is_breach: bool = False) -> None:
        self.left(visitor.conn_id)
        self.refused_count += 1
        self._actions.append(CloseHa(visitor.conn_id, reason, is_breach))
        again_at_ms = 0 if self._traced_at_ms is None else self._traced_at_ms + TRACE_INTERVAL_MS
        if now_ms >= again_at_ms and (reason != self._refusal or now_ms >= again_at_ms + 9 * TRACE_INTERVAL_MS):
            self._traced_at_ms, self._refusal = now_ms, reason
            self._tracer.event("ha_refused", peer=visitor.peer, broker_id=visitor.broker_id, reason=reason)

    def close(self, reason: str) -> list[Action]:
        """This replica is no master any more."""
        closed: list[Action] = [CloseHa(conn_id, reason) for conn_id in self._waiting]
        self._waiting.clear()
        self._inside.clear()
        return self.actions() + closed

    def timeout(self, now_ms: int) -> None:
        for visitor in list(self._waiting.values()):
            if now_ms >= visitor.since_ms + WAIT_MS:
                heard = "the controllers did not say who it is" if visitor.broker_id else "it did not shake hands"
                self._refuse(now_ms, visitor, f"{heard} within {WAIT_MS} ms")
        self._ask(now_ms)

    def deadline_ms(self) -> int | None:
        if not self._waiting:
            return None
        first = next(iter(self._waiting.values())).since_ms + WAIT_MS
        return min(first, self._ask_at_ms) if self._may_ask else first

    def state(self) -> DoorState:
        return DoorState(refused_count=self.refused_count, last_reason=self._refusal)
