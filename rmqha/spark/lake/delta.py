"""An archive as a Delta table, by the package deltalake: no Spark, no Java.

A batch is one commit, which also sets the table's transaction number of this archiver to the batch's: by it the table
itself says whether a batch counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from rmqha.model.error import StoreError, UsageError
from rmqha.spark.lake.files import ArchiveFiles
from rmqha.spark.lake.formats import BatchRows, inside
from rmqha.spark.lake.manifest import Manifest, Stretch
from rmqha.spark.lake.table import TableRows

APP_ID = "rmqha-archive"


class DeltaFormat:
    """Format of an archive as a Delta table, in the target's directory beside `_rmqha`, which Delta's readers
    ignore."""

    def __init__(self, target: ArchiveFiles, by: Sequence[str]) -> None:
        self._target, self._by = target, tuple(by)
        self._options = {name: str(value) for name, value in target.storage_options.items()}

    def _table(self) -> DeltaTable | None:
        if not DeltaTable.is_deltatable(self._target.address, self._options or None):
            return None
        return DeltaTable(self._target.address, storage_options=self._options or None)

    def open_batch(self, number: int) -> TableRows:
        """Rows of a batch, in memory."""
        return TableRows(self._by)

    def publish(self, manifest: Manifest, rows: BatchRows) -> None:
        """Commit the rows. UsageError if the table has other columns."""
        assert isinstance(rows, TableRows)
        if not rows.row_count:
            return
        properties = CommitProperties(app_transactions=[Transaction(APP_ID, manifest.number)])
        try:
            write_deltalake(
                self._target.address,
                rows.table,
                mode="append",
                partition_by=list(self._by) or None,
                commit_properties=properties,
                storage_options=self._options or None,
            )
        except (DeltaError, pa.ArrowInvalid, ValueError) as error:
            raise UsageError(f"{self._target.address} takes no more rows: {str(error).splitlines()[0]}") from None

    def finish(self, manifest: Manifest) -> bool:
        """Ask the table for the last batch that it has."""
        table = self._table()
        last = None if table is None else table.transaction_version(APP_ID)
        if last is not None and last > manifest.number:
            raise StoreError(f"{self._target.address} has batch {last}, and {manifest.number} is pending")
        return last == manifest.number

    def compact(self, manifests: Sequence[Manifest]) -> Manifest | None:
        """Join small files in one commit; the old ones stay until somebody vacuums the table."""
        table = self._table()
        if table is not None:
            table.optimize.compact()
        return None

    def rows_of(self, manifest: Manifest, stretches: Sequence[Sequence[Stretch]] | None) -> Iterator[Any]:
        """Ask the table for each stretch."""
        table = self._table()
        if table is None:
            raise StoreError(f"{self._target.address}: the Delta table is gone")
        rows = table.to_pyarrow_dataset()
        kept = [name for name in rows.schema.names if name not in ("day", "hour")]
        for wanted in [None] if stretches is None else stretches:
            yield rows.to_table(kept, filter=None if wanted is None else inside(wanted, by_name=True))
