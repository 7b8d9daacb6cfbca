"""A log without Spark: into pandas, polars or DuckDB, batch by batch.

python examples/log_frames.py data/broker-a-1/store --into duckdb
"""

from __future__ import annotations

import argparse
from typing import Any

import pyarrow as pa

from rmqha.scan.api import Decoding, open_store, read_store

DECODING = Decoding(("topic", "queueId", "queueOffset", "storeSize", "storeTimestamp", "tags"))


def batches(store: str) -> Any:
    """A RecordBatchReader: nothing is read before it is asked for, and nothing is kept."""
    return pa.RecordBatchReader.from_batches(DECODING.schema, read_store(open_store(store), DECODING))


def by_pandas(store: str) -> Any:
    frame = batches(store).read_pandas()
    return frame.groupby("topic")["storeSize"].agg(["count", "sum"])


def by_polars(store: str) -> Any:
    import polars as pl

    return pl.from_arrow(batches(store).read_all()).group_by("topic").agg(pl.len(), pl.col("storeSize").sum())


def by_duckdb(store: str) -> Any:
    import duckdb

    return duckdb.from_arrow(batches(store)).aggregate("topic, count(*), sum(storeSize)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--into", choices=("pandas", "polars", "duckdb"), default="pandas")
    given = parser.parse_args()
    print({"pandas": by_pandas, "polars": by_polars, "duckdb": by_duckdb}[given.into](given.store))


if __name__ == "__main__":
    main()
