"""docs/operate/configuration.md is what the configuration classes say."""

from __future__ import annotations

from tools.configuration_doc import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python tools/configuration_doc.py"


def test_each_key_has_a_meaning() -> None:
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `")]
    assert rows and not [row[0] for row in rows if not row[-1].strip(" |")]
