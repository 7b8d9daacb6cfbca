"""Rows of a batch for an archive that is a table: in memory, with the columns that the table is parted by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rmqha.spark.lake.formats import part_of

MADE = ("day", "hour")


class TableRows:
    """Rows of one batch in memory; implements BatchRows. Nothing is written before the batch is complete."""

    def __init__(self, by: Sequence[str]) -> None:
        self._made = [name for name in by if name in MADE]
        self._batches = list[Any]()
        self.files = dict[str, str]()
        self.row_count = 0

    def add(self, batch: Any) -> None:
        """Keep a RecordBatch, with the days or hours of its rows."""
        for name in self._made:
            batch = batch.append_column(name, part_of(batch, name))
        self._batches.append(batch)
        self.row_count += batch.num_rows

    def close(self) -> None:
        """Do nothing: no file is open."""

    @property
    def table(self) -> Any:
        """All rows as one table; there must be one at least."""
        return pa.Table.from_batches(self._batches)
