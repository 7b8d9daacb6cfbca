"""What `rmqha status` says of a replica that is not well."""

from __future__ import annotations

import pytest

from rmqha.cli.cluster_view import copy_words
from rmqha.ha.copy_progress import CopyProgress
from rmqha.model.offset import PhyOffset


@pytest.mark.parametrize(
    ("at_ms", "own_max", "words"),
    [
        (100, 0, "copies the log: 0 of 3,000 MB, 0.0 MB/s"),
        (1000, 120_000_000, "copies the log: 120 of 3,000 MB, 120.0 MB/s, 24 s left"),
        (1000, 3_000_000_000, ""),
    ],
)
def test_a_copy_in_words(at_ms: int, own_max: int, words: str) -> None:
    progress = CopyProgress()
    progress.begin(0, PhyOffset(0), PhyOffset(3_000_000_000))
    progress.moved(at_ms, PhyOffset(own_max))
    assert copy_words(progress.view(at_ms, PhyOffset(own_max))) == words
