"""Groups for decision tables, and Hypothesis strategies of events."""

from __future__ import annotations

from hypothesis import strategies as st

from controller.state.event import (
    BrokerIdApplied,
    BrokerRegistered,
    BrokersCleaned,
    Cause,
    Event,
    GroupResizing,
    GroupSized,
    MaintenanceSet,
    MasterElected,
    MasterVacated,
    MemberRemoved,
    ReplicaDrained,
    SyncStateSetAltered,
)
from controller.state.replicas_info import BrokerGroup, ReplicaInfo
from rmqha.model.offset import BrokerId, Epoch


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def make_group(
    replica_count: int = 3,
    *,
    sync_state_set: tuple[int, ...] = (1, 2, 3),
    eligible: tuple[int, ...] = (),
    master_id: int | None = 1,
    master_epoch: int = 5,
    set_epoch: int = 7,
    ha_mode: str = "ap",
    set_known: bool = True,
    total_replicas: int | None = None,
) -> BrokerGroup:
    declared = replica_count if total_replicas is None else total_replicas
    return BrokerGroup(
        "c",
        "g",
        0,
        BrokerId(replica_count + 1),
        {
            number: ReplicaInfo(number, f"127.0.0.1:{number}", f"code-{number};0;g-{number}", "", declared, ha_mode)
            for number in ids(*range(1, replica_count + 1))
        },
        total_replicas=declared,
        master_id=None if master_id is None else BrokerId(master_id),
        master_epoch=Epoch(master_epoch),
        sync_state_set=ids(*sync_state_set),
        sync_state_set_epoch=set_epoch,
        eligible=ids(*eligible),
        set_known=set_known,
    )


NAMES = st.sampled_from(["a", "b"])
IDS = st.integers(1, 5).map(BrokerId)
ID_SETS = st.lists(IDS, max_size=4, unique=True).map(tuple)
EPOCHS = st.integers(0, 8).map(Epoch)
CAUSES = st.sampled_from(list(Cause))
TIMES = st.integers(0, 2**41)
MODES = st.sampled_from(["", "ap", "cp"])

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(BrokerIdApplied, st.just("c"), NAMES, IDS, st.just("127.0.0.1:1"), st.text(max_size=3)),
    st.builds(
        BrokerRegistered, NAMES, IDS, st.just("127.0.0.1:2"), st.just(""), st.integers(0, 5), MODES, st.booleans()
    ),
    st.builds(GroupSized, NAMES, st.integers(1, 5)),
    st.builds(GroupResizing, NAMES, st.integers(1, 5)),
    st.builds(SyncStateSetAltered, NAMES, EPOCHS, st.integers(0, 8), ID_SETS, ID_SETS),
    st.builds(MasterElected, NAMES, IDS, EPOCHS, ID_SETS, CAUSES, TIMES, st.text(max_size=5)),
    st.builds(MasterVacated, NAMES, EPOCHS, CAUSES, TIMES, st.text(max_size=5)),
    st.builds(MemberRemoved, NAMES, IDS, TIMES),
    st.builds(ReplicaDrained, NAMES, IDS, st.booleans()),
    st.builds(MaintenanceSet, NAMES, IDS, st.booleans()),
    st.builds(BrokersCleaned, NAMES, ID_SETS, TIMES),
)
