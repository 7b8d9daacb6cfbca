"""A broker's background tasks over a disk that refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqha.broker import loops
from rmqha.broker.loops import BrokerLoops
from rmqha.wire.lenient_json import loads
from tests.broker.support import Broker

PATIENCE_S = 30


async def test_tables_that_cannot_be_written_are_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "SAVE_INTERVAL_MS", 10)
    broker = Broker(tmp_path).start()
    # nothing can be written below a directory that is a file, not even by root
    place = tmp_path / "config"
    broker.core.save()
    place.rename(tmp_path / "rmqha.aside")
    place.touch()
    broker.core.offsets.commit("G", "T", 0, 7)
    tried, tries = trio.open_memory_channel[str](1000)
    tell = broker.core.tables_saved

    def saved(trouble: str) -> None:
        tell(trouble)
        tried.send_nowait(trouble)

    monkeypatch.setattr(broker.core, "tables_saved", saved)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(BrokerLoops(broker.core, broker.clock).run)
        with trio.fail_after(PATIENCE_S):
            for _ in range(3):
                assert await tries.receive(), "it cannot have been written"
            assert broker.tracer.names().count("tables_not_saved") == 1
            place.unlink()
            while await tries.receive():
                pass
        nursery.cancel_scope.cancel()
    assert broker.tracer.names().count("tables_saved") == 1
    body = loads((place / "consumerOffset.json").read_bytes())
    assert body["offsetTable"] == {"T@G": {"0": 7}}
    broker.close()
