"""Live brokers as the leading controller sees it: heartbeats and sessions by broker id. Control plane, pure.

A session is the newest connection of a broker id after its registration (1003); only its close counts (ruling 17), so
the late end of an older connection evicts nobody. Transitions of one broker:

    alive   → suspect  its session closed, or no heartbeat for suspect_heartbeats intervals: probe it
    suspect → alive    a heartbeat or a registration; an answered probe leaves the heartbeat time-out to decide
    suspect → dead     the probe after a closed session failed, or was refused; or the heartbeat time-out passed
    dead    → alive    a heartbeat or a registration

A heartbeat costs no heap operation: a broker's next check is looked up again when the old one comes due.

If this process itself was away (stopped, or starved of its processor), what arrived meanwhile has not been read yet and
nobody was silent: the table lives on a clock that stands still during such a pause.
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
"""A look that is due and comes so much later means a pause."""
NO_LOG = LogEnd(Epoch(-1), PhyOffset(0))


class BrokerKey(NamedTuple):
    broker_name: str
    broker_id: BrokerId


class BrokerHeartbeat(NamedTuple):
    """Contents of a heartbeat (904). `timeout_ms` and `total_replicas` 0: not said. `slaves` is a master's report as it
    came (`rmqha.ha.stream.copy_speed`), `disk_problem` a sentence."""

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
class BrokerLive:
    key: BrokerKey
    timeout_ms: int
    last_ms: int
    interval_ms: int
    """Smoothed time between heartbeats."""
    check_ms: int = 0
    session_id: int | None = None
    session_ms: int = 0
    """The last word that came through this session."""
    alive: bool = True
    suspect: bool = False
    probe_id: int | None = None
    session_lost: bool = False
    """The probe under way was caused by a closed session: silence is then an answer too."""
    unclean: bool = False
    """It registered after an unclean boot; its first heartbeat says that it has followed a master (ruling 3)."""
    stopping: bool = False
    traits: Traits = NO_TRAITS
    log_end: LogEnd = NO_LOG
    confirm_offset: PhyOffset = NO_LOG.max_offset
    disk_problem: str = ""
    """Problem that its disk probe found; it then hands its mastership over and is elected only if nobody else can
    be."""
    slaves: str = ""
    total_replicas: int = 0
    """The number that it goes by at present."""
    accepted_epoch: Epoch = NO_LOG.epoch
    """The highest master epoch that it has accepted, with or without a record of it in its log."""
    death: str = ""
    """The reason why it was called dead last."""

    @property
    def is_eligible(self) -> bool:
        """True if it may become master: it reports here over an open connection, booted clean, and is not stopping."""
        return self.alive and self.session_id is not None and not self.unclean and not self.stopping


class HeartbeatTable:
    """`grace_until_ms`: a new leader takes brokers that it has not heard of yet for alive until then."""

    def __init__(self, now_ms: int, default_timeout_ms: int, suspect_heartbeats: int) -> None:
        self._default_timeout_ms = default_timeout_ms
        self._suspect_heartbeats = suspect_heartbeats
        self._brokers: dict[BrokerKey, BrokerLive] = {}
        self._sessions: dict[int, dict[BrokerKey, None]] = {}
        self._checks: list[tuple[int, BrokerKey]] = []
        self._checked_ms = now_ms
        self._paused_ms = 0
        """All pauses together. Times inside the table are what callers give less this."""
        self.grace_until_ms = now_ms + default_timeout_ms

    # --- inputs -----------------------------------------------------------------------------------------------------

    def registered(
        self, now_ms: int, key: BrokerKey, session_id: int, *, unclean: bool, accepted_epoch: Epoch = NO_LOG.epoch
    ) -> None:
        """1003: the broker speaks through this session from now on."""
        now_ms -= self._paused_ms
        broker = self._brokers.get(key)
        if broker is None:
            broker = self._brokers[key] = self._new(now_ms, key)
        self._bind(broker, session_id)
        self._heard(broker, now_ms)
        broker.session_ms = now_ms
        broker.unclean, broker.stopping = unclean, False
        broker.accepted_epoch = max(broker.accepted_epoch, accepted_epoch)

    def beat(self, now_ms: int, key: BrokerKey, session_id: int, beat: BrokerHeartbeat) -> bool:
        """904. True if the broker has become fit by it, or has begun to stop, or its disk has failed, or it goes by
        another number of replicas, or has another priority or zone: its group needs a look."""
        now_ms -= self._paused_ms
        broker = self._brokers.get(key)
        if broker is None:
            broker = self._brokers[key] = self._new(now_ms, key)
            was_fit = False
        else:
            was_fit = broker.is_eligible
            gap_ms = now_ms - broker.last_ms
            # the first one follows the registration at once, and a pause says nothing of the rhythm
            if broker.timeout_ms // 16 < gap_ms < broker.timeout_ms:
                broker.interval_ms += (gap_ms - broker.interval_ms) // 8
        if broker.session_id is None:
            self._bind(broker, session_id)
        if broker.session_id == session_id:
            broker.session_ms = now_ms
        if beat.timeout_ms and beat.timeout_ms != broker.timeout_ms:
            broker.timeout_ms = min(beat.timeout_ms, MAX_TIMEOUT_MS)
            broker.interval_ms = broker.timeout_ms // 4
            self._schedule(broker, self._next_check_ms(broker))
        self._heard(broker, now_ms)
        turned = (
            (beat.stopping and not broker.stopping)
            or bool(beat.disk_problem) != bool(broker.disk_problem)
            or beat.total_replicas != broker.total_replicas
        )
        broker.unclean, broker.stopping = False, beat.stopping
        broker.disk_problem, broker.slaves, broker.total_replicas = beat.disk_problem, beat.slaves, beat.total_replicas
        if (beat.priority, beat.zone) != (broker.traits.priority, broker.traits.zone):
            turned = True
            broker.traits = Traits(beat.priority, beat.zone)
        if (beat.epoch, beat.max_offset) != (broker.log_end.epoch, broker.log_end.max_offset):
            broker.log_end = LogEnd(beat.epoch, beat.max_offset)
        broker.confirm_offset = beat.confirm_offset
        return turned or (not was_fit and broker.is_eligible)

    def session_closed(self, session_id: int) -> list[BrokerLive]:
        """The brokers whose session it was; the caller probes them."""
        brokers = [self._brokers[key] for key in self._sessions.pop(session_id, {})]
        for broker in brokers:
            broker.session_id, broker.session_lost = None, True
        return brokers

    def forget(self, key: BrokerKey) -> None:
        broker = self._brokers.pop(key, None)
        if broker is not None:
            self._unbind(broker)

    def mark_dead(self, broker: BrokerLive, why: str) -> None:
        broker.alive, broker.suspect, broker.probe_id, broker.death = False, False, None, why
        self._unbind(broker)

    # --- time -------------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int | None:
        return self._checks[0][0] + self._paused_ms if self._checks else None

    def forgive_pause(self, now_ms: int) -> int:
        """Call ahead of `due`: how long this process was away, 0 if it was not."""
        due_ms, checked_ms, self._checked_ms = self.deadline_ms(), self._checked_ms, now_ms
        late_ms = 0 if due_ms is None else now_ms - max(due_ms, checked_ms)
        if late_ms < PAUSE_MS:
            return 0
        self._paused_ms += late_ms
        return late_ms

    def due(self, now_ms: int) -> list[BrokerLive]:
        """Brokers that have been silent for too long to be left alone: probe those, or call them dead if their
        time-out has passed (`is_timed_out`). Each stays scheduled while it is alive. At most SLICE_BROKERS come at
        once; the deadline stays due for the rest."""
        now_ms -= self._paused_ms
        late: list[BrokerLive] = []
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

    def is_timed_out(self, broker: BrokerLive, now_ms: int) -> bool:
        return self.silent_ms(broker, now_ms) >= broker.timeout_ms

    def silent_ms(self, broker: BrokerLive, now_ms: int) -> int:
        return now_ms - self._paused_ms - broker.last_ms

    # --- look -------------------------------------------------------------------------------------------------------

    def get(self, key: BrokerKey) -> BrokerLive | None:
        return self._brokers.get(key)

    def log_end(self, key: BrokerKey) -> LogEnd:
        """End of the replica's log as last reported, NO_LOG if it was not."""
        broker = self._brokers.get(key)
        return NO_LOG if broker is None else broker.log_end

    def speaks_elsewhere(self, now_ms: int, key: BrokerKey, session_id: int) -> bool:
        """It has spoken through its session within its time-out, and that is another one."""
        broker = self._brokers.get(key)
        if broker is None or not broker.alive or broker.session_id in (None, session_id):
            return False
        return now_ms - self._paused_ms - broker.session_ms < broker.timeout_ms

    def is_alive(self, now_ms: int, key: BrokerKey) -> bool:
        broker = self._brokers.get(key)
        return now_ms - self._paused_ms < self.grace_until_ms if broker is None else broker.alive

    def is_eligible(self, key: BrokerKey) -> bool:
        broker = self._brokers.get(key)
        return broker is not None and broker.is_eligible

    def disk_failed(self, key: BrokerKey) -> bool:
        """Its disk is."""
        broker = self._brokers.get(key)
        return broker is not None and bool(broker.disk_problem)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _new(self, now_ms: int, key: BrokerKey) -> BrokerLive:
        timeout_ms = self._default_timeout_ms
        broker = BrokerLive(key, timeout_ms, now_ms, timeout_ms // 4)
        self._schedule(broker, self._next_check_ms(broker))
        return broker

    def _heard(self, broker: BrokerLive, now_ms: int) -> None:
        broker.last_ms, broker.suspect, broker.session_lost = now_ms, False, False
        broker.probe_id = None
        if not broker.alive or broker.unclean:
            broker.alive = True
            self._schedule(broker, self._next_check_ms(broker))

    def _next_check_ms(self, broker: BrokerLive) -> int:
        # a burst of heartbeats must not make the next ordinary pause look long
        suspect_after_ms = max(broker.interval_ms, broker.timeout_ms // 8) * self._suspect_heartbeats
        return broker.last_ms + min(suspect_after_ms, broker.timeout_ms)

    def _schedule(self, broker: BrokerLive, check_ms: int) -> None:
        """Replaces the check that was planned: its heap entry no longer matches and is dropped when it comes up."""
        broker.check_ms = check_ms
        heappush(self._checks, (check_ms, broker.key))

    def _bind(self, broker: BrokerLive, session_id: int) -> None:
        if broker.session_id != session_id:
            self._unbind(broker)
            broker.session_id = session_id
            self._sessions.setdefault(session_id, {})[broker.key] = None

    def _unbind(self, broker: BrokerLive) -> None:
        if broker.session_id is not None:
            keys = self._sessions.get(broker.session_id)
            if keys is not None:
                keys.pop(broker.key, None)
                if not keys:
                    del self._sessions[broker.session_id]
            broker.session_id = None
