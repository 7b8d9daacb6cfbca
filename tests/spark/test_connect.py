"""Spark Connect: a client without a JVM of its own, whose server plans and reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rmqha.scan.api import open_store, read_store
from rmqha.spark.java import java_home
from tests.store.support import unpack
from tests.support.command import output_of

CLIENT = """
import json, sys
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
import rmqha.spark

root, target, damaged = sys.argv[1:]
builder = SparkSession.builder.remote("local[2]")
for name, value in (
    ("spark.ui.enabled", "false"),
    ("spark.sql.session.timeZone", "UTC"),
    ("spark.sql.shuffle.partitions", "2"),
):
    builder = builder.config(name, value)
spark = rmqha.spark.register(builder.getOrCreate())
plain = spark.read.format("commitlog").option("columns", "topic,msgId").load(root)
told = {"module": type(spark).__module__, "plain": sorted(row.msgId for row in plain.collect())}
asked = rmqha.spark.sql(spark, "select topic, count(*) n from log group by topic", root)
told["sql"] = {row.topic: row.n for row in asked.collect()}
order = rmqha.spark.read(spark, root, columns=["queueOffset", "body"], where="topic = 'GoldOrder'")
told["read"] = order.count()
rmqha.spark.tables(spark, root)
told["groups"] = spark.sql("select count(*) n from groups").first().n
spark.sql("select 'T' topic, 'x' body").write.format("commitlog").mode("append").save(target)
told["written"] = spark.read.format("commitlog").load(target).count()
try:
    spark.read.format("commitlog").load(damaged).count()
except PySparkException as error:
    told["damage"] = str(rmqha.spark.translate(error))
print(json.dumps(told))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.chaos
def test_a_client_reads_asks_and_writes(tmp_path: Path) -> None:
    golden = unpack("n0", tmp_path) / "n0"
    damaged = unpack("n1", tmp_path) / "n1"
    file = min((damaged / "commitlog").iterdir())
    content = bytearray(file.read_bytes())
    content[95] ^= 1
    file.write_bytes(content)
    command = [sys.executable, "-c", CLIENT, str(golden), str(tmp_path / "new"), str(damaged)]
    # its server's workers have to find rmqha: a client cannot tell them which Python does
    found = {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    lines = output_of(command, tmp_path, found)
    told = json.loads(lines[-1])
    rows = [row for batch in read_store(open_store(str(golden))) for row in batch.to_pylist()]
    assert told["module"].startswith("pyspark.sql.connect")
    assert told["plain"] == sorted(row["msgId"] for row in rows)
    assert sum(told["sql"].values()) == len(rows) and told["sql"]["GoldOrder"] == told["read"] == 100
    assert told["groups"] > 0 and told["written"] == 1
    assert told["damage"].startswith(f"{file} at physical offset 0: expected body CRC")
