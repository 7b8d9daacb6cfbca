"""Writes docs/operate/configuration.md from the configuration classes, so that the page cannot drift from the code.

`python tools/configuration_doc.py` rewrites it; tests/test_configuration_doc.py compares.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from pathlib import Path

from controller.config import ControllerConfig
from nameserver.config import NamesrvConfig
from rmqha.model.config.rocketmq_keys import RULES, KeyRule
from rmqha.model.config.servers import BrokerConfig, Config, ServerConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operate" / "configuration.md"
KEYS = PAGE.parent.parent.parent / "tests" / "golden" / "rocketmq-5.4.0-keys.txt"
"""All keys of RocketMQ's servers."""
HEAD = """# Configuration keys

Written by `tools/configuration_doc.py` from the classes named below; do not edit by hand.

Every server reads a RocketMQ-style properties file (`rmqha broker -c FILE`, `rmqha controller -c FILE`,
`rmqha namesrv -c FILE`). Keys are RocketMQ's where RocketMQ has them; keys that only rmqha has say "Own". Times are
milliseconds and sizes bytes.

Most servers need few keys; [three-machines.md](three-machines.md) shows two complete files. `--check` reads a file and
says what is wrong with it. `rmqha config show NODE` shows the keys in force of a running server.

The tables below list the settings first. Keys that you rarely need to change are under [Knobs](#knobs), with their
range. Every other key of RocketMQ 5.4.0 is under [RocketMQ's other keys](#rocketmqs-other-keys): it has no effect,
or the server does not start with it. Any further key is an error that names the nearest known one.
"""


KNOBS = """
## Knobs

Change these only if you measure the effect. A value outside the range is an error. Simulated runs draw knobs too:
`drawn` beside a knob in the classes has the values, `tests/simulation/runs/test_tuning.py` the reasons where it has
none.
"""


def _remarks(cls: type) -> dict[str, str]:
    """The string that stands below a field in the source, by field name; of base classes too."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            says = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if named and says:
                found[field.target.id] = " ".join(str(after.value.value).split())  # type: ignore[attr-defined]
    return found


def _number(value: int) -> str:
    """A power of two by its name, as long as that is the shorter one."""
    power = (value + 1).bit_length() - 1
    return f"2^{power} - 1" if value > 1 << 20 and value + 1 == 1 << power else f"{value}"


def _range(field: dataclasses.Field[object]) -> str:
    if isinstance(field.default, bool):
        return "true, false"
    if isinstance(field.default, str):
        return "text"
    low, high = field.metadata["range"]
    return f"{_number(low)} to {_number(high)}"


def _rows(cls: type[Config], names: set[str], *, knobs: bool) -> str:
    """The table of these fields, with their ranges if they are knobs."""
    remarks = _remarks(cls)
    lines = (
        ["| key | default | range | meaning |", "|---|---|---|---|"]
        if knobs
        else ["| key | default | meaning |", "|---|---|---|"]
    )
    for key, field in cls.keys().items():
        if field.name not in names or field.metadata.get("is_knob", False) is not knobs:
            continue
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        cells = [f"`{key}`", f"`{default}`" if default else "empty", *([_range(field)] if knobs else [])]
        cells.append(remarks.get(field.name, "").replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


OTHER_KEYS = """
## RocketMQ's other keys

RocketMQ 5.4.0 reads these keys, or writes them into its file after a live change; rmqha does not use them. A file of
RocketMQ's works unchanged. It has `bindAddress=0.0.0.0`, so a broker's needs `haSecretFile`, or `haSecurity=open` too
([security.md](security.md)). A server with a key without effect starts; `--check` names the key, and so does the log
(event `keys_without_effect`). A server does not start with a key that it cannot ignore without breaking a promise. If
an operator sets one of these keys while the server runs (`config set`, `mqadmin updateBrokerConfig`), the answer is an
error with the reason.
"""


SERVERS: list[tuple[str, type[Config]]] = [
    ("Every server (`ServerConfig` in `rmqha/model/config/servers.py`)", ServerConfig),
    ("Broker (`rmqha/model/config/servers.py`)", BrokerConfig),
    ("Controller (`controller/config.py`)", ControllerConfig),
    ("Name server (`nameserver/config.py`)", NamesrvConfig),
]


def _part(title: str, cls: type[Config], *, knobs: bool) -> str:
    names = {field.name for field in dataclasses.fields(cls)}
    if cls is not ServerConfig:
        names -= {field.name for field in dataclasses.fields(ServerConfig)}
    part = f"\n### {title}\n\n{_rows(cls, names, knobs=knobs)}"
    aliases = [f"`{alias}` = `{key}`" for alias, key in sorted(cls.aliases.items())]
    return f"{part}\nAccepted under other names too: {', '.join(aliases)}.\n" if aliases and not knobs else part


def _taken(file_name: str, cls: type[Config]) -> int:
    """Number of RocketMQ's keys that this server takes."""
    return sum(key in cls.keys() or key in cls.aliases for key in rocketmq_keys(file_name))  # noqa: SIM118 (a method)


def rocketmq_keys(file_name: str) -> list[str]:
    """All keys that RocketMQ 5.4.0 reads from such a file."""
    return [key for file, _, key, *written in _key_lines() if file == file_name and not written]


def written_keys(file_name: str) -> list[str]:
    """Further keys that its servers write into such a file, and do not read."""
    return [key for file, _, key, *written in _key_lines() if file == file_name and written]


def _key_lines() -> list[list[str]]:
    return [line.split() for line in KEYS.read_text().splitlines() if not line.startswith("#")]


def _others(cls: type[Config]) -> str:
    """The keys that a server does not take, those that may end its start first."""
    rules = RULES[cls.file_name]
    count, taken = len(rocketmq_keys(cls.file_name)), _taken(cls.file_name, cls)
    lines = [f"\n### `{cls.file_name}`\n", f"RocketMQ reads {count} keys from it, rmqha takes {taken} of them.\n"]
    lines += ["| refused | unless | because |", "|---|---|---|"]
    lines += [
        f"| `{key}` | {_harmless(rule)} | {rule.reason} |" for key, rule in rules.items() if rule.harmless is not None
    ]
    lines += ["", "| without effect | because |", "|---|---|"]
    by_reason: dict[str, list[str]] = {}
    for key, rule in rules.items():
        if rule.harmless is None:
            by_reason.setdefault(rule.reason, []).append(f"`{key}`")
    lines += [f"| {', '.join(keys)} | {reason} |" for reason, keys in by_reason.items()]
    return "\n".join(lines) + "\n"


def _harmless(rule: KeyRule) -> str:
    values = [f"`{value}`" if value else "empty" for value in rule.harmless or ()]
    if rule.below_root:
        values.append(f"`{rule.below_root}` in storePathRootDir")
    return ", ".join(values)


def page() -> str:
    settings = "".join(_part(title, cls, knobs=False) for title, cls in SERVERS)
    knobs = "".join(_part(title, cls, knobs=True) for title, cls in SERVERS)
    others = "".join(_others(cls) for _, cls in SERVERS if cls.file_name)
    return f"{HEAD}\n## Settings\n{settings}{KNOBS}{knobs}{OTHER_KEYS}{others}"


if __name__ == "__main__":
    PAGE.write_text(page())
