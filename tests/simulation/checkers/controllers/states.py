"""All controllers hold the same state after the same entry of their log, whether they applied each entry, read a
snapshot or started again from one; and what they hold moves as the rules say: a set that is another one has a higher
epoch, a master epoch never falls. A rule that needs a field after the next election has it then."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from controller.state.image import encode_image
from controller.state.replicas_info import BrokerGroup
from tests.simulation.history import InvariantError
from tests.simulation.processes.controller_process import ControllerProcess


class States:
    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, str]] = {}
        """By disks lost and the index of an entry: the image's checksum, and who had it first."""
        self._seen: dict[str, tuple[int, int, int]] = {}
        """By host: its life, disks lost and the index that was looked at last."""
        self._sets: dict[tuple[str, int, str], tuple[int, int, tuple[int, ...]]] = {}
        """By host, life and group: the master epoch, the set's epoch and its members."""
        self._drained: dict[tuple[str, int, str], tuple[int, ...]] = {}
        """By host, life and group: replicas that an operator keeps out of the set."""
        self.judged_count = 0
        """States that a second controller, or a second life, has had."""

    def stepped(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        index = controller.applied_index
        seen = controller.life, controller.wipe_count, index
        if (before := self._seen.get(controller.host)) == seen:
            return
        self._seen[controller.host] = seen
        self._verify_sets(controller, by_one=before == (*seen[:2], index - 1))
        info = controller.machine.info
        found = crc32(encode_image(info))
        known, first = self._known.setdefault((controller.wipe_count, index), (found, controller.host))
        self.judged_count += first != controller.host
        if known != found:
            raise InvariantError(
                f"{controller.host} and {first} have applied entry {index}, and what they know of the groups differs:"
                f" {list(info.groups.values())}"
            )

    def _verify_sets(self, controller: ControllerProcess, *, by_one: bool) -> None:
        """`by_one`: one entry was applied since the last look."""
        for name, group in controller.machine.info.groups.items():
            now = int(group.master_epoch), int(group.sync_state_set_epoch), tuple(map(int, group.sync_state_set))
            key = controller.host, controller.life, name
            before = self._sets.get(key)
            self._sets[key] = now
            _verify_members(controller, group)
            drained, self._drained[key] = self._drained.get(key, ()), tuple(map(int, group.drained_ids))
            if by_one and before is not None and now[2] != before[2] and len(self._drained[key]) > len(drained):
                _verify_drain(controller, group, before[2])
            if before is None or before == now:
                continue
            if now[:2] < before[:2] or (now[2] != before[2] and now[1] <= before[1]):
                raise InvariantError(
                    f"{controller.host}: set {before[1]} of epoch {before[0]} is {before[2]} in {name}, and the next"
                    f" one is set {now[1]} of epoch {now[0]}: {now[2]}"
                )


def _verify_drain(controller: ControllerProcess, group: BrokerGroup, before: tuple[int, ...]) -> None:
    """An operator's drain, and nothing else, has taken a replica out of the set `before`."""
    total_replicas = max(group.total_replicas, group.next_total_replicas)
    needed = total_replicas // 2 + 1 if group.is_cp and total_replicas > 2 else 1
    if len(group.sync_state_set) < needed <= len(before):
        raise InvariantError(
            f"{controller.host}: {group.broker_name} is drained from {before} to {group.sync_state_set}, and a send"
            f" needs {needed}"
        )


def _verify_members(controller: ControllerProcess, group: BrokerGroup) -> None:
    """Who has lost its power, or has an older disk, is not electable (ruling 3), and no id is given twice."""
    unclean = set(group.unclean_ids) & set(group.electable_ids)
    if unclean:
        raise InvariantError(
            f"{controller.host}: {sorted(unclean)} of {group.broker_name} are unclean, and may be elected of"
            f" {group.sync_state_set} and {group.eligible}"
        )
    if group.replicas and group.next_broker_id <= max(group.replicas):
        raise InvariantError(
            f"{controller.host}: {group.broker_name} has the replicas {sorted(group.replicas)}, and the next id is"
            f" {group.next_broker_id}"
        )


def unfinished(controllers: Sequence[ControllerProcess], name: str) -> str:
    """A change of a group that the leading controller does not bring to its end, or ""."""
    for controller in controllers:
        leadership = controller.machine._leadership
        group = controller.machine.info.group(name)
        if leadership is None or group is None:
            continue
        if group.next_total_replicas:
            return (
                f"{controller.host}: {name} goes over from {group.total_replicas} to {group.next_total_replicas}"
                " replicas and does not get there"
            )
        if name in leadership._busy:
            return f"{controller.host} waits for a change of {name} that does not come"
    return ""
