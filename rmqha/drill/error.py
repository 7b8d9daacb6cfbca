"""The error that a drill raises."""

from __future__ import annotations

from rmqha.model.error import RmqhaError, UsageError


class DrillError(RmqhaError):
    """The cluster did not do what it must: something stays away, or a log is wrong."""


class FaultUnavailableError(UsageError):
    """The fault cannot be made on this machine: its text is the reason."""
