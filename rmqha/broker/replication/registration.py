"""The next request to one name server: register, unregister, or the lite heartbeat. A decision, no trio.

A master registers as id 0, a slave under its controller id. A replica that is not aligned with its master is fenced:
it is not registered, so that no client is routed to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rmqha.model.offset import BrokerId

RETRY_MS = 1000


class Step(Enum):
    REGISTER = "register"
    UNREGISTER = "unregister"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class AdvertisedState:
    """The state under which this replica wants to be known: `wanted` None is fenced. `revision` moves with every change
    that the name servers must learn at once: role, epoch, topics."""

    wanted: BrokerId | None
    revision: int


class NameServerRegistration:
    """One name server's view of this broker. Times are monotonic milliseconds."""

    def __init__(self, heartbeat_interval_ms: int, period_ms: int) -> None:
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._period_ms = period_ms
        self._known_as: BrokerId | None = None
        self._revision = -1
        self._registered_at_ms = 0
        self._heartbeat_at_ms = 0
        self._not_before_ms = 0

    @property
    def known_as(self) -> BrokerId | None:
        """The id under which this name server lists the broker, as far as we know."""
        return self._known_as

    def is_settled(self, revision: int) -> bool:
        """This name server was told of that revision, or was tried in vain."""
        return self._revision >= revision

    def next(self, now_ms: int, standing: AdvertisedState) -> Step | None:
        if standing.wanted is None:
            return None if self._known_as is None or now_ms < self._not_before_ms else Step.UNREGISTER
        if now_ms < self._not_before_ms and standing.revision == self._revision:
            return None
        if self._known_as != standing.wanted or self._revision != standing.revision:
            return Step.REGISTER
        if now_ms >= self._registered_at_ms + self._period_ms:
            return Step.REGISTER
        return Step.HEARTBEAT if now_ms >= self._heartbeat_at_ms else None

    def deadline_ms(self, now_ms: int) -> int:
        """Time at which to ask `next` again if nothing changes."""
        return max(self._not_before_ms, self._heartbeat_at_ms, now_ms + 1)

    def done(self, now_ms: int, step: Step, standing: AdvertisedState) -> None:
        self._heartbeat_at_ms = now_ms + self._heartbeat_interval_ms
        match step:
            case Step.REGISTER:
                self._known_as, self._revision, self._registered_at_ms = standing.wanted, standing.revision, now_ms
            case Step.UNREGISTER:
                self._known_as = None
            case Step.HEARTBEAT:
                self._heartbeat_at_ms = now_ms + self._heartbeat_interval_ms

    def repeat_soon(self, now_ms: int) -> None:
        """Register again after RETRY_MS instead of a whole period."""
        self._registered_at_ms = now_ms + RETRY_MS - self._period_ms

    def failed(self, now_ms: int, standing: AdvertisedState) -> None:
        """It could not be told: try again after a pause, or at once when there is news."""
        self._not_before_ms = now_ms + RETRY_MS
        self._revision = standing.revision
        self._known_as = None if standing.wanted is not None else self._known_as

    def lost(self) -> None:
        """The connection closed: the name server may have forgotten everything."""
        self._known_as = None
