"""Records of the log that are not what was written, until a replica has given them back. Machine, no clock.

    ──found──▶ AWAITED ──a peer's copy is written over it──▶ gone
                 │  ▲
        nobody has it │ asked again
                 ▼  │
               LACKED

Whoever reads records notes here what is damaged; whoever repairs takes from here. A record counts once, however often
it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmqha.model.error import DamagedError
from rmqha.port import Tracer
from rmqha.wire.state.replica_state import DamagedRecordState, DamageState, RefusedRecord

MAX_COUNT = 1024
"""Damaged records that are remembered; what is found beyond is found again when one of these is repaired."""
MAX_SHOWN_COUNT = 5


@dataclass(slots=True)
class DamagedRecord:
    phy_offset: int
    size_bytes: int
    """By its queue's entry; 0: unknown."""
    reason: str
    lacked: str = ""
    """The reason why no replica has given it back, "" while that may come."""
    is_as_written: bool = False
    """A replica has the same bytes: they were written so, and nobody can mend them."""


class DamageTable:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._records: dict[int, DamagedRecord] = {}
        self.found_count = self.repaired_count = 0
        self.refused: tuple[int, str] | None = None
        """End of a slave's log, which ends there because its master sent a record that is not sound, and what was
        wrong."""
        self.refused_count = 0
        self._repairers: list[Callable[[], None]] = []

    def subscribe(self, repairer: Callable[[], None]) -> None:
        """Call `repairer` whenever there is something to repair."""
        self._repairers.append(repairer)

    def wake(self) -> None:
        """Tell the repairer that there is something to repair."""
        for repairer in self._repairers:
            repairer()

    def incoming(self, end_offset: int, fault: str) -> None:
        """Note that a master's bytes were appended up to `end_offset`. `fault`: the reason why the record there was
        not, "" if all were."""
        if not fault:
            self.refused = None
            return
        if self.refused is None or self.refused[0] != end_offset:
            self.refused_count += 1
            self._tracer.event("record_refused", phy_offset=end_offset, reason=fault)
        self.refused = end_offset, fault
        self.wake()

    def found(self, error: DamagedError) -> None:
        """Note a damaged record that a reader has found. Damage outside of records is traced and forgotten."""
        offset = error.phy_offset
        known = self._records.get(offset)
        if known is not None:
            known.size_bytes = known.size_bytes or error.size_bytes
            return
        if offset < 0 or len(self._records) >= MAX_COUNT:
            self._tracer.event("damaged", reason=str(error))
            return
        self.found_count += 1
        self._records[offset] = DamagedRecord(offset, error.size_bytes, str(error))
        self._tracer.event("damaged", reason=str(error), phy_offset=offset)
        self.wake()

    def repaired(self, phy_offset: int, source: str) -> None:
        """Note that a copy from `source` is durable at `phy_offset`."""
        if self._records.pop(phy_offset, None) is not None:
            self.repaired_count += 1
            self._tracer.event("record_repaired", phy_offset=phy_offset, source=source)

    def lacked(self, phy_offset: int, reason: str, *, as_written: bool = False) -> None:
        """Note that no replica has given the record back so far."""
        record = self._records.get(phy_offset)
        if record is None:
            return
        record.is_as_written = record.is_as_written or as_written
        if not record.lacked:
            self._tracer.event("damage_not_repaired", phy_offset=phy_offset, reason=reason)
        record.lacked = reason

    def cut(self, end_offset: int) -> None:
        """Forget damage behind `end_offset`, where the log ends now."""
        self._keep(lambda offset: offset < end_offset)

    def trimmed(self, min_offset: int) -> None:
        """Forget damage before `min_offset`, where the log begins now."""
        self._keep(lambda offset: offset >= min_offset)

    def _keep(self, is_kept: Callable[[int], bool]) -> None:
        self._records = {offset: record for offset, record in self._records.items() if is_kept(offset)}

    # --- read -------------------------------------------------------------------------------------------------------
    @property
    def records(self) -> list[DamagedRecord]:
        """The damaged records, in the order in which they were found."""
        return list(self._records.values())

    def get(self, phy_offset: int) -> DamagedRecord | None:
        return self._records.get(phy_offset)

    def is_awaited(self, phy_offset: int) -> bool:
        """True if the record is damaged and a replica may give it back soon."""
        record = self._records.get(phy_offset)
        return record is not None and not record.lacked

    @property
    def lacked_count(self) -> int:
        return sum(1 for record in self._records.values() if record.lacked)

    def state(self) -> DamageState:
        lacked_first = sorted(self._records.values(), key=lambda record: not record.lacked)
        return DamageState(
            found_count=self.found_count,
            repaired_count=self.repaired_count,
            waiting_count=len(self._records),
            lacked_count=self.lacked_count,
            refused_count=self.refused_count,
            refused=None if self.refused is None else RefusedRecord(phy_offset=self.refused[0], reason=self.refused[1]),
            records=[
                DamagedRecordState(phy_offset=record.phy_offset, reason=record.reason, lacked=record.lacked)
                for record in lacked_first[:MAX_SHOWN_COUNT]
            ],
        )
