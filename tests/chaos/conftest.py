"""What the chaos runs measured is printed at the end, also when they pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

TOLD = "told"
Tell = Callable[[str], None]


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Tell a line of the summary."""
    return lambda text: request.node.user_properties.append((TOLD, f"{request.node.name}: {text}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Of the reports, which also come from other processes."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    for report in reports:
        if isinstance(report, pytest.TestReport) and report.when == "call":
            for name, line in report.user_properties:
                if name == TOLD:
                    terminalreporter.write_line(str(line))
