"""How far each delay level has been delivered: config/delayOffset.json, written when dirty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmqha.broker import config_table
from rmqha.broker.config_table import DataVersion, mapping
from rmqha.port import Clock, Disk

_TABLE = "delayOffset"


class DelayOffsetTable:
    """By level, the first entry of its queue that is not delivered yet. `epoch` is the master epoch that stamps
    changes. Raises StoreError for a file that cannot be read."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        found = config_table.load(disk, _TABLE, parse_table, ("offsetTable",))
        self.version, self._unknown, self.findings = found.version, found.unknown, found.findings
        self.epoch = self.version.state_version
        self._offsets = found.table
        self.moved: Callable[[], None] = lambda: None
        """Told of each change: of what slaves have not heard of, a new master delivers again."""
        self._dirty = False

    def get(self, level: int) -> int:
        return self._offsets.get(level, 0)

    def levels(self) -> list[int]:
        """Levels with an offset, in order."""
        return sorted(self._offsets)

    def put(self, level: int, offset: int) -> None:
        self._offsets[level] = offset
        self.version.advance(self.epoch, self._clock.wall_ms())
        self._dirty = True
        self.moved()

    def clamp(self, end_of: Callable[[int], int]) -> None:
        """No offset may lie behind its level's queue (`end_of(level)`): what comes there would never be delivered.
        Durable when it returns. Raises OSError."""
        behind = {level: end for level, offset in self._offsets.items() if (end := end_of(level)) < offset}
        for level, end in behind.items():
            self.put(level, end)
        data = self.unsaved() if behind else None
        if data is not None:
            self.write(data)

    def to_json(self) -> dict[str, Any]:
        """Body of request 45 and content of the file; levels stay integers."""
        return {"dataVersion": self.version.to_json(), "offsetTable": dict(sorted(self._offsets.items()))}

    def replace(self, body: Mapping[str, Any]) -> None:
        """A slave takes its master's whole table."""
        table = parse_table(body)
        if table != self._offsets:
            self._offsets = table
            self._dirty = True
        self.version = DataVersion.from_json(body.get("dataVersion"))

    def unsaved(self) -> bytes | None:
        """What the file must hold, None if it does; the caller writes it with `write`, in a thread if it likes."""
        if not self._dirty:
            return None
        self._dirty = False
        return config_table.encode({**self.to_json(), **self._unknown})

    def write(self, data: bytes) -> None:
        """Raises OSError; `unsaved` then has it again."""
        try:
            config_table.write(self._disk, _TABLE, data)
        except OSError:
            self._dirty = True
            raise


def parse_table(body: Mapping[str, Any]) -> dict[int, int]:
    """The offsets of delayOffset.json or of a body of request 45."""
    table = mapping(body.get("offsetTable"), "offsetTable")
    return {int(level): int(offset) for level, offset in table.items()}
