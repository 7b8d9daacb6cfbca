"""Addresses are followed as names change what they stand for, and as the configuration changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmqha.host.net.address_watch import LOOKUP_TIMEOUT_S, AddressWatch, system_lookup
from rmqha.model.error import ConfigError
from tests.support.tracer import RecordingTracer

INTERVAL_MS = 10_000


class Names:
    """A resolver, and a configuration."""

    def __init__(self, **numbers: list[str]) -> None:
        self.numbers = numbers
        self.given = ["10.0.0.1:9876", *(f"{name}:9876" for name in numbers)]
        self.fault: Exception | None = None
        self.applied: list[list[str]] = []
        self.tracer = RecordingTracer()
        self.watch = AddressWatch(
            "namesrvAddr", self._configured, self.applied.append, INTERVAL_MS, self.tracer, self._lookup
        )

    async def _configured(self) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        if self.fault is not None:
            raise self.fault
        return self.given

    async def _lookup(self, host: str, port: int) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        if host not in self.numbers:
            raise OSError(-2, "Name or service not known")
        if not self.numbers[host]:
            await trio.sleep_forever()
        return self.numbers[host]


async def test_a_name_that_stands_for_several_is_each_of_them() -> None:
    names = Names(many=["10.0.0.3", "10.0.0.2", "10.0.0.3", "fd00::1"], one=["10.0.0.9"])
    wanted = ["10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876", "[fd00::1]:9876", "one:9876"]
    assert await names.watch.resolve() == wanted
    assert await names.watch.resolve() == wanted and names.applied == [wanted], "applied when it changes"


async def test_what_cannot_be_looked_up_stays_as_it_was(autojump_clock: MockClock) -> None:
    names = Names(many=["10.0.0.2", "10.0.0.3"])
    before = await names.watch.resolve()
    numbers = names.numbers.pop("many")
    assert await names.watch.resolve() == before
    names.numbers["many"] = []
    began_s = trio.current_time()
    assert await names.watch.resolve() == before and trio.current_time() == began_s + LOOKUP_TIMEOUT_S
    names.fault = ConfigError("addressServer: nobody answers")
    assert await names.watch.resolve() == before
    names.fault, names.numbers["many"] = None, numbers
    assert await names.watch.resolve() == before and names.applied == [before]
    told = [name for name, _ in names.tracer.events if name.startswith("addresses")]
    assert told == ["addresses_not_looked_up"] * 3 + ["addresses_looked_up"]


async def test_a_name_that_was_never_found_is_kept_for_later() -> None:
    names = Names()
    names.given = ["later:9876"]
    assert await names.watch.resolve() == ["later:9876"]
    names.numbers["later"] = ["10.0.0.2", "10.0.0.3"]
    assert await names.watch.resolve() == ["10.0.0.2:9876", "10.0.0.3:9876"]


async def test_it_looks_after_each_interval_and_when_told(autojump_clock: MockClock) -> None:
    names = Names(many=["10.0.0.2", "10.0.0.3"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(names.watch.run)
        await wait_all_tasks_blocked()
        names.numbers["many"] = ["10.0.0.4", "10.0.0.5"]
        await trio.sleep(INTERVAL_MS / 1000 + 0.1)
        assert names.applied[-1] == ["10.0.0.1:9876", "10.0.0.4:9876", "10.0.0.5:9876"]
        names.given = ["10.0.0.7:9876"]
        began_s = trio.current_time()
        names.watch.resolve_again()
        await wait_all_tasks_blocked()
        assert names.applied[-1] == ["10.0.0.7:9876"] and trio.current_time() == began_s
        nursery.cancel_scope.cancel()


async def test_the_systems_resolver_knows_this_machine() -> None:
    assert "127.0.0.1" in await system_lookup("localhost", 9876)


@pytest.mark.parametrize("given", [[], ["10.0.0.1:9876"] * 3])
async def test_an_empty_list_changes_nothing_and_repetitions_count_once(given: list[str]) -> None:
    names = Names()
    names.given = given
    assert await names.watch.resolve() == given[:1]
