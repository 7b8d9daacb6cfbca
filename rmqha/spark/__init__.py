"""The CommitLog as a Spark table: register, session, query, audit."""

from rmqha.spark.audit import Audit, audit
from rmqha.spark.query import query
from rmqha.spark.session import register, session

__all__ = ["Audit", "audit", "query", "register", "session"]
