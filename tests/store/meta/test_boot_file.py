"""How the last run ended, where the system tells no boot id."""

from __future__ import annotations

import pytest

from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.meta.boot_file import LastStop
from tests.store.support import message, open_store


class Sandboxed(SimDisk):
    """Nothing of /proc is seen but processes."""

    hides = True

    def boot_id(self) -> str:
        return "" if self.hides else super().boot_id()


@pytest.mark.parametrize("hid_before", [True, False])
def test_a_kill_counts_as_a_loss_of_power_where_no_boot_id_tells_them_apart(hid_before: bool) -> None:
    disk = Sandboxed(SimPrng(1))
    disk.hides = hid_before
    store = open_store(disk)
    store.append(message(1), 1)
    store.sync()
    disk.crash(power_loss=False)
    disk.hides = True
    store = open_store(disk)
    assert store.recovery.last_stop is LastStop.POWER_LOST and store.unclean
    assert any("no boot id tells how: it counts as unclean" in line for line in store.recovery.lines)
    store.close()
    store = open_store(disk)
    assert store.recovery.last_stop is LastStop.CLEAN
