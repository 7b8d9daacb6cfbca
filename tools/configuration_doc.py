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
from rmqha.model.config.servers import BrokerConfig, Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operate" / "configuration.md"
HEAD = """# Configuration keys

Written by `tools/configuration_doc.py` from the classes named below; do not edit by hand.

Every server reads a RocketMQ-style properties file (`rmqha broker -c FILE`, `rmqha controller -c FILE`,
`rmqha namesrv -c FILE`). Keys are RocketMQ's where RocketMQ has them; keys that only rmqha has say "Own". An unknown
key is an error that names the nearest known one. Times are milliseconds and sizes bytes.
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


def _table(title: str, cls: type[Config]) -> str:
    remarks = _remarks(cls)
    lines = [f"\n## {title}\n", "| key | default | meaning |", "|---|---|---|"]
    for key, field in cls.keys().items():
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        shown = f"`{default}`" if default else "empty"
        remark = remarks.get(field.name, "").replace("|", "\\|")
        lines.append(f"| `{key}` | {shown} | {remark} |")
    aliases = [f"`{alias}` = `{key}`" for alias, key in sorted(cls.aliases.items())]
    if aliases:
        lines.append(f"\nAccepted under other names too: {', '.join(aliases)}.")
    return "\n".join(lines) + "\n"


def page() -> str:
    return (
        HEAD
        + _table("Broker (`rmqha/model/config/servers.py`)", BrokerConfig)
        + _table("Controller (`controller/config.py`)", ControllerConfig)
        + _table("Name server (`nameserver/config.py`)", NamesrvConfig)
    )


if __name__ == "__main__":
    PAGE.write_text(page())
