"""A file config/*.json behind its table in memory: changes gather, and one write takes all so far. Control plane.

The broker's thread records the changed rows, which costs time only for those. `write` encodes them, joins them with the
rows that it has and waits for the disk, in a thread where there is one. Changes that come meanwhile share the next
write (group commit). A request whose change must be durable waits until `saved_count` reaches the `changed_count` of
that change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from json.encoder import encode_basestring
from threading import Lock
from typing import Any, Final, NamedTuple

from rmqha.broker.tables import config_table
from rmqha.port import Disk

ROWS: Final = object()
"""Placeholder for a table of rows among the members of a file."""
_LINE = "\n\t"
_ROW_LINE = "\n\t\t"

Rows = Mapping[str, Any]
"""Rows by name; None: the row was removed. A row is not changed after it was given here."""


class PendingTableWrite(NamedTuple):
    """Content that the file must have: a snapshot that no later change touches."""

    order: int
    """Later writes have higher orders."""
    changed_count: int
    members: Mapping[str, Any]
    """Members in the order of the file; ROWS for a table of rows."""


class _Delta(NamedTuple):
    order: int
    table: str
    rows: Rows
    is_whole: bool


class TableFile:
    """A file of config/ that holds tables. `name` is the file's; `tables` are its members with rows, `encode` makes
    JSON of a row.

    All methods but `write` belong to one thread; `write` may run in several others.
    """

    def __init__(
        self,
        disk: Disk,
        name: str,
        tables: Collection[str],
        encode: Callable[[Any], Any] = lambda row: row,
        optional: Collection[str] = (),
    ) -> None:
        """`optional`: tables that are omitted while they have no rows."""
        self._disk = disk
        self._name = name
        self._encode = encode
        self._optional = optional
        self.changed_count = 0
        """Number of changes of rows so far."""
        self.saved_count = 0
        """Number of changes that are on the disk."""
        self.trouble = ""
        """Reason of the last write's failure, "" after a success."""
        self.is_behind = False
        self._made_count = 0
        self._changed: dict[str, dict[str, Any]] = {table: {} for table in tables}
        self._whole: set[str] = set()
        """Tables whose rows are all in `_changed`."""
        self._deltas: deque[_Delta] = deque()
        """Changes that `write` has not encoded yet, in order."""
        self._writing = Lock()
        self._written_order = 0
        self._attempted: PendingTableWrite | None = None
        """Newest argument of `write`. Rows of an older one are gone."""
        self._texts: dict[str, dict[str, bytes]] = {table: {} for table in tables}
        """Encoded rows by name, in the order of the file; used only by `write`."""

    @property
    def is_saved(self) -> bool:
        return self.saved_count == self.changed_count

    # --- the broker's thread ------------------------------------------------------------------------------------------
    def load(self, table: str, rows: Iterable[tuple[str, Any]]) -> None:
        """Take over the rows of the file as `holds` does, but encode them here, one at a time, before other tasks
        run."""
        texts = {name: self.row_text(name, self._encode(row)) for name, row in rows}
        self._texts[table] = {name: texts[name] for name in sorted(texts)}

    def holds(self, table: str, rows: Rows) -> None:
        """Take over `rows` as the file's content; empty without a file."""
        self._changed[table] = dict(rows)
        self._whole.add(table)

    def doubt(self) -> None:
        """Count the file's content as unsaved, since it may not be on the disk."""
        self.changed_count += 1
        self.is_behind = True

    def touch(self) -> None:
        """Note a change of other members, which need not be on the disk soon."""
        self.is_behind = True

    def change(self, table: str, rows: Rows) -> None:
        self._changed[table].update(rows)
        self.changed_count += 1
        self.is_behind = True

    def replace(self, table: str, rows: Rows) -> None:
        """Replace all rows of the table."""
        self.holds(table, rows)
        self.changed_count += 1
        self.is_behind = True

    def unsaved(self, members: Callable[[], Mapping[str, Any]], *, in_flight: bool = False) -> PendingTableWrite | None:
        """Content for `write`; None if the file has it, or will have it after the writes given out before. With
        `in_flight` such content is given out again, for a caller that must wait for it."""
        if not self.is_behind and not (in_flight and not self.is_saved):
            return None
        self.is_behind = False
        self._made_count += 1
        for table, rows in self._changed.items():
            if rows or table in self._whole:
                self._deltas.append(_Delta(self._made_count, table, rows, table in self._whole))
                self._changed[table] = {}
        self._whole.clear()
        return PendingTableWrite(self._made_count, self.changed_count, members())

    def save(self, members: Callable[[], Mapping[str, Any]]) -> None:
        """Write what the file lacks, in this thread. Raises OSError."""
        data = self.unsaved(members)
        if data is not None:
            self.write(data)

    # --- any thread ---------------------------------------------------------------------------------------------------
    def write(self, data: PendingTableWrite) -> None:
        """Write the file: on return it has `data`, or something newer of another thread. Raises OSError; `unsaved` then
        returns it again."""
        with self._writing:
            while self._deltas and self._deltas[0].order <= data.order:
                self._apply(self._deltas.popleft())
            if data.order <= self._written_order:
                return
            if self._attempted is not None and data.order < self._attempted.order:
                data = self._attempted  # its write has failed
            self._attempted = data
            try:
                self._put(self._text(data.members))
            except OSError as error:
                self.trouble = str(error)
                self.is_behind = True
                raise
            self.trouble = ""
            self._written_order = data.order
            self.saved_count = data.changed_count

    def _apply(self, delta: _Delta) -> None:
        texts = {} if delta.is_whole else self._texts[delta.table]
        is_sorted = not delta.is_whole
        for name, row in delta.rows.items():
            if row is None:
                texts.pop(name, None)
                continue
            is_sorted = is_sorted and name in texts
            texts[name] = self.row_text(name, self._encode(row))
        # in nearly sorted order, which costs a comparison per row
        self._texts[delta.table] = texts if is_sorted else {name: texts[name] for name in sorted(texts)}

    @staticmethod
    def row_text(name: str, row: Any) -> bytes:
        return f"{encode_basestring(name)}:{config_table.pretty(row, _ROW_LINE)}".encode()

    def _put(self, data: bytes) -> None:
        config_table.write(self._disk, self._name, data)

    def _text(self, members: Mapping[str, Any]) -> bytes:
        parts: list[bytes] = []
        separator = b"{\n\t"
        for name, value in members.items():
            if value is ROWS:
                texts = self._texts[name]
                if not texts and name in self._optional:
                    continue
                parts += (separator, f"{encode_basestring(name)}:{{{_ROW_LINE}".encode())
                parts += (b",\n\t\t".join(texts.values()), b"\n\t}")
            else:
                parts += (separator, f"{encode_basestring(name)}:{config_table.pretty(value, _LINE)}".encode())
            separator = b",\n\t"
        parts.append(b"\n}" if parts else b"{\n\t\n}")
        return b"".join(parts)
