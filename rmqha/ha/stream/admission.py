"""Admission to a master's HA port: acks count only of replicas that the controllers have registered. Machine.

    CONNECTED ──handshake of a replica registered at this host──▶ admitted
        │ any other handshake: the controllers are asked for the registrations, and host names are resolved
        ▼
    ASKING ──it is registered here──▶ admitted          it is not, or no answer comes in time ──▶ refused

A pending connection is sent nothing, and its acks do not count. A registered replica that this master does not know
yet waits for one round trip to the controllers. When too many wait, the oldest is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmqha.ha.action import Action, CloseHa, ResolveHosts
from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.ha.stream.registered import RegisteredReplicas, is_host_name, lenient_host, parse_sync_state_data
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, Buffer
from rmqha.port import Tracer
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import SlaveHandshake, SlaveStreamParser
from rmqha.wire.state.replica_state import RefusedConnections

WAIT_MS = 3000
"""Time (ms) for which a peer may wait for admission."""
MAX_WAITING_COUNT = 16
MAX_WAITING_BYTES = 256
"""Most bytes that one pending connection may send: a handshake, and perhaps the first acks."""
ASK_INTERVAL_MS = 200
"""Least time (ms) between two queries to the controllers, however many peers connect."""
TRACE_INTERVAL_MS = 1000


@dataclass(slots=True)
class PendingConnection:
    """HA connection of a peer that is not admitted yet. `data`: bytes that it has sent."""

    conn_id: int
    peer: str
    claim: HaClaim | None
    since_ms: int
    data: bytes = b""
    broker_id: BrokerId | None = None
    query: int = 0
    """Number of the first query to the controllers that was sent after the handshake: its answer decides."""


class HaAdmission:
    """Admission of the connections of one master."""

    def __init__(self, config: BrokerConfig, controller: ControllerClient, tracer: Tracer) -> None:
        self.refused_count = 0
        self._broker_name = config.broker_name
        self._controller = controller
        self._tracer = tracer
        self._registered = RegisteredReplicas()
        self._waiting: dict[int, PendingConnection] = {}
        """Pending connections by number, in the order of arrival."""
        self._admitted: dict[int, PendingConnection] = {}
        """Connections that have been admitted."""
        self._newest_query = 0
        """Number of the newest query to the controllers."""
        self._is_asking = False
        self._ask_at_ms = 0
        self._resolving: tuple[str, ...] = ()
        self._traced_at_ms: int | None = None
        self._refusal = ""
        self._actions: list[Action] = []

    def actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    # --- connections ----------------------------------------------------------------------------------------------
    def connected(self, now_ms: int, conn_id: int, peer: str, claim: HaClaim | None) -> None:
        while len(self._waiting) >= MAX_WAITING_COUNT:
            self._refuse(now_ms, next(iter(self._waiting.values())), "too many wait to be let in: the oldest goes")
        self._waiting[conn_id] = PendingConnection(conn_id, peer, claim, now_ms)

    def left(self, conn_id: int) -> None:
        self._waiting.pop(conn_id, None)
        self._admitted.pop(conn_id, None)

    def received(self, now_ms: int, conn_id: int, data: Buffer) -> list[PendingConnection]:
        """Handle bytes of a pending connection; returns the connections that are admitted by it."""
        item = self._waiting.get(conn_id)
        if item is None:
            return []
        item.data += bytes(data[: MAX_WAITING_BYTES + 1 - len(item.data)])
        try:
            if len(item.data) > MAX_WAITING_BYTES:
                raise RemoteProtocolError("it went on before it was answered")
            if item.broker_id is not None:
                return []
            frames = frames_of(SlaveStreamParser().feed, item.data)
            if not frames:
                return []
            if not isinstance(frames[0], SlaveHandshake):
                raise RemoteProtocolError("it did not begin with a handshake")
            item.broker_id = frames[0].broker_id
        except RemoteProtocolError as error:
            self._refuse(now_ms, item, str(error), is_breach=True)
            return []
        if not self._refusal_of(item):
            return self._admit([item])
        item.query = self._newest_query + 1
        self._ask(now_ms)
        return []

    def _refusal_of(self, item: PendingConnection) -> str:
        assert item.broker_id is not None
        return self._registered.refusal(item.broker_id, lenient_host(item.peer), item.claim)

    # --- what the controllers say -----------------------------------------------------------------------------------
    def registrations_received(self, now_ms: int, registered: str) -> list[PendingConnection]:
        """Handle the field `registered` of an answer; returns the connections that are admitted by it. Raises
        RemoteProtocolError."""
        if not self._registered.update(registered):
            return []
        self._check_admitted(now_ms)
        return self._admit_registered()

    def address_of(self, broker_id: BrokerId) -> str:
        """Broker address of a registered replica; "" if it is not known."""
        return next(iter(self._registered.replicas.get(broker_id, ())), "")

    def addresses_beside(self, broker_id: BrokerId | None) -> list[str]:
        """Addresses of all registered replicas but this one."""
        return [self.address_of(other) for other in self._registered.replicas if other != broker_id]

    def _check_admitted(self, now_ms: int) -> None:
        """Close the admitted connections of replicas that were removed or have another address now. Host names are
        resolved again for new connections only."""
        for item in list(self._admitted.values()):
            assert item.broker_id is not None
            by_name = item.claim is None and any(map(is_host_name, self._registered.hosts(item.broker_id)))
            if not by_name and (reason := self._refusal_of(item)):
                self._refuse(now_ms, item, reason)

    @property
    def _may_ask(self) -> bool:
        """True if a connection waits for an answer and no query is running."""
        known = any(item.broker_id is not None for item in self._waiting.values())
        return known and not self._is_asking and not self._resolving

    def _ask(self, now_ms: int) -> None:
        if self._may_ask and now_ms >= self._ask_at_ms:
            self._newest_query += 1
            self._is_asking = True
            self._ask_at_ms = now_ms + ASK_INTERVAL_MS
            self._controller.ask_registered()

    def answered(self, now_ms: int, reply: Command | None) -> list[PendingConnection]:
        """Handle the answer to 1006; returns the connections that are admitted. Raises RemoteProtocolError."""
        self._is_asking = False
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return []
        self._registered.replicas = parse_sync_state_data(reply, self._broker_name)
        self._check_admitted(now_ms)
        ids = sorted({item.broker_id for item in self._waiting.values() if item.broker_id is not None})
        names = {host for broker_id in ids for host in self._registered.hosts(broker_id) if is_host_name(host)}
        admitted = self._admit_registered()
        if names and self._waiting:
            self._resolving = tuple(sorted(names))
            self._actions.append(ResolveHosts(self._resolving))
        else:
            self._refuse_unregistered(now_ms)
        return admitted

    def resolved(self, now_ms: int, numbers: Mapping[str, tuple[str, ...]]) -> list[PendingConnection]:
        """Handle the addresses of the names in ResolveHosts; returns the connections that are admitted. A name without
        an address may be left out."""
        self._registered.resolved = {name: numbers.get(name, ()) for name in self._resolving}
        self._resolving = ()
        admitted = self._admit_registered()
        self._refuse_unregistered(now_ms)
        return admitted

    def _admit_registered(self) -> list[PendingConnection]:
        asking = [item for item in self._waiting.values() if item.broker_id is not None]
        admitted = [item for item in asking if not self._refusal_of(item)]
        return self._admit(admitted)

    def _admit(self, pending: list[PendingConnection]) -> list[PendingConnection]:
        for item in pending:
            self._admitted[item.conn_id] = self._waiting.pop(item.conn_id)
        return pending

    def _refuse_unregistered(self, now_ms: int) -> None:
        """Refuse the connections that the newest answer does not allow; those that came after its query wait for the
        next answer."""
        for item in list(self._waiting.values()):
            if item.broker_id is not None and item.query <= self._newest_query:
                self._refuse(now_ms, item, self._refusal_of(item))
        self._ask(now_ms)

    # --- end --------------------------------------------------------------------------------------------------------
    def _refuse(self, now_ms: int, item: PendingConnection, reason: str, *, is_breach: bool = False) -> None:
        self.left(item.conn_id)
        self.refused_count += 1
        self._actions.append(CloseHa(item.conn_id, reason, is_breach))
        again_at_ms = 0 if self._traced_at_ms is None else self._traced_at_ms + TRACE_INTERVAL_MS
        if now_ms >= again_at_ms and (reason != self._refusal or now_ms >= again_at_ms + 9 * TRACE_INTERVAL_MS):
            self._traced_at_ms, self._refusal = now_ms, reason
            self._tracer.event("ha_refused", peer=item.peer, broker_id=item.broker_id, reason=reason)

    def close(self, reason: str) -> list[Action]:
        """Close all pending connections: this replica is no longer the master."""
        closed: list[Action] = [CloseHa(conn_id, reason) for conn_id in self._waiting]
        self._waiting.clear()
        self._admitted.clear()
        return self.actions() + closed

    def timeout(self, now_ms: int) -> None:
        for item in list(self._waiting.values()):
            if now_ms >= item.since_ms + WAIT_MS:
                heard = "the controllers did not say who it is" if item.broker_id else "it did not shake hands"
                self._refuse(now_ms, item, f"{heard} within {WAIT_MS} ms")
        self._ask(now_ms)

    def deadline_ms(self) -> int | None:
        if not self._waiting:
            return None
        first = next(iter(self._waiting.values())).since_ms + WAIT_MS
        return min(first, self._ask_at_ms) if self._may_ask else first

    def state(self) -> RefusedConnections:
        return RefusedConnections(refused_count=self.refused_count, last_reason=self._refusal)
