"""A set has one epoch, as the controllers apply it and as masters know it. In CP a master waits for everybody whom a
set may have that is in force by now, or that may still be applied (ruling 1), commits nothing as long as it cannot know
whom its former life has asked for, and acknowledges with no fewer members than the controllers count on (ruling 15). A
larger number of replicas is the group's, so that the next change may begin, once its master goes by it.
Seen at once, where survival needs the unlucky election to follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from controller.state.replicas_info import BrokerGroup, min_in_sync_replicas
from rmqha.model.offset import BrokerId
from tests.simulation.checkers.elections.under_way import AskedSet, Members
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess


class Sets:
    """`brokers` are the replicas of group `name` that may be in a set, `under_way` the sets that were asked for and may
    still be applied."""

    def __init__(
        self,
        name: str,
        brokers: Sequence[BrokerProcess],
        under_way: Callable[[], Iterable[AskedSet]],
        *,
        cp: bool,
    ) -> None:
        self._name = name
        self._brokers = brokers
        self._under_way = under_way
        self._cp = cp
        self._group: BrokerGroup | None = None
        """As the controllers have applied it last."""
        self._sizes = 0, 0
        """The number of replicas that is the group's, and the one to which it is changing, at that moment."""
        self._blind: dict[str, tuple[int, int, int]] = {}
        """By host: its life, its epoch and the confirm offset since it has been blind."""
        self._majorities: dict[str, tuple[int, int, int]] = {}
        """By host: its life, its epoch and how many members it acknowledges with."""
        self._applied: dict[tuple[int, int, int], Members] = {}
        """By disks lost, master epoch and set epoch."""
        self._newest: tuple[tuple[int, int], int, int, Members] = ((-1, -1), -1, -1, ())
        """(Disks lost, index applied), master epoch, set epoch and members."""
        self._known: dict[str, tuple[int, int, int, Members, Members, bool]] = {}
        """By host: its life, the epoch that it leads, the set's epoch, who is confirmed and who counts, and whether it
        is blind."""

    def applied(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        group = controller.machine.info.groups.get(self._name)
        if group is None or not group.set_known:
            return
        applied_to = controller.wipe_count, int(controller.machine._role_changes.index)
        if applied_to <= self._newest[0]:
            return
        self._group = group
        before_sizes, self._sizes = self._sizes, (group.total_replicas, group.next_total_replicas)
        if before_sizes != self._sizes:
            self._judge_growth(controller, group, before_sizes)
        members = tuple(sorted(map(int, group.sync_state_set)))
        key = controller.wipe_count, int(group.master_epoch), int(group.sync_state_set_epoch)
        before = self._applied.setdefault(key, members)
        if before != members:
            raise InvariantError(f"{controller.host}: set {key[2]} of epoch {key[1]} is {members}, and was {before}")
        is_news = self._newest[1:] != (*key[1:], members)
        self._newest = (applied_to, *key[1:], members)
        if is_news:
            for broker in self._brokers:
                if broker.alive and broker.host in self._known:
                    self._judge(broker)

    def _judge_growth(self, controller: ControllerProcess, group: BrokerGroup, before: tuple[int, int]) -> None:
        """A master that is dead, or has not begun, adopts the group's number before it leads."""
        size, next_size = self._sizes
        if next_size or not before[1] or size != before[1] or size < before[0]:
            return
        for broker in self._brokers:
            leads = broker.alive and broker.broker_id == group.master_id and broker.replica.is_master
            if leads and broker.replica.epoch == group.master_epoch and broker.replica._set.total_replicas < size:
                raise InvariantError(
                    f"{controller.host}: {self._name} has {size} replicas, no more {before[0]}, and its master"
                    f" {broker.host} goes by {broker.replica._set.total_replicas}"
                )

    def stepped(self, broker: BrokerProcess) -> None:
        """A step of a broker."""
        replica = broker.replica
        if not replica.is_master:
            self._known.pop(broker.host, None)
            return
        state = replica._set.state
        if self._cp:
            self._look_at_blind(broker)
            self._look_at_size(broker)
        now = (broker.life, int(replica.epoch), state.set_epoch, state.confirmed, state.union, state.blind)
        before = self._known.get(broker.host)
        if now == before:
            return
        self._known[broker.host] = now
        if before is not None and before[:2] == now[:2] and now[2] < before[2]:
            raise InvariantError(f"{broker.host} takes set {now[2]} for news after set {before[2]} of epoch {now[1]}")
        self._judge(broker)

    def _look_at_blind(self, broker: BrokerProcess) -> None:
        if not broker.replica._set.state.blind:
            self._blind.pop(broker.host, None)
            return
        life, epoch, confirm = broker.life, int(broker.replica.epoch), int(broker.store.confirm_offset)
        before = self._blind.get(broker.host)
        if before is None or before[:2] != (life, epoch):
            self._blind[broker.host] = life, epoch, confirm
        elif confirm > before[2]:
            raise InvariantError(
                f"{broker.host} commits up to {confirm} in epoch {epoch}, and does not know whom its former life has"
                " asked for"
            )

    def _look_at_size(self, broker: BrokerProcess) -> None:
        """`group` may be replaced by a snapshot, never changed back: the newest one counts."""
        group, replica = self._group, broker.replica
        own_id = replica.broker_id
        if group is None or own_id is None or group.master_id != own_id or group.master_epoch != replica.epoch:
            return
        least = min_in_sync_replicas(group, BrokerId(own_id))
        if replica._set.majority < least:
            raise InvariantError(
                f"{broker.host} acknowledges with {replica._set.majority} members in epoch {replica.epoch}; the"
                f" controllers count on {least}"
            )
        now = broker.life, int(replica.epoch), int(replica._set.majority)
        before, self._majorities[broker.host] = self._majorities.get(broker.host, now), now
        has_fallen = before[:2] == now[:2] and now[2] < before[2]
        if has_fallen and group.next_total_replicas and now[2] < group.total_replicas // 2 + 1:
            raise InvariantError(
                f"{broker.host} goes over to a majority of {now[2]} in epoch {replica.epoch}, while"
                f" {group.total_replicas} replicas are still to become {group.next_total_replicas}"
            )

    def _judge(self, broker: BrokerProcess) -> None:
        _, epoch, set_epoch, confirmed, union, blind = self._known[broker.host]
        if self._cp and not blind:
            self._judge_under_way(broker, epoch, set_epoch, union)
        _, applied_epoch, applied_set_epoch, members = self._newest
        if applied_epoch != epoch or applied_set_epoch < set_epoch or not self._cp:
            return
        if applied_set_epoch == set_epoch:
            if not set(members) <= set(confirmed):
                raise InvariantError(f"{broker.host} calls {confirmed} set {set_epoch} of epoch {epoch}: {members}")
        elif not blind and not set(members) <= set(union):
            raise InvariantError(
                f"{broker.host} waits for {union} in epoch {epoch}, and set {applied_set_epoch} is {members}"
            )

    def _judge_under_way(self, broker: BrokerProcess, epoch: int, set_epoch: int, union: Members) -> None:
        for asked in self._under_way():
            is_possible = asked.master_epoch == epoch and asked.set_epoch >= set_epoch
            if is_possible and not set(asked.members) <= set(union):
                raise InvariantError(
                    f"{broker.host} waits for {union} in epoch {epoch}, and {asked.where} has the request for set"
                    f" {asked.members} behind set {asked.set_epoch}"
                )
