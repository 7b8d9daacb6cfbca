"""A broker of ours and one of Apache's, each with a name server of its kind, for all tests of this folder. Each module
has topics and groups of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.interop.lab.java import Java
from tests.interop.lab.same_commands import Laboratory, both, filled


@pytest.fixture(scope="package")
def pair(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Laboratory]]:
    """Ours, Apache's."""
    with both(java, tmp_path_factory.mktemp, partial(filled, replicas=1)) as found:
        yield found
