"""Bounds of the broker's tables: of what one account may create, of all topics, of the names of deleted ones. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, KeysView, Mapping
from types import MappingProxyType

from rmqha.model.message import DLQ_PREFIX, RETRY_PREFIX
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.wire.registration import MAX_TOPIC_COUNT

MAX_NAMES_CHARS = 12 * 1024 * 1024
"""Characters of the names of all topics, half of them for those of groups: compressed, so many names of any kind fit
into one frame of a registration."""
MAX_EXPECTED_COUNT = 100_000
NO_ENDS: Mapping[str, Mapping[int, int]] = MappingProxyType({})
_GROUP_PREFIXES = RETRY_PREFIX, DLQ_PREFIX


class Creators:
    """Accounts that have created entries of a table since this broker is its master. One that is no admin creates half
    of what the table takes at most, so that others find room."""

    def __init__(self, max_chars: int = 0) -> None:
        """`max_chars`: characters of names that the table takes; 0: any."""
        self.most = 0
        """Entries that the table takes."""
        self.max_chars = max_chars
        self._created_by: dict[str, str] = {}
        """Access key by name of an entry."""
        self._counts: Counter[str] = Counter()
        self._chars: Counter[str] = Counter()
        """Characters of the names of what each account has made."""

    def has_half(self, principal: Principal) -> bool:
        """True if the account can create no more."""
        has_half = self._has_half_of_count(principal) or self._has_half_of_chars(principal)
        return has_half and bool(principal.mark)

    def _has_half_of_count(self, principal: Principal) -> bool:
        return self._counts[principal.access_key] >= (self.most + 1) // 2

    def _has_half_of_chars(self, principal: Principal) -> bool:
        return 0 < self.max_chars <= 2 * self._chars[principal.access_key]

    def refusal(self, principal: Principal, what: str, key: str = "") -> str:
        """Reason why the account can create no more of `what`, which the configuration's `key` bounds, or ""."""
        if not self.has_half(principal):
            return ""
        account = f"account {principal.access_key} has made"
        if not self._has_half_of_count(principal):
            chars = f"half of the characters that this broker takes, {self.max_chars}"
            return f"{account} {what} whose names have {chars}: delete some"
        if key:
            return f"{account} half of the {what} that {key} allows, {self.most}: delete some or raise it"
        return f"{account} half of the {what} that this broker takes, {self.most}: delete some"

    def created(self, name: str, principal: Principal) -> None:
        """Take note of a new entry."""
        if principal.mark:
            self.removed(name)
            self._created_by[name] = principal.access_key
            self._counts[principal.access_key] += 1
            self._chars[principal.access_key] += len(name)

    def removed(self, name: str) -> None:
        """Take note that there is no such entry any more."""
        if (access_key := self._created_by.pop(name, None)) is not None:
            self._counts[access_key] -= 1
            self._chars[access_key] -= len(name)

    def clear(self) -> None:
        self._created_by.clear()
        self._counts.clear()
        self._chars.clear()


