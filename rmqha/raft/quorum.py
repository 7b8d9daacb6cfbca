"""Who counts: the configuration of a Raft group and majorities over it. Pure values (after etcd's quorum package)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Configuration:
    """Voters elect and commit; learners only receive the log. Both are sorted, disjoint tuples of node ids."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.voters, "a Raft group needs a voter"
        members = self.members
        assert len(members) == len(self.voters) + len(self.learners), f"a node is named twice in {self}"

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(sorted({*self.voters, *self.learners}))

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def majority_reached(self, value_of: Callable[[str], int]) -> int:
        """The highest value that a majority of voters has reached."""
        return sorted((value_of(voter) for voter in self.voters), reverse=True)[self.majority - 1]

    def won(self, votes: dict[str, bool]) -> bool:
        return sum(votes.get(voter, False) for voter in self.voters) >= self.majority

    def lost(self, votes: dict[str, bool]) -> bool:
        refused = sum(not votes.get(voter, True) for voter in self.voters)
        return refused > len(self.voters) - self.majority
