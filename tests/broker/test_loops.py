"""A broker's background tasks over a disk that refuses."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from rmqha.broker.loops import SAVE_INTERVAL_MS, BrokerLoops
from rmqha.wire.lenient_json import loads
from tests.broker.support import Broker


async def test_tables_that_cannot_be_written_are_told_once_and_tried_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    broker = Broker(tmp_path).start()
    # nothing can be written below a directory that is a file, not even by root
    place = tmp_path / "config"
    broker.core.save()
    place.rename(tmp_path / "rmqha.aside")
    place.touch()
    broker.core.offsets.commit("G", "T", 0, 7)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(BrokerLoops(broker.core, broker.clock).run)
        await trio.sleep(3 * SAVE_INTERVAL_MS / 1000)
        assert broker.tracer.names().count("tables_not_saved") == 1
        place.unlink()
        with trio.fail_after(60):
            while "tables_saved" not in broker.tracer.names():  # noqa: ASYNC110
                await trio.sleep(1)
        nursery.cancel_scope.cancel()
    body = loads((place / "consumerOffset.json").read_bytes())
    assert body["offsetTable"] == {"T@G": {"0": 7}}
    broker.close()
