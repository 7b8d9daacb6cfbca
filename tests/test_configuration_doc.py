"""docs/operate/configuration.md is what the configuration classes say."""

from __future__ import annotations

from tools.configuration_doc import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python tools/configuration_doc.py"
