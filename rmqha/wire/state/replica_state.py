"""A replica's own state: the body of an answer to request 52000. Offsets and sizes in bytes, times in ms.

Members are written in the order of the fields. `part` fields are those of a master, a follower, or a group with
controllers; ReplicaState without them is that of a replica that has no role yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmqha.wire.state.json_record import JsonRecord, part

LEADING_ROLES = ("MASTER", "PROMOTING")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RefusedConnections(JsonRecord):
    """HA connections that the master has turned away."""

    refused_count: int = 0
    last_reason: str = ""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AckRule(JsonRecord):
    """Rule that says how many replicas must have a message before its producer is answered. `majority`: None unless
    haMode=cp."""

    whole_set: bool
    needed: int
    in_sync_replicas: int = 1
    adaptive: bool = False
    live_replicas: int = 1
    majority: int | None = None
    min_in_sync_replicas: int = 1
    synced: bool = False


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WaitingSends(JsonRecord):
    """Sends that wait for acknowledgement, and the latencies of acknowledged ones (`latency_counts`: by power of
    two)."""

    count: int = 0
    oldest_end_offset: int | None = None
    oldest_age_ms: int | None = None
    ends_in_ms: int | None = None
    ends_with: str = ""
    latency_counts: Sequence[int] | None = None
    latency_total_ms: int = 0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class StallState(JsonRecord):
    """Last period in which sends waited longer than half a second. `ended_with`: OK, or the last answer that was
    not."""

    ended_ms_ago: int
    lasted_ms: int
    longest_ms: int
    count: int
    ended_with: str


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SetMember(JsonRecord):
    """Another member of the SyncStateSet, as the master sees it."""

    broker_id: int
    connected: bool = False
    ack_offset: int | None = None
    silent_for_ms: int = 0
    leaves_in_ms: int | None = None
    leaves_because: str | None = None
    confirmed: bool = True


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SlaveState(JsonRecord):
    """A slave that is connected to the master. `broker_id`: None in a static group."""

    broker_id: int | None = None
    peer: str = ""
    state: str = ""
    ack_offset: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    in_set: bool = False


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CopyState(JsonRecord):
    """Progress of a slave that copies its master's log. `eta_ms`: None while no bytes arrive."""

    from_offset: int = 0
    to_offset: int = 0
    copied_bytes: int
    left_bytes: int
    bytes_per_second: int
    eta_ms: int | None = None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MetadataVersions(JsonRecord):
    """The versions of a broker's tables that a slave follows."""

    topics: str
    groups: str
    offsets: str
    delays: str


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RefusedRecord(JsonRecord):
    """Damaged record at which a slave's log ends, because its master has the same damage."""

    phy_offset: int
    reason: str


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DamagedRecordState(JsonRecord):
    """A damaged record. `lacked`: reason why no replica can repair it, "" while one may."""

    phy_offset: int
    reason: str
    lacked: str = ""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DamageState(JsonRecord):
    """Damaged records of a log. `records`: the first of those that wait for repair."""

    found_count: int = 0
    repaired_count: int = 0
    waiting_count: int = 0
    lacked_count: int = 0
    refused_count: int = 0
    refused: RefusedRecord | None = None
    records: Sequence[DamagedRecordState] = ()


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ScrubState(JsonRecord):
    """Progress of the scrubber. `unreadable`: reason why it cannot go on."""

    position: int = 0
    pass_count: int = 0
    checked_bytes: int = 0
    unreadable: str = ""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReplicaState(JsonRecord):
    """State of a broker: itself, its log and its role in the group. Defaults stand for unknown values."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: int | None = None
    address: str = ""
    ha_address: str = ""
    role: str
    ha_mode: str = ""
    """cp, ap or static."""
    total_replicas: int | None = part()
    broker_role: str | None = part()
    epoch: int | None
    master_id: int | None = None
    master_address: str | None = ""
    min_phy_offset: int = 0
    max_phy_offset: int
    confirm_offset: int
    synced_offset: int = 0
    dispatched_offset: int = 0
    epochs: Sequence[Sequence[int]] = ()
    """Epoch history: (epoch, start offset) of each entry."""
    unclean: bool = False
    lacks_queue_ends: bool | None = part()
    async_learner: bool | None = part()
    writable: bool
    why_not_writable: str = ""
    controller: str = ""
    """State of the connection to the controllers: registered, away, …; none in a static group."""
    controller_refusal: str | None = part()
    stale_role_count: int | None = part()
    disk_problem: str = ""
    hands_over_to: int | None = part("stale_role_count")
    # a master
    epoch_start_offset: int | None = part()
    releasable_offset: int | None = part()
    waiting_count: int | None = part()
    one_copy_synced: bool | None = part()
    door: RefusedConnections | None = part()
    sync_state_set: Sequence[int] | None = part()
    sync_state_set_epoch: int | None = part()
    ack_union: Sequence[int] | None = part()
    unconfirmed_for_ms: int | None = part("sync_state_set")
    ack_rule: AckRule | None = part()
    waits: WaitingSends | None = part()
    last_stall: StallState | None = part()
    """Last stall, if it ended within the last ten minutes."""
    set_members: Sequence[SetMember] | None = part()
    set_proposed: Sequence[int] | None = part("set_members")
    set_outcome_unknown: bool | None = part()
    held_back: dict[str, int] | None = part()
    """Time (ms) by broker id until it may join the set."""
    needed_slaves: int | None = part()
    slaves: Sequence[SlaveState] | None = part()
    # a replica that follows
    follows: str | None = part()
    follow_state: str | None = part()
    refusal: str | None = part()
    heard_ms_ago: int | None = part("follows")
    said_ms_ago: int | None = part("follows")
    truncated_bytes: int | None = part()
    copy: CopyState | None = part("truncated_bytes")
    # the broker around it
    held_log_file: str | None = part()
    removed_log_bytes_on_disk: int | None = part()
    metadata_sync: str | None = part()
    offset_sync: str | None = part()
    metadata_versions: MetadataVersions | None = part()
    metadata_level: Sequence[int] | None = part()
    metadata_foreign: Sequence[int] | None = part()
    metadata_waiting_count: int | None = part()
    damage: DamageState | None = part()
    scrub: ScrubState | None = part()
    pid: int | None = part()
    data_directory: str | None = part()
    kernel: str | None = part()
    """Name of the batch kernel, and behind a colon the reason why it is not the native one."""
    release: str | None = part()
    """Release of rmqha."""
    address_problem: str | None = part()
    put_count: int | None = part()
    get_count: int | None = part()
    held_pull_count: int | None = part()
    put_tps: float | None = part()
    get_tps: float | None = part()

    @property
    def leads(self) -> bool:
        """True if the replica says that it is master (or PROMOTING)."""
        return self.role in LEADING_ROLES

    @property
    def is_static(self) -> bool:
        """True if the replica's group has no controller."""
        return self.ha_mode == "static"
