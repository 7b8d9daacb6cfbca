"""Who a directory belongs to."""

from __future__ import annotations

import pytest

from rmqha.model.error import StoreError, UsageError
from rmqha.model.identity import Identity
from rmqha.model.offset import BrokerId
from rmqha.store.meta.identity_file import PATH, PENDING_PATH, IdentityFile, PendingIdentity
from tests.store.support import sim_disk

ME = Identity("c1", "broker-a", BrokerId(3))


def test_two_phases() -> None:
    disk = sim_disk()
    file = IdentityFile(disk)
    assert (file.read(), file.read_pending()) == (None, None)
    file.write_pending(PendingIdentity(ME, "code-7"))
    assert disk.read(PENDING_PATH) == b"c1#broker-a#3#code-7"
    assert file.read_pending() == PendingIdentity(ME, "code-7")
    assert file.read() is None
    file.confirm(ME)
    assert disk.read(PATH) == b"c1#broker-a#3"
    assert (file.read(), file.read_pending()) == (ME, None)
    assert disk.list("") == [PATH]
    file.confirm(ME)


def test_an_application_that_a_crash_left_unfinished_counts_as_none() -> None:
    for content in (b"", b"c1#broker-a#3", b"c1#broker-a#x#y", b"\xff\xfe"):
        disk = sim_disk()
        disk.write_atomic(PENDING_PATH, content)
        assert IdentityFile(disk).read_pending() is None
        assert not disk.exists(PENDING_PATH)


def test_a_directory_of_another_broker_is_refused_by_both_names() -> None:
    disk = sim_disk()
    file = IdentityFile(disk)
    assert file.require("c1", "broker-a") is None
    file.confirm(ME)
    assert file.require("c1", "broker-a") == ME
    for cluster, name in (("c1", "broker-b"), ("c2", "broker-a")):
        with pytest.raises(
            UsageError, match=f"sim belongs to broker broker-a of cluster c1, not to {name} of {cluster}; set"
        ):
            file.require(cluster, name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "at byte 0: expected cluster#brokerName#brokerId, found"),
        (b"c1#a", "at byte 0"),
        (b"c1#a#0", "at byte 0"),
        (b"c1##3", "at byte 0"),
        (b"c1#a#" + b"9" * 30, "at byte 0"),
        (b"c1#\xff#3", "at byte 3: expected UTF-8 text, found byte 0xFF"),
    ],
)
def test_a_damaged_identity_is_named(content: bytes, said: str) -> None:
    disk = sim_disk()
    disk.write_atomic(PATH, content)
    with pytest.raises(StoreError, match=f"sim/brokerIdentity {said}"):
        IdentityFile(disk).read()


@pytest.mark.parametrize("name", ["", "a#b", " a"])
def test_names_that_the_file_cannot_hold(name: str) -> None:
    disk = sim_disk()
    with pytest.raises(UsageError, match="brokerName"):
        IdentityFile(disk).confirm(Identity("c1", name, BrokerId(1)))
    with pytest.raises(UsageError, match="brokerClusterName"):
        IdentityFile(disk).write_pending(PendingIdentity(Identity(name, "a", BrokerId(1)), "x"))
    assert disk.list("") == []
