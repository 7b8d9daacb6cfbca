"""One Raft leader among the controllers in each term, and none beside one that may still answer alone: while a leader's
lease is valid by its own clock nobody leads in a later term."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.history import InvariantError
from tests.simulation.processes.controller_process import ControllerProcess


class Leaders:
    """`controllers` are all of them; `leases` False where clocks stand still, which no lease survives."""

    def __init__(self, controllers: Sequence[ControllerProcess], *, leases: bool) -> None:
        self._controllers = controllers
        self._leases = leases
        self._leader_of: dict[tuple[int, int], str] = {}

    @property
    def terms(self) -> list[int]:
        """In which some controller led."""
        return sorted({term for _, term in self._leader_of})

    def stepped(self, controller: ControllerProcess) -> None:
        term = controller.led_term
        if term is None:
            return
        key = controller.wipe_count, term
        is_new = key not in self._leader_of
        other = self._leader_of.setdefault(key, controller.host)
        if other != controller.host:
            raise InvariantError(f"{controller.host} and {other} both lead the controllers in term {term}")
        if is_new and self._leases:
            self._verify_leases(controller, term)

    def _verify_leases(self, leader: ControllerProcess, term: int) -> None:
        for other in self._controllers:
            led = other.led_term if other.alive and other is not leader else None
            if led is not None and led < term and other.holds_lease:
                raise InvariantError(
                    f"{leader.host} leads the controllers in term {term}, and {other.host} answers alone in term {led}"
                )
