"""Each `rmqha …` that a page or a sentence of the product names is a command that is there, with those options."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rmqha.cli.main import cli

ROOT = Path(__file__).parents[3]
PAGES = [
    path
    for path in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    if path != "CHANGELOG.md"
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
CALL = re.compile(r"(?:^|[\s(|&;`'\"=])rmqha ((?:--security \S+ )?[a-z][^\n]*)")
PROSE_WORDS = (
    "again and are as at by command commands did does for from has in is itself job keeps knows makes may name needs "
    "of on or own process reads session signed takes than that to with writes"
)
PROSE = frozenset(PROSE_WORDS.split())
"""Words that follow the name where it is no command."""


def calls_in_page(text: str) -> Iterator[str]:
    """What stands behind each `rmqha ` of a page's code, up to the end of that command."""
    outside = FENCE.sub("", text)
    pieces = [line for _, body in FENCE.findall(text) for line in body.splitlines()]
    pieces = [line for line in pieces if not line.lstrip().startswith("#")]
    for piece in [*pieces, *INLINE.findall(outside)]:
        for found in CALL.finditer(" " + piece.split(" # ")[0]):
            yield re.split(r"\s[|;&>]|\)|`| \|\| ", found[1])[0]


def fault(call: str) -> str:
    """ "" if there is such a command with the options of `call`."""
    words = [word for word in call.replace("\\|", "|").split() if word not in ("[", "]")]
    if words[0] == "--security":
        words = words[2:]
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words:
        names = words[0].strip("[],.:").split("|")
        if not re.fullmatch(r"[a-z][a-z-]*", names[0]):
            break
        found = None
        for name in names:
            listed = command.list_commands(context)
            found = command.get_command(context, name) if name in listed or command is not cli else None
            if found is None:
                return f"{name} is no command of {context.command_path or 'rmqha'}"
        assert found is not None
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=names[-1])
    known = {"--help", "-h"} | {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
    for word in words:
        option = re.match(r"\[?(--?[a-z][\w-]*)", word)
        if option and option[1] not in known and not isinstance(command, click.Group):
            return f"{option[1]} is no option of {context.command_path}"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_there(page: str) -> None:
    faults = [(call, why) for call in calls_in_page((ROOT / page).read_text()) if (why := fault(call))]
    assert not faults, "\n".join(f"rmqha {call}: {why}" for call, why in faults)


def test_a_command_that_is_not_there_is_seen() -> None:
    assert "is no command" in fault("lok broker-a")
    assert "is no command" in fault("consumer lags billing")
    assert "is no option" in fault("consumer lag billing --watchh")
    assert not fault("consumer lag billing -w --interval 5 -o json")
    assert list(calls_in_page("`rmqha a b`\n```\nm1$ rmqha c | head\n```\nrmqha d")) == ["c", "a b"]


def sentences(source: str) -> Iterator[str]:
    """Texts of a module's code, formatted ones with {} for their values, without docstrings."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docs | inner):
            yield node.value


NAMED = re.compile(r"(?<![\w/.-])rmqha ([a-z][a-z0-9-]*)(?: ([a-z][a-z0-9-]*))?")


def named_faults(text: str) -> Iterator[str]:
    """What a sentence names and is not there."""
    root = click.Context(cli)
    for found in NAMED.finditer(text):
        first, second = found[1], found[2]
        if first in PROSE:
            continue
        command = cli.get_command(root, first) if first in cli.list_commands(root) else None
        if command is None:
            yield f"rmqha {first}"
        elif isinstance(command, click.Group) and second and second not in (*PROSE, "change"):
            found_below = command.get_command(click.Context(command), second)
            if found_below is None:
                yield f"rmqha {first} {second}"


@pytest.mark.parametrize("room", ["rmqha", "controller", "nameserver"])
def test_every_command_that_the_product_names_is_there(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}: {name}: {text[:80]!r}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for text in sentences(path.read_text())
        for name in named_faults(text)
    ]
    assert not faults, "\n".join(faults)
