"""Everything here is `interop`: one set of jars and compiled clients per run, scratch directories, processes ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab.java import Java, MissingError
from tests.interop.lab.lab import Lab


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Java:
    try:
        return Java(tmp_path_factory.mktemp("java"), starts_fast=True)
    except MissingError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def lab(java: Java, tmp_path: Path) -> Iterator[Lab]:
    """Servers and clients of both kinds; all of them end with the test."""
    found = Lab(java, tmp_path)
    yield found
    found.close()
