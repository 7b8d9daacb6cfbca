"""After a stop in order the files of a replica say all that it has answered, and all that it knew: whoever opens the
store next, another program too, goes by the files alone. They are read as that one would, on a disk that has lost its
power since: nothing may have been left unsynced."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rmqha.broker.pop.order_table import parse_orders
from rmqha.broker.tables import delay_offsets, groups, offsets, topics
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.table_version import NO_VERSION
from rmqha.broker.timers import timer_check
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.sim.disk import SimDisk
from rmqha.store.meta import config_file
from rmqha.store.meta.boot_file import ABORT_PATH
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.lenient_json import loads
from tests.broker.pop.world import messages
from tests.simulation.checkers.logs.restart import NothingSurvives, opened
from tests.simulation.clients.client_process import TOPIC
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.process import SimChannel

MOST = 10_000
Place = tuple[str, str, int]
"""The group, the topic and the queue."""


@dataclass(slots=True)
class _Mastership:
    """What a replica has answered as master in one life and epoch."""

    key: tuple[int, int] = (0, 0)
    given: dict[Place, int] = field(default_factory=dict)
    """The offset behind the last message that a group was given by a pop."""
    committed: dict[Place, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Offsets that were committed, from the last one on whose commit was answered."""
    answered: set[Place] = field(default_factory=set)
    moved: set[Place] = field(default_factory=set)
    """Operators have put these groups elsewhere, or they commit oneway: how far they are is another checker's."""


class _Unheard:
    """Nobody: the table is only read."""

    def table_changed(self) -> None: ...

    def save_tables_soon(self) -> None: ...

    def topics_changed(self) -> None: ...

    def batch_topics_changed(self, topics: set[str]) -> None: ...


class Stops:
    def __init__(self) -> None:
        self._masterships: dict[str, _Mastership] = defaultdict(_Mastership)
        self.judged_count = 0

    def watch(self, broker: BrokerProcess) -> None:
        broker.asked, broker.stopped = self._asked, self._stopped

    def _mastership(self, broker: BrokerProcess) -> _Mastership:
        known = self._masterships[broker.host]
        key = broker.life, int(broker.replica.epoch)
        if known.key != key:
            known = self._masterships[broker.host] = _Mastership(key)
        return known

    # --- what it answers ----------------------------------------------------------------------------------------------
    def _asked(self, broker: BrokerProcess, channel: SimChannel, command: Command) -> None:
        ext = command.ext
        if command.code == RequestCode.POP_MESSAGE and ext.get("order") != "true":
            channel.answered[command.opaque] = partial(self._popped, broker, ext)
        elif command.code == RequestCode.UPDATE_CONSUMER_OFFSET and ext["topic"] == TOPIC:
            place, offset = (ext["consumerGroup"], TOPIC, int(ext["queueId"])), int(ext["commitOffset"])
            known = self._mastership(broker)
            known.committed[place].append(offset)
            if command.flag & FLAG_ONEWAY:
                known.moved.add(place)
            channel.answered[command.opaque] = partial(self._committed, broker, place, offset)
        elif command.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            self._mastership(broker).moved.add((ext["group"], ext["topic"], int(ext["queueId"])))

    def _popped(self, broker: BrokerProcess, ext: dict[str, str], reply: Command) -> None:
        if reply.code != ResponseCode.SUCCESS:
            return
        group, given = ext["consumerGroup"], self._mastership(broker).given
        for message in messages(reply, ext["topic"], group, broker.config.broker_name):
            place = group, message.topic, message.record.queue_id
            given[place] = max(given.get(place, 0), message.record.queue_offset + 1)

    def _committed(self, broker: BrokerProcess, place: Place, offset: int, reply: Command) -> None:
        known = self._mastership(broker)
        asked = known.committed[place]
        if reply.code == ResponseCode.SUCCESS and offset in asked:
            known.answered.add(place)
            del asked[: asked.index(offset)]

    # --- its stop -----------------------------------------------------------------------------------------------------
    def _stopped(self, broker: BrokerProcess) -> None:
        """Its store has just been closed, and nothing of it runs any more."""
        if broker.has_bad_disk or broker.disk_fails:
            return
        self.judged_count += 1
        disk = broker.disk.copy(NothingSurvives(0))
        disk.crash(power_loss=True)
        where = f"{broker.host}, which has stopped in order,"
        if broker.replica.is_master:
            self._verify_answered(where, disk, broker)
        if broken := sorted(_differences(disk, broker)):
            raise InvariantError(f"{where} has files behind what it knew: {'; '.join(broken)}")
        verify_store(where, disk, broker)

    def _verify_answered(self, where: str, disk: SimDisk, broker: BrokerProcess) -> None:
        known, found = self._mastership(broker), offsets.parse_table(_body(disk, "consumerOffset"))

        def saved(place: Place) -> int | None:
            return found.get(f"{place[1]}@{place[0]}", {}).get(place[2])

        for place, offset in known.given.items():
            if place not in known.moved and (saved(place) or 0) < offset:
                raise InvariantError(f"{where} says {saved(place)} of {place}, and has given all before {offset}")
        for place, asked in known.committed.items():
            if place in known.answered - known.moved and saved(place) not in asked:
                raise InvariantError(f"{where} says {saved(place)} of {place}, and has answered a commit of {asked[0]}")


