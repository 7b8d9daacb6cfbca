"""What `--help` of every command says: an example of it, in 80 columns, that its own parser takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rmqha.cli.main import cli
from rmqha.model.error import UsageError


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Commands that do something, with the words that lead to them."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


ALL = dict(leaves(cli))


def examples(command: click.Command) -> list[list[str]]:
    """Each `rmqha …` of its example, as words, without what the shell takes for itself."""
    text = re.sub(r"\s+", " ", f"{command.help}  {command.epilog or ''}".replace("\n\n", "\x00"))
    found = re.search(r"Example: ([^\x00]+)", text)
    assert found is not None, "there is no example"
    lexer = shlex.shlex(re.sub(r'"\$\((.*)\)"', r"; \1", found[1]), posix=True, punctuation_chars=True)
    lexer.wordchars += ":,"
    calls: list[list[str]] = [[]]
    for word in lexer:
        if re.fullmatch(r"[;|&>]+", word):
            calls.append([])
        else:
            calls[-1].append(word)
    return [words[1:] for words in calls if words[:1] == ["rmqha"]]


OWN_WORDS = re.compile(r"\b(?:one|two|each|single|last|next|between) looks?\b|\bstory\b|\bso often\b")
"""Words by which a reader who does not know this program understands nothing: rounds, facts and seconds are known."""


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_each_option_says_what_it_does(path: tuple[str, ...]) -> None:
    texts = {option.opts[-1]: option.help or "" for option in ALL[path].params if isinstance(option, click.Option)}
    assert [name for name, text in texts.items() if len(text.split()) < 2] == []
    assert [name for name, text in texts.items() if text.startswith("Seconds.")] == [], "seconds to what?"
    assert OWN_WORDS.findall(" ".join([ALL[path].help or "", *texts.values()])) == []


def test_every_default_of_name_servers_is_told() -> None:
    """The context in use decides on which cluster a command acts: its help says so."""
    silent = [
        path
        for path, command in ALL.items()
        for option in command.params
        if "--namesrv" in option.opts and path != ("context", "add") and "$RMQHA_NAMESRV" not in str(option.help)
    ]
    assert silent == []


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_has_an_example_that_is_one(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 80
    calls = [words for words in examples(ALL[path]) if words[: len(path)] == list(path)]
    assert calls, f"the example does not call rmqha {' '.join(path)}"
    for words in calls:
        try:
            ALL[path].make_context(path[-1], words[len(path) :])
        except click.BadParameter as error:
            assert "does not exist" in error.message  # a file of the reader's
        except UsageError as error:
            assert "no cluster is known" in str(error)  # asked for the default of an option
