"""A store that the Spark writer made, opened by Apache's broker and read by its consumer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rmqha.spark.writer import CommitLogWriter
from rmqha.store.config import StoreConfig
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import FILE_BYTES, QUEUE_FILE_BYTES, Lab
from tests.interop.lab.lines import consumed
from tests.interop.lab.processes import until

pytestmark = pytest.mark.interop

MESSAGES = 500


def write(root: Path) -> None:
    """Rows written as a task and the driver of Spark write them."""
    rows = [
        {"topic": "Replayed", "body": f"{number} row".encode(), "queueId": number % 4, "keys": [f"k{number}"]}
        for number in range(MESSAGES)
    ]
    config = StoreConfig(
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
        max_hash_slot_num=2000,
        max_index_num=8000,
    )
    CommitLogWriter(str(root), config, overwrite=False).write_table(pa.Table.from_pylist(rows))


def test_apaches_broker_serves_what_spark_wrote(lab: Lab) -> None:
    lab.start_our_name_server()
    node = lab.java_broker("java")
    write(node.store)
    lab.run(node)
    is_master(lab, node)
    consumer = lab.client("Consume", "Replayed", "push", "readers")
    until("all is read", lambda: consumed(consumer) == set(range(MESSAGES)), TIMEOUT_S, consumer, node.running)
    code, text, errors = lab.mqadmin("queryMsgByKey", "-t", "Replayed", "-k", "k7", "-n", lab.name_server)
    assert code == 0 and text.count("Replayed") + text.count("@Repl") >= 1, text + errors
