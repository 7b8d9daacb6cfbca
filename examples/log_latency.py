"""How much each topic holds and how long its messages took from producer to broker, and a chart of the volume in time.

    python examples/log_latency.py data/broker-a-1/store --minutes 5

Latency is storeTimestamp minus bornTimestamp: it holds the difference between the two machines' clocks.
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import rmqha.spark

COLUMNS = "topic,bornTimestamp,storeTimestamp,storeSize"
BAR_WIDTH = 60


def load(spark: SparkSession, stores: list[str]) -> DataFrame:
    return spark.read.format("commitlog").option("columns", COLUMNS).load(stores)


def topics(log: DataFrame) -> list[Any]:
    """A row for each topic: messages, bytes, and milliseconds at p50, p99 and most."""
    taken = sf.expr("unix_millis(storeTimestamp) - unix_millis(bornTimestamp)")
    found = log.groupBy("topic").agg(
        sf.count("*").alias("messages"),
        sf.sum("storeSize").alias("bytes"),
        sf.percentile_approx(taken, 0.5).alias("p50"),
        sf.percentile_approx(taken, 0.99).alias("p99"),
        sf.max(taken).alias("most"),
    )
    return found.orderBy("bytes", ascending=False).collect()


def volume(log: DataFrame, minutes: int) -> list[Any]:
    """A row for each stretch of time: its begin and how many messages were stored in it."""
    begin = f"window(storeTimestamp, '{minutes} minutes').start"
    return log.selectExpr(f"{begin} begin").groupBy("begin").count().orderBy("begin").collect()


def chart(rows: list[Any]) -> list[str]:
    """A bar for each stretch, the longest BAR_WIDTH wide."""
    most = max((row["count"] for row in rows), default=1)
    return [
        f"{row.begin:%m-%d %H:%M}  {'█' * max(round(BAR_WIDTH * row['count'] / most), 1)} {row['count']:,}"
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+")
    parser.add_argument("--minutes", type=int, default=1, help="length of a bar of the chart")
    given = parser.parse_args()
    spark = rmqha.spark.session("log latency")
    log = load(spark, given.stores)
    print(f"{'topic':<32}{'messages':>12}{'MiB':>10}{'p50 ms':>8}{'p99 ms':>8}{'most':>8}")
    for row in topics(log):
        numbers = f"{row.messages:>12,}{row.bytes / 2**20:>10,.1f}{row.p50:>8,}{row.p99:>8,}{row.most:>8,}"
        print(f"{row.topic:<32}{numbers}")
    print(*chart(volume(log, given.minutes)), sep="\n")
    spark.stop()


if __name__ == "__main__":
    main()
