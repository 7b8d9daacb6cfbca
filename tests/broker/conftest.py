from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.host.disk import HostDisk
from rmqha.store.store import Store
from tests.broker.support import Broker
from tests.store.support import GOLD, unpack
from tests.support.tracer import RecordingTracer


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Brokers under tmp_path, closed at the end; `name` is the directory."""
    made: list[Broker] = []

    def make(name: str = "store", **keys: Any) -> Broker:
        made.append(Broker(tmp_path / name, **keys))
        return made[-1]

    yield make
    for broker in made:
        if broker.open:
            broker.close()


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    """A serving master, alone in its group."""
    return make_broker().start()


@pytest.fixture
def pair(make_broker: Callable[..., Broker]) -> Broker:
    """A CP master of two with a slave in the set that stays there however late it answers."""
    patience = {
        "ha_ack_stall_bound_ms": 10**9,
        "ha_max_time_slave_not_catchup": 10**9,
        "ha_housekeeping_interval": 10**9,
    }
    broker = make_broker(ha_mode="cp", total_replicas=2, slave_timeout=1000, **patience)
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    broker.run()
    return broker


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """What a real broker stored."""
    directory: Path = tmp_path_factory.mktemp("golden")
    unpack("n0", directory)
    store = Store.open(HostDisk(directory / "n0"), GOLD, RecordingTracer())
    yield store
    store.close()
