"""Quotas of a client at a server: requests and bytes a second, by account and by address. Pure.

A quota is a token bucket with room for one second. A larger request is admitted when the bucket is full, and paid for
afterwards, so that no message is refused for ever. In t seconds at most (t + 1) × quota is admitted, and one request
more.

A connection whose request was refused should not be read for its throttle time: otherwise its refused requests take
processor time from all others. The connections of one bucket continue one after another, each when the bucket has
tokens for the refused request of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rmqha.model.error import ConfigError

MAX_BUCKET_COUNT = 10_000
"""Most buckets of accounts or of addresses; beyond it the oldest is dropped, and begins full again."""
MAX_THROTTLE_MS = 1000
OPERATOR_LIMIT = 20, 64 * 1024
"""Requests and bytes a second of `admits_operator`, from each address."""
_FORM = "account:NAME=REQUESTS/BYTES or address:HOST=REQUESTS/BYTES, separated by ;"


class Limit(NamedTuple):
    """Limits of one account or address; 0: none."""

    requests_per_second: int = 0
    bytes_per_second: int = 0


class QuotaLimits(NamedTuple):
    """The limits that are set: for every account, for every address, and for some of them by name."""

    account: Limit = Limit()
    address: Limit = Limit()
    by_account: Mapping[str, Limit] = {}
    by_address: Mapping[str, Limit] = {}

    @property
    def is_set(self) -> bool:
        return any((*self.account, *self.address, self.by_account, self.by_address))


def parse_overrides(text: str, source: str) -> tuple[dict[str, Limit], dict[str, Limit]]:
    """Parse quota.overrides: limits by account, and by address. Raises ConfigError."""
    found: dict[str, dict[str, Limit]] = {"account": {}, "address": {}}
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        whom, equals, limit = piece.rpartition("=")
        kind, colon, name = whom.partition(":")
        requests, slash, size = limit.partition("/")
        numbers = requests.isascii() and requests.isdigit() and size.isascii() and size.isdigit()
        if not (equals and colon and slash and name and kind in found and numbers):
            raise ConfigError(f"{source}: quota.overrides: {piece!r} must be {_FORM}")
        found[kind][name] = Limit(int(requests), int(size))
    return found["account"], found["address"]


class TokenBucket:
    """Token bucket. It counts in thousandths of a token, so that a millisecond adds a whole number."""

    __slots__ = ("_at_ms", "_level", "_per_second", "_promised_ms")

    def __init__(self, per_second: int, now_ms: int) -> None:
        self._per_second = per_second
        self._level = per_second * 1000
        self._at_ms = now_ms
        self._promised_ms = 0
        """Time (ms) up to which the coming tokens are reserved for refused requests."""

    def has(self, now_ms: int) -> bool:
        """True if a token is there; then any number may be taken."""
        if now_ms > self._at_ms:
            level = self._level + (now_ms - self._at_ms) * self._per_second
            self._level = min(level, self._per_second * 1000)
            self._at_ms = now_ms
        return self._level >= 1000

    def take(self, count: int) -> None:
        self._level -= count * 1000

    def throttle_ms(self, count: int, now_ms: int) -> int:
        """Time (ms) until a refused request may try again, after those that were refused before; reserves `count`
        tokens for it."""
        room_ms = now_ms - (self._level - 1000) // self._per_second
        last_ms = now_ms + MAX_THROTTLE_MS
        ready_ms = min(max(self._promised_ms, room_ms), last_ms)
        self._promised_ms = min(ready_ms + count * 1000 // self._per_second, last_ms)
        return ready_ms - now_ms


class _Buckets:
    """Buckets of one account or address; None: no such limit."""

    __slots__ = ("requests", "size")

    def __init__(self, limit: Limit, now_ms: int) -> None:
        self.requests = TokenBucket(limit.requests_per_second, now_ms) if limit.requests_per_second else None
        self.size = TokenBucket(limit.bytes_per_second, now_ms) if limit.bytes_per_second else None

    def lacks(self, now_ms: int) -> str:
        if self.requests is not None and not self.requests.has(now_ms):
            return "requests"
        if self.size is not None and not self.size.has(now_ms):
            return "bytes"
        return ""

    def throttle_ms(self, size_bytes: int, now_ms: int) -> int:
        asked = (self.requests, 1), (self.size, size_bytes)
        waits_ms = (bucket.throttle_ms(count, now_ms) for bucket, count in asked if bucket and not bucket.has(now_ms))
        return max(waits_ms, default=0)

    def take(self, size_bytes: int, count: int = 1) -> None:
        """Take the tokens of a request; `count` −1 gives them back."""
        if self.requests is not None:
            self.requests.take(count)
        if self.size is not None:
            self.size.take(count * size_bytes)


class Quotas:
    """Quotas of one server, and the recent use by account and address. Account "": only the address counts."""

    def __init__(self, limits: QuotaLimits) -> None:
        self.configure(limits)

    def configure(self, limits: QuotaLimits) -> None:
        """Set the limits; every account and address begins with a full bucket."""
        self.is_set = limits.is_set
        self._limits = limits
        self._accounts: dict[str, _Buckets] = {}
        self._addresses: dict[str, _Buckets] = {}
        self._lanes: dict[str, _Buckets] = {}

    def refusal(self, account: str, address: str, size_bytes: int, now_ms: int) -> str:
        """Reason to refuse a request; "" if it is admitted. Only an admitted request is counted."""
        limits = self._limits
        by_address = self._of(self._addresses, address, limits.by_address.get(address, limits.address), now_ms)
        lacks = by_address.lacks(now_ms)
        if lacks:
            return f"address {address} is over its quota of {lacks} a second; try again later"
        if account:
            by_account = self._of(self._accounts, account, limits.by_account.get(account, limits.account), now_ms)
            lacks = by_account.lacks(now_ms)
            if lacks:
                return f"account {account} is over its quota of {lacks} a second; try again later"
            by_account.take(size_bytes)
        by_address.take(size_bytes)
        return ""

    def admits_operator(self, address: str, size_bytes: int, now_ms: int) -> bool:
        """True if a request by which an operator changes a quota may be served though the address is over its own:
        OPERATOR_LIMIT bounds them, so that a quota that is too low locks nobody out."""
        lane = self._of(self._lanes, address, Limit(*OPERATOR_LIMIT), now_ms)
        if lane.lacks(now_ms):
            return False
        lane.take(size_bytes)
        return True

    def throttle_ms(self, account: str, address: str, size_bytes: int, now_ms: int) -> int:
        """Time (ms), MAX_THROTTLE_MS at most, for which not to read the connection of a request that was refused."""
        found = self._accounts.get(account) if account else None
        both = found, self._addresses.get(address)
        return max((buckets.throttle_ms(size_bytes, now_ms) for buckets in both if buckets), default=0)

    def give_back(self, account: str, address: str, size_bytes: int) -> None:
        """Undo the count of an admitted request that is not served after all."""
        for table, name in ((self._accounts, account), (self._addresses, address)):
            if (buckets := table.get(name)) is not None:
                buckets.take(size_bytes, -1)

    @staticmethod
    def _of(table: dict[str, _Buckets], name: str, limit: Limit, now_ms: int) -> _Buckets:
        found = table.get(name)
        if found is None:
            if len(table) >= MAX_BUCKET_COUNT:
                del table[next(iter(table))]
            found = table[name] = _Buckets(limit, now_ms)
        return found
