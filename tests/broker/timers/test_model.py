"""Timers against a list: whatever is put, taken back, cut, killed and however the clock is set, each message that the
log holds comes, none early, and none that was taken back in time."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmqha.model.code import RequestCode
from rmqha.model.message import decode_properties
from rmqha.model.offset import PhyOffset
from rmqha.wire.command import Command
from tests.broker.support import Broker
from tests.broker.timers.test_service import TIMER_TOPIC, now_ms, records, timed

BATCHES = 40
"""Deliveries of what is due, each of `MAX_DELIVERY_COUNT` at most."""


class Put(NamedTuple):
    at_ms: int
    handle: str


class Timers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.wall_ms = 0
        self.put: dict[str, Put] = {}
        self.taken_back: set[str] = set()
        """Those of which it was acknowledged before their time."""
        self.number = 0
        self.ends: list[int] = []
        """Ends of the log to which it may be cut."""

    @initialize()
    def begin(self) -> None:
        self._start(None)

    def _start(self, cut_to: int | None) -> None:
        self.broker = Broker(self.home / "store", recall_message_enable=True)
        self.broker.core.timer_snapshots.least_count = 2
        if self.wall_ms:
            self.broker.clock.ms = self.wall_ms
        if cut_to is not None:
            self.broker.store.truncate(PhyOffset(cut_to))
        self.broker.start()
        self.broker.run()

    def _reopen(self, cut_to: int | None = None) -> None:
        self.wall_ms = self.broker.clock.ms
        self._start(cut_to)

    # --- what happens -------------------------------------------------------------------------------------------------
    @rule(ahead_ms=st.sampled_from((1, 900, 1000, 1001, 2500, 2500, 60_000, 200_000_000)))
    def put_one(self, ahead_ms: int) -> None:
        self.number += 1
        key, at_ms = f"K{self.number}", now_ms(self.broker) + ahead_ms
        self.ends.append(int(self.broker.store.max_phy_offset))
        reply = self.broker.ask(timed(key.encode(), UNIQ_KEY=key, TIMER_DELIVER_MS=at_ms))
        assert reply.code == 0
        self.put[key] = Put(at_ms, reply.ext["recallHandle"])

    @precondition(lambda self: self.put)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.put)))
        self.ends.append(int(self.broker.store.max_phy_offset))
        ext = {"topic": "T", "recallHandle": self.put[key].handle}
        reply = self.broker.ask(Command(RequestCode.RECALL_MESSAGE, ext))
        if reply.code == 0 and key not in self._came():
            self.taken_back.add(key)

    @rule(ms=st.sampled_from((1, 100, 1000, 3000, 61_000)))
    def time_passes(self, ms: int) -> None:
        self.broker.run(ms)

    @rule(ms=st.sampled_from((-5000, -500, 90_000_000)))
    def the_clock_is_set(self, ms: int) -> None:
        self.broker.clock.ms = max(1_000_000, self.broker.clock.ms + ms)

    @rule()
    def tables_are_saved(self) -> None:
        self.broker.store.sync()
        self.broker.core.save()

    @precondition(lambda self: self.ends)
    @rule(data=st.data())
    def it_is_killed_and_its_log_cut(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.ends[-6:]))
        self.broker.store.abandon()
        self._reopen(end)
        self.ends = [known for known in self.ends if known <= end]
        waiting = {self._key(record) for record in records(self.broker, TIMER_TOPIC)}
        self.put = {key: item for key, item in self.put.items() if key in waiting}
        self.taken_back &= self._recalled()

    @rule()
    def it_is_killed(self) -> None:
        self.broker.store.abandon()
        self._reopen()

    @rule()
    def it_is_stopped(self) -> None:
        self.broker.close()
        self._reopen()

    # --- what must hold -----------------------------------------------------------------------------------------------
    @staticmethod
    def _key(record: object) -> str:
        return decode_properties(record.properties)["UNIQ_KEY"]  # type: ignore[attr-defined]

    def _recalled(self) -> set[str]:
        found = (decode_properties(record.properties) for record in records(self.broker, TIMER_TOPIC))
        return {properties["TIMER_DEL_UNIQKEY"] for properties in found if "TIMER_DEL_UNIQKEY" in properties}

    def _came(self) -> set[str]:
        return {self._key(record) for record in records(self.broker)}

    @invariant()
    def none_came_early(self) -> None:
        if not hasattr(self, "broker"):
            return
        for record in records(self.broker):
            properties = decode_properties(record.properties)
            key = properties["UNIQ_KEY"]
            assert int(properties["TIMER_DEQUEUE_MS"]) >= self.put[key].at_ms, key

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        last_ms = max((item.at_ms for item in self.put.values()), default=0)
        while now_ms(self.broker) <= last_ms + 2000:
            self.broker.run(50_000_000)
        for _ in range(BATCHES):
            self.broker.run(1000)
        came, recalled = self._came(), self._recalled()
        waiting_count = self.broker.core.timers.waiting_count
        self.broker.close()
        shutil.rmtree(self.home)
        assert self.put.keys() - recalled <= came
        assert waiting_count == 0
        assert not came & self.taken_back


Timers.TestCase.settings = settings(max_examples=6, stateful_step_count=20, deadline=None)
TestTimers = Timers.TestCase
