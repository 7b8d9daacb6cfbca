"""CP, after an unclean election: nothing that may have been acknowledged is cut in silence, whatever the marks say."""

from __future__ import annotations

import pytest

from rmqha.ha.action import AckStatus
from tests.ha.group import Group, started


def acknowledged_without_3(shared_count: int = 0) -> Group:
    """Replicas 1 and 2 hold what was acknowledged and were killed right after that; 3 was away, lacks one message, and
    is back alone. `shared_count`: messages of 100 bytes that it has too."""
    group = started()
    for _ in range(shared_count):
        group.send(1)
    group.run(200)
    group.kill(3)
    group.run(3_000)
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK
    for number in (1, 2):
        group.kill(number)
        group[number].log.confirm = group[number].log.dispatched = 0  # the checkpoint on disk is a second old
    group.restart(3)
    group.run(200)
    return group


def elect_uncleanly(group: Group, number: int) -> None:
    group.controller.elected_unclean = True
    group.controller.unclean_epoch = group.controller.epoch + 1
    group.elect(number)
    group.run(200)


def follows(group: Group, number: int) -> tuple[str, int]:
    """(state of the connection to the master, end of the log)."""
    state = group[number].replica.state(group.now_ms)
    return state.follow_state or "", group[number].log.max_phy_offset


@pytest.mark.parametrize("shared_count", [0, 2])
@pytest.mark.parametrize("number", [1, 2])
def test_a_replica_killed_right_after_the_acknowledgement_refuses_to_cut_it(number: int, shared_count: int) -> None:
    """Its confirm offset on disk says nothing yet, and it joined a master elected uncleanly without what two replicas
    had acknowledged (seen on real processes)."""
    group = acknowledged_without_3(shared_count)
    elect_uncleanly(group, 3)
    group.restart(number)
    group.run(1_000)
    assert follows(group, number) == ("refused", 100 * shared_count + 100)
    refusal = group[number].replica.state(group.now_ms).refusal
    assert "may have been acknowledged before the unclean election of epoch 2" in (refusal or "")


def test_clean_elections_since_do_not_make_it_forget() -> None:
    group = acknowledged_without_3()
    elect_uncleanly(group, 3)
    group.controller.elected_unclean = False
    group.elect(3)
    group.run(200)
    group.restart(1)
    group.run(1_000)
    assert follows(group, 1) == ("refused", 100)


def test_a_replica_that_lost_power_refuses_too() -> None:
    group = acknowledged_without_3()
    elect_uncleanly(group, 3)
    group[1].log.unclean = True
    group.restart(1)
    group.run(1_000)
    assert follows(group, 1) == ("refused", 100)


def test_elected_in_its_turn_it_leads_and_the_other_refuses() -> None:
    """An operator chooses between both histories."""
    group = acknowledged_without_3()
    elect_uncleanly(group, 3)
    group[3].log.data += b"y" * 60
    group[3].replica.appended(group.now_ms)
    group.restart(1)
    group.run(1_000)
    elect_uncleanly(group, 1)
    group.run(1_000)
    assert group[1].replica.is_master and group[1].log.max_phy_offset == 100
    assert follows(group, 3) == ("refused", 60)


def test_half_a_record_was_never_acknowledged_and_goes() -> None:
    group = acknowledged_without_3()
    elect_uncleanly(group, 3)
    group[1].log.half_record_bytes = 100
    group.restart(1)
    group.run(1_000)
    assert follows(group, 1) == ("following", 0)


def test_what_was_written_since_the_unclean_election_is_cut_as_ever() -> None:
    """The elections after it were clean: what a later master lacks was never acknowledged."""
    group = started()
    elect_uncleanly(group, 1)
    group.run(1_000)
    group.cut |= {(1, 2), (1, 3)}
    group[1].log.data += b"x" * 100
    group[1].replica.appended(group.now_ms)
    group.settle()
    group.kill(1)
    group.cut.clear()
    group.controller.elected_unclean = False
    group.elect(2)
    group.run(200)
    group.restart(1)
    group.run(1_000)
    assert follows(group, 1) == ("following", 0)


def test_ap_cuts_and_counts_it() -> None:
    group = started(ha_mode="ap")
    group.send(1)
    group.run(200)
    group[1].log.data += b"x" * 100
    group.kill(1)
    elect_uncleanly(group, 2)
    group.restart(1)
    group.run(1_000)
    assert follows(group, 1) == ("following", 100)
    assert group[1].replica.state(group.now_ms).truncated_bytes == 100


def test_nothing_is_cut_for_a_master_whose_election_is_not_known_yet() -> None:
    """It knows its master of before, at the same address: that one lost its log and was elected uncleanly since."""
    group = acknowledged_without_3(1)
    group.controller.master = 3
    notice = group.controller.notice()  # of epoch 1
    elect_uncleanly(group, 3)
    assert group[3].log.epochs.last is not None and group[3].log.epochs.last.epoch == 2
    group.controller.away = True
    node = group.restart(1)
    node.replica.role_notified(group.now_ms, notice)
    group.run(300)
    assert follows(group, 1)[1] == 200
    assert node.trace.named("ha_dropped")[0]["reason"].startswith("the master's epoch is 2; how it was elected")
    group.controller.away = False
    group.run(3_000)
    assert follows(group, 1) == ("refused", 200)
