"""Streaming queries over the stores of real brokers whose master is killed and whose logs are cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import SparkSession

from rmqha.drill.audit import records
from rmqha.drill.cluster import BROKERS, Cluster, Failover, quickstart, until
from rmqha.drill.traffic import DirectAnswers, DirectSender, DrillTraffic
from rmqha.scan.api import open_store
from rmqha.spark import session
from rmqha.spark.errors import translate
from tests.chaos.conftest import Tell
from tests.spark.test_stream import SLOW_START, STARTS
from tests.support.patience import HANG_S

pytestmark = [pytest.mark.chaos, pytest.mark.spark]
DIRECT_TIMEOUT_MS = 2_000
ALONE = 100
"""Messages that only the master that will die has."""
COLUMNS = ("physicalOffset", "topic", "queueId", "queueOffset", "body")
Row = tuple[int, str, int, int, bytes]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    started = session("faults", cores="2", settings={"spark.sql.shuffle.partitions": "2"})
    yield started
    started.stop()


class LogQuery:
    """A query from one replica's store into Parquet files, as fast as the log grows."""

    def __init__(self, spark: SparkSession, store: Path, directory: Path) -> None:
        self._spark, self._sink = spark, str(directory / "sink")
        frame = spark.readStream.format("commitlog").option("columns", ",".join(COLUMNS)).load(str(store))
        stream = frame.writeStream.format("parquet").option("path", self._sink)
        stream = stream.option("checkpointLocation", str(directory / "checkpoint"))
        self._stream = stream.trigger(processingTime="200 milliseconds")
        self._query = self._stream.start()
        self._starts_left = STARTS - 1

    @property
    def position(self) -> int:
        """How far its last batch read."""
        last: Any = self._query.lastProgress
        ends = json.loads(last["sources"][0]["endOffset"]) if last else {}
        return max((place["physicalOffset"] for place in ends.values()), default=0)

    @property
    def sentence(self) -> str:
        """Why it ended, "" while it runs."""
        error = self._query.exception()
        return "" if error is None else str(translate(error))

    def stop(self) -> None:
        self._query.stop()

    def rows(self) -> list[Row]:
        found = self._spark.read.parquet(self._sink).select(*COLUMNS).collect()
        return sorted((row[0], row[1], row[2], row[3], bytes(row[4])) for row in found)

    async def reaches(self, end: int) -> None:
        async def there() -> bool:
            sentence = await trio.to_thread.run_sync(lambda: self.sentence)
            if SLOW_START in sentence and self._starts_left and not self.position:
                self._starts_left -= 1
                self._query = await trio.to_thread.run_sync(self._stream.start)
                return False
            assert not sentence, sentence
            return await trio.to_thread.run_sync(lambda: self.position) >= end

        await until(there, f"the query at {end}")

    async def ends(self) -> str:
        return await until(lambda: trio.to_thread.run_sync(lambda: self.sentence), "the end of the query")


def rows_of(store: Path, end: int) -> list[Row]:
    return [(r.phy_offset, r.topic, r.queue_id, r.queue_offset, bytes(r.body)) for r in records(store, end)]


async def acknowledges(direct: DirectAnswers, more: int) -> None:
    wanted = len(direct.acked) + more

    async def enough() -> bool:
        await trio.lowlevel.checkpoint()
        return len(direct.acked) >= wanted

    await until(enough, f"{more} messages that a master alone acknowledges")


async def test_queries_go_on_through_a_kill_of_the_master_in_cp(
    spark: SparkSession, tmp_path: Path, tell: Tell
) -> None:
    """Over the store of the master that is killed and comes back as a slave, its unconfirmed tail cut, and over that
    of a slave, which may be elected: each record of the log once, whatever happens."""
    with trio.fail_after(HANG_S), Cluster.of(quickstart("cp"), tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            victim = await cluster.master()
            names = [victim, next(name for name in BROKERS if name != victim)]
            queries = [LogQuery(spark, cluster.store(name), tmp_path / f"query-{name}") for name in names]
            for query in queries:
                await query.reaches(1)
            killed_at_ms = await cluster.kill(victim)
            failover = Failover(victim, killed_at_ms, await cluster.master(without=victim))
            await traffic.goes_on()
            await cluster.start(victim)
            await traffic.goes_on()
        await cluster.wait_healthy()
        end = await cluster.wait_level()
        tell(failover.line(await cluster.phases(failover, traffic.stamps)))
        cut = (await cluster.replica_states([victim]))[victim].truncated_bytes or 0
        for query, name in zip(queries, names, strict=True):
            await query.reaches(end)
            query.stop()
            assert query.rows() == rows_of(cluster.store(name), end)
        tell(
            f"{len(rows_of(cluster.store(victim), end))} records, {cut} bytes of a tail cut, read once by both queries"
        )


async def test_a_query_says_where_a_log_was_cut_that_it_had_read_in_ap(
    spark: SparkSession, tmp_path: Path, tell: Tell
) -> None:
    """A master that sees nobody any more goes on alone in AP, and the query reads what only it has. It is killed, the
    other replica is elected, and the tail is cut."""
    with trio.fail_after(HANG_S), Cluster.of(quickstart("ap", 2), tmp_path) as cluster:
        await cluster.up()
        traffic, direct = DrillTraffic(), DirectAnswers()
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            alone = await cluster.master()
        level = await cluster.wait_level()
        query = LogQuery(spark, cluster.store(alone), tmp_path / "query")
        await query.reaches(level)
        # frozen, they would read after the thaw what waits in their sockets
        other = next(node.name for node in cluster.state.brokers if node.name != alone)
        await cluster.kill("ns-1", other)
        async with trio.open_nursery() as nursery:
            sender = DirectSender(cluster.state.node(alone).address, direct.heard)
            nursery.start_soon(sender.run, DIRECT_TIMEOUT_MS)
            await query.reaches(level + 1)
            await acknowledges(direct, ALONE)
            await query.reaches(query.position + 1)
            nursery.cancel_scope.cancel()
        await cluster.kill(alone)
        cluster.launch("ns-1", other)
        elected = await cluster.master(without=alone)
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            read = query.position
            await cluster.start(alone)
            sentence = await query.ends()
        (_, _), (epoch, cut) = open_store(str(cluster.store(elected))).epochs
        tell(f"{read - cut} bytes of a tail read and cut at {cut}: {sentence}")
        assert level <= cut < read
        told = re.search(r"(\d+) had been read, of epoch 1", sentence)
        # a batch may be under way when the log is cut
        assert sentence.startswith(str(cluster.store(alone))) and told is not None and int(told[1]) >= read, sentence
        assert f"epoch {epoch} from {cut} wrote" in sentence or f"what was read behind {cut} was cut" in sentence
        rows = query.rows()
        assert [row for row in rows if row[0] < cut] == rows_of(cluster.store(elected), cut)
        forked = [row for row in rows if row[0] >= cut]
        assert forked and all(row[4] == b"direct" for row in forked) and len(set(forked)) == len(forked)
