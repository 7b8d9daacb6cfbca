"""Values that follow from others."""

from __future__ import annotations

import pytest

from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("file_bytes", "largest"), [(MIB, MIB // 2), (8 * MIB, 4 * MIB), (1024 * MIB, 4 * MIB), (None, 4 * MIB)]
)
def test_a_small_log_file_bounds_messages(file_bytes: int | None, largest: int) -> None:
    """Nobody who wants small files has to know of maxMessageSize."""
    given = {} if file_bytes is None else {"mappedFileSizeCommitLog": str(file_bytes)}
    config = BrokerConfig.from_properties(given, "here")
    assert config.max_message_size == largest
    again, later = config.updated(given, "there")
    assert (again, later) == (config, ())


def test_what_is_said_of_both_must_agree() -> None:
    given = {"mappedFileSizeCommitLog": str(MIB), "maxMessageSize": str(MIB)}
    with pytest.raises(ConfigError, match=f"maxMessageSize = {MIB} must lie between 1 and {MIB // 2}"):
        BrokerConfig.from_properties(given, "here")
