"""The checker of who may be elected judges every member that could take a mastership, and none that takes none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.checkers.elections.electable import Electable
from tests.simulation.history import InvariantError

NAME = "broker-a"


def broker(broker_id: int, end_offset: int, **fields: bool) -> Any:
    unclean = fields.pop("unclean", False)
    return SimpleNamespace(
        host=f"b{broker_id}",
        broker_id=broker_id,
        end_offset=end_offset,
        store=SimpleNamespace(unclean=unclean, min_phy_offset=0, view=lambda offset, size: (100).to_bytes(4, "big")),
        replica=SimpleNamespace(releasable_offset=end_offset, is_master=broker_id == 1, epoch=1),
        **({"alive": True, "lost_power": False} | fields),
    )


def judge(member: Any) -> None:
    """Replica 1 acknowledges up to 200, `member` is in the set."""
    master = broker(1, 200)
    checker = Electable(NAME, [master, member], cp=True)
    group = SimpleNamespace(
        set_known=True,
        electable_ids=(1, 2),
        eligible=(),
        master_epoch=1,
        sync_state_set_epoch=1,
        accepts_loss=False,
    )
    machine = SimpleNamespace(info=SimpleNamespace(groups={NAME: group}), _role_changes=SimpleNamespace(index=1))
    applied: Any = SimpleNamespace(machine=machine, wipe_count=0)
    checker.applied(applied)
    checker.acknowledges(master)


@pytest.mark.parametrize("fields", [{}, {"alive": False}, {"alive": False, "unclean": True}])
def test_a_member_that_lacks_what_is_acknowledged_is_found(fields: dict[str, bool]) -> None:
    with pytest.raises(InvariantError, match="b2 may be elected and ends at 100; b1 acknowledges up to 200"):
        judge(broker(2, 100, **fields))


@pytest.mark.parametrize("fields", [{"unclean": True}, {"lost_power": True}])
def test_who_takes_no_mastership_is_not_judged(fields: dict[str, bool]) -> None:
    judge(broker(2, 100, **fields))


def test_a_whole_member_is_well() -> None:
    judge(broker(2, 200))
