"""One Raft leader among the controllers in each term."""

from __future__ import annotations

from tests.simulation.history import InvariantError
from tests.simulation.processes.controller_process import ControllerProcess


class Leaders:
    def __init__(self) -> None:
        self._leader_of: dict[tuple[int, int], str] = {}

    @property
    def terms(self) -> list[int]:
        """In which some controller led."""
        return sorted({term for _, term in self._leader_of})

    def stepped(self, controller: ControllerProcess) -> None:
        term = controller.led_term
        if term is None:
            return
        other = self._leader_of.setdefault((controller.wipe_count, term), controller.host)
        if other != controller.host:
            raise InvariantError(f"{controller.host} and {other} both lead the controllers in term {term}")