def _body(disk: SimDisk, name: str) -> dict[str, Any]:
    """The content of a file of tables; {} if there is none."""
    path = config_file.path_of(name)
    return dict(loads(disk.read(path))) if disk.exists(path) else {}


def _differences(disk: SimDisk, broker: BrokerProcess) -> set[str]:
    """Names of the files that do not say what the replica knew as it stopped."""
    core = broker.core
    found = offsets.parse_table(_body(disk, "consumerOffset"))
    stamped = OffsetTable(disk, _Unheard()).changes_since(NO_VERSION, MOST)
    timer = timer_check.decode(disk.read(timer_check.PATH)) if disk.exists(timer_check.PATH) else TimerProgress()
    delivered = delay_offsets.parse_table(_body(disk, "delayOffset"))
    differs = {
        "consumerOffset": {key: row for key, row in found.items() if row}
        != {key: row for key, row in core.offsets.to_json()["offsetTable"].items() if row}
        or set(stamped) != set(core.offsets.changes_since(NO_VERSION, MOST)),
        "consumerOrderInfo": parse_orders(_body(disk, "consumerOrderInfo")) != core.pops.orders._infos,
        "delayOffset": delivered != {level: core.delay_offsets.get(level) for level in core.delay_offsets.levels()},
        "timercheck": timer != core.delay_offsets.timer,
        "topics": core.topics.file.changed_count > 0
        and topics.parse_table(_body(disk, "topics")) != core.topics._topics,
        "subscriptionGroup": core.groups.file.changed_count > 0
        and groups.parse_table(_body(disk, "subscriptionGroup")) != core.groups._groups,
    }
    return {name for name, is_behind in differs.items() if is_behind}


def verify_store(where: str, disk: SimDisk, broker: BrokerProcess) -> None:
    """The log and its marks, as the next start finds them."""
    live = broker.store
    if disk.exists(ABORT_PATH):
        raise InvariantError(f"{where} has left {ABORT_PATH}")
    store = opened(where, disk, broker)
    if store.max_phy_offset != live.record_end_offset:
        raise InvariantError(
            f"{where} would have a log that ends at {store.max_phy_offset}, not {live.record_end_offset}"
        )
    for what in ("min_phy_offset", "confirm_offset", "highest_epoch", "unclean", "dispatched_offset"):
        known, found = getattr(live, what), getattr(store, what)
        if what == "confirm_offset":
            known = min(known, live.record_end_offset)  # half a record does not outlive a start
        if known != found:
            raise InvariantError(f"{where} would start with {what} {found}; it was {known}")
    if list(store.epochs) != list(live.epochs):
        raise InvariantError(f"{where} would start with epochs {list(store.epochs)}; they were {list(live.epochs)}")
