"""A broker speaks to the leading controller by its newest connection: that one alone stands for it, so the end of an
older one, which may come late, is nobody's (ruling 17). None stands for who is dead. Another takes its place by a
registration, not by a heartbeat that has been under way for long."""

from __future__ import annotations

from controller.elections.heartbeat import BrokerKey
from controller.elections.leadership import Leadership
from tests.simulation.history import InvariantError
from tests.simulation.processes.controller_process import ControllerProcess


class Sessions:
    def __init__(self) -> None:
        self._known: dict[str, tuple[Leadership, dict[BrokerKey, int]]] = {}
        """By host: its leadership, and the connection that stands for each broker."""

    def stepped(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        leadership = controller.machine._leadership
        if leadership is None:
            self._known.pop(controller.host, None)
            return
        table, found = leadership.table, dict[BrokerKey, int]()
        for session_id, keys in table._sessions.items():
            for key in keys:
                live = table.get(key)
                if live is None or live.session_id != session_id:
                    newest = None if live is None else live.session_id
                    raise InvariantError(
                        f"{controller.host}: connection {session_id} stands for {key}, whose newest one is {newest}"
                    )
                if not live.alive:
                    raise InvariantError(f"{controller.host}: connection {session_id} stands for {key}, which is dead")
                found[key] = session_id
        before = self._known.get(controller.host)
        self._known[controller.host] = leadership, found
        if before is not None and before[0] is leadership and before[1] != found:
            for key in before[1].keys() & found.keys():
                self._verify_newer(controller, key, before[1][key], found[key])

    @staticmethod
    def _verify_newer(controller: ControllerProcess, key: BrokerKey, old: int, new: int) -> None:
        group, broker_id = key.broker_name, str(key.broker_id)
        places = [controller.registrations.get((group, broker_id, session_id), 0) for session_id in (old, new)]
        if old != new and places[1] <= places[0]:
            raise InvariantError(
                f"{controller.host}: connection {new} stands for {key} in the place of {old}, by which it has"
                " registered since"
            )
