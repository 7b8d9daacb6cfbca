"""The table of docs/operate/performance.md names benchmarks that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_took_a_figure_can_be_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = re.search(r"--only\s+\{([^}]*)\}", done.stdout)
    assert found is not None
    known = set(re.sub(r"\s", "", found[1]).split(","))
    text = (ROOT / "docs/operate/performance.md").read_text()
    table = text[text.index("## Everything in one place") : text.index("## The demo and the tests")]
    takers = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("|")]
    named = {name for taker in takers for name in re.findall(r"`(\w+)`", taker)}
    named |= set(re.findall(r"--only (\w+)", text))
    assert named <= known | {"NAME"}, named - known
    assert len(named) > 15
