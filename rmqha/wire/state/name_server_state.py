"""A name server's own state: the body of an answer to request 52014."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqha.wire.state.json_record import JsonRecord, part

VERSION = 1


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class NameServerState(JsonRecord):
    """State of a name server. `follows` and `event_index`: the controller whose elections it follows, and the version
    that it has reached; None if it follows none. `contested`: addresses, by group, of brokers that register under the
    same id and replace each other. `refused`: names of the group and reasons, by address, of brokers that it does not
    accept."""

    version: int = VERSION
    release: str | None = part()
    follows: str | None = None
    event_index: int | None = None
    address_problem: str = ""
    contested: dict[str, list[str]] | None = part()
    refused: dict[str, list[str]] | None = part()
    statistics: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class NameServerFacts(JsonRecord):
    """Facts that a name server's page tells of that name server itself."""

    address: str
    brokers: int | None = part()
    topics: int | None = part()
    suspects_itself: bool | None = part()
    embeds_controller: bool | None = part()
