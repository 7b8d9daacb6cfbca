"""The times of a Raft node follow from the one that an operator may set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.config import ControllerConfig
from rmqha.model.error import ConfigError
from rmqha.raft.config import RaftConfig


def test_the_default_is_that_of_its_own_timeout() -> None:
    assert RaftConfig.for_timeout(RaftConfig().election_timeout_ms) == RaftConfig()


@pytest.mark.parametrize("timeout_ms", [*range(20, 300), 999, 60_000])
def test_every_timeout_that_the_configuration_takes_is_one(timeout_ms: int) -> None:
    """Below 52 ms a controller ended with an assertion."""
    replace(ControllerConfig(), election_timeout_ms=timeout_ms).check("test")
    assert RaftConfig.for_timeout(timeout_ms).lease_ms < timeout_ms


def test_a_shorter_one_is_refused() -> None:
    with pytest.raises(ConfigError):
        replace(ControllerConfig(), election_timeout_ms=19).check("test")
