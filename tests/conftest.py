"""What holds for all tests."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

settings.register_profile("rmqha", deadline=None)  # a law is not broken by a machine that is busy
settings.load_profile("rmqha")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a script that runs `make test &` passes this on, and what tests start and interrupt would hear nothing
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = ("process", "spark", "raft", "simulation", "cli")
"""Folders with the longest modules."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give workers the long modules first, so that none is left with one at the end; a module is one worker's."""
    if hasattr(config, "workerinput"):
        order = {config.rootpath / "tests" / name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: min(order.get(folder, len(LONG)) for folder in item.path.parents))
