"""A slave's connection to its master, in either HA protocol: dial, reconnect, disconnect. Control plane, pure.

    IDLE ──dial──▶ DIALING ──opened──▶ (state of the protocol)
     ▲                │                    │
     └── retry ───────┴── closed ──────────┘

`HaClient` and `LegacyHaClient` implement the protocols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from rmqha.ha.action import Action, CloseHa, OpenHa
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import NoRoomError
from rmqha.port import ReplicaLog, Tracer
from rmqha.wire.state.replica_state import ReplicaState

DIAL_TIMEOUT_MS = 1000
RETRY_FIRST_MS = 20
RETRY_MOST_MS = 1000
ROOM_CHECK_MS = 1000
"""Interval (ms) at which a slave whose log has no room asks whether it has."""
RETRY_UNSOUND_MS = 200
"""Time (ms) before the next dial after a damaged record: the master needs time to repair it, or the network was at
fault."""


class ClientState(Enum):
    """Stage of the connection to the master, seen from the slave."""

    IDLE = "idle"
    DIALING = "dialing"
    HANDSHAKE = "handshake"
    CUTTING = "waits for its disk"
    FOLLOWING = "following"
    REFUSED = "refused"


class ReplicationClient(ABC):
    """Base of the slave's two clients, which follow one master at a time: `follow` begins, `leave` ends it. Connection
    numbers are negative; those that the shell accepts count from 1. `refusal`: reason why this client gave up, ""
    while nothing is wrong."""

    def __init__(self, config: BrokerConfig, log: ReplicaLog, tracer: Tracer) -> None:
        self.state = ClientState.IDLE
        self.conn_id: int | None = None
        self.master_address = ""
        self.refusal = ""
        self.room_refusal = ""
        """The reason why the disk has no room for the master's next bytes, "" while it has."""
        self._must_begin_anew = False
        """True once this master's log begins behind ours, or shares nothing with it: room for another log is needed."""
        self._config = config
        self._log = log
        self._tracer = tracer
        self._next_conn_id = 1
        self._retry_at_ms: int | None = None
        self._retry_ms = RETRY_FIRST_MS
        self._state_since_ms = 0
        self._last_read_ms = self._last_write_ms = 0

    def follow(self, now_ms: int, ha_address: str) -> list[Action]:
        """Connect to the master at `ha_address`, and disconnect from any other."""
        actions = self.leave("the master changed")
        self.master_address = ha_address
        self._retry_ms = RETRY_FIRST_MS
        return actions + self._dial(now_ms)

    def leave(self, reason: str) -> list[Action]:
        actions: list[Action] = [] if self.conn_id is None else [CloseHa(self.conn_id, reason)]
        self.conn_id = None
        self.master_address = ""
        self.refusal = self.room_refusal = ""
        self._must_begin_anew = False
        self._retry_at_ms = None
        self.state = ClientState.IDLE
        return actions

    def closed(self, now_ms: int, conn_id: int) -> None:
        """Handle the end of a connection: dial again later, unless it is not the current one or was refused for
        good."""
        if conn_id != self.conn_id:
            return
        self.conn_id = None
        if self.state is ClientState.REFUSED or not self.master_address:
            return
        self.state = ClientState.IDLE
        self._retry_at_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, RETRY_MOST_MS)

    def add_state(self, state: ReplicaState, now_ms: int) -> None:
        """Fill in the master that is followed, and the times since the last read and write while it is followed."""
        state.follows, state.follow_state, state.refusal = self.master_address, self.state.value, self.refusal
        if self.state is ClientState.FOLLOWING:
            state.heard_ms_ago = now_ms - self._last_read_ms
            state.said_ms_ago = now_ms - self._last_write_ms if self._last_write_ms else None

    def _dial(self, now_ms: int) -> list[Action]:
        """Dial, once there is room for what the master sends: without it this replica would only come and go."""
        if reason := self._log.room_refusal(anew=self._must_begin_anew):
            self._wait_for_room(now_ms, reason)
            return []
        self.conn_id = -self._next_conn_id
        self._next_conn_id += 1
        self.state = ClientState.DIALING
        self._state_since_ms = now_ms
        self._retry_at_ms = None
        return [OpenHa(self.conn_id, self.master_address)]

    def _wait_for_room(self, now_ms: int, reason: str) -> None:
        if not self.room_refusal:
            self._tracer.event("log_lacks_room", master=self.master_address, reason=reason)
        self.room_refusal = reason
        self._retry_at_ms = now_ms + ROOM_CHECK_MS

    def _check_room_anew(self) -> None:
        """Raises NoRoomError before a log is given up for another that has no room; `_dial` waits for it then."""
        if reason := self._log.room_refusal(anew=True):
            self._must_begin_anew = True
            raise NoRoomError(reason)
        self._must_begin_anew = False

    def _out_of_room(self, now_ms: int, reason: str) -> list[Action]:
        """The next bytes have no place: leave the master, and so its SyncStateSet, until they have."""
        actions = self._drop(now_ms, reason)
        self._wait_for_room(now_ms, reason)
        return actions

    def _drop(self, now_ms: int, reason: str, *, is_breach: bool = False) -> list[Action]:
        assert self.conn_id is not None
        conn_id = self.conn_id
        self._tracer.event("ha_dropped", master=self.master_address, reason=reason)
        self.closed(now_ms, conn_id)
        return [CloseHa(conn_id, reason, is_breach)]

    # --- time -----------------------------------------------------------------------------------------------------
    def timeout(self, now_ms: int) -> list[Action]:
        if self._retry_at_ms is not None and now_ms >= self._retry_at_ms:
            return self._dial(now_ms)
        if self.conn_id is None:
            return []
        if self.state is ClientState.DIALING:
            late = now_ms >= self._state_since_ms + DIAL_TIMEOUT_MS
            return self._drop(now_ms, "dialing timed out") if late else []
        return self._timeout_connected(now_ms)

    @abstractmethod
    def _timeout_connected(self, now_ms: int) -> list[Action]: ...

    def deadline_ms(self) -> int | None:
        if self._retry_at_ms is not None:
            return self._retry_at_ms
        if self.state is ClientState.DIALING:
            return self._state_since_ms + DIAL_TIMEOUT_MS
        return self._deadline_connected_ms()

    @abstractmethod
    def _deadline_connected_ms(self) -> int | None: ...

    @property
    def _silence_deadline_ms(self) -> int:
        return self._last_read_ms + self._config.ha_housekeeping_interval
