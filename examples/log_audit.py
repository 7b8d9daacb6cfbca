"""Was every acknowledged message kept? The list that `rmqha send --acked` wrote, against the log of a broker.

    python examples/log_audit.py acked.jsonl data/broker-a-1/store

Exit code 1 if a message is missing, moved or out of order.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession

import rmqha.spark
from rmqha.spark import Audit

COLUMNS = "brokerName,topic,queueId,queueOffset,physicalOffset,msgId"


def run(spark: SparkSession, acked: str, stores: list[str]) -> Audit:
    log = spark.read.format("commitlog").option("columns", COLUMNS).load(stores)
    return rmqha.spark.audit(spark, log, acked)


def show(found: Audit) -> None:
    print(f"{found.acked_count:,} acknowledged, {found.log_count:,} in the log of their topics")
    findings = (
        ("missing", found.missing_count, found.missing),
        ("misplaced", found.misplaced_count, found.misplaced),
        ("disorder", found.disorder_count, found.disorder),
        ("duplicates", found.duplicate_count, found.duplicates),
    )
    for what, count, rows in findings:
        print(f"{what:<12}{count:>8,}", *rows[:3], sep="  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("acked", help="JSON lines: msgId, and where known topic, queueId, queueOffset, sendStatus")
    parser.add_argument("stores", nargs="+", help="data directories, one replica of each group is enough")
    given = parser.parse_args()
    spark = rmqha.spark.session("log audit")
    found = run(spark, given.acked, given.stores)
    show(found)
    spark.stop()
    sys.exit(0 if found.ok else 1)


if __name__ == "__main__":
    main()
