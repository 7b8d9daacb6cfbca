"""An archive as an Iceberg table, by the package pyiceberg: no Spark, no Java.

The catalog is an SQLite file of the archive's own, `_rmqha/catalog.db`, or one that pyiceberg's configuration names. A
batch is one transaction, which also sets the table's property `rmqha.batch` to the batch's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import Table

from rmqha.model.error import StoreError, UsageError
from rmqha.spark.lake.files import STATE, ArchiveFiles
from rmqha.spark.lake.formats import BatchRows
from rmqha.spark.lake.manifest import Manifest, Stretch
from rmqha.spark.lake.table import TableRows

NAMESPACE, NAME = "rmqha", "messages"
BATCH = "rmqha.batch"


class IcebergFormat:
    """Format of an archive as the Iceberg table rmqha.messages, whose files lie in the target."""

    def __init__(self, target: ArchiveFiles, by: Sequence[str], catalog: str = "") -> None:
        """`catalog` is a name of pyiceberg's configuration. UsageError for an address without one."""
        self._target, self._by = target, tuple(by)
        if not catalog and not target.is_local:
            raise UsageError(f"an Iceberg archive at {target.address} needs --catalog, a name that pyiceberg knows")
        self._catalog_name = catalog

    def _catalog(self) -> Catalog:
        if self._catalog_name:
            return load_catalog(self._catalog_name)
        database = self._target.local_path(f"{STATE}/catalog.db")
        database.parent.mkdir(parents=True, exist_ok=True)
        place = self._target.local_path("").resolve()
        return SqlCatalog("rmqha", uri=f"sqlite:///{database}", warehouse=f"file://{place}")

    def _table(self, catalog: Catalog) -> Table | None:
        try:
            return catalog.load_table((NAMESPACE, NAME))
        except NoSuchTableError:
            return None

    def open_batch(self, number: int) -> TableRows:
        """Rows of a batch, in memory."""
        return TableRows(self._by)

    def publish(self, manifest: Manifest, rows: BatchRows) -> None:
        """Commit the rows. UsageError if the table has other columns."""
        assert isinstance(rows, TableRows)
        if not rows.row_count:
            return
        try:
            with self._catalog() as catalog:
                found = self._table(catalog) or self._made(catalog, rows.table.schema)
                with found.transaction() as change:
                    change.append(rows.table)
                    change.set_properties({BATCH: str(manifest.number)})
        except ValueError as error:
            raise UsageError(f"{self._target.address} takes no more rows: {str(error).splitlines()[0]}") from None

    def _made(self, catalog: Catalog, schema: Any) -> Table:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(NAMESPACE)
        with (
            catalog.create_table_transaction((NAMESPACE, NAME), schema, location=self._location) as change,
            change.update_spec() as spec,
        ):
            for name in self._by:
                spec.add_identity(name)
        return catalog.load_table((NAMESPACE, NAME))

    @property
    def _location(self) -> str:
        return f"file://{self._target.local_path('').resolve()}" if self._target.is_local else self._target.address

    def finish(self, manifest: Manifest) -> bool:
        """Ask the table for the last batch that it has."""
        with self._catalog() as catalog:
            table = self._table(catalog)
        last = 0 if table is None else int(table.properties.get(BATCH, 0))
        if last > manifest.number:
            raise StoreError(f"{self._target.address} has batch {last}, and {manifest.number} is pending")
        return last == manifest.number

    def compact(self, manifests: Sequence[Manifest]) -> Manifest | None:
        """Raise UsageError: pyiceberg cannot compact."""
        raise UsageError(
            "pyiceberg cannot join the files of an Iceberg table: let Spark do it (call system.rewrite_data_files)"
        )

    def rows_of(self, manifest: Manifest, stretches: Sequence[Sequence[Stretch]] | None) -> Iterator[Any]:
        """Ask the table for each stretch."""
        with self._catalog() as catalog:
            table = self._table(catalog)
        if table is None:
            raise StoreError(f"{self._target.address}: the Iceberg table is gone")
        kept = tuple(field.name for field in table.schema().fields if field.name not in ("day", "hour"))
        for wanted in [None] if stretches is None else stretches:
            scan = table.scan(selected_fields=kept)
            found = (scan if wanted is None else scan.filter(_inside(wanted))).to_arrow()
            yield found.cast(pa.schema([_narrow(field) for field in found.schema]))


def _narrow(field: Any) -> Any:
    """The field with strings in place of the large strings that Iceberg's reader gives."""
    kinds = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    if pa.types.is_large_list(field.type) or pa.types.is_list(field.type):
        return pa.field(field.name, pa.list_(pa.field("element", pa.string())))
    return pa.field(field.name, kinds.get(field.type, field.type))


_MAKERS: Any = expressions
"""Their constructors take names and values, which their types do not say."""


def _inside(wanted: Sequence[Stretch]) -> Any:
    found = _MAKERS.AlwaysFalse()
    for item in wanted:
        part = _MAKERS.And(
            _MAKERS.GreaterThanOrEqual("physicalOffset", item.low), _MAKERS.LessThan("physicalOffset", item.high)
        )
        if item.broker_name is not None:
            part = _MAKERS.And(part, _MAKERS.EqualTo("brokerName", item.broker_name))
        found = _MAKERS.Or(found, part)
    return found
