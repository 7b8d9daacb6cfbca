"""Topics, groups and consumers' offsets. In CP with strict synchronisation whoever becomes master holds every change
that was answered (ruling 16), and so does whoever may be elected, and as many as the ack rule of messages wants: seen
when a client is answered, at an election and at the end, when all replicas hold the same. What an operator has set back
stays so, whatever the group commits before it has heard of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.simulation.clients.table_client import GROUP, MOVED_GROUP, TOPIC
from tests.simulation.history import History, InvariantError, Proposal
from tests.simulation.processes.broker_process import BrokerProcess


class Tables:
    """`members` are the replicas that may be in the set; `electable` gives the ids of those whom the controllers may
    elect."""

    def __init__(
        self,
        history: History,
        members: Sequence[BrokerProcess],
        electable: Callable[[], Sequence[int]],
        *,
        cp: bool,
        strict_offsets: bool,
    ) -> None:
        self._history = history
        self._members = members
        self._electable = electable
        self._cp = cp
        self._strict_offsets = strict_offsets
        self._loss_accepted = False
        self.reset_count = 0
        """Queues of which it was judged."""
        self.answered_count = 0

    def elected(self, broker: BrokerProcess) -> None:
        """`broker` takes the role of master."""
        self._verify(broker)

    def accepted_loss(self) -> None:
        """An operator elected uncleanly."""
        self._loss_accepted = True

    def answered(self, change: Proposal) -> None:
        """A client has got SUCCESS for `change`."""
        if not self._cp or self._loss_accepted or self._is_loose(change.key):
            return
        allowed = _outcomes([item for item in self._history.changes if item.key == change.key])
        lacking = []
        for broker in self._members:
            if broker.lost_power or not broker.alive or broker.store.unclean:
                continue  # what its disk holds is seen when it is elected
            if (found := _value(broker, change.key)) not in allowed:
                lacking.append((broker.host, found))
                if broker.broker_id in self._electable():
                    raise InvariantError(
                        f"{change.broker} answers that {change.key} is {change.value}; {broker.host} may be elected and"
                        f" has {found}"
                    )
        self.answered_count += 1
        if len(lacking) > (len(self._members) - 1) // 2 and len(self._members) > 2:
            raise InvariantError(f"{change.broker} answers that {change.key} is {change.value}; {lacking} lack it")

    def _is_loose(self, key: str) -> bool:
        return key.startswith("moved") or (key.startswith("offset") and not self._strict_offsets)

    def _verify(self, broker: BrokerProcess) -> None:
        if not self._cp or self._loss_accepted:
            return
        for key, changes in _by_key(self._history.changes).items():
            if self._is_loose(key):
                continue
            allowed = _outcomes(changes)
            found = _value(broker, key)
            if found not in allowed:
                raise InvariantError(
                    f"{broker.host} is master of epoch {broker.replica.epoch} and has {found} for {key};"
                    f" after what was answered it can be {allowed} only"
                )

    def verify(self, brokers: Sequence[BrokerProcess]) -> None:
        """At the end, when `missing` says nothing."""
        for broker in brokers:
            self._verify(broker)
            if self._cp and not self._loss_accepted:
                self._verify_resets(broker)

    def _verify_resets(self, broker: BrokerProcess) -> None:
        """Of the group none of whose members has heard of an order. A master that was killed may have taken back what
        it had answered from its slaves."""
        for key, changes in _by_key(self._history.changes).items():
            resets = [change for change in changes if change.is_reset]
            if not key.startswith("moved") or all(change.acked_at_ms is None for change in resets):
                continue
            allowed, found = _outcomes(resets), _value(broker, key)
            self.reset_count += 1
            if found not in allowed:
                raise InvariantError(
                    f"{broker.host} has {found} for {key}, which was set back; it can be {allowed} only"
                )


def missing(brokers: Sequence[BrokerProcess]) -> str:
    """Which replicas' tables differ, or ""."""
    first = brokers[0]
    wanted = _content(first)
    for other in brokers[1:]:
        found = _content(other)
        for name in wanted:
            differ = [key for key in {**wanted[name], **found[name]} if wanted[name].get(key) != found[name].get(key)]
            if differ:
                key = differ[0]
                values = wanted[name].get(key), found[name].get(key)
                return f"{first.host} and {other.host} differ in {name} {key}: {values[0]} and {values[1]}"
    return ""


def _content(broker: BrokerProcess) -> dict[str, dict[Any, Any]]:
    core = broker.core
    set_backs = core.offsets._set_backs
    return {
        "topic": core.topics.to_json()["topicConfigTable"],
        # without a record in the log the mark means nothing, and a new master drops it
        "deleted topic": dict.fromkeys(core.topics.deleted & broker.store.queues().keys(), "deleted"),
        "group": core.groups.to_json()["subscriptionGroupTable"],
        "consumer offsets of": core.offsets.to_json()["offsetTable"],
        "time since when pops count of": {key: dict(set_backs.of(key)) for key in set_backs.keys()},  # noqa: SIM118
        "delay offset of level": core.delay_offsets.to_json()["offsetTable"],
    }


def _by_key(changes: Iterable[Proposal]) -> dict[str, list[Proposal]]:
    found: dict[str, list[Proposal]] = {}
    for change in changes:
        found.setdefault(change.key, []).append(change)
    return found


def _outcomes(changes: Sequence[Proposal]) -> list[int | None]:
    """What one key may be: the last answered change, or one without a good answer that began after it."""
    allowed: list[int | None] = []
    for change in reversed(changes):
        if change.value not in allowed:
            allowed.append(change.value)
        if change.acked_at_ms is not None:
            return allowed
    return [*allowed, None]


def _value(broker: BrokerProcess, key: str) -> int | None:
    kind, name = key.split(" ")
    core = broker.core
    if kind == "topic":
        topic = core.topics.get(name)
        return None if topic is None else topic.read_queue_count
    if kind == "group":
        group = core.groups.get(name)
        return None if group is None else int(group["retryMaxTimes"])
    return core.offsets.query(MOVED_GROUP if kind == "moved" else GROUP, TOPIC, int(name))
