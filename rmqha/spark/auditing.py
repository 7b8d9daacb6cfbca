"""Proof that every acknowledged message was kept: the list that a producer wrote is compared with the log.

The list has one JSON object per line, as `rmqha send --acked` writes it: msgId, and where known topic, queueId,
queueOffset and sendStatus. Only SEND_OK is an acknowledgement; a line without sendStatus counts as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

ACKED_SCHEMA = "msgId string, topic string, queueId int, queueOffset bigint, offsetMsgId string, sendStatus string"
SHOWN_COUNT = 20
SYSTEM_TOPICS = "^(%RETRY%|%DLQ%|RMQ_SYS_|SCHEDULE_TOPIC_XXXX|TRANS_CHECK_MAX_TIME_TOPIC|rmq_sys_|CID_)"


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit: counts, and the first few rows of each finding."""

    acked_count: int
    log_count: int
    """Number of records of the audited topics."""
    missing_count: int
    missing: list[dict[str, Any]]
    """Acknowledged messages that are not in the log: lost."""
    misplaced_count: int
    misplaced: list[dict[str, Any]]
    """Messages for which the log holds another one, or none, where the acknowledgement said it is."""
    duplicate_count: int
    duplicates: list[dict[str, Any]]
    """Messages with the same msgId more than once in one topic: a producer's retry. Not a loss."""
    disorder_count: int
    disorder: list[dict[str, Any]]
    """Records whose queueOffset does not follow that of the record before them in their queue."""

    @property
    def ok(self) -> bool:
        """True if nothing is lost, moved or out of order; duplicates are allowed."""
        return not (self.missing_count or self.misplaced_count or self.disorder_count)


def audit(spark: SparkSession, log: DataFrame, acked: str | DataFrame) -> Audit:
    """Compare `acked` (a file, or a DataFrame with such columns) with `log` (a commitlog DataFrame; it needs the
    columns brokerName, topic, queueId, queueOffset, physicalOffset and msgId)."""
    listed = spark.read.schema(ACKED_SCHEMA).json(acked) if isinstance(acked, str) else acked
    listed = listed.where("msgId is not null and coalesce(sendStatus, 'SEND_OK') = 'SEND_OK'").cache()
    topics = [row.topic for row in listed.select("topic").distinct().collect() if row.topic is not None]
    chosen = sf.col("topic").isin(topics) if topics else ~sf.col("topic").rlike(SYSTEM_TOPICS)
    held = log.select("brokerName", "topic", "queueId", "queueOffset", "physicalOffset", "msgId").where(chosen).cache()
    try:
        missing, missing_count = _some(listed.join(held, "msgId", "left_anti"))
        misplaced, misplaced_count = _some(_misplaced(listed, held))
        duplicates, duplicate_count = _some(_duplicates(held))
        disorder, disorder_count = _some(_disorder(held))
        return Audit(
            acked_count=listed.count(),
            log_count=held.count(),
            missing_count=missing_count,
            missing=missing,
            misplaced_count=misplaced_count,
            misplaced=misplaced,
            duplicate_count=duplicate_count,
            duplicates=duplicates,
            disorder_count=disorder_count,
            disorder=disorder,
        )
    finally:
        listed.unpersist()
        held.unpersist()


def _misplaced(listed: DataFrame, held: DataFrame) -> DataFrame:
    """Acknowledged positions that the log does not confirm; a message that is missing altogether is not repeated."""
    placed = listed.where("topic is not null and queueId is not null and queueOffset is not null")
    kept = placed.join(held.select("msgId"), "msgId", "left_semi")
    return kept.join(held, ["topic", "queueId", "queueOffset", "msgId"], "left_anti")


def _duplicates(held: DataFrame) -> DataFrame:
    grouped = held.groupBy("topic", "msgId").agg(
        sf.count("*").alias("copies"), sf.sort_array(sf.collect_list("physicalOffset")).alias("physicalOffsets")
    )
    return grouped.where("copies > 1")


def _disorder(held: DataFrame) -> DataFrame:
    along = Window.partitionBy("brokerName", "topic", "queueId").orderBy("physicalOffset")
    before = held.withColumn("previousQueueOffset", sf.lag("queueOffset").over(along))
    return before.where("queueOffset <> previousQueueOffset + 1")


def _some(found: DataFrame) -> tuple[list[dict[str, Any]], int]:
    """The first rows as dictionaries, and how many there are."""
    count = found.count()
    return ([row.asDict() for row in found.limit(SHOWN_COUNT).collect()] if count else []), count
