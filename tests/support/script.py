"""Commands with what they must print, as pages and golden scripts hold them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

ANY = "..."
"""A line that stands for any lines: progress that depends on the machine."""
LOOKS = ("status", "health", "explain", "doctor", "history", "fork ls", "explain-wait", "quorum show", "receive")
"""Commands of rmqha that change nothing: asked again until a group has settled."""
MASKS = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "TIME"),
    (r"\d\d:\d\d:\d\d\.\d+", "TIME"),
    (r"\bpid \d+", "pid PID"),
    (r"kill -CONT \d+", "kill -CONT PID"),
    (r"\b(elect|role|writable|route) \d+", r"\1 MS"),
    (r"[\d.,]+ ?(ms|s|MB|GB|kB|MiB|GiB|KiB|%)(?=\W|$)", r"N \1"),
    (r"set epoch \d+", "set epoch N"),
    (r"up to \d+$", "up to N"),
    (r"\d+ msg/s over N s", "RATE"),
    (r"^(retried|duplicates possible) \d+", r"\1 N"),
    (r"is dead: [^;]+", "is dead: WHY"),
    (r"(?<=master dead )\([^)]*\)", "(WHY)"),
    (r"release \d[\w.+]*", "release X"),
)
"""What differs from run to run."""


@dataclass(frozen=True)
class Step:
    """`where`: the prompt's word before "$". `command` "" is a heading."""

    command: str
    output: tuple[str, ...]
    where: str = ""


def steps(text: str) -> Iterator[Step]:
    """What stands below a command is what it prints; a heading begins with "## ". A command whose line ends with
    <<EOF goes on to the line EOF."""
    for part in re.split(r"^(?=\w*\$ |## )", text, flags=re.M)[1:]:
        first, *output = part.rstrip("\n").splitlines()
        if first.startswith("## "):
            yield Step("", (first, *output))
            continue
        where, _, command = first.partition("$ ")
        if command.endswith("<<EOF"):
            end = output.index("EOF") + 1
            command, output = "\n".join([command, *output[:end]]), output[end:]
        yield Step(command, tuple(output), where)


def is_same(expected: tuple[str, ...], seen: tuple[str, ...]) -> bool:
    """Line by line; ANY stands for any lines."""
    if not expected:
        return not seen
    if expected[0] == ANY:
        return any(is_same(expected[1:], seen[at:]) for at in range(len(seen) + 1))
    return bool(seen) and expected[0] == seen[0] and is_same(expected[1:], seen[1:])


def masked(line: str) -> str:
    """A line without what differs from run to run, and with single spaces."""
    text = " ".join(line.split())
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text


def only_wrong(lines: list[str]) -> list[str]:
    """Findings of `rmqha doctor` that are wrong, each with its fix: warnings are the machine's."""
    found, shown = [], False
    for line in lines:
        shown = line.startswith("WRONG") or (shown and line.startswith("      fix:"))
        found += [line] if shown else []
    return found


def is_look(command: str) -> bool:
    return command.removeprefix("rmqha ").startswith(LOOKS)
