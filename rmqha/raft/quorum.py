"""Voters: the configuration of a Raft group and majorities over it. Pure values (after etcd's quorum package).

The identity of a node is `id#incarnation`. The incarnation is drawn when its directory is created, so that a wiped
disk, which has forgotten its votes, is another node with the same id (after KIP-853's directory ids).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import cbor2

from rmqha.model.error import RemoteProtocolError

VERSION = 1
MAX_MEMBER_COUNT = 32
MAX_NAME_CHARS = 255
SEPARATOR = "#"

_VOTER, _LEARNER, _JOINING = 0, 1, 2


def identity(node_id: str, incarnation: str) -> str:
    assert SEPARATOR not in node_id, f"the id {node_id!r} contains {SEPARATOR!r}"
    return f"{node_id}{SEPARATOR}{incarnation}"


def id_of(member: str) -> str:
    """Bare id of an identity; a bare id is returned as it is."""
    return member.partition(SEPARATOR)[0]


def incarnation_of(member: str) -> str:
    """Incarnation of an identity; "" of a bare id."""
    return member.partition(SEPARATOR)[2]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Members of a Raft group. Voters elect and commit; learners only receive the log; `joining` are those learners
    that become voters once they have caught up. All are sorted tuples of identities, no id twice.

    A configuration that is not `formed` is the list that a new group was started with. It has bare ids, because the
    incarnations are not known yet. Its first leader needs the vote of every voter. By the votes it learns the
    incarnations, and then it writes the formed configuration. If a majority were enough, a node with a wiped disk and a
    node that never ran could elect a leader without the entries that the others have committed.
    """

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    joining: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    """(member, host:port), sorted; a member may have none."""
    formed: bool = True

    def __post_init__(self) -> None:
        assert self.voters, "a Raft group needs a voter"
        ids = [id_of(member) for member in (*self.voters, *self.learners)]
        assert len(set(ids)) == len(ids), f"a node is named twice in {self}"
        assert set(self.joining) <= set(self.learners), f"a node joins that is no learner in {self}"

    @classmethod
    def static(cls, peers: Mapping[str, str]) -> Self:
        """Configuration of a new group, not formed. `peers`: address by id."""
        return cls(tuple(sorted(peers)), addresses=tuple(sorted(peers.items())), formed=False)

    # --- members ----------------------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(sorted({*self.voters, *self.learners}))

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def name_of(self, member: str) -> str:
        """Name of the node in this configuration: its identity, or its bare id if the group is not formed."""
        return member if self.formed else id_of(member)

    def knows(self, member: str) -> bool:
        return self.name_of(member) in (*self.voters, *self.learners)

    def is_voter(self, member: str) -> bool:
        return self.name_of(member) in self.voters

    def is_sole_voter(self, member: str) -> bool:
        return self.voters == (self.name_of(member),)

    def find(self, node_id: str) -> str | None:
        """Member with this bare id; None if there is none."""
        return next((member for member in self.members if id_of(member) == node_id), None)

    def address_of(self, member: str) -> str:
        """Address of a member; "" if it has none."""
        return dict(self.addresses).get(self.name_of(member), "")

    # --- count ------------------------------------------------------------------------------------------------------

    def majority_reached(self, value_of: Callable[[str], int]) -> int:
        """The highest value that a majority of voters has reached."""
        return sorted((value_of(voter) for voter in self.voters), reverse=True)[self.majority - 1]

    def won(self, votes: dict[str, bool]) -> bool:
        """True if the granted votes are enough. `votes` by identity."""
        granted = {self.name_of(member) for member, vote in votes.items() if vote}
        return sum(voter in granted for voter in self.voters) >= self._needed_votes

    def lost(self, votes: dict[str, bool]) -> bool:
        refused = {self.name_of(member) for member, vote in votes.items() if not vote}
        return sum(voter in refused for voter in self.voters) > len(self.voters) - self._needed_votes

    @property
    def _needed_votes(self) -> int:
        return self.majority if self.formed else len(self.voters)

    # --- change -----------------------------------------------------------------------------------------------------

    def formed_by(self, identities: Iterable[str]) -> Configuration:
        """This configuration with the incarnations among `identities`; the first of an id counts."""
        found: dict[str, str] = {}
        for member in identities:
            found.setdefault(id_of(member), member)
        addresses = sorted((found[member], address) for member, address in self.addresses if member in self.voters)
        return Configuration(tuple(sorted(found[voter] for voter in self.voters)), addresses=tuple(addresses))

    def with_learner(self, member: str, address: str, *, joining: bool) -> Configuration:
        return replace(
            self,
            learners=tuple(sorted((*self.learners, member))),
            joining=tuple(sorted((*self.joining, member))) if joining else self.joining,
            addresses=tuple(sorted((*self.addresses, (member, address)))) if address else self.addresses,
        )

    def promoted(self, member: str) -> Configuration:
        return replace(
            self,
            voters=tuple(sorted((*self.voters, member))),
            learners=_without(self.learners, member),
            joining=_without(self.joining, member),
        )

    def without(self, member: str) -> Configuration:
        return replace(
            self,
            voters=_without(self.voters, member),
            learners=_without(self.learners, member),
            joining=_without(self.joining, member),
            addresses=tuple(item for item in self.addresses if item[0] != member),
        )

    # --- bytes ------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """CBOR [version, [[identity, address, kind], …]], by identity; kind 0 voter, 1 learner, 2 joining. b"" if the
        group is not formed."""
        if not self.formed:
            return b""
        addresses = dict(self.addresses)
        rows = [[member, addresses.get(member, ""), self._kind(member)] for member in self.members]
        return cbor2.dumps([VERSION, rows])

    def _kind(self, member: str) -> int:
        if member in self.voters:
            return _VOTER
        return _JOINING if member in self.joining else _LEARNER

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Parse an encoded configuration. Raises RemoteProtocolError."""
        try:
            document: Any = cbor2.loads(data)
            version, rows = document
            if version != VERSION:
                raise ValueError(f"version {version!r}; this release understands {VERSION}")
            return cls._of_rows(rows)
        except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RemoteProtocolError(f"Raft configuration cannot be read: {error}") from None

    @classmethod
    def _of_rows(cls, rows: Any) -> Self:
        kinds: dict[str, int] = {}
        addresses: dict[str, str] = {}
        if type(rows) is not list or not 0 < len(rows) <= MAX_MEMBER_COUNT:
            raise ValueError(f"not between 1 and {MAX_MEMBER_COUNT} members")
        for row in rows:
            member, address, kind = row
            if not (_is_name(member, 1) and _is_name(address, 0) and type(kind) is int and _VOTER <= kind <= _JOINING):
                raise ValueError(f"a member {row!r}")
            kinds[member], addresses[member] = kind, address
        members = sorted(kinds)
        if len({id_of(member) for member in members}) != len(rows):
            raise ValueError("a node named twice")
        voters = tuple(member for member in members if kinds[member] == _VOTER)
        if not voters:
            raise ValueError("no voter")
        return cls(
            voters,
            tuple(member for member in members if kinds[member] != _VOTER),
            tuple(member for member in members if kinds[member] == _JOINING),
            tuple((member, addresses[member]) for member in members if addresses[member]),
        )


def _is_name(value: object, min_chars: int) -> bool:
    return type(value) is str and min_chars <= len(value) <= MAX_NAME_CHARS


def _without(members: tuple[str, ...], gone: str) -> tuple[str, ...]:
    return tuple(member for member in members if member != gone)
