"""The name server's page beside real processes: a message is found, a killed master is seen and told."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_S


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path, http=True)
    yield found
    found.down()


def until(stream: HTTPResponse, well: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first live document that is `well`."""
    deadline = time.monotonic() + HANG_S
    document: dict[str, Any] = {}
    name = b""
    for line in stream:
        if line.startswith(b"event: "):
            name = line
        elif line == b"\n":
            name = b""
        elif line.startswith(b'data: {"') and not name:
            document = json.loads(line.removeprefix(b"data: "))
            if well(document):
                return document
        assert time.monotonic() < deadline, document
    raise AssertionError("the stream has ended")


def test_a_message_is_found_and_a_killed_master_is_seen(cluster: LocalCluster) -> None:
    started = cluster.up()
    assert started.returncode == 0, started.stderr
    base = started.stderr.split("page of ns-1: ")[1].strip()
    (cluster.scratch / "orders.jsonl").write_text('{"id": "order-1"}\n')
    keyed = ("--file", "orders.jsonl", "--format", "jsonl", "--key-field", "id")
    assert cluster.rmqha("send", "--topic", "T", *keyed).returncode == 0

    def look(**query: str) -> list[dict[str, Any]]:
        """What is found; the index follows a send within a moment."""
        deadline = time.monotonic() + HANG_S
        while True:
            with urllib.request.urlopen(f"{base}lookup?{urlencode(query)}", timeout=HANG_S) as answer:
                found: list[dict[str, Any]] = json.load(answer)["messages"]
            if found or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    (message,) = look(by="key", topic="T", key="order-1")
    assert message["body"]["text"] == '{"id": "order-1"}'
    place = {"group": message["group"], "queue": str(message["queueId"]), "offset": str(message["queueOffset"])}
    ids = [{"by": "id", "id": message["offsetMsgId"]}, {"by": "id", "id": message["msgId"], "topic": "T"}]
    for query in (*ids, {"by": "place", "topic": "T", **place}):
        assert [item["physicalOffset"] for item in look(**query)] == [message["physicalOffset"]], query

    with urllib.request.urlopen(f"{base}events?group=broker-a", timeout=HANG_S) as stream:
        before = until(stream, lambda found: found["health"]["healthy"] and found["elections"])
        master = before["group"]["masterAddress"]
        assert cluster.rmqha("kill", cluster.master()).returncode == 0

        def is_told(found: dict[str, Any]) -> bool:
            """All of it, in whatever order it was heard: nothing changes any more afterwards."""
            group = found["group"]
            return bool(
                group["writable"]
                and group["masterAddress"] != master
                and [row["role"] for row in group["replicas"] if row["address"] == master] == ["DOWN"]
                and any(master in item["where"] and item["fix"] for item in found["health"]["findings"])
                and len(found["elections"]) > len(before["elections"])
            )

        after = until(stream, is_told)
        assert after["group"]["epoch"] > before["group"]["epoch"]
        assert after["elections"][0]["cause"] == "the master died"
    assert len(look(by="key", topic="T", key="order-1")) == 1
