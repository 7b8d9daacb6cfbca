"""A5 and A6: consistent points and the six cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.ha.stream.alignment import Alignment, AlignmentVerdict, align, consistent_point
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import Epoch, PhyOffset


def history(**entries: int) -> EpochHistory:
    return EpochHistory(EpochEntry(Epoch(int(key[1:])), PhyOffset(start)) for key, start in entries.items())


def test_the_documents_example() -> None:
    master, slave = history(e6=200, e7=1200, e8=2500), history(e6=200, e7=1200, e8=2250)
    assert consistent_point(slave, PhyOffset(2500), master) == 2250
    found = align(
        slave, PhyOffset(300), PhyOffset(2500), master, PhyOffset(2500), slave_confirm=PhyOffset(0), keep_confirmed=True
    )
    assert (found.verdict, found.end_offset, found.cut_bytes) == (AlignmentVerdict.FOLLOW, 2250, 250)
    assert found.same_epoch_other_start_count == 1


def test_the_masters_open_epoch_never_ends() -> None:
    assert consistent_point(history(e1=0), PhyOffset(900), history(e1=0)) == 900


def test_a_fork_in_an_older_epoch_is_cut_at_the_next_masters_start() -> None:
    found = align(
        history(e1=0),
        PhyOffset(0),
        PhyOffset(900),
        history(e1=0, e2=600),
        PhyOffset(700),
        slave_confirm=PhyOffset(0),
        keep_confirmed=True,
    )
    assert (found.case, found.end_offset, found.cut_bytes) == ("2-3", 600, 300)


def test_an_empty_slave_follows_from_wherever_the_master_starts() -> None:
    found = align(
        history(),
        PhyOffset(0),
        PhyOffset(0),
        history(e4=5000),
        PhyOffset(9000),
        slave_confirm=PhyOffset(0),
        keep_confirmed=True,
    )
    assert (found.verdict, found.case) == (AlignmentVerdict.FOLLOW, "empty")


def test_a_slave_that_was_away_longer_than_the_masters_files_restarts() -> None:
    found = align(
        history(e1=0),
        PhyOffset(0),
        PhyOffset(800),
        history(e4=5000),
        PhyOffset(9000),
        slave_confirm=PhyOffset(700),
        keep_confirmed=True,
    )
    assert (found.verdict, found.case) == (AlignmentVerdict.RESTART, "1-1")


@pytest.mark.parametrize("keep_confirmed", [True, False])
def test_nothing_in_common_is_refused_and_nothing_is_cut(keep_confirmed: bool) -> None:
    found = align(
        history(e1=0),
        PhyOffset(0),
        PhyOffset(800),
        history(e2=0),
        PhyOffset(500),
        slave_confirm=PhyOffset(1),
        keep_confirmed=keep_confirmed,
    )
    assert (found.verdict, found.case, found.cut_bytes) == (AlignmentVerdict.REFUSE, "3-3", 0)


def test_a_fork_at_the_very_start_is_set_aside_if_nothing_was_ever_confirmed() -> None:
    found = align(
        history(e1=0),
        PhyOffset(0),
        PhyOffset(800),
        history(e2=0),
        PhyOffset(500),
        slave_confirm=PhyOffset(0),
        keep_confirmed=True,
    )
    assert found.verdict is AlignmentVerdict.RESTART


def test_a_fork_where_the_log_begins_is_cut() -> None:
    """What stood in front of it has been removed here, and both agree on that."""
    found = align(
        history(e1=0, e2=1000),
        PhyOffset(1000),
        PhyOffset(1500),
        history(e1=0, e3=1000),
        PhyOffset(1200),
        slave_confirm=PhyOffset(1000),
        keep_confirmed=True,
    )
    assert (found.verdict, found.end_offset, found.cut_bytes) == (AlignmentVerdict.FOLLOW, 1000, 500)


def test_no_cut_below_the_floor() -> None:
    found = align(
        history(e1=0),
        PhyOffset(0),
        PhyOffset(900),
        history(e1=0, e2=600),
        PhyOffset(700),
        slave_confirm=PhyOffset(650),
        keep_confirmed=True,
    )
    assert found.verdict is AlignmentVerdict.REFUSE


@st.composite
def forked(draw: st.DrawFn) -> tuple[EpochHistory, EpochHistory, int, int, int]:
    """Two histories that agree up to a fork and differ by epoch after it; also both ends and the fork."""
    steps = draw(st.lists(st.integers(1, 50), min_size=1, max_size=8))
    starts = [sum(steps[:index]) for index in range(len(steps))]
    fork = draw(st.integers(0, sum(steps)))
    shared = [EpochEntry(Epoch(index + 1), PhyOffset(start)) for index, start in enumerate(starts) if start < fork]
    ours = [EpochEntry(Epoch(100), PhyOffset(fork))] if draw(st.booleans()) else []
    theirs = [EpochEntry(Epoch(200), PhyOffset(fork))]
    own_max = fork + (draw(st.integers(1, 40)) if ours else 0)
    return EpochHistory(shared + ours), EpochHistory(shared + theirs), own_max, fork + 10, fork


@given(forked())
def test_the_point_is_the_fork(case: tuple[EpochHistory, EpochHistory, int, int, int]) -> None:
    slave, master, own_max, master_max, fork = case
    found = align(
        slave,
        PhyOffset(0),
        PhyOffset(own_max),
        master,
        PhyOffset(master_max),
        slave_confirm=PhyOffset(0),
        keep_confirmed=True,
    )
    if own_max == 0:
        assert found.case == "empty"
    elif fork == 0:
        assert found.verdict is AlignmentVerdict.RESTART
    else:
        assert (found.verdict, found.end_offset) == (AlignmentVerdict.FOLLOW, fork)


def removed_by(master: EpochHistory, slave: EpochHistory, slave_max: int, confirm: int) -> Alignment:
    """The master's older entries went with its older files."""
    return align(
        slave,
        PhyOffset(0),
        PhyOffset(slave_max),
        master,
        PhyOffset(9000),
        slave_confirm=PhyOffset(confirm),
        keep_confirmed=True,
    )


def test_a_fork_whose_root_the_master_has_removed_is_set_aside_if_it_was_never_confirmed() -> None:
    assert removed_by(history(e3=2500), history(e1=0, e2=3000), 4000, 2500).verdict is AlignmentVerdict.RESTART
    assert removed_by(history(e3=2500), history(e1=0, e2=3000), 4000, 2600).verdict is AlignmentVerdict.REFUSE


def test_an_entry_that_starts_below_the_log_still_names_its_epoch() -> None:
    found = removed_by(history(e2=3000, e3=4500), history(e1=0, e2=3000), 4000, 4000)
    assert (found.verdict, found.end_offset) == (AlignmentVerdict.FOLLOW, 4000)


def test_an_empty_log_behind_the_masters_end_starts_anew() -> None:
    found = align(
        history(e1=0),
        PhyOffset(5000),
        PhyOffset(5000),
        history(e1=0, e2=900),
        PhyOffset(3000),
        slave_confirm=PhyOffset(5000),
        keep_confirmed=True,
    )
    assert (found.verdict, found.case) == (AlignmentVerdict.RESTART, "empty")
