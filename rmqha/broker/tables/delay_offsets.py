"""Progress of deliveries: of each delay level in config/delayOffset.json, of timer messages in config/timercheck,
written when dirty.

An offset is true of a log that holds the copies that were delivered before it, of no shorter one: a replica that took
it before its copies and is elected then would leave those messages out. So each state of the table goes with the end of
its copies, and what counts is the newest one that this replica's log reaches, on the disk the newest that is synced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple, Protocol

from rmqha.broker.tables import config_table, timer_check
from rmqha.broker.tables.config_table import DataVersion, TableEvents, mapping
from rmqha.broker.tables.timer_check import TimerProgress
from rmqha.model.offset import PhyOffset
from rmqha.port import Clock, Disk
from rmqha.store.timer import timer_width
from rmqha.store.timer.timer_width import MAX_WIDTH_MS, TimerWidths, slot_width_ms

MAX_STATES = 256
"""More are thinned out."""
RECENT_STATES = 64
"""Newest states, which are all kept; of older ones fewer are, the longer the log has grown since."""
_TABLE = "delayOffset"
_LOG_END = "logEnd"
_TIMER = "timer"


class DeliveryLog(Protocol):
    """The log that holds the delivered copies; `Store` is one."""

    @property
    def max_phy_offset(self) -> PhyOffset: ...

    @property
    def synced_offset(self) -> PhyOffset: ...


class _State(NamedTuple):
    log_end: int
    """All copies of what is delivered lie below."""
    version: DataVersion
    offsets: Mapping[int, int]
    timer: TimerProgress

    def to_json(self) -> dict[str, Any]:
        return {"dataVersion": self.version.to_json(), "offsetTable": dict(sorted(self.offsets.items()))}


class Unsaved(NamedTuple):
    """Content that the two files must hold; None: as it is. `order`: of two the later one is true."""

    order: int
    levels: bytes | None
    timer: bytes | None


class DelayOffsetTable:
    """By level, the first entry of its queue that is not delivered yet; and how far timers are. `epoch` is the master
    epoch that stamps changes. Raises StoreError for a file that cannot be read."""

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
        """`is_synced`: what the file holds is known to be on the disk. Else it is written again."""
        self._disk = disk
        self._clock = clock
        self._log = log
        found = config_table.load(disk, _TABLE, parse_table, ("offsetTable",))
        self._unknown, self.findings = found.unknown, found.findings
        self.epoch = found.version.state_version
        self.is_timer_ours = False
        """config/timercheck holds what ours has written last."""
        self._widths = TimerWidths(slot_width_ms(timer_precision_ms))
        self._noted_widths: TimerWidths | None = None
        """In the file; None: there are none, or they are in doubt."""
        self._has_timers = False
        timer = self._load_timer()
        self._states = [_State(log.max_phy_offset, found.version, found.table, timer)]
        """In the order in which they were heard. Of the first, the file's, all copies are in the log that is found."""
        self._events = events  # of what slaves have not heard of, a new master delivers again
        self._made_count = 0
        self._writing = Lock()
        """Held by a write: the thread that cuts the log may come in one of a save."""
        self._levels_order = self._timer_order = 0
        """Order of what was written last."""
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

    def _held(self, log_end: int) -> _State:
        for state in reversed(self._states):
            if state.log_end <= log_end:
                return state
        return self._states[0]

    @property
    def _now(self) -> _State:
        return self._held(self._log.max_phy_offset)

    @property
    def version(self) -> DataVersion:
        """Version of the newest state that was heard, whether the log holds its copies yet or not."""
        return self._states[-1].version

    def get(self, level: int) -> int:
        return self._now.offsets.get(level, 0)

    def levels(self) -> list[int]:
        """Levels with an offset, in order."""
        return sorted(self._now.offsets)

    @property
    def timer(self) -> TimerProgress:
        return self._now.timer

    def put(self, level: int, offset: int, log_end: int = 0) -> None:
        """`log_end`: the end of the copies of what lies before `offset`."""
        last = self._states[-1]
        self._put(last._replace(offsets={**last.offsets, level: offset}), log_end)

    def put_timer(self, progress: TimerProgress, log_end: int) -> None:
        """`log_end`: the end of the copies of what is delivered, and of the entries that are taken."""
        self._put(self._states[-1]._replace(timer=progress), log_end)

    def _put(self, state: _State, log_end: int) -> None:
        version = replace(state.version)
        version.advance(self.epoch, self._clock.wall_ms())
        self._add(state._replace(log_end=max(log_end, state.log_end), version=version))
        self._events.moved()

    def _add(self, state: _State) -> None:
        self._states.append(state)
        if len(self._states) > MAX_STATES:
            self._thin()

    def _thin(self) -> None:
        """Each older state that stays is at most four fifths as many bytes away as the one before it: a cut takes
        back what was delivered in some bytes more than it must, never in as many again."""
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
    def forget_ahead(self) -> None:
        """Another master's log comes now: what counted on more of the last one's than is here will never be true."""
        self._cut(self._log.max_phy_offset)

    def log_cut(self, end_offset: int, end_of: Callable[[int], int], timer_end: int) -> None:
        """The log ends at `end_offset` now, a level's queue at `end_of(level)`, that of timers at `timer_end`. Durable
        on return. Raises OSError."""
        self._cut(end_offset)
        self.clamp(end_of, timer_end)
        self._save()

    def _cut(self, end_offset: int) -> None:
        first, *more = self._states
        first = first._replace(log_end=min(first.log_end, end_offset))  # there is no older one to go back to
        self._states = [first, *(state for state in more if state.log_end <= end_offset)]

    def clamp(self, end_of: Callable[[int], int], timer_end: int) -> None:
        """No offset may lie behind its level's queue (`end_of(level)`), nor behind that of timers: what comes there
        would never be delivered. Durable when it returns. Raises OSError."""
        behind = {level: end for level, offset in self._now.offsets.items() if (end := end_of(level)) < offset}
        for level, end in behind.items():
            self.put(level, end)
        timer = self._now.timer
        is_timer_behind = timer.taken_offset > timer_end
        if is_timer_behind:
            first = min(timer.first_offset, timer_end)
            self.put_timer(timer._replace(taken_offset=timer_end, first_offset=first), 0)
        if behind or is_timer_behind:
            self._save()

    # --- other replicas -----------------------------------------------------------------------------------------------
    def to_json(self, log_end: int | None = None) -> dict[str, Any]:
        """Body of request 45: the table as it is true of a log that ends at `log_end`, of this replica's if None."""
        return (self._now if log_end is None else self._held(log_end)).to_json()

    def to_follower(self) -> dict[str, Any]:
        """For request 52030: with the end of the log that a slave must have before it counts on it."""
        state = self._states[-1]
        timer = {_TIMER: list(state.timer)} if state.timer != TimerProgress() else {}
        return state.to_json() | timer | ({_LOG_END: state.log_end} if state.log_end else {})

    # --- widths of slots ----------------------------------------------------------------------------------------------
    def begin_widths(self, found_ms: int, end_offset: int) -> TimerWidths | None:
        """The widths that what waits has been stored with, if they are others than that of now; None if not. `found_ms`
        is that of another program that had the store, 0 if none had; `end_offset` the end of the queue of timers. Once,
        at a start."""
        waiting, width_ms = (self.timer.first_offset, end_offset), self._widths.width_ms
        known = self._noted_widths or TimerWidths(found_ms or width_ms)
        self._widths = known.changed(found_ms or known.width_ms, *waiting).changed(width_ms, *waiting)
        if end_offset:
            self.timers_wait()
        return self._widths if self._widths != known and self._widths.before_ms else None

    def timers_wait(self) -> None:
        """The queue of timers has entries: the width of slots is to be noted."""
        self._has_timers = True

    def _timer_file(self, state: _State, logged_offset: int | None = None) -> bytes:
        self._noted_widths = self._widths.settled(state.timer.first_offset)
        return timer_check.encode_file(state.timer, state.version, logged_offset, self._noted_widths)

    def timer_check(self, log_end: int) -> bytes:
        """Body of request 60: progress of timers, as it is true of a log that ends at `log_end`."""
        state = self._held(log_end)
        return timer_check.encode(state.timer, state.version)

    def replace(self, body: Mapping[str, Any]) -> None:
        """A slave takes its master's whole table."""
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
    def unsaved(self) -> Unsaved | None:
        """The content that the files must hold, None if they hold it; the caller writes it with `write`, in a thread if
        it likes."""
        state = self._held(self._log.synced_offset)
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
        return Unsaved(self._made_count, levels, timer)

    @property
    def written_timer(self) -> TimerProgress | None:
        """Progress of timers that the file holds; None if that is in doubt."""
        return self._written_timer

    @property
    def is_timer_written(self) -> bool:
        """The newest progress of timers stands in the file."""
        return self._written_timer == self._states[-1].timer

    def write(self, unsaved: Unsaved) -> None:
        """Write the files: when it returns, each holds this, or what another thread has written later. Raises OSError;
        `unsaved` then has it again."""
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
        """Write config/timercheck as ours, true without a timer log. All from `waits_from` on in the queue of timers
        waits; None: what the file says. Before any change. Durable on return. Raises OSError."""
        (state,) = self._states
        if waits_from is not None and waits_from < state.timer.taken_offset:
            timer = state.timer._replace(
                taken_offset=waits_from, first_offset=min(state.timer.first_offset, waits_from)
            )
            state = self._states[0] = state._replace(timer=timer)
        self._write_timer(self._timer_file(state))
        self._written_timer = state.timer

    def give_timer(self, logged_offset: int) -> None:
        """Write that the timer log holds what waits below this offset of the queue. After the last change, all of which
        are written. Durable on return. Raises OSError."""
        state = self._held(self._log.synced_offset)
        self._write_timer(self._timer_file(state, logged_offset))

    def _write_timer(self, data: bytes) -> None:
        self._disk.make_dirs("config")
        self._disk.write_atomic(timer_check.PATH, data)

    def _save(self) -> None:
        unsaved = self.unsaved()
        if unsaved is not None:
            self.write(unsaved)


def parse_table(body: Mapping[str, Any]) -> dict[int, int]:
    """The offsets of delayOffset.json or of a body of request 45."""
    table = mapping(body.get("offsetTable"), "offsetTable")
    return {int(level): int(offset) for level, offset in table.items()}


def parse_timer(value: Any) -> TimerProgress:
    """Progress of timers, of a master's tables. Raises ValueError."""
    if not isinstance(value, list) or len(value) != len(TimerProgress._fields):
        raise ValueError(f"timer must be {len(TimerProgress._fields)} numbers")
    return TimerProgress(*map(int, value))
