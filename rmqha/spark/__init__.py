"""The CommitLog as a Spark table: register, session, query, audit."""

from rmqha.spark.auditing import Audit, audit
from rmqha.spark.local import register, session
from rmqha.spark.sql import query

__all__ = ["Audit", "audit", "query", "register", "session"]
