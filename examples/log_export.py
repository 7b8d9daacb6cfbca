"""The log as Parquet files, a directory for each topic and day: what a lake or a warehouse takes.

    python examples/log_export.py data/broker-a-1/store /lake/messages --topic orders --topic payments

A second export of the same days replaces them and leaves the other ones.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

import rmqha.spark

COLUMNS = "topic,queueId,queueOffset,msgId,keys,tags,bornTimestamp,storeTimestamp,properties,body"


def run(spark: SparkSession, stores: list[str], target: str, topics: list[str]) -> None:
    reader = spark.read.format("commitlog").option("columns", COLUMNS).option("propertiesAs", "map")
    if topics:
        reader = reader.option("topic", ",".join(topics))
    days = reader.load(stores).selectExpr("*", "to_date(storeTimestamp) day")
    days.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("topic", "day").parquet(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+")
    parser.add_argument("target")
    parser.add_argument("--topic", action="append", default=[], help="only this one; may be given several times")
    given = parser.parse_args()
    spark = rmqha.spark.session("log export")
    run(spark, given.stores, given.target, given.topic)
    print(f"{spark.read.parquet(given.target).count():,} messages in {given.target}")
    spark.stop()


if __name__ == "__main__":
    main()
