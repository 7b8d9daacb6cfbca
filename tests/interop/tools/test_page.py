"""The page of our name server beside a real broker of Apache RocketMQ: its epochs and its messages."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import urlencode

import pytest

from rmqha.ops.local.preflight import free_ports
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import GROUP, Lab
from tests.interop.lab.lines import acknowledged

pytestmark = pytest.mark.interop

TOPIC = "PageTopic"


def first_document(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as stream:
        for line in stream:
            if line.startswith(b'data: {"'):
                found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                return found
    raise AssertionError("the stream has ended")


def test_apaches_broker_on_our_page(lab: Lab) -> None:
    port = free_ports(120) + 100
    lab.security["httpPort"] = str(port)
    base = f"http://127.0.0.1:{port}"
    lab.start_our_name_server()
    del lab.security["httpPort"]
    node = lab.run(lab.java_broker("java-1"))
    is_master(lab, node)
    producer = lab.client("Produce", TOPIC, "0", "5", "100", "0")
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    assert len(acknowledged(producer)) == 5

    (group,) = first_document(f"{base}/events")["groups"]
    assert [(row["address"], row["role"]) for row in group["replicas"]] == [(node.address, "APACHE")]
    page = first_document(f"{base}/events?group={GROUP}")
    assert page["elections"][0]["brokerId"] == 1
    (lane,) = page["logs"]["lanes"]
    assert [part["kind"] for part in lane["parts"]] == ["log"]
    assert lane["end"] > 500

    def look(**query: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{base}/lookup?{urlencode(query)}", timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    queues = [look(by="place", topic=TOPIC, group=GROUP, queue=str(queue), offset="0", count="9") for queue in range(4)]
    messages = [message for queue in queues for message in queue["messages"]]
    assert len(messages) == 5, queues
    for query in ({"id": messages[0]["offsetMsgId"]}, {"id": messages[0]["msgId"], "topic": TOPIC}):
        (found,) = look(by="id", **query)["messages"]
        assert found["physicalOffset"] == messages[0]["physicalOffset"]
