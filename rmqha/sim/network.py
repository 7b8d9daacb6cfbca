"""Messages between named hosts in virtual time, with everything a network may do to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler

Receiver = Callable[[str, bytes], None]
"""Function that is called with the sender's name and the bytes."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Faults of one direction between two hosts. Chances are per thousand messages, times in milliseconds.

    A message arrives after every earlier one of its link, as over TCP, unless it is drawn to be reordered.
    """

    min_delay_ms: int = 0
    max_delay_ms: int = 2
    lost_per_mille: int = 0
    duplicated_per_mille: int = 0
    reordered_per_mille: int = 0
    max_reorder_delay_ms: int = 50


@dataclass(slots=True)
class _Host:
    receive: Receiver
    incarnation: int
    paused: bool = False


@dataclass(slots=True)
class NetworkStatistics:
    """Counts of messages. Lost: by chance, or their target was down; blocked: stopped by a partition."""

    sent_count: int = 0
    delivered_count: int = 0
    lost_count: int = 0
    blocked_count: int = 0


class SimNetwork:
    """Network between hosts. Each link has its own child of `prng`, so that traffic on one link does not change the
    random numbers of another."""

    def __init__(self, scheduler: Scheduler, prng: SimPrng, options: LinkOptions | None = None) -> None:
        self._scheduler = scheduler
        self._prng = prng
        self._options = options or LinkOptions()
        self._links: dict[tuple[str, str], LinkOptions] = {}
        self._draws: dict[tuple[str, str], SimPrng] = {}
        self._last_arrival_ms: dict[tuple[str, str], int] = {}
        self._hosts: dict[str, _Host] = {}
        self._held: dict[str, list[tuple[str, bytes]]] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._incarnation_count = 0
        self.statistics = NetworkStatistics()

    # --- hosts ------------------------------------------------------------------------------------------------------

    def attach(self, host: str, receive: Receiver) -> None:
        """Start `host`; messages that were sent to an earlier process of it are lost."""
        self._incarnation_count += 1
        self._hosts[host] = _Host(receive, self._incarnation_count)

    def detach(self, host: str) -> None:
        """Stop `host`; messages on their way to it are lost."""
        self._hosts.pop(host, None)
        self._held.pop(host, None)

    def pause(self, host: str) -> None:
        """Pause `host` (SIGSTOP): messages wait for it."""
        self._hosts[host].paused = True

    def resume(self, host: str) -> None:
        """Continue `host`; the messages that waited arrive now, in order."""
        if host not in self._hosts:
            return
        self._hosts[host].paused = False
        for source, data in self._held.pop(host, []):
            self._scheduler.after(0, partial(self._arrive, source, host, data))

    # --- links ------------------------------------------------------------------------------------------------------

    def set_link(self, source: str, target: str, options: LinkOptions | None) -> None:
        """Set the options of one direction, e.g. of a slow link; None: the common options."""
        if options is None:
            self._links.pop((source, target), None)
        else:
            self._links[source, target] = options

    def block(self, source: str, target: str) -> None:
        """Block one direction: no message from `source` reaches `target`, also none that is on its way."""
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        self._blocked.discard((source, target))

    def partition(self, *groups: Iterable[str]) -> None:
        """Block both directions between hosts of different groups. Replaces all earlier blocks."""
        sides = [sorted(group) for group in groups]
        self._blocked = {
            (source, target)
            for number, side in enumerate(sides)
            for other in (*sides[:number], *sides[number + 1 :])
            for source in side
            for target in other
        }

    def heal(self) -> None:
        """End all blocks and faults of links."""
        self._blocked.clear()
        self._links.clear()
        self._options = LinkOptions()

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    # --- messages ---------------------------------------------------------------------------------------------------

    def send(self, source: str, target: str, data: bytes) -> None:
        """Send a message. It never fails: like a socket's buffer, it does not know if the message will arrive."""
        self.statistics.sent_count += 1
        link = (source, target)
        draws = self._draws.get(link)
        if draws is None:
            draws = self._draws[link] = self._prng.child(f"{source}>{target}")
        options = self._links.get(link, self._options)
        if draws.chance(options.lost_per_mille, 1000):
            self.statistics.lost_count += 1
            return
        self._schedule(link, data, options, draws)
        if draws.chance(options.duplicated_per_mille, 1000):
            self._schedule(link, data, options, draws)

    def _schedule(self, link: tuple[str, str], data: bytes, options: LinkOptions, draws: SimPrng) -> None:
        source, target = link
        host = self._hosts.get(target)
        if host is None:
            self.statistics.lost_count += 1
            return
        arrival_ms = self._scheduler.now_ms + draws.between(options.min_delay_ms, options.max_delay_ms)
        if draws.chance(options.reordered_per_mille, 1000):
            arrival_ms += draws.between(0, options.max_reorder_delay_ms)
        else:
            arrival_ms = max(arrival_ms, self._last_arrival_ms.get(link, 0))
            self._last_arrival_ms[link] = arrival_ms
        incarnation = host.incarnation

        def deliver() -> None:
            current = self._hosts.get(target)
            if current is None or current.incarnation != incarnation:
                self.statistics.lost_count += 1
            else:
                self._arrive(source, target, data)

        self._scheduler.at(arrival_ms, deliver)

    def _arrive(self, source: str, target: str, data: bytes) -> None:
        host = self._hosts.get(target)
        if host is None:
            self.statistics.lost_count += 1
        elif (source, target) in self._blocked:
            self.statistics.blocked_count += 1
        elif host.paused:
            self._held.setdefault(target, []).append((source, data))
        else:
            self.statistics.delivered_count += 1
            host.receive(source, data)
