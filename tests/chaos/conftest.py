"""What the chaos runs measured is printed at the end, also when they pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

LINES = pytest.StashKey[list[str]]()
Tell = Callable[[str], None]


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Tell a line of the summary."""
    lines = request.config.stash.setdefault(LINES, [])

    def say(text: str) -> None:
        lines.append(f"{request.node.name}: {text}")

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(LINES, []):
        terminalreporter.write_line(line)
