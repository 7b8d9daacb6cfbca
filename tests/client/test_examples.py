"""The examples run as they stand."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from tests.client.fake import FakeCluster
from tests.support.patience import HANG_S

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


async def test_what_the_producer_sends_the_consumer_reads() -> None:
    async with FakeCluster() as fake:
        command = [sys.executable, str(EXAMPLES / "produce.py"), fake.namesrv, "T"]
        produced = await trio.run_process(command, capture_stdout=True)
        assert produced.stdout.count(b"SEND_OK") == 10
        # ten seconds of silence would end it; here it ends when all have been seen
        command = [sys.executable, "-u", str(EXAMPLES / "consume.py"), fake.namesrv, "T"]
        process = await trio.lowlevel.open_process(command, stdout=-1)
        assert process.stdout is not None
        output = b""
        with trio.fail_after(HANG_S):
            while output.count(b"order ") < 10:
                output += await process.stdout.receive_some()
        process.kill()
        await process.wait()
        await process.stdout.aclose()
        assert all(f"order-{number} ".encode() in output for number in range(10))
