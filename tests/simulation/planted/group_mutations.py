"""Planted bugs that only several groups under the same controllers reveal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from controller import requests as controller_requests
from controller.decisions.elect_master import elected
from controller.decisions.membership import next_broker_id
from controller.elections import election as controller_elections
from controller.elections.heartbeat import BrokerKey, BrokerLiveInfo, HeartbeatTable
from controller.elections.leadership import Leadership
from controller.state.action import Notify
from controller.state.answers import NO_VIEW, MasterView, MasterViews, master_ext, set_body
from controller.state.image import ImageReader
from nameserver.route_info import RegistrationOutcome, RouteTable
from rmqha.model.code import RequestCode
from rmqha.model.offset import BrokerId
from rmqha.wire.bodies import Registration
from rmqha.wire.command import FLAG_ONEWAY, Command


@contextmanager
def _alive_by_id() -> Iterator[None]:
    """The controllers' liveness table knows a replica by its id alone, as if no two groups had the same."""
    names: dict[tuple[HeartbeatTable, BrokerId], BrokerKey] = {}

    def by_id(real: Callable[..., Any], place: int) -> Callable[..., Any]:
        def method(self: HeartbeatTable, *args: Any, **kwargs: Any) -> Any:
            key = names.setdefault((self, args[place].broker_id), args[place])
            return real(self, *args[:place], key, *args[place + 1 :], **kwargs)

        return method

    places = {
        "registered": 1,
        "heartbeat": 1,
        "is_alive": 1,
        "get": 0,
        "is_available": 0,
        "disk_failed": 0,
        "forget": 0,
    }
    with ExitStack() as stack:
        for name, place in places.items():
            stack.enter_context(patch.object(HeartbeatTable, name, by_id(getattr(HeartbeatTable, name), place)))
        yield


REAL_DEAD = Leadership._declare_dead


def _dead_by_id(self: Leadership, now_ms: int, broker: BrokerLiveInfo, why: str) -> None:
    for key, other in list(self.table._brokers.items()):
        if key.broker_id == broker.key.broker_id:
            REAL_DEAD(self, now_ms, other, why)


def _the_view_built_last(self: MasterViews, broker_name: str) -> MasterView:
    if not self._views:
        REAL_VIEW(self, broker_name)
    return next(iter(self._views.values()), NO_VIEW)


REAL_VIEW = MasterViews.of


REAL_REGISTER = RouteTable.register


def _one_group_per_cluster(
    self: RouteTable, now_ms: int, session_id: int, request: Registration
) -> Generator[None, None, RegistrationOutcome]:
    names = [name for name, group in self._groups.items() if group.cluster_name == request.cluster_name]
    return REAL_REGISTER(self, now_ms, session_id, replace(request, broker_name=(names or [request.broker_name])[0]))


def _tell_everybody(self: Leadership, broker_name: str) -> None:
    """A new master is told to the brokers of all groups."""
    group = self._info.groups[broker_name]
    for other in self._info.groups.values():
        for replica in other.replicas.values():
            command = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, master_ext(group), set_body(group))
            command.flag = FLAG_ONEWAY
            self._emit(Notify(replica.address, command))


REAL_READ = ImageReader.read


def _one_set_in_a_snapshot(self: ImageReader, *args: Any) -> None:
    REAL_READ(self, *args)
    first, *others = self.info.groups.values()
    for group in others:
        group.sync_state_set = tuple(item for item in first.sync_state_set if item in group.replicas)


@contextmanager
def _one_count_of_ids() -> Iterator[None]:
    """A new replica is offered the id behind the highest that any group has asked for."""
    highest: list[BrokerId] = []

    def next_of_all(group: Any) -> BrokerId:
        highest.append(next_broker_id(group))
        return max(highest)

    with patch.object(controller_requests, "next_broker_id", next_of_all):
        yield


@contextmanager
def _one_eligible_set() -> Iterator[None]:
    """Who stays eligible after an election of one group does so in the next one of another."""
    eligible: dict[str, tuple[BrokerId, ...]] = {}

    def of_all(group: Any, *args: Any, **kwargs: Any) -> Any:
        event = elected(group, *args, **kwargs)
        eligible[group.broker_name] = event.eligible
        return replace(event, eligible=tuple(sorted({each for ids in eligible.values() for each in ids})))

    with patch.object(controller_elections, "elected", of_all):
        yield


GROUP_MUTATIONS: dict[str, Callable[[], Any]] = {
    "replicas of two groups are one in the table of the living": _alive_by_id,
    "who dies in one group is dead in all": lambda: patch.object(Leadership, "_declare_dead", _dead_by_id),
    "a heartbeat is answered with another group's master": lambda: patch.object(
        MasterViews, "of", _the_view_built_last
    ),
    "a new master is told to all groups": lambda: patch.object(Leadership, "_notify", _tell_everybody),
    "a name server takes all groups of a cluster for one": lambda: patch.object(
        RouteTable, "register", _one_group_per_cluster
    ),
    "a snapshot gives all groups the first one's set": lambda: patch.object(
        ImageReader, "read", _one_set_in_a_snapshot
    ),
    "one count of broker ids for all groups": _one_count_of_ids,
    "one eligible set for all groups": _one_eligible_set,
}
