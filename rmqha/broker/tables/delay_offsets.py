"""Progress of delivery: of each delay level in config/delayOffset.json, of timer messages in config/timercheck. Written
when dirty.

A delivery stores a copy of the message and advances the offset. A replica with the offset but without the copies would
lose those messages if it were elected. So each state of the table has the end of its copies in the log. The newest
state whose copies are in this replica's log counts, and for the file the newest whose copies are synced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple, Protocol

from rmqha.broker.tables import config_table
from rmqha.broker.tables.config_table import DataVersion, TableEvents, mapping
from rmqha.broker.timers import timer_check
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.model.offset import PhyOffset
from rmqha.port import Clock, Disk
from rmqha.store.timer import timer_width
from rmqha.store.timer.timer_width import MAX_WIDTH_MS, TimerWidths, slot_width_ms

MAX_STATES = 256
"""Bound on the states; older ones are thinned out."""
RECENT_STATES = 64
"""Newest states, all of which are kept; older ones are thinned out by log distance."""
_TABLE = "delayOffset"
_LOG_END = "logEnd"
_TIMER = "timer"


class DeliveryLog(Protocol):
    """Log with the delivered copies; `Store` is one."""

    @property
    def max_phy_offset(self) -> PhyOffset: ...

    @property
    def synced_offset(self) -> PhyOffset: ...


class _State(NamedTuple):
    log_end: int
    """End of the log that contains all delivered copies."""
    version: DataVersion
    offsets: Mapping[int, int]
    timer: TimerProgress

    def to_json(self) -> dict[str, Any]:
        return {"dataVersion": self.version.to_json(), "offsetTable": dict(sorted(self.offsets.items()))}


class PendingDelayWrite(NamedTuple):
    """Content of the two files; None: unchanged. Of two the one with the higher `order` is newer."""

    order: int
    levels: bytes | None
    timer: bytes | None


class DelayOffsetTable:
    """First undelivered entry of each level's queue, and the progress of timers. `epoch` is the master epoch of
    changes. Raises StoreError for an unreadable file."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        log: DeliveryLog,
        events: TableEvents,
        timer_precision_ms: int = MAX_WIDTH_MS,
        *,
        is_synced: bool = True,
    ) -> None:
        """`is_synced`: the files are known to be on the disk; else they are written again."""
        self._disk = disk
        self._clock = clock
        self._log = log
        found = config_table.load(disk, _TABLE, parse_table, ("offsetTable",))
        self._unknown, self.findings = found.unknown, found.findings
        self.epoch = found.version.state_version
        self.is_timer_ours = False
        """True if rmqha was the last to write config/timercheck."""
        self._widths = TimerWidths(slot_width_ms(timer_precision_ms))
        self._noted_widths: TimerWidths | None = None
        """Widths in the file; None if there are none, or uncertain."""
        self._has_timers = False
        timer = self._load_timer()
        self._states = [_State(log.max_phy_offset, found.version, found.table, timer)]
        """States in the order of arrival. The copies of the first, the file's, are in the log."""
        self._events = events  # of what slaves have not heard of, a new master delivers again
        self._made_count = 0
        self._writing = Lock()
        """Held by a write: the thread that cuts the log may write during a save."""
        self._levels_order = self._timer_order = 0
        """Orders of the last written content."""
        self._written: Mapping[int, int] | None = found.table if is_synced or not found.table else None
        self._written_timer: TimerProgress | None = timer if is_synced or timer == TimerProgress() else None

    def _load_timer(self) -> TimerProgress:
        if not self._disk.exists(timer_check.PATH):
            return TimerProgress()
        try:
            data = self._disk.read(timer_check.PATH)
            self.is_timer_ours = timer_check.is_ours(data)
            self._noted_widths = timer_width.decode(data)
            return timer_check.decode(data)
        except ValueError as error:
            self.findings.append(
                f"{timer_check.PATH} cannot be read, {error}: timer messages that the log holds are delivered again."
            )
            return TimerProgress()

    def _state_at(self, log_end: int) -> _State:
        for state in reversed(self._states):
            if state.log_end <= log_end:
                return state
        return self._states[0]

    @property
    def _current(self) -> _State:
        return self._state_at(self._log.max_phy_offset)

    @property
    def version(self) -> DataVersion:
        """Version of the newest state, whether the log has its copies or not."""
        return self._states[-1].version

    def get(self, level: int) -> int:
        return self._current.offsets.get(level, 0)

    def levels(self) -> list[int]:
        """Levels with an offset, in order."""
        return sorted(self._current.offsets)

    @property
    def timer(self) -> TimerProgress:
        return self._current.timer

    def put(self, level: int, offset: int, log_end: int = 0) -> None:
        """Set a level's offset. `log_end`: end of the copies of everything before `offset`."""
        last = self._states[-1]
        self._put(last._replace(offsets={**last.offsets, level: offset}), log_end)

    def put_timer(self, progress: TimerProgress, log_end: int) -> None:
        """Set the progress of timers. `log_end`: end of the delivered copies and of the read entries."""
        self._put(self._states[-1]._replace(timer=progress), log_end)

    def _put(self, state: _State, log_end: int) -> None:
        version = replace(state.version)
        version.advance(self.epoch, self._clock.wall_ms())
        self._add(state._replace(log_end=max(log_end, state.log_end), version=version))
        self._events.table_changed()

    def _add(self, state: _State) -> None:
        self._states.append(state)
        if len(self._states) > MAX_STATES:
            self._thin()

    def _thin(self) -> None:
        """Keep older states with log distances that shrink by a fifth: a cut then repeats some deliveries, but less
        than twice as many as necessary."""
        kept: list[_State] = []
        newest = self._states[-1].log_end
        last_bytes: float = math.inf
        for state in self._states[1:-RECENT_STATES]:
            bytes_away = max(0, newest - state.log_end)
            if bytes_away < last_bytes * 0.8:
                kept.append(state)
                last_bytes = bytes_away
        self._states[1:-RECENT_STATES] = kept

    # --- the log ------------------------------------------------------------------------------------------------------
    def drop_future_states(self) -> None:
        """Drop states whose copies are not in the log: a new master's log replaces the rest of the old one's."""
        self._cut(self._log.max_phy_offset)

    def log_cut(self, end_offset: int, end_of: Callable[[int], int], timer_end: int) -> None:
        """Adapt to a cut of the log at `end_offset`; a level's queue ends at `end_of(level)`, that of timers at
        `timer_end`. Durable on return. Raises OSError."""
        self._cut(end_offset)
        self.clamp(end_of, timer_end)
        self._save()

    def _cut(self, end_offset: int) -> None:
        first, *more = self._states
        first = first._replace(log_end=min(first.log_end, end_offset))  # there is no older one to go back to
        self._states = [first, *(state for state in more if state.log_end <= end_offset)]

    def clamp(self, end_of: Callable[[int], int], timer_end: int) -> None:
        """Lower offsets beyond their queues (`end_of(level)`, `timer_end`), whose next messages would not be delivered.
        Durable on return. Raises OSError."""
        behind = {level: end for level, offset in self._current.offsets.items() if (end := end_of(level)) < offset}
        for level, end in behind.items():
            self.put(level, end)
        timer = self._current.timer
        is_timer_behind = timer.taken_offset > timer_end
        if is_timer_behind:
            first = min(timer.first_offset, timer_end)
            self.put_timer(timer._replace(taken_offset=timer_end, first_offset=first), 0)
        if behind or is_timer_behind:
            self._save()

    # --- other replicas -----------------------------------------------------------------------------------------------
    def to_json(self, log_end: int | None = None) -> dict[str, Any]:
        """Body of request 45: the state for a log that ends at `log_end`, for this replica's if None."""
        return (self._current if log_end is None else self._state_at(log_end)).to_json()

    def to_follower(self) -> dict[str, Any]:
        """Part of an answer to 52030, with the end of the log that a slave must have first."""
        state = self._states[-1]
        timer = {_TIMER: list(state.timer)} if state.timer != TimerProgress() else {}
        return state.to_json() | timer | ({_LOG_END: state.log_end} if state.log_end else {})

    # --- widths of slots ----------------------------------------------------------------------------------------------
    def begin_widths(self, found_ms: int, end_offset: int) -> TimerWidths | None:
        """Widths of the waiting messages' slots if they differ from the present width, else None. `found_ms` is the
        width of another program that used the store, 0 if none; `end_offset` the end of the queue of timers. Call once,
        at the start."""
        waiting, width_ms = (self.timer.first_offset, end_offset), self._widths.width_ms
        known = self._noted_widths or TimerWidths(found_ms or width_ms)
        self._widths = known.changed(found_ms or known.width_ms, *waiting).changed(width_ms, *waiting)
        if end_offset:
            self.timers_wait()
        return self._widths if self._widths != known and self._widths.before_ms else None

    def timers_wait(self) -> None:
        """Note that the queue of timers has entries, so that the width of slots must be recorded."""
        self._has_timers = True

    def _timer_file(self, state: _State, logged_offset: int | None = None) -> bytes:
        self._noted_widths = self._widths.settled(state.timer.first_offset)
        return timer_check.encode_file(state.timer, state.version, logged_offset, self._noted_widths)

    def timer_check(self, log_end: int) -> bytes:
        """Body of request 60: progress of timers for a log that ends at `log_end`."""
        state = self._state_at(log_end)
        return timer_check.encode(state.timer, state.version)

    def replace(self, body: Mapping[str, Any]) -> None:
        """Replace a slave's table by its master's."""
        version, log_end = DataVersion.from_json(body.get("dataVersion")), int(body.get(_LOG_END, 0))
        if _TIMER in body:
            timer = parse_timer(body[_TIMER])
        else:
            timer = self._states[-1].timer
            if timer != TimerProgress():
                log_end = max(log_end, self._states[-1].log_end)  # it is true of no shorter log
        state = _State(log_end, version, parse_table(body), timer)
        if state != self._states[-1]:
            self._add(state)

    # --- the file -----------------------------------------------------------------------------------------------------
    def unsaved(self) -> PendingDelayWrite | None:
        """Content for `write`, in any thread; None if the files have it."""
        state = self._state_at(self._log.synced_offset)
        levels = timer = None
        if state.offsets != self._written:
            levels = config_table.encode({**state.to_json(), **self._unknown})
        is_noted = self._noted_widths == self._widths.settled(state.timer.first_offset)
        if state.timer != self._written_timer or (self._has_timers and not is_noted):
            timer = self._timer_file(state)
        if levels is None and timer is None:
            return None
        self._written, self._written_timer = state.offsets, state.timer
        self._made_count += 1
        return PendingDelayWrite(self._made_count, levels, timer)

    @property
    def written_timer(self) -> TimerProgress | None:
        """Progress of timers in the file; None if uncertain."""
        return self._written_timer

    @property
    def is_timer_written(self) -> bool:
        """True if the newest progress of timers is in the file."""
        return self._written_timer == self._states[-1].timer

    def write(self, unsaved: PendingDelayWrite) -> None:
        """Write the files: on return each has this content, or a later one of another thread. Raises OSError; `unsaved`
        then returns it again."""
        order = unsaved.order
        with self._writing:
            try:
                if unsaved.levels is not None and order > self._levels_order:
                    config_table.write(self._disk, _TABLE, unsaved.levels)
                    self._levels_order = order
                if unsaved.timer is not None and order > self._timer_order:
                    self._write_timer(unsaved.timer)
                    self._timer_order = order
            except OSError:
                self._written = self._written_timer = self._noted_widths = None
                raise

    def claim_timer(self, waits_from: int | None) -> None:
        """Write config/timercheck for a store without timer log, before any change. All entries from `waits_from` on in
        the queue of timers wait; None: as in the file. Durable on return. Raises OSError."""
        (state,) = self._states
        if waits_from is not None and waits_from < state.timer.taken_offset:
            timer = state.timer._replace(
                taken_offset=waits_from, first_offset=min(state.timer.first_offset, waits_from)
            )
            state = self._states[0] = state._replace(timer=timer)
        self._write_timer(self._timer_file(state))
        self._written_timer = state.timer

    def give_timer(self, logged_offset: int) -> None:
        """Write config/timercheck for a timer log with all waiting messages below this offset of the queue, after the
        last change. Durable on return. Raises OSError."""
        state = self._state_at(self._log.synced_offset)
        self._write_timer(self._timer_file(state, logged_offset))

    def _write_timer(self, data: bytes) -> None:
        self._disk.make_dirs("config")
        self._disk.write_atomic(timer_check.PATH, data)

    def _save(self) -> None:
        unsaved = self.unsaved()
        if unsaved is not None:
            self.write(unsaved)


def parse_table(body: Mapping[str, Any]) -> dict[int, int]:
    """Offsets of delayOffset.json or of a body of request 45."""
    table = mapping(body.get("offsetTable"), "offsetTable")
    return {int(level): int(offset) for level, offset in table.items()}


def parse_timer(value: Any) -> TimerProgress:
    """Progress of timers in a master's tables. Raises ValueError."""
    if not isinstance(value, list) or len(value) != len(TimerProgress._fields):
        raise ValueError(f"timer must be {len(TimerProgress._fields)} numbers")
    return TimerProgress(*map(int, value))
