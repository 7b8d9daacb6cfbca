"""Liveness of brokers on the leading controller: heartbeats and sessions by broker id. Control plane, pure.

A session is the newest connection of a broker id after its registration (1003). Only the end of that one counts (ruling
17), so an older connection that ends late makes nobody dead. Transitions of one broker:

    alive   → suspect  its session closed, or no heartbeat for suspect_heartbeats intervals: probe it
    suspect → alive    a heartbeat or a registration; an answered probe leaves the heartbeat time-out to decide
    suspect → dead     the probe after a closed session failed, or was refused; or the heartbeat time-out passed
    dead    → alive    a heartbeat or a registration

A heartbeat costs no heap operation: the next check of a broker is computed when the old one is due.

While this process does not run (stopped, or without a processor), it reads no heartbeats, and brokers seem silent. So
the clock of the table stands still during such a pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from controller.decisions.elect_master import NO_TRAITS, LogEnd, Traits
from rmqha.model.offset import BrokerId, Epoch, PhyOffset

MAX_TIMEOUT_MS = 600_000
REPROBE_MS = 250
SLICE_BROKERS = 200
PAUSE_MS = 500
"""Delay (ms) of a due check that counts as a pause of this process."""
NO_LOG = LogEnd(Epoch(-1), PhyOffset(0))


class BrokerKey(NamedTuple):
    broker_name: str
    broker_id: BrokerId


class BrokerHeartbeat(NamedTuple):
    """Contents of a heartbeat (904). 0 in `timeout_ms` and `total_replicas`: not given. `slaves` is the master's report
    as text (`rmqha.ha.stream.copy_speed`), `disk_problem` a sentence."""

    epoch: Epoch
    max_offset: PhyOffset
    confirm_offset: PhyOffset
    timeout_ms: int
    priority: int
    stopping: bool
    zone: str = ""
    disk_problem: str = ""
    slaves: str = ""
    total_replicas: int = 0


@dataclass(slots=True)
class BrokerLiveInfo:
    key: BrokerKey
    timeout_ms: int
    last_ms: int
    interval_ms: int
    """Smoothed interval (ms) between heartbeats."""
    check_ms: int = 0
    session_id: int | None = None
    session_ms: int = 0
    """Time (ms) of the last heartbeat or registration through this session."""
    alive: bool = True
    suspect: bool = False
    probe_id: int | None = None
    session_lost: bool = False
    """True if the running probe was caused by a closed session: then no answer means a dead broker."""
    unclean: bool = False
    """True from a registration after an unclean boot until the first heartbeat, which says that the broker has followed
    a master (ruling 3)."""
    stopping: bool = False
    traits: Traits = NO_TRAITS
    log_end: LogEnd = NO_LOG
    confirm_offset: PhyOffset = NO_LOG.max_offset
    disk_problem: str = ""
    """Sentence about the failed disk probe. Such a master hands over, and is elected only if no other replica can
    be."""
    slaves: str = ""
    total_replicas: int = 0
    """totalReplicas that the broker uses at present."""
    accepted_epoch: Epoch = NO_LOG.epoch
    """Highest master epoch that the broker has accepted, with or without a record of that epoch in its log."""
    death_reason: str = ""
    """Reason of the broker's last death."""

    @property
    def is_available(self) -> bool:
        """True if it may become master: it reports here over an open connection, booted clean, and is not stopping."""
        return self.alive and self.session_id is not None and not self.unclean and not self.stopping


