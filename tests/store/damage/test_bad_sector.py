"""A sector that cannot be read is one sentence at the opening. Through the mapping it would be the process's end."""

from __future__ import annotations

import pytest

from rmqha.model.error import StoreError
from rmqha.sim.disk import SimDisk
from rmqha.store.meta.checkpoint import Checkpoint
from tests.store.support import commit_all, message, open_store, sim_disk

FIRST_FILE = "commitlog/" + "0" * 20
SECOND_FILE = "commitlog/00000000000000004096"
QUEUE_FILE = "consumequeue/T/0/" + "0" * 20


def killed(*, power_loss: bool = False) -> SimDisk:
    """Five records of about 900 bytes, of which the first three are known to be whole."""
    disk = sim_disk()
    store = open_store(disk)
    for number in range(5):
        store.append(message(number, body=b"x" * 800), number * 1000)
        if number == 2:
            commit_all(store)
            store.sync()
    disk.crash(power_loss=power_loss)
    return disk


def said(disk: SimDisk) -> str:
    with pytest.raises(StoreError) as raised:
        open_store(disk)
    return str(raised.value)


def test_in_the_part_of_the_log_that_is_checked() -> None:
    disk = killed()
    disk.spoil(FIRST_FILE, 3600)
    sentence = said(disk)
    assert sentence.startswith(
        f"sim/{FIRST_FILE} at byte 3584: expected bytes, found an input/output error of the disk;"
    )
    assert "copy the group's" in sentence


def test_in_a_later_file_of_the_log() -> None:
    disk = killed()
    disk.spoil(SECOND_FILE, 0)
    assert f"sim/{SECOND_FILE} at byte 0: expected bytes, found an input/output error" in said(disk)


def test_in_the_part_that_is_known_to_be_whole_it_does_not_keep_the_store_from_opening() -> None:
    disk = killed()
    disk.spoil(FIRST_FILE, 600)
    assert open_store(disk).max_phy_offset > 4096


def test_in_the_record_of_a_queues_newest_entry() -> None:
    disk = killed()
    disk.spoil(FIRST_FILE, 2 * 900 + 700)
    assert f"sim/{FIRST_FILE} at byte 2048: expected bytes, found an input/output error" in said(disk)


def test_in_a_files_first_record_where_the_times_choose_the_file() -> None:
    disk = killed()
    disk.remove("rmqha.progress")
    disk.write_atomic("checkpoint", Checkpoint(3000, 3000).encode().ljust(4096, b"\0"))
    disk.spoil(FIRST_FILE, 600)
    assert f"sim/{FIRST_FILE} at byte 512: expected bytes, found an input/output error" in said(disk)


@pytest.mark.parametrize("power_loss", [False, True])
def test_in_a_queue(power_loss: bool) -> None:
    disk = killed(power_loss=power_loss)
    disk.spoil(QUEUE_FILE, 0)
    at = 0 if power_loss else 400  # the middle of the file, where the search begins
    assert said(disk) == (
        f"sim/{QUEUE_FILE} at byte {at}: expected bytes, found an input/output error of the disk; remove this replica's"
        " directory consumequeue: it is made anew from the log; and look at the disk"
    )
    disk.remove(QUEUE_FILE)
    assert open_store(disk).queue_range("T", 0)[1] >= 3


def test_in_a_sidecar() -> None:
    disk = killed()
    disk.spoil("rmqha.progress", 0)
    assert said(disk) == (
        "sim/rmqha.progress: cannot read the file: Input/output error; check the disk, then replace it or remove this"
        " replica"
    )
