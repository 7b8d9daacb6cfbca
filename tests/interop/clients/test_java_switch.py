"""A directed switch under Apache's Java producer, which asks for the route only each 30 s, its default: no error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.lab import Lab
from tests.interop.lab.lines import acknowledged, consumed
from tests.interop.lab.processes import until
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_MS

pytestmark = pytest.mark.interop

MESSAGES = 3000
PAUSE_MS = 5
"""200 a second."""
SWITCHES = 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path, name="javaswitch")
    yield found
    found.down()


def test_a_producer_of_apaches_sees_no_error_in_a_directed_switch(lab: Lab, cluster: LocalCluster) -> None:
    """Its route is 30 s old: the old master passes on what it gets. Nothing is lost, and no send is refused or left
    without an answer: only what hangs takes as long as the producer waits."""
    done = cluster.up()
    assert done.returncode == 0, done.stderr
    lab.name_server = cluster.namesrv
    consumer = lab.client("Consume", "JavaTopic", "push", "group-push")
    settings = {"interop.poll": "30000", "interop.timeout": str(HANG_MS)}
    producer = lab.client("Produce", "JavaTopic", "0", str(MESSAGES), "128", str(PAUSE_MS), **settings)
    masters = [cluster.master()]
    for turn in range(SWITCHES):
        wanted = (turn + 1) * MESSAGES // (SWITCHES + 2)
        until("the next part is sent", lambda n=wanted: len(acknowledged(producer)) >= n, TIMEOUT_S, producer)  # type: ignore[misc]
        target = next(f"broker-a-{n}" for n in (1, 2, 3) if f"broker-a-{n}" not in masters)
        assert cluster.rmqha("start", target).returncode == 0
        switched = cluster.rmqha("elect", "broker-a", "--to", target)
        assert switched.returncode == 0, switched.stderr
        masters.append(target)
    assert len(acknowledged(producer)) < MESSAGES, "the producer was done before the switches"
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    lines = producer.lines()
    # while the client starts and the topic is made, a busy machine may cost it a time-out
    under_way = lines[next(place for place, line in enumerate(lines) if line.startswith("SEND_OK")) :]
    assert [line for line in under_way if line.startswith("FAILED")] == []
    sent = acknowledged(producer)
    assert sent == list(range(MESSAGES))
    assert all(before < after for before, after in pairwise(sent))
    until("all is consumed", lambda: set(sent) <= consumed(consumer), TIMEOUT_S, consumer)
