"""Commands while all brokers are down: a topic or a group that nobody tells of may be there all the same."""

from __future__ import annotations

import pytest

from tests.client.fake import FakeCluster
from tests.support.command import rmqha

COMMANDS = [
    "topic ls",
    "topic describe T",
    "describe topic T",
    "send --topic T x",
    "send --topic T --rate 10 x y",
    "receive --topic T --idle 1",
    "receive --topic T --idle 1 --group G",
    "consumer ls",
    "consumer lag G",
    "consumer describe G",
    "message find --topic T --key k",
]


@pytest.mark.parametrize("command", COMMANDS)
async def test_nobody_says_that_there_is_no_such_topic_or_group(command: str) -> None:
    async with FakeCluster() as fake:
        fake.groups.clear()
        fake.name_servers[0].topics.clear()
        done = await rmqha(*command.split(), "--namesrv", fake.namesrv)
    assert done.returncode == 2, done
    assert done.stderr.splitlines()[-1].startswith("rmqha: the name servers know no broker: all are down"), done
    assert "see rmqha health" in done.stderr
