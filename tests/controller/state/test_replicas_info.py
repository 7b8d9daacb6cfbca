"""apply is total, keeps the invariants of a group, and loses nothing in an image."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.state.answers import master_ext
from controller.state.event import (
    BrokerIdApplied,
    BrokersCleaned,
    Cause,
    Event,
    MasterElected,
    MemberRemoved,
    SyncStateSetAltered,
)
from controller.state.image import ImageWriter, decode_image, encode_image
from controller.state.replicas_info import BrokerGroup, ElectionRecord, ReplicasInfo
from rmqha.model.error import StoreError
from rmqha.model.offset import BrokerId, Epoch
from tests.controller.values import EVENTS, ids, make_group


def check(group: BrokerGroup) -> None:
    known = set(group.replicas)
    assert set(group.electable_ids) <= known and set(group.unclean_ids) <= known
    assert len(set(group.electable_ids)) == len(group.electable_ids), "set and eligible are disjoint"
    assert group.master_id is None or group.master_id in group.sync_state_set
    assert list(group.replicas) == sorted(group.replicas)
    assert all(broker_id < group.next_broker_id for broker_id in group.replicas)
    assert len(group.elections) <= 10
    assert group.binding_total_replicas >= group.total_replicas


@given(st.lists(EVENTS, max_size=30))
def test_apply_is_total_and_numbers_never_fall(events: list[Event]) -> None:
    info = ReplicasInfo()
    for event in events:
        before = {
            name: (group.master_epoch, group.sync_state_set_epoch, group.next_broker_id)
            for name, group in info.groups.items()
        }
        info.apply(event)
        for name, group in info.groups.items():
            check(group)
            now = (group.master_epoch, group.sync_state_set_epoch, group.next_broker_id)
            assert all(new >= old for new, old in zip(now, before.get(name, now), strict=True))


@given(st.lists(EVENTS, max_size=20), st.lists(EVENTS, max_size=10))
def test_an_image_forgets_nothing(events: list[Event], later: list[Event]) -> None:
    info = ReplicasInfo()
    for event in events:
        info.apply(event)
    restored = decode_image(encode_image(info))
    assert restored == info
    for event in later:
        info.apply(event)
        restored.apply(event)
    assert encode_image(restored) == encode_image(info)


@given(st.lists(EVENTS, max_size=20))
def test_a_set_changes_only_under_its_epoch(events: list[Event]) -> None:
    """Who holds (master epoch, set epoch) knows the set: no two sets share them."""
    info, seen = ReplicasInfo(), dict[object, object]()
    for event in events:
        info.apply(event)
        for group in info.groups.values():
            key = (group.broker_name, group.sync_state_set_epoch)
            assert seen.setdefault(key, sorted(group.sync_state_set)) == sorted(group.sync_state_set)


def test_who_lost_power_is_neither_a_member_nor_eligible() -> None:
    """Ruling 3: the eligible ones may be elected as members may."""
    info = ReplicasInfo()
    info.groups["g"] = make_group(sync_state_set=(1,), eligible=(2, 3))
    info.apply(MemberRemoved("g", BrokerId(3)))
    group = info.groups["g"]
    assert (group.electable_ids, group.unclean_ids) == ((1, 2), (3,))


def test_an_id_that_comes_late_lowers_no_next_one() -> None:
    """Replicas of a new group, or under controllers that have lost their disk, bring their ids in any order."""
    info = ReplicasInfo()
    for number in (3, 1, 2):
        info.apply(BrokerIdApplied("c", "g", BrokerId(number), f"127.0.0.1:{number}", f"code-{number}"))
        assert info.groups["g"].next_broker_id == 4


@pytest.mark.parametrize(
    ("master_epoch", "set_epoch", "members"),
    [(4, 8, (1, 2)), (6, 8, (1, 2)), (5, 7, (1, 2)), (5, 9, (1, 2)), (5, 8, (2, 3)), (5, 8, (1, 9)), (5, 8, ())],
)
def test_an_alter_that_no_longer_fits_changes_nothing(
    master_epoch: int, set_epoch: int, members: tuple[int, ...]
) -> None:
    info = ReplicasInfo()
    info.groups["g"] = make_group()
    info.apply(SyncStateSetAltered("g", Epoch(master_epoch), set_epoch, ids(*members), ()))
    assert info.groups["g"] == make_group()


@pytest.mark.parametrize(("broker_id", "epoch"), [(1, 5), (2, 4), (9, 6)])
def test_an_election_that_no_longer_fits_changes_nothing(broker_id: int, epoch: int) -> None:
    info = ReplicasInfo()
    info.groups["g"] = make_group()
    info.apply(MasterElected("g", BrokerId(broker_id), Epoch(epoch), (), Cause.MASTER_DEAD))
    assert info.groups["g"] == make_group()


def test_ids_and_epochs_survive_a_clean() -> None:
    info = ReplicasInfo()
    info.groups["g"] = make_group()
    info.apply(BrokersCleaned("g", ids(1, 2, 3)))
    group = info.groups["g"]
    assert info.group("g") is None
    assert (group.next_broker_id, group.master_epoch, group.set_known) == (4, 5, False)


def test_a_clean_of_the_last_member_makes_the_set_unknown() -> None:
    info = ReplicasInfo()
    info.groups["g"] = make_group(sync_state_set=(1,))
    info.apply(BrokersCleaned("g", ids(1)))
    assert not info.groups["g"].set_known


def test_an_unclean_boot_of_the_last_member_leaves_the_set_known_and_empty() -> None:
    info = ReplicasInfo()
    info.groups["g"] = make_group(sync_state_set=(1,))
    info.apply(MemberRemoved("g", BrokerId(1)))
    group = info.groups["g"]
    assert (group.set_known, group.sync_state_set, group.master_id, group.unclean_ids) == (True, (), None, (1,))


def test_images_that_cannot_be_read_are_refused() -> None:
    assert decode_image(b"").groups == {}
    with pytest.raises(StoreError, match="has version 9; this release reads 1 to 6"):
        decode_image(cbor2.dumps([9, []]))
    with pytest.raises(StoreError):
        decode_image(b"\x82\x01")
    with pytest.raises(StoreError):
        decode_image(cbor2.dumps([1, [["c"]]]))
    with pytest.raises(StoreError, match="bytes follow the last group"):
        decode_image(cbor2.dumps([2, 0]) + b"x")


def test_an_image_of_the_release_before_is_read() -> None:
    row = ["c", "g", 2, [[1, "h:1", "code", "", 1, "ap"]], 1, 1, 4, [1], 7, [], [], True, [[4, 1, 2]]]
    group = decode_image(cbor2.dumps([1, [row]])).groups["g"]
    assert (group.master_id, group.master_epoch, group.next_total_replicas) == (1, 4, 0)
    assert group.elections == (ElectionRecord(Epoch(4), BrokerId(1), Cause.MASTER_DEAD),)


def test_rows_of_earlier_versions_lack_what_came_later() -> None:
    info = ReplicasInfo()
    group = info.groups["g"] = make_group()
    group.drained_ids, group.maintenance_ids = ids(2), ids(3)
    group.replicas[BrokerId(2)].joined_epoch = Epoch(5)
    image = encode_image(info)
    assert decode_image(image).groups["g"] == group
    head = len(cbor2.dumps([6, 1]))
    row = cbor2.loads(cbor2.loads(image[head:]))
    assert len(row) == 16
    row[3] = [replica[:7] for replica in row[3]]
    for version, cut, kept in ((4, 16, ((2,), (3,))), (3, 15, ((2,), ())), (2, 14, ((), ()))):
        group = decode_image(cbor2.dumps([version, 1]) + cbor2.dumps(cbor2.dumps(row[:cut]))).groups["g"]
        assert (group.drained_ids, group.maintenance_ids) == kept
        assert {item.joined_epoch for item in group.replicas.values()} == {0}
    for cut in (13, 18):
        with pytest.raises(StoreError):
            decode_image(cbor2.dumps([3, 1]) + cbor2.dumps(cbor2.dumps([*row, 0, ()][:cut])))


@pytest.mark.parametrize(("altered_epoch", "joined_epoch"), [(7, 7), (6, 0)])
def test_in_version_5_members_have_joined_in_the_epoch_of_the_last_change(
    altered_epoch: int, joined_epoch: int
) -> None:
    info = ReplicasInfo()
    info.groups["g"] = make_group(3, sync_state_set=(1, 2), master_epoch=7)
    row = cbor2.loads(cbor2.loads(encode_image(info)[len(cbor2.dumps([6, 1])) :]))
    row[3] = [replica[:7] for replica in row[3]]
    group = decode_image(cbor2.dumps([5, 1]) + cbor2.dumps(cbor2.dumps([*row, altered_epoch]))).groups["g"]
    assert [item.joined_epoch for item in group.replicas.values()] == [joined_epoch, joined_epoch, 0]


@given(st.lists(EVENTS, max_size=20), st.lists(st.one_of(EVENTS, st.none()), max_size=30))
def test_an_image_written_in_slices_is_that_of_its_beginning(events: list[Event], later: list[Event | None]) -> None:
    """None in `later` is a slice of one group, an event a change between two slices."""
    info = ReplicasInfo()
    for event in events:
        info.apply(event)
    expected, writer = encode_image(info), ImageWriter(info)
    for change in later:
        if change is None:
            writer.write(1)
        else:
            group = info.groups.get(change.broker_name)
            if group is not None:
                writer.before_change(group)
            info.apply(change)
    while not writer.is_done:
        writer.write(1)
    assert bytes(writer.data) == expected


def test_the_newest_election_that_may_have_lost_messages_is_never_forgotten() -> None:
    """A replica that was away since then must hear of it (tests/ha/test_unclean_election.py)."""
    info = ReplicasInfo()
    group = info.groups["g"] = make_group()
    assert (group.unclean_epoch, "uncleanEpoch" in master_ext(group)) == (0, False)
    causes = [Cause.UNCLEAN_AUTOMATIC, Cause.MASTER_DEAD, Cause.UNCLEAN_BY_OPERATOR, *[Cause.MASTER_DEAD] * 25]
    first = group.master_epoch + 1
    for epoch, cause in enumerate(causes, first):
        info.apply(MasterElected("g", BrokerId(2), Epoch(epoch), (), cause))
    assert group.unclean_epoch == first + 2
    assert [item.master_epoch - first for item in group.elections] == [2, *range(19, 28)]
    restored = decode_image(encode_image(info)).groups["g"]
    assert master_ext(restored)["uncleanEpoch"] == str(first + 2)