class HeartbeatTable:
    """Brokers by id. A new leader takes brokers without a report for alive until `grace_until_ms`."""

    def __init__(self, now_ms: int, default_timeout_ms: int, suspect_heartbeats: int) -> None:
        self._default_timeout_ms = default_timeout_ms
        self._suspect_heartbeats = suspect_heartbeats
        self._brokers: dict[BrokerKey, BrokerLiveInfo] = {}
        self._sessions: dict[int, dict[BrokerKey, None]] = {}
        self._checks: list[tuple[int, BrokerKey]] = []
        self._checked_ms = now_ms
        self._paused_ms = 0
        """Sum of all pauses (ms). Times inside the table are those of the callers minus this sum."""
        self.grace_until_ms = now_ms + default_timeout_ms

    # --- inputs -----------------------------------------------------------------------------------------------------

    def registered(
        self, now_ms: int, key: BrokerKey, session_id: int, *, unclean: bool, accepted_epoch: Epoch = NO_LOG.epoch
    ) -> None:
        """Take a registration (1003): the broker uses this session from now on."""
        now_ms -= self._paused_ms
        broker = self._brokers.get(key)
        if broker is None:
            broker = self._brokers[key] = self._new(now_ms, key)
        self._bind(broker, session_id)
        self._renew(broker, now_ms)
        broker.session_ms = now_ms
        broker.unclean, broker.stopping = unclean, False
        broker.accepted_epoch = max(broker.accepted_epoch, accepted_epoch)

    def heartbeat(self, now_ms: int, key: BrokerKey, session_id: int, heartbeat: BrokerHeartbeat) -> bool:
        """Take a heartbeat (904). True if the group needs a check: the broker has become eligible, is stopping, has a
        failed or repaired disk, or has another totalReplicas, epoch, priority or zone."""
        now_ms -= self._paused_ms
        broker = self._brokers.get(key)
        if broker is None:
            broker = self._brokers[key] = self._new(now_ms, key)
            was_available = False
        else:
            was_available = broker.is_available
            gap_ms = now_ms - broker.last_ms
            # the first heartbeat follows the registration at once, and a pause of the process says nothing about the
            # interval
            if broker.timeout_ms // 16 < gap_ms < broker.timeout_ms:
                broker.interval_ms += (gap_ms - broker.interval_ms) // 8
        if broker.session_id is None:
            self._bind(broker, session_id)
        if broker.session_id == session_id:
            broker.session_ms = now_ms
        if heartbeat.timeout_ms and heartbeat.timeout_ms != broker.timeout_ms:
            broker.timeout_ms = min(heartbeat.timeout_ms, MAX_TIMEOUT_MS)
            broker.interval_ms = broker.timeout_ms // 4
            self._schedule(broker, self._next_check_ms(broker))
        self._renew(broker, now_ms)
        changed = (
            (heartbeat.stopping and not broker.stopping)
            or bool(heartbeat.disk_problem) != bool(broker.disk_problem)
            or heartbeat.total_replicas != broker.total_replicas
            or (bool(heartbeat.total_replicas) and heartbeat.epoch != broker.log_end.epoch)
        )
        broker.unclean, broker.stopping = False, heartbeat.stopping
        broker.disk_problem, broker.slaves, broker.total_replicas = (
            heartbeat.disk_problem,
            heartbeat.slaves,
            heartbeat.total_replicas,
        )
        if (heartbeat.priority, heartbeat.zone) != (broker.traits.priority, broker.traits.zone):
            changed = True
            broker.traits = Traits(heartbeat.priority, heartbeat.zone)
        if (heartbeat.epoch, heartbeat.max_offset) != (broker.log_end.epoch, broker.log_end.max_offset):
            broker.log_end = LogEnd(heartbeat.epoch, heartbeat.max_offset)
        broker.confirm_offset = heartbeat.confirm_offset
        return changed or (not was_available and broker.is_available)

    def session_closed(self, session_id: int) -> list[BrokerLiveInfo]:
        """Brokers whose session has closed; the caller probes them."""
        brokers = [self._brokers[key] for key in self._sessions.pop(session_id, {})]
        for broker in brokers:
            broker.session_id, broker.session_lost = None, True
        return brokers

    def forget(self, key: BrokerKey) -> None:
        broker = self._brokers.pop(key, None)
        if broker is not None:
            self._unbind(broker)

    def mark_dead(self, broker: BrokerLiveInfo, why: str) -> None:
        broker.alive, broker.suspect, broker.probe_id, broker.death_reason = False, False, None, why
        self._unbind(broker)

    # --- time -------------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int | None:
        return self._checks[0][0] + self._paused_ms if self._checks else None

    def exclude_pause(self, now_ms: int) -> int:
        """Exclude a pause of this process from all times; call before `due`. Returns its length (ms), 0 if there was
        none."""
        due_ms, checked_ms, self._checked_ms = self.deadline_ms(), self._checked_ms, now_ms
        late_ms = 0 if due_ms is None else now_ms - max(due_ms, checked_ms)
        if late_ms < PAUSE_MS:
            return 0
        self._paused_ms += late_ms
        return late_ms

    def due(self, now_ms: int) -> list[BrokerLiveInfo]:
        """Brokers whose silence needs a probe, or that are dead because their time-out is over (`is_timed_out`). Each
        stays scheduled while it is alive. At most SLICE_BROKERS are returned; the deadline stays due for the rest."""
        now_ms -= self._paused_ms
        late: list[BrokerLiveInfo] = []
        while self._checks and self._checks[0][0] <= now_ms and len(late) < SLICE_BROKERS:
            check_ms, key = heappop(self._checks)
            broker = self._brokers.get(key)
            if broker is None or broker.check_ms != check_ms or not broker.alive or broker.unclean:
                continue
            next_check_ms = self._next_check_ms(broker)
            if next_check_ms <= now_ms:
                late.append(broker)
                next_check_ms = min(now_ms + REPROBE_MS, max(now_ms + 1, broker.last_ms + broker.timeout_ms))
            self._schedule(broker, next_check_ms)
        return late

    def is_timed_out(self, broker: BrokerLiveInfo, now_ms: int) -> bool:
        return self.silent_ms(broker, now_ms) >= broker.timeout_ms

    def silent_ms(self, broker: BrokerLiveInfo, now_ms: int) -> int:
        return now_ms - self._paused_ms - broker.last_ms

    # --- queries ----------------------------------------------------------------------------------------------------

    def get(self, key: BrokerKey) -> BrokerLiveInfo | None:
        return self._brokers.get(key)

    def log_end(self, key: BrokerKey) -> LogEnd:
        """End of the replica's log in its last report, NO_LOG without a report."""
        broker = self._brokers.get(key)
        return NO_LOG if broker is None else broker.log_end

    def has_other_session(self, now_ms: int, key: BrokerKey, session_id: int) -> bool:
        """True if another session of the broker had a heartbeat within the time-out."""
        broker = self._brokers.get(key)
        if broker is None or not broker.alive or broker.session_id in (None, session_id):
            return False
        return now_ms - self._paused_ms - broker.session_ms < broker.timeout_ms

    def is_alive(self, now_ms: int, key: BrokerKey) -> bool:
        broker = self._brokers.get(key)
        return now_ms - self._paused_ms < self.grace_until_ms if broker is None else broker.alive

    def is_available(self, key: BrokerKey) -> bool:
        broker = self._brokers.get(key)
        return broker is not None and broker.is_available

    def disk_failed(self, key: BrokerKey) -> bool:
        """True if the disk probe of the broker failed."""
        broker = self._brokers.get(key)
        return broker is not None and bool(broker.disk_problem)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _new(self, now_ms: int, key: BrokerKey) -> BrokerLiveInfo:
        timeout_ms = self._default_timeout_ms
        broker = BrokerLiveInfo(key, timeout_ms, now_ms, timeout_ms // 4)
        self._schedule(broker, self._next_check_ms(broker))
        return broker

    def _renew(self, broker: BrokerLiveInfo, now_ms: int) -> None:
        broker.last_ms, broker.suspect, broker.session_lost = now_ms, False, False
        broker.probe_id = None
        if not broker.alive or broker.unclean:
            broker.alive = True
            self._schedule(broker, self._next_check_ms(broker))

    def _next_check_ms(self, broker: BrokerLiveInfo) -> int:
        # the minimum keeps a burst of heartbeats from making the next normal interval too long
        suspect_after_ms = max(broker.interval_ms, broker.timeout_ms // 8) * self._suspect_heartbeats
        return broker.last_ms + min(suspect_after_ms, broker.timeout_ms)

    def _schedule(self, broker: BrokerLiveInfo, check_ms: int) -> None:
        """Replace the planned check. Its heap entry no longer matches and is dropped when it is due."""
        broker.check_ms = check_ms
        heappush(self._checks, (check_ms, broker.key))

    def _bind(self, broker: BrokerLiveInfo, session_id: int) -> None:
        if broker.session_id != session_id:
            self._unbind(broker)
            broker.session_id = session_id
            self._sessions.setdefault(session_id, {})[broker.key] = None

    def _unbind(self, broker: BrokerLiveInfo) -> None:
        if broker.session_id is not None:
            keys = self._sessions.get(broker.session_id)
            if keys is not None:
                keys.pop(broker.key, None)
                if not keys:
                    del self._sessions[broker.session_id]
            broker.session_id = None
