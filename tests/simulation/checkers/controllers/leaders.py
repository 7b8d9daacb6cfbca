"""One Raft leader among the controllers in each term, and none beside one that may still answer alone: while a leader's
lease is valid by its own clock nobody leads in a later term. What a leader commits ends with an entry of its own term,
and stands on the disks of a majority at that moment;
what is committed on one controller is the same entry on all."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.model.offset import RaftIndex
from tests.simulation.history import InvariantError
from tests.simulation.processes.controller_process import ControllerProcess


class Leaders:
    """`controllers` are all of them; `leases` False where clocks stand still, which no lease survives."""

    def __init__(self, controllers: Sequence[ControllerProcess], *, leases: bool) -> None:
        self._controllers = controllers
        self._leases = leases
        self._leader_of: dict[tuple[int, int], str] = {}
        self._committed: dict[str, tuple[int, int]] = {}
        """By host: its life, and the last entry that it knows to be committed."""
        self._terms: dict[tuple[int, int], tuple[int, str]] = {}
        """By disks lost and index: the term of a committed entry, and who knew it first."""

    @property
    def terms(self) -> list[int]:
        """In which some controller led."""
        return sorted({term for _, term in self._leader_of})

    def stepped(self, controller: ControllerProcess) -> None:
        term = controller.led_term
        log = controller.raft_log
        before, self._committed[controller.host] = (
            self._committed.get(controller.host),
            (controller.life, log.commit_index),
        )
        if before != self._committed[controller.host]:
            self._verify_terms(controller, before)
        if term is None:
            return
        if before is not None and before[0] == controller.life and log.commit_index > before[1]:
            self._verify_commit(controller, term)
        key = controller.wipe_count, term
        is_new = key not in self._leader_of
        other = self._leader_of.setdefault(key, controller.host)
        if other != controller.host:
            raise InvariantError(f"{controller.host} and {other} both lead the controllers in term {term}")
        if is_new and self._leases:
            self._verify_leases(controller, term)

    def _verify_terms(self, controller: ControllerProcess, before: tuple[int, int] | None) -> None:
        """What is committed on one is the same entry on all."""
        log = controller.raft_log
        start = before[1] + 1 if before is not None and before[0] == controller.life else log.snapshot_index
        for index in range(max(start, int(log.snapshot_index)), log.commit_index + 1):
            found = log.term_at(RaftIndex(index))
            if found is None or not index:
                continue
            term, first = self._terms.setdefault((controller.wipe_count, index), (int(found), controller.host))
            if term != found:
                raise InvariantError(
                    f"{controller.host} has committed entry {index} of term {found}, and {first} that of term {term}"
                )

    def _verify_commit(self, leader: ControllerProcess, term: int) -> None:
        index, voters = leader.raft_log.commit_index, leader.configuration.voters
        of_term = leader.raft_log.term_at(index)
        if of_term != term:
            raise InvariantError(f"{leader.host} commits entry {index} of term {of_term}, and leads in term {term}")
        holders = [
            item.host
            for item in self._controllers
            if item.has_booted
            and item.member in voters
            and item.raft_log.durable_index >= index
            and item.raft_log.term_at(index) in (of_term, None)
        ]
        if 2 * len(holders) <= len(voters):
            raise InvariantError(f"{leader.host} commits entry {index}, which only {holders} of {voters} have on disk")

    def _verify_leases(self, leader: ControllerProcess, term: int) -> None:
        for other in self._controllers:
            led = other.led_term if other.alive and other is not leader else None
            if led is not None and led < term and other.holds_lease:
                raise InvariantError(
                    f"{leader.host} leads the controllers in term {term}, and {other.host} answers alone in term {led}"
                )