class TopicBound:
    """Bound of one kind of topics: their number, and the characters of their names. `key`: the configuration's key
    that sets `most`, "" for none."""

    def __init__(self, what: str, key: str = "") -> None:
        self.most = self.count = self.chars = 0
        self.creators = Creators(MAX_NAMES_CHARS // 2)
        self._what, self._key = what, key

    def refusal(self, name: str, principal: Principal) -> str:
        """Reason why the account can create no topic of that new name, or ""."""
        if self.count >= self.most:
            if self._key:
                allowed = f"as many {self._what} as {self._key} allows, {self.most}: delete some or raise it"
                return f"this broker has {allowed}"
            return f"this broker has {self.most} {self._what}, as many as it takes: delete some"
        most_chars = MAX_NAMES_CHARS // 2
        if self.chars + len(name) > most_chars:
            has = f"have as many characters as it takes, {most_chars}"
            return f"the names of this broker's {self._what} {has}: delete some"
        return self.creators.refusal(principal, self._what, self._key)

    def recount(self, names: Collection[str]) -> None:
        self.count, self.chars = len(names), sum(map(len, names))

    def added(self, name: str) -> None:
        self.count += 1
        self.chars += len(name)

    def removed(self, name: str) -> None:
        self.creators.removed(name)
        self.count -= 1
        self.chars -= len(name)


class TopicBounds:
    """Bounds of a table of topics. Name servers take MAX_TOPIC_COUNT of one broker. Those of retries and dead letters
    have what maxTopicCount leaves of that, half at least: they take no room from others, nor others from them."""

    def __init__(self) -> None:
        self.others = TopicBound("topics", "maxTopicCount")
        self.of_groups = TopicBound("topics of retries and dead letters")
        self._expected: dict[str, Principal] = {}
        """Accounts whose pops may make the retry topic of that name."""

    def configure(self, max_topic_count: int) -> None:
        of_groups = MAX_TOPIC_COUNT - min(max_topic_count, MAX_TOPIC_COUNT // 2)
        self.others.most = self.others.creators.most = max_topic_count
        self.of_groups.most = self.of_groups.creators.most = of_groups

    @property
    def most(self) -> int:
        """Topics of both kinds that there is room for."""
        return self.others.most + self.of_groups.most

    def _bound_of(self, name: str) -> TopicBound:
        return self.of_groups if name.startswith(_GROUP_PREFIXES) else self.others

    def recount(self, names: Collection[str]) -> None:
        """Count the topics of a table anew."""
        self.of_groups.recount([name for name in names if name.startswith(_GROUP_PREFIXES)])
        self.others.recount([name for name in names if not name.startswith(_GROUP_PREFIXES)])

    def added(self, name: str) -> None:
        """Count a topic that no account has created here."""
        self._bound_of(name).added(name)

    def refusal(self, name: str, principal: Principal) -> str:
        """Reason why the account can create no topic of that new name, or ""."""
        return self._bound_of(name).refusal(name, principal)

    def expect(self, name: str, principal: Principal) -> None:
        """Take note that the retry topic of that name will be created for a pop of this account."""
        if principal.mark:
            if len(self._expected) >= MAX_EXPECTED_COUNT:
                self._expected.clear()
            self._expected[name] = principal

    def expected_for(self, name: str) -> Principal:
        """The account of the last such pop."""
        return self._expected.get(name, UNRESTRICTED)

    def created(self, name: str, principal: Principal) -> None:
        """Take note of a topic that an account has created."""
        self._expected.pop(name, None)
        bound = self._bound_of(name)
        bound.creators.created(name, principal)
        bound.added(name)

    def removed(self, name: str) -> None:
        self._bound_of(name).removed(name)

    def clear(self) -> None:
        """Forget who created what."""
        self.others.creators.clear()
        self.of_groups.creators.clear()
        self._expected.clear()


LOG_END = -1
"""Key, among the ends or first offsets of a topic's queues, of the end that the log had when the topic was deleted."""
MAX_DELETED_COUNT = 100_000
MAX_DELETED_BYTES = 8 * 1024 * 1024
"""Bound on the JSON of what is remembered of deleted topics: slaves get it in a frame with a part of the topics."""
_END_BYTES = 24
"""JSON of one queue's end, nearly always."""

Ends = Mapping[int, int]
"""Ends of a deleted topic's queues by queue id, and of the log (LOG_END)."""


class DeletedNames:
    """Names of deleted topics, with their `Ends`. Beyond MAX_DELETED_COUNT, or MAX_DELETED_BYTES, the oldest of those
    whose queues held nothing are forgotten, then the oldest of the others."""

    def __init__(self, names: Iterable[str] = (), ends: Mapping[str, Ends] = NO_ENDS) -> None:
        found = {name: ends.get(name, {}) for name in names}
        self.ends = {name: found[name] for name in sorted(found, key=lambda name: (found[name].get(LOG_END, 0), name))}
        """The oldest first."""
        self._empty = dict.fromkeys(name for name, of_name in self.ends.items() if not _has_queues(of_name))
        self._size_bytes = sum(map(_deleted_bytes, self.ends.keys(), self.ends.values()))
        self._changed: dict[str, Ends | None] = {}
        self._forget_the_oldest()

    @property
    def names(self) -> KeysView[str]:
        """All of them, the oldest first."""
        return self.ends.keys()

    def add(self, name: str, ends: Ends) -> None:
        self.discard(name)
        self.ends[name] = self._changed[name] = ends
        self._size_bytes += _deleted_bytes(name, ends)
        if not _has_queues(ends):
            self._empty[name] = None
        self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        while len(self.ends) > MAX_DELETED_COUNT or self._size_bytes > MAX_DELETED_BYTES:
            self.discard(next(iter(self._empty or self.ends)))

    def discard(self, name: str) -> Ends:
        """Forget a name, if it is known. Returns its ends."""
        ends = self.ends.pop(name, None)
        if ends is None:
            return {}
        self._empty.pop(name, None)
        self._size_bytes -= _deleted_bytes(name, ends)
        self._changed[name] = None
        return ends

    def clamp(self, log_end: int) -> list[str]:
        """Lower the ends of the log to `log_end`. Returns the names of those that were higher."""
        names = [name for name, ends in self.ends.items() if ends.get(LOG_END, 0) > log_end]
        for name in names:
            self.ends[name] = self._changed[name] = {**self.ends[name], LOG_END: log_end}
        return names

    def take_changed(self) -> dict[str, Ends | None]:
        """Names that were added, with their ends, or forgotten (None), since the last call."""
        changed, self._changed = self._changed, {}
        return changed


def _has_queues(ends: Ends) -> bool:
    """True if any queue of the topic has held messages."""
    return len(ends) > (LOG_END in ends)


def _deleted_bytes(name: str, ends: Ends) -> int:
    """JSON of a deleted topic: its name is told twice."""
    return 2 * (len(name) + len('"",')) + _END_BYTES * len(ends)
