"""A broker speaks to the leading controller by its newest connection: that one alone stands for it, so the end of an
older one, which may come late, is nobody's (ruling 17)."""

from __future__ import annotations

from tests.simulation.history import InvariantError
from tests.simulation.processes.controller_process import ControllerProcess


def stepped(controller: ControllerProcess) -> None:
    """A step of a controller."""
    leadership = controller.machine._leadership
    if leadership is None:
        return
    table = leadership.table
    for session_id, keys in table._sessions.items():
        for key in keys:
            live = table.get(key)
            if live is None or live.session_id != session_id:
                newest = None if live is None else live.session_id
                raise InvariantError(
                    f"{controller.host}: connection {session_id} stands for {key}, whose newest one is {newest}"
                )
