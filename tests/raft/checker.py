"""What must hold in every run, checked after every event. Knows only what nodes show, send, persist and apply."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rmqha.wire.raft_message import AnyMessage, Entry, EntryKind, VoteReply

EMPTY_STATE = b"\0" * 16


class ViolationError(AssertionError):
    """A promise of Raft was broken."""


def next_state(state: bytes, entry: Entry) -> bytes:
    """The application: a chain of hashes, so that equal states mean equal histories."""
    if entry.kind is not EntryKind.DATA:
        return state
    return hashlib.blake2b(state + entry.data, digest_size=16).digest()


@dataclass(slots=True)
class Application:
    """One node's state machine."""

    index: int = 0
    state: bytes = EMPTY_STATE


class Checker:
    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[int, str], str] = {}
        self.decided: list[Entry] = []
        """Every entry that any node has applied, by index − 1."""
        self.states: list[bytes] = [EMPTY_STATE]
        """The state after each of them."""
        self.acknowledged_index = 0
        """The highest entry that a client was told of."""

    def require(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise ViolationError(sentence)

    def on_send(self, message: AnyMessage) -> None:
        """A node votes once per term, whatever it forgets."""
        if isinstance(message, VoteReply) and message.granted:
            vote = self.votes.setdefault((message.term, message.sender), message.to)
            self.require(
                vote == message.to, f"{message.sender} votes for {vote} and {message.to} in term {message.term}"
            )

    def on_leader(self, node_id: str, term: int) -> None:
        """One leader per term (election safety)."""
        known = self.leaders.setdefault(term, node_id)
        self.require(known == node_id, f"{known} and {node_id} both lead term {term}")

    def on_leader_log(self, node_id: str, term: int, log_terms: dict[int, int], positions: range) -> None:
        """A leader holds everything that was decided before its election (leader completeness)."""
        for entry in self.decided[positions.start : positions.stop]:
            self.require(
                log_terms.get(entry.index) == entry.term,
                f"{node_id} leads term {term} without decided entry {entry.index} of term {entry.term}",
            )

    def on_election(self, node_id: str, holders: list[str]) -> None:
        """No election before an old lease has run out."""
        self.require(not holders, f"{node_id} leads while {holders} hold the lease")

    def on_apply(self, node_id: str, application: Application, entry: Entry) -> None:
        """Every node applies the same entries in the same order (state machine safety)."""
        self.require(entry.index == application.index + 1, f"{node_id} applies {entry.index} after {application.index}")
        if entry.index > len(self.decided):
            self.decided.append(entry)
            self.states.append(next_state(self.states[-1], entry))
        decided = self.decided[entry.index - 1]
        self.require(entry == decided, f"{node_id} applies {entry}, but {decided} was decided")
        application.index, application.state = entry.index, next_state(application.state, entry)
        self.check_state(node_id, application)

    def check_state(self, node_id: str, application: Application) -> None:
        self.require(application.index < len(self.states), f"{node_id} is at {application.index}, beyond all decided")
        self.require(
            application.state == self.states[application.index], f"{node_id} has another state at {application.index}"
        )

    def on_acknowledge(self, entry: Entry) -> None:
        self.acknowledged_index = max(self.acknowledged_index, entry.index)

    def on_read(self, node_id: str, kind: str, index: int, needed_index: int) -> None:
        """A read sees everything acknowledged before it began (linearizability)."""
        self.require(index >= needed_index, f"{kind} read at {node_id} sees {index}, acknowledged was {needed_index}")

    def on_logs(self, logs: dict[str, dict[int, Entry]]) -> None:
        """Two logs with an entry of the same index and term are equal up to it (log matching)."""
        names = sorted(logs)
        for number, name in enumerate(names):
            for other in names[number + 1 :]:
                common = sorted(logs[name].keys() & logs[other].keys(), reverse=True)
                matched = False
                for index in common:
                    same = logs[name][index] == logs[other][index]
                    matched = matched or logs[name][index].term == logs[other][index].term
                    self.require(same or not matched, f"{name} and {other} differ at {index} below a common entry")
