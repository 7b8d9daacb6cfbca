"""Golden interaction scripts: every message and every Ready of a few stories. RMQHA_REWRITE=1 writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.raft.interaction import play_file

SCRIPTS = sorted((Path(__file__).parent / "golden").glob("*.txt"))


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 8


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    text = path.read_text()
    played = play_file(text)
    if os.environ.get("RMQHA_REWRITE") == "1":
        path.write_text(played)
    else:
        assert played == text
