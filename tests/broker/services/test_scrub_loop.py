"""The scrubber's loop: pieces are looked at in slices, none of it twice, and none while the log is not free."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from rmqha.broker.services.scrub_loop import ScrubLoop
from rmqha.store.config import StoreConfig
from rmqha.store.integrity.scrubber import SLICE_BYTES, Scrubber
from rmqha.store.store import Store
from tests.store.support import commit_all, message, open_store, sim_disk

BODY = bytes(50_000)


class Driver:
    is_copying = False

    def __init__(self) -> None:
        self.looks_left = 1 << 30

    @property
    def is_log_free(self) -> bool:
        self.looks_left -= 1
        return self.looks_left >= 0


def grown(store: Store) -> int:
    while store.max_phy_offset < 3 * SLICE_BYTES:
        store.append(message(1, body=BODY), 1)
    commit_all(store)
    store.sync()
    return store.max_phy_offset


def looped(store: Store, driver: Driver, seconds: float) -> tuple[Scrubber, list[tuple[int, int]]]:
    """The scrubber after so long, and what it was asked to check."""
    scrubber, asked = Scrubber(store), list[tuple[int, int]]()
    check = scrubber.check

    def noted(piece: tuple[int, int], trouble: str) -> None:
        asked.append(piece)
        check(piece, trouble)

    scrubber.check = noted  # type: ignore[method-assign]
    core: Any = SimpleNamespace(
        scrubber=scrubber, driver=driver, config=SimpleNamespace(scrub_bytes_per_second=2 * SLICE_BYTES)
    )

    async def main() -> None:
        with trio.move_on_after(seconds):
            await ScrubLoop(core).run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return scrubber, asked


@pytest.fixture(autouse=True)
def reads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock would jump while a thread reads."""

    async def run(function: Callable[..., Any], *given: Any, abandon_on_cancel: bool) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", run)


@pytest.fixture
def store() -> Store:
    return open_store(sim_disk(), StoreConfig(mapped_file_size_commit_log=4 * SLICE_BYTES))


def test_a_pass_has_all_of_the_log_once_in_slices(store: Store) -> None:
    end = grown(store)
    scrubber, asked = looped(store, Driver(), 30)
    assert (scrubber.pass_count, scrubber.checked_bytes) == (1, end)
    assert all(0 < to - start <= SLICE_BYTES for start, to in asked)
    assert len(asked) >= 3


def test_it_ends_where_the_log_is_taken_and_goes_on_there(store: Store) -> None:
    end = grown(store)
    driver = Driver()
    driver.looks_left = 2
    scrubber, asked = looped(store, driver, 30)
    assert len(asked) == 1 and 0 < scrubber.checked_bytes < end
    scrubber, asked = looped(store, Driver(), 30)
    assert scrubber.checked_bytes == end
