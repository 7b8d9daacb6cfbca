"""Tables beside the log, of stores that RocketMQ wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqha.model.error import StoreError
from rmqha.scan.access.tables import SCHEMAS, table
from rmqha.scan.api import open_store, read_store
from tests.scan.test_api import GOLDEN
from tests.store.support import unpack


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("golden")
    unpack("n1", root)
    return unpack("n0", root) / "n0"


def test_offsets_have_the_groups_lag(golden: Path) -> None:
    view = open_store(str(golden))
    rows = table("offsets", [view]).to_pylist()
    ends: dict[tuple[str, int], int] = {}
    for batch in read_store(view):
        for row in batch.to_pylist():
            key = row["topic"], row["queueId"]
            ends[key] = max(ends.get(key, 0), row["queueOffset"] + 1)
    known = {(row["consumerGroup"], row["topic"], row["queueId"]): row for row in rows}
    assert [known["GID_gold", "GoldNormal", queue]["consumerOffset"] for queue in range(4)] == [90, 100, 90, 80]
    assert len(rows) > 8
    for row in rows:
        if row["maxOffset"] is not None:
            assert row["maxOffset"] == ends.get((row["topic"], row["queueId"]), row["minOffset"])
            assert row["lag"] == max(row["maxOffset"] - row["consumerOffset"], 0)


def test_topics_queues_and_groups(golden: Path) -> None:
    view = open_store(str(golden))
    topics = {row["topic"]: row for row in table("topics", [view]).to_pylist()}
    assert topics["GoldNormal"]["messageCount"] == 360 and topics["GoldNormal"]["perm"] == 6
    assert json.loads(topics["GoldBatchCQ"]["attributes"]) == {"queue.type": "BatchCQ"}
    assert topics["GoldBatchCQ"]["messageCount"] == 45
    queues = table("queues", [view]).to_pylist()
    assert sum(row["maxOffset"] for row in queues if row["topic"] == "GoldNormal") == 360
    groups = {row["consumerGroup"]: row for row in table("groups", [view]).to_pylist()}
    assert groups["SELF_TEST_C_GROUP"]["consumeEnable"] is True


def test_epochs_and_replicas(golden: Path) -> None:
    views = [open_store(str(golden)), open_store(str(golden.parent / "n1"))]
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    epochs = table("epochs", views).to_pylist()
    assert [row["startOffset"] for row in epochs] == [entry["startOffset"] for entry in manifest["epochs"]]
    assert epochs[-1]["endOffset"] == views[0].end_offset
    replicas = table("replicas", views).to_pylist()
    assert {row["path"] for row in replicas} == {view.root for view in views}
    assert len({row["brokerId"] for row in replicas}) == 2 and {row["behindBytes"] for row in replicas} == {0}


def test_a_damaged_table_is_read_from_its_copy(golden: Path) -> None:
    view = open_store(str(golden))
    before = table("offsets", [view])
    path = golden / "config/consumerOffset.json"
    kept = path.read_bytes()
    try:
        path.write_bytes(b"{ no json")
        assert table("offsets", [view]).num_rows >= before.num_rows - 4
        Path(f"{path}.bak").write_bytes(b"{ no json")
        with pytest.raises(StoreError, match=r"consumerOffset\.json cannot be read"):
            table("offsets", [view])
    finally:
        path.write_bytes(kept)


def test_a_store_without_tables_has_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    view = open_store(str(tmp_path))
    for name in SCHEMAS:
        assert table(name, [view]).num_rows == (name == "replicas")
