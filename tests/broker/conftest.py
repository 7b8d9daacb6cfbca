from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.support import Broker


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
