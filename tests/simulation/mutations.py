"""Planted bugs: each undoes one rule of the production code, and the simulation must find it.

`find(name, seeds)` returns the first seed that does. test_mutations.py replays the seeds known to find them, which is
also the proof that a checker can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from controller import leadership
from controller.decisions.elect_master import Electorate, electorate
from rmqha.ha import client as ha_client
from rmqha.ha.alignment import Alignment, Verdict, align
from rmqha.ha.client import HaClient
from rmqha.ha.replica import Replica
from rmqha.ha.sync_state import Members, SyncStateSet
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import PhyOffset
from rmqha.store.store import Store

from .world import World


def _shrunk_at_once(self: SyncStateSet, members: Members) -> None:
    self.proposed = members
    self.union = members


def _never_a_cut(*args: Any, **kwargs: Any) -> Alignment:
    slave_max: PhyOffset = args[2]
    return Alignment(Verdict.FOLLOW, "2-2", slave_max, 0, "planted", 0)


def _one_byte_less(*args: Any, **kwargs: Any) -> Alignment:
    found = align(*args, **kwargs)
    return replace(found, end_offset=PhyOffset(max(args[1], found.end_offset - 1))) if found.cut_bytes else found


_REAL_BECOME = Replica._become_master


def _confirm_at_promotion(self: Replica, *args: Any) -> None:
    _REAL_BECOME(self, *args)
    self._log.set_confirm_offset(self._log.max_phy_offset)


def _anyone(group: Any, fit: Any, wish: Any, **kwargs: Any) -> Any:
    if group.set_known and wish.target is None:
        ids = tuple(item for item in group.replicas if item in fit and item != wish.avoid)
        if ids:
            return Electorate(ids[-1:], wish.cause)
    return electorate(group, fit, wish, **kwargs)


def _ack_all(self: HaClient) -> PhyOffset:
    return self._log.max_phy_offset


def _stay(self: HaClient, phy_offset: PhyOffset) -> None:
    raise RemoteProtocolError("planted")


MUTATIONS: dict[str, Callable[[], Any]] = {
    "acks against the shrunk set (ruling 1)": lambda: patch.object(SyncStateSet, "propose", _shrunk_at_once),
    "no majority needed (ruling 1)": lambda: patch.object(Replica, "_has_quorum", lambda self: True),
    "no cut at a fork (ruling 2)": lambda: patch.object(ha_client, "align", _never_a_cut),
    "the cut is one byte off (ruling 2)": lambda: patch.object(ha_client, "align", _one_byte_less),
    "power loss forgotten (ruling 3)": lambda: patch.object(Store, "unclean", property(lambda self: False)),
    "confirm raised on one copy (A7)": lambda: patch.object(Replica, "_become_master", _confirm_at_promotion),
    "anyone is elected (A9)": lambda: patch.object(leadership, "electorate", _anyone),
    "slaves ack what is not synced (A10)": lambda: patch.object(HaClient, "_ackable", _ack_all),
    "old files go before they are committed (A20)": lambda: patch.object(
        Store, "settled_offset", property(lambda self: self.max_phy_offset)
    ),
    "nobody is copied to again (A20)": lambda: patch.object(HaClient, "_restart_at", _stay),
    "sync does nothing": lambda: patch.object(Store, "sync", lambda self: self.max_phy_offset),
}
"""What is undone, and the patch that undoes it."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    with MUTATIONS[name]():
        yield


def find(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of `seeds` whose run fails with the bug planted, and how."""
    with planted(name):
        for seed in seeds:
            failure = World(seed).run().failure
            if failure:
                return seed, failure
    return None
