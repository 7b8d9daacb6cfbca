"""Each test stands for a process: the files that a name server adds to its security are no other test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmqha.host.access.security import Security, ambient


@pytest.fixture(autouse=True)
def own_security() -> Iterator[None]:
    token = ambient.set(Security())
    yield
    ambient.reset(token)
