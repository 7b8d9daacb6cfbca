"""The demo's proof: what Spark finds in the log against what went in and what was acknowledged."""

from __future__ import annotations

import filecmp
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from demo_data import Aggregates, Input

TOLERANCE = 1e-9
SHOWN = 3


@dataclass(frozen=True)
class Claim:
    """One sentence that is true or not, with what was found."""

    words: str
    holds: bool
    found: str
    cp_only: bool = False
    """AP does not promise it: a master that dies takes what it acknowledged alone with it."""


def read_acked(path: Path, topic: str) -> list[dict[str, Any]]:
    """What `rmqha send --acked` wrote, with the topic."""
    with path.open(encoding="utf-8") as file:
        return [{"topic": topic, **json.loads(line)} for line in file]


def spark_claims(store: Path, acked: list[dict[str, Any]], given: Input, scratch: Path) -> list[Claim]:
    """Every acknowledged record, and the aggregates, against the log in `store`, by Spark."""
    from rmqha.spark import audit, session

    path = scratch / "acked-all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in acked), encoding="utf-8")
    # a few partitions are plenty for so few records, and each costs a task
    spark = session("rmqha demo", settings={"spark.sql.shuffle.partitions": "4"})
    try:
        log = spark.read.format("commitlog").load(str(store))
        log.createOrReplaceTempView("log")
        found = audit(spark, log, str(path))
        aggregates = {
            (row["topic"], row["bucket"]): (row["count"], row["mean"]) for row in spark.sql(given.sql).collect()
        }
    finally:
        spark.stop()
    return [
        Claim(
            "every acknowledged record is in the log",
            found.missing_count == 0,
            f"{found.acked_count:,} acknowledged, {found.log_count:,} in the log, {found.missing_count:,} lost",
            cp_only=True,
        ),
        Claim(
            "each is where its acknowledgement said",
            found.misplaced_count == 0,
            f"{found.misplaced_count:,} elsewhere",
            cp_only=True,
        ),
        Claim("queues have no gap", found.disorder_count == 0, f"{found.disorder_count:,} gaps"),
        Claim(
            "a record is there once, or is a counted duplicate of a retry",
            found.log_count == len({row["msgId"] for row in acked}) - found.missing_count + _copies(found.duplicates),
            f"{found.duplicate_count:,} duplicated",
        ),
        _order_claim(acked, given),
        _aggregates_claim(aggregates, given.expected),
    ]


def _copies(duplicates: list[dict[str, Any]]) -> int:
    return sum(int(row["copies"]) - 1 for row in duplicates)


def _order_claim(acked: list[dict[str, Any]], given: Input) -> Claim:
    """Records of one lane must lie in one queue in the order in which they were sent."""
    lanes: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    names = {topic.name: topic.lanes for topic in given.topics}
    for row in acked:
        lane = names[row["topic"]][row["line"] - 1]
        lanes[row["topic"], lane].append((row["line"], row["queueId"], row["queueOffset"]))
    wrong = 0
    for rows in lanes.values():
        rows.sort()
        wrong += sum(1 for before, after in pairwise(rows) if before[1] != after[1] or before[2] >= after[2])
    return Claim(
        "records of one lane lie in one queue, in sending order", wrong == 0, f"{len(lanes)} lanes, {wrong} swaps"
    )


def _aggregates_claim(found: Aggregates, expected: Aggregates) -> Claim:
    """The aggregates that Spark computed from the log against those of the input."""
    differing = [key for key in expected.keys() | found.keys() if not _same(expected.get(key), found.get(key))]
    shown = ", ".join(
        f"{'/'.join(key)}: {expected.get(key)} sent, {found.get(key)} in the log" for key in sorted(differing)[:SHOWN]
    )
    return Claim(
        "counts and means from the log equal those of the input",
        not differing,
        shown or f"{len(found)} groups",
        cp_only=True,
    )


def _same(one: tuple[int, float | None] | None, other: tuple[int, float | None] | None) -> bool:
    if one is None or other is None or one[0] != other[0]:
        return False
    if one[1] is None or other[1] is None:
        return one[1] is other[1]
    return math.isclose(one[1], other[1], rel_tol=TOLERANCE)


def identical_claim(stores: list[Path]) -> Claim:
    """All replicas hold one and the same log, byte for byte."""
    first, *others = stores
    names = sorted(path.name for path in (first / "commitlog").iterdir())
    same = all(
        sorted(path.name for path in (other / "commitlog").iterdir()) == names
        and filecmp.cmpfiles(first / "commitlog", other / "commitlog", names, shallow=False)[0] == names
        for other in others
    )
    size = sum((first / "commitlog" / name).stat().st_size for name in names)
    return Claim("the three replicas' logs are the same bytes", same, f"{len(names)} file(s), {size:,} bytes each")
