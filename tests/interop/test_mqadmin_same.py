"""mqadmin prints the same of a group of ours and of Apache's: docs/compatibility.md lists what differs, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.java import Java
from tests.interop.lab import Lab, Node
from tests.interop.same_commands import Asker, answers, made

pytestmark = pytest.mark.interop

Laboratory = tuple[Lab, Node]
LACKS = {
    "commitLogDiskRatio_PATH",
    "putLatency99",
    "putLatency999",
    "putMessageDistributeTime",
    "remainTransientStoreBufferNumbs",
}
"""What brokerStatus shows of Apache's broker alone."""


@pytest.fixture(scope="module")
def laboratories(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Laboratory]]:
    """Ours, Apache's."""
    found = []
    try:
        for whose in ("ours", "apaches"):
            scratch: Path = tmp_path_factory.mktemp(whose)
            found.append(made(java, scratch, whose))
        yield found
    finally:
        for lab, _ in found:
            lab.close()


def test_every_command_prints_the_same(laboratories: list[Laboratory]) -> None:
    with ThreadPoolExecutor(2) as pool:
        ours, apaches = pool.map(answers, laboratories)
    assert ours.keys() == apaches.keys()
    differ = {command for command in ours if ours[command] != apaches[command]}
    assert {command: (ours[command], apaches[command]) for command in differ} == {}


def test_broker_status_names_the_same_fields(laboratories: list[Laboratory]) -> None:
    def names(laboratory: Laboratory) -> set[str]:
        text = Asker(*laboratory).raw("brokerStatus", "-b", laboratory[1].address)
        return {re.sub(r"_/.*", "_PATH", name) for name in re.findall(r"^(\S+?) *: ", text, re.M)}

    ours, apaches = map(names, laboratories)
    assert len(apaches) > 50
    assert apaches - ours == LACKS
