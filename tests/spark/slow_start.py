"""Spark gives a streaming query's own Python process 10 s to start, whatever else the machine does; no setting changes
it. A query that has read nothing yet is started again."""

from __future__ import annotations

SLOW_START = "Python worker failed to connect back"
STARTS = 10
