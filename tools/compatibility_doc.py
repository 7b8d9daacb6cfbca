"""Writes docs/use/requests.md: RocketMQ's requests that nothing here serves, and what each mqadmin command does.

`python tools/compatibility_doc.py` rewrites it; tests/test_compatibility_doc.py asks our servers each request.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "use" / "requests.md"
GOLDEN = ROOT / "tests" / "golden"


class Unserved(NamedTuple):
    """Request codes that no server of ours takes, and why."""

    codes: tuple[int, ...]
    reason: str


NOBODY = Unserved(
    (13, 22, 23, 27, 47, 209, 210, 211, 212, 213, 214, 301, 302),
    "only a name: no server of RocketMQ 5.4.0 takes it either",
)
"""Apache's servers answer them with 3, too."""
TO_CLIENTS = Unserved((39, 40, 220, 221, 326), "what a broker tells or asks its clients")
UNSERVED = (
    NOBODY,
    TO_CLIENTS,
    Unserved((354, 355), "queues and tables are files here, in no RocksDB"),
    Unserved((200056,), "no client of 5.4.0 sends it"),
    Unserved((513,), "static topics are not there: queues stay where they are made"),
    Unserved((902, 903), "a process is one broker; there is no container"),
    Unserved((905, 906), "no slave acts for a master: the controllers elect another"),
    Unserved(
        (908,), "the consistent point of two logs is found in their epochs, not by an offset that a master is told"
    ),
    Unserved(
        (1014, 1015, 1016, 1017, 1018),
        "what Apache's controllers tell each other by JRaft; ours have a protocol of their own",
    ),
    Unserved((2001, 2002, 2003, 2004), "reads are not held back by how cold they are, and files are not mapped"),
)


class Outcome(Enum):
    SAME = "the same"
    DIFFERS = "differs"
    REFUSED = "refused"


class Command(NamedTuple):
    outcome: Outcome
    reason: str


_NO_COLD_DATA = Command(Outcome.REFUSED, "reads are not held back by how cold they are, and files are not mapped")
_NO_ROCKS_DB = Command(Outcome.REFUSED, "queues and tables are files here, in no RocksDB")
_NO_STATIC_TOPICS = Command(Outcome.REFUSED, "static topics are not there: queues stay where they are made")
COMMANDS: Mapping[str, Command] = {
    "checkRocksdbCqWriteProgress": _NO_ROCKS_DB,
    "electMaster": Command(
        Outcome.DIFFERS,
        "prints the new master, as the command is made to; Apache's 5.4.0 elects too, and answers with JSON (numbers "
        "that name members stand without quotes) that its own mqadmin cannot read: that prints an exception",
    ),
    "exportPopRecord": _NO_ROCKS_DB,
    "getColdDataFlowCtrInfo": _NO_COLD_DATA,
    "removeColdDataFlowCtrGroupConfig": _NO_COLD_DATA,
    "remappingStaticTopic": _NO_STATIC_TOPICS,
    "resetMasterFlushOffset": Command(
        Outcome.REFUSED, "where two logs part is found in their epochs, not by an offset that a slave is told"
    ),
    "rocksDBConfigToJson": _NO_ROCKS_DB,
    "setCommitLogReadAheadMode": _NO_COLD_DATA,
    "switchTimerEngine": Command(
        Outcome.REFUSED, "R alone: timers have one engine, which needs no RocksDB; F prints the same"
    ),
    "updateColdDataFlowCtrGroupConfig": _NO_COLD_DATA,
    "updateStaticTopic": _NO_STATIC_TOPICS,
}
"""The mqadmin commands that do something else than with Apache's servers."""
HEAD = """# RocketMQ's requests and mqadmin's commands

Written by `tools/compatibility_doc.py`; do not edit by hand. Apache RocketMQ 5.4.0 has {request_count} request codes
and {command_count} commands of `mqadmin`. `make interop` runs each command against ours and Apache's servers and
compares what it prints and what it exports; clusterRT and startMonitoring, which never end, have to work with both.
`make test` sends each request code to our servers.

## Commands of mqadmin

`mqadmin` ends with exit code 0 whatever a server answers, and prints the exception of a refusal; that is so with both.
{same_count} commands print the same, but for times, rates, ids, a server's own settings, and the order of rows that
stand in a hash table of mqadmin. {refused_count} are refused for a reason, and one differs:

| command | with ours | why |
|---|---|---|
{commands}

What differs is told at length in [compatibility.md](compatibility.md#what-mqadmin-shows-otherwise). The others are
{same}.

## Requests that no server of ours serves

Each is answered `REQUEST_CODE_NOT_SUPPORTED` (3) at once, by brokers, controllers and name servers. All others are
served.

| codes | names | why |
|---|---|---|
{requests}
"""


def page() -> str:
    names, commands = request_names(), command_names()
    same = [name for name in commands if name not in COMMANDS]
    return HEAD.format(
        request_count=len(names),
        command_count=len(commands),
        same_count=len(same),
        refused_count=sum(item.outcome is Outcome.REFUSED for item in COMMANDS.values()),
        commands="\n".join(
            f"| {name} | {item.outcome.value} | {item.reason} |" for name, item in sorted(COMMANDS.items())
        ),
        same=textwrap.fill(", ".join(same), 118),
        requests="\n".join(_row(item, names) for item in UNSERVED),
    )


def _row(item: Unserved, names: Mapping[int, str]) -> str:
    return f"| {', '.join(map(str, item.codes))} | {', '.join(names[code] for code in item.codes)} | {item.reason} |"


def request_names() -> dict[int, str]:
    """Name by code, of RocketMQ 5.4.0."""
    pairs = (line.split() for line in _lines("requests"))
    return {int(code): name for code, name in pairs}


def command_names() -> list[str]:
    return list(_lines("mqadmin"))


def unserved() -> dict[int, str]:
    """Reason by code."""
    return {code: item.reason for item in UNSERVED for code in item.codes}


def _lines(what: str) -> Iterator[str]:
    for line in (GOLDEN / f"rocketmq-5.4.0-{what}.txt").read_text().splitlines():
        if not line.startswith("#"):
            yield line


if __name__ == "__main__":
    PAGE.write_text(page())
