"""The CommitLog as a Spark table: register, session, read, sql, tables, query, audit. Each is loaded when it is first
named: a Python process of Spark's uses parts of this package and loads no more than those."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqha.spark.auditing import Audit, audit
    from rmqha.spark.errors import translate
    from rmqha.spark.local import register, session
    from rmqha.spark.queries import behind, derive, query, read, sql, tables

__all__ = ["Audit", "audit", "behind", "derive", "query", "read", "register", "session", "sql", "tables", "translate"]

_MODULES = {
    "Audit": "auditing",
    "audit": "auditing",
    "behind": "queries",
    "derive": "queries",
    "query": "queries",
    "read": "queries",
    "register": "local",
    "session": "local",
    "sql": "queries",
    "tables": "queries",
    "translate": "errors",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
