"""`rmqha topic ls` of a cluster that has no topic yet."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from rmqha.cli.admin import topic


@pytest.mark.parametrize(
    ("arguments", "names", "out", "said"),
    [([], [], "", True), (["-o", "json"], [], "[]\n", False), ([], ["orders"], "orders\n", False)],
)
def test_no_topic_is_a_sentence_and_no_topic_to_a_script(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], names: list[str], out: str, said: bool
) -> None:
    monkeypatch.setattr(topic, "ask_admin", lambda namesrv, question: names)
    result: Any = CliRunner().invoke(topic.topic, ["ls", "--namesrv", "127.0.0.1:1", *arguments])
    assert (result.exit_code, result.stdout) == (0, out)
    assert ("there is no topic yet, or none that you may use" in result.stderr) is said
