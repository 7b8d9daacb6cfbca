"""Every table that we write is read by the classes of Apache's broker: typed members, and our own that it must pass
over (ruling 32)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random

import pytest

from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.topics import TopicConfig
from rmqha.host.disk import HostDisk
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import PhyOffset
from rmqha.wire.lenient_json import loads
from tests.broker.support import FakeLog, TableListener, group_table, topic_table
from tests.interop.lab.java import Java
from tests.support.clock import ManualClock
from tests.support.patience import HANG_S
from tests.support.seeds import drawn_seed

pytestmark = pytest.mark.interop

CASES = 60
NAME_CHARS = "aZ09_-%|"


class Written:
    """The four tables of one store after random changes; `expected` is what a reader must find in them."""

    def __init__(self, directory: Path, random: Random) -> None:
        self._random = random
        disk, clock, log = HostDisk(directory), ManualClock(), FakeLog()
        log.max_phy_offset = log.synced_offset = PhyOffset(2**40)
        self._topics = topic_table(disk, BrokerConfig(auto_create_topic_enable=False), clock)
        self._groups = group_table(disk, clock)
        self._offsets = OffsetTable(disk, TableListener(), lambda: random.randrange(2**41))
        self._delays = DelayOffsetTable(disk, clock, log, TableListener())
        for table in (self._topics, self._groups):
            for epoch in (1, 1, 2):
                table.new_epoch(epoch)
        self._offsets.new_epoch(random.randrange(1, 2**31), random.randrange(2**40))
        for _ in range(random.randrange(1, 12)):
            self._change()
        self._topics.put(TopicConfig("Kept", 1, 1))
        self._groups.get_or_create("Kept")
        self._offsets.commit("Kept", "Kept", 0, 1)
        self._delays.put(1, 1)
        self._topics.save()
        offsets = self._offsets.unsaved()
        assert offsets is not None
        self._offsets.write(offsets)
        delays = self._delays.unsaved()
        assert delays is not None
        self._delays.write(delays)

    def _name(self) -> str:
        return "".join(self._random.choices(NAME_CHARS, k=self._random.randrange(1, 20)))

    def _change(self) -> None:
        random, topic, group = self._random, self._name(), self._name()
        self._topics.put(TopicConfig(topic, random.randrange(1, 9), 4, attributes={"message.type": "NORMAL"}))
        if random.random() < 0.3:
            self._topics.remove(topic)
        self._groups.get_or_create(group)
        for _ in range(random.randrange(5)):
            change = self._offsets.reset if random.random() < 0.3 else self._offsets.commit
            change(group, topic, random.randrange(70), random.randrange(2**62))
        if random.random() < 0.3:
            list(self._offsets.remove_group(group))
        self._delays.put(random.randrange(1, 19), random.randrange(2**62))

    def expected(self, directory: Path) -> dict[str, object]:
        tables = {name: json_of(directory, name) for name in ("topics", "subscriptionGroup")}
        delays = {str(level): offset for level, offset in self._delays.to_json()["offsetTable"].items()}
        offsets = self._offsets.to_json()["offsetTable"]
        return {
            "topics": sorted(tables["topics"]["topicConfigTable"]),
            "groups": sorted(tables["subscriptionGroup"]["subscriptionGroupTable"]),
            "offsets": {key: {str(queue): at for queue, at in queues.items()} for key, queues in offsets.items()},
            "delays": delays,
        }


def json_of(directory: Path, name: str) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = loads((directory / "config" / f"{name}.json").read_bytes())
    return found


def test_apaches_classes_read_every_table_that_we_write(java: Java, tmp_path: Path) -> None:
    seed = drawn_seed()
    written = {
        tmp_path / str(number): Written(tmp_path / str(number), Random(seed + number)) for number in range(CASES)
    }
    done = subprocess.run(
        java.command("Tables", *map(str, written)), capture_output=True, text=True, timeout=HANG_S, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, f"{len(lines)} of {CASES} were read\n{done.stderr}"
    for (directory, tables), found in zip(written.items(), lines, strict=True):
        found["topics"], found["groups"] = sorted(found["topics"]), sorted(found["groups"])
        assert found == tables.expected(directory), directory.name
