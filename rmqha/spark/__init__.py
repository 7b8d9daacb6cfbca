"""The CommitLog as a Spark table: register, session, read, sql, tables, query, audit."""

from rmqha.spark.auditing import Audit, audit
from rmqha.spark.errors import translate
from rmqha.spark.local import register, session
from rmqha.spark.queries import behind, derive, query, read, sql, tables

__all__ = ["Audit", "audit", "behind", "derive", "query", "read", "register", "session", "sql", "tables", "translate"]
