"""A master's HA connections: which wait for admission, which copy, one connection per replica. Machine."""

from __future__ import annotations

from rmqha.ha.action import Action, CloseHa
from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.stream.admission import HaAdmission, PendingConnection
from rmqha.ha.stream.connection import HaConnection
from rmqha.ha.stream.copy_progress import CopyLimit
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import BrokerId, Buffer, Epoch, PhyOffset
from rmqha.port import ReplicaLog, Tracer


class Slaves:
    """HA connections of one master. `take` returns the accumulated actions and is called after every input."""

    def __init__(
        self, config: BrokerConfig, log: ReplicaLog, controller: ControllerClient, limit: CopyLimit, tracer: Tracer
    ) -> None:
        self.admission = HaAdmission(config, controller, tracer)
        self._config = config
        self._log = log
        self._limit = limit
        self._connections: dict[int, HaConnection] = {}
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        if actions := self.admission.actions():
            self._perform(actions)
        actions, self._actions = self._actions, []
        return actions

    def _perform(self, actions: list[Action]) -> None:
        """Add a connection's actions to the output; remove the connection when it closes itself."""
        for action in actions:
            if isinstance(action, CloseHa):
                self._connections.pop(action.conn_id, None)
                self.admission.left(action.conn_id)
        self._actions += actions

    @property
    def connections(self) -> list[HaConnection]:
        """Connections of registered replicas that have shaken hands."""
        return list(self._connections.values())

    def get(self, conn_id: int) -> HaConnection | None:
        return self._connections.get(conn_id)

    def admit(self, now_ms: int, pending: list[PendingConnection], epoch: Epoch) -> None:
        for item in pending:
            connection = HaConnection(now_ms, item.conn_id, item.peer, self._config, self._log, self._limit)
            self._connections[item.conn_id] = connection
            self._perform(connection.received(now_ms, item.data, epoch))
            self._supersede(connection)

    def _supersede(self, admitted: HaConnection) -> None:
        """Close all connections of a replica but the newest one, in whatever order they were admitted."""
        same = [item for item in self._connections.values() if item.slave_id == admitted.slave_id]
        newest = max((item.conn_id for item in same), default=0)
        for item in same:
            if item.conn_id != newest:
                self._perform([item.close(f"slave {item.slave_id} connected anew")])

    def received(self, now_ms: int, conn_id: int, data: Buffer, epoch: Epoch) -> None:
        connection = self._connections.get(conn_id)
        if connection is None:
            self.admit(now_ms, self.admission.received(now_ms, conn_id, data), epoch)
        elif actions := connection.received(now_ms, data, epoch):
            self._perform(actions)

    def sent(self, now_ms: int, conn_id: int) -> None:
        connection, log = self._connections.get(conn_id), self._log
        if connection is None:
            return
        connection.sent()
        if not connection.is_idle(now_ms, log.max_phy_offset, log.confirm_offset) and (
            actions := connection.pump(now_ms)
        ):
            self._perform(actions)

    def pump(self, now_ms: int) -> None:
        log = self._log
        end, confirm = log.max_phy_offset, log.confirm_offset
        for connection in self.connections:
            if not connection.is_idle(now_ms, end, confirm) and (actions := connection.pump(now_ms)):
                self._perform(actions)

    def closed(self, conn_id: int) -> bool:
        """Remove a connection; True if it was an admitted slave's."""
        self.admission.left(conn_id)
        return self._connections.pop(conn_id, None) is not None

    def close(self, reason: str) -> None:
        """Close all connections, also those that wait for admission."""
        for connection in self._connections.values():
            self._actions.append(connection.close(reason))
        self._connections.clear()
        self._actions += self.admission.close(reason)

    def timeout(self, now_ms: int) -> None:
        for connection in self.connections:
            self._perform(connection.timeout(now_ms))
        self.admission.timeout(now_ms)

    def deadlines_ms(self) -> list[int | None]:
        return [self.admission.deadline_ms(), *(item.deadline_ms() for item in self._connections.values())]

    def acks(self) -> list[tuple[BrokerId, PhyOffset]]:
        """Offset that each slave that is being sent the log has acknowledged, in the set or not: it still needs the
        rest."""
        known = [(item.slave_id, item.acked_offset) for item in self._connections.values()]
        return [(slave_id, offset) for slave_id, offset in known if slave_id is not None and offset is not None]
