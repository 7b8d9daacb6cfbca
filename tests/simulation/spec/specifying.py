"""Runs that are held against the specification (docs/internals/spec) beside all other checkers: trace validation."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.checkers.elections.specified import Specified
from tests.simulation.options import Options
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.world import World


def is_in_the_model(options: Options) -> bool:
    """A controller that loses its disk and forgets all is not, nor a replica with a disk of before."""
    forgets = options.wipe_controller_per_mille or options.wipe_elected_per_mille
    return not forgets and not options.restore_broker_per_mille


def specify(world: World) -> list[Specified]:
    """Watch each group of a world that has not run yet, before other checkers do. Controllers must keep their disks."""
    assert is_in_the_model(world.options), "a controller that forgets all is outside the model"
    made = []
    for group in world.groups:
        watch = Specified(group.name, cp=group.options.cp)
        for broker in group.brokers:
            broker.checks = (watch.stepped, *broker.checks)
        made.append(watch)
    for controller in world.controllers:
        before = controller.stepped

        def stepped(process: ControllerProcess, before: Callable[[ControllerProcess], None] = before) -> None:
            before(process)
            for watch in made:
                watch.applied(process)

        controller.stepped = stepped
    return made
