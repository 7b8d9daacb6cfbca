"""What applications import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rmqha.client


def test_every_name_is_there() -> None:
    for name in rmqha.client.__all__:
        assert getattr(rmqha.client, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        rmqha.client.Nothing  # noqa: B018


def test_the_package_alone_loads_nothing() -> None:
    code = "import sys, rmqha.client; print('trio' in sys.modules, 'rmqha.client.producers.producer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
