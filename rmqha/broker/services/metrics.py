"""Metrics of a broker, read from its state for each scrape: RocketMQ 5's names where it has them. No trio.

`SERIES` is the list in docs/operate/metrics.md. Series of a master are absent on a slave. Topics and groups come from
clients, so the number of series is bounded (MAX_PAIRS).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest
from operator import itemgetter

from rmqha.broker.core import BrokerCore
from rmqha.broker.services.traffic import Traffic
from rmqha.model.access import SYSTEM_GROUP_PREFIX
from rmqha.model.code import ResponseCode
from rmqha.model.identity import Role
from rmqha.model.message import DLQ_PREFIX, RETRY_PREFIX
from rmqha.model.series import Collecting, Histogram, MetricFamilies, MetricKind, Series, put_remoting
from rmqha.wire.state.replica_state import ReplicaState

MAX_PAIRS = 1000
"""Pairs of topic and group with series of their lag."""
MAX_QUEUES = 5000
"""Queues of such pairs with series of their own."""
PAIRS_PER_STEP, PLACES_PER_STEP = 25, 50
QUEUES_PER_STEP = 32
"""Queues in one step; the first waiting message of each may have to be read from the disk."""
_LAG_LABELS = ("consumer_group", "topic", "is_retry", "is_system")
_STORAGE = ("storage_type", "storage_medium")
_LOCAL_DISK = ("local", "disk")
_READ, _WRITE = 4, 2
ACK_PLACES = 14
"""Buckets below 2**13 ms, 8 s; later every send has timed out."""
ACK_BOUNDS_S = tuple(2**place / 1000 for place in range(ACK_PLACES))

PERMISSION = Series("rocketmq_broker_permission", MetricKind.GAUGE, "4 = serves reads, 2 = takes sends", own=False)
TOPICS = Series("rocketmq_topic_number", MetricKind.GAUGE, "Topics in the table", own=False)
GROUPS = Series("rocketmq_consumer_group_number", MetricKind.GAUGE, "Subscription groups in the table", own=False)
WATERMARK = Series(
    "rocketmq_processor_watermark",
    MetricKind.GAUGE,
    "Requests that wait: sends for their acknowledgement; there are no thread pools",
    ("processor",),
    own=False,
)
PRODUCERS = Series("rocketmq_producer_connections", MetricKind.GAUGE, "Producer connections", own=False)
CONSUMERS = Series(
    "rocketmq_consumer_connections",
    MetricKind.GAUGE,
    "Consumer connections",
    ("consumer_group", "consume_mode"),
    own=False,
)
LAG = Series("rocketmq_consumer_lag_messages", MetricKind.GAUGE, "Messages not consumed yet", _LAG_LABELS, own=False)
READY = Series("rocketmq_consumer_ready_messages", MetricKind.GAUGE, "Messages not pulled yet", _LAG_LABELS, own=False)
INFLIGHT = Series(
    "rocketmq_consumer_inflight_messages",
    MetricKind.GAUGE,
    "Messages pulled and not consumed yet",
    _LAG_LABELS,
    own=False,
)
LAG_TIME = Series(
    "rocketmq_consumer_lag_latency_milliseconds",
    MetricKind.GAUGE,
    "Age of the oldest message not consumed yet, 0 without one, ms",
    _LAG_LABELS,
    own=False,
)
QUEUEING_TIME = Series(
    "rocketmq_consumer_queueing_latency_milliseconds",
    MetricKind.GAUGE,
    "Age of the oldest message not pulled yet, 0 without one, ms",
    _LAG_LABELS,
    own=False,
)
STORAGE_SIZE = Series(
    "rocketmq_storage_size_bytes", MetricKind.GAUGE, "Bytes in use on the store's disk", _STORAGE, own=False
)
FLUSH_BEHIND = Series(
    "rocketmq_storage_flush_behind_bytes", MetricKind.GAUGE, "Log bytes not synced to the disk yet", _STORAGE, own=False
)
DISPATCH_BEHIND = Series(
    "rocketmq_storage_dispatch_behind_bytes",
    MetricKind.GAUGE,
    "Committed bytes not in the queues yet",
    _STORAGE,
    own=False,
)
RESERVE_TIME = Series(
    "rocketmq_storage_message_reserve_time_milliseconds",
    MetricKind.GAUGE,
    "Age of the oldest message, ms",
    _STORAGE,
    own=False,
)

_SENT, _PULLED = ("topic", "message_type", "is_system"), ("topic", "consumer_group", "is_retry", "is_system")
TIMER_ENQUEUE_LAG = Series(
    "rocketmq_timer_enqueue_lag", MetricKind.GAUGE, "Timer messages that have not been looked at yet", own=False
)
TIMER_LATENCY = Series(
    "rocketmq_timer_dequeue_latency_milliseconds",
    MetricKind.GAUGE,
    "Time by which the first timer message is late",
    own=False,
)
TIMING = Series("rocketmq_timing_messages", MetricKind.GAUGE, "Timer messages that wait", ("topic",), own=False)
TIMER_DEQUEUE = Series(
    "rocketmq_timer_dequeue_total", MetricKind.COUNTER, "Timer messages that were delivered", ("topic",), own=False
)
_POP_LABELS = ("consumer_group", "topic")
POP_IN = Series(
    "rocketmq_pop_revive_in_message_total",
    MetricKind.COUNTER,
    "Checkpoints and acknowledgements of pops that were stored",
    (*_POP_LABELS, "revive_message_type"),
    own=False,
)
POP_OUT = Series(
    "rocketmq_pop_revive_out_message_total",
    MetricKind.COUNTER,
    "Those whose time came, read again",
    (*_POP_LABELS, "revive_message_type"),
    own=False,
)
POP_RETRY = Series(
    "rocketmq_pop_revive_retry_messages_total",
    MetricKind.COUNTER,
    "Popped messages that were not acknowledged in time and are stored again",
    _POP_LABELS,
    own=False,
)
POP_LAG = Series(
    "rocketmq_pop_revive_lag", MetricKind.GAUGE, "Entries of a revive queue not read yet", ("queue_id",), own=False
)
POP_LATENCY = Series(
    "rocketmq_pop_revive_latency_milliseconds",
    MetricKind.GAUGE,
    "Time by which the first checkpoint of a revive queue is late",
    ("queue_id",),
    own=False,
)
POP_IN_FLIGHT = Series(
    "rmqha_pop_inflight_messages",
    MetricKind.GAUGE,
    "Messages popped, not acknowledged and not stored again, since this replica became master",
    _POP_LABELS,
)
MESSAGES_IN = Series(
    "rocketmq_messages_in_total", MetricKind.COUNTER, "Messages stored for producers", _SENT, own=False
)
BYTES_IN = Series("rocketmq_throughput_in_total", MetricKind.COUNTER, "Bytes of their records", _SENT, own=False)
MESSAGE_SIZE = Series("rocketmq_message_size", MetricKind.HISTOGRAM, "Bytes of a record", _SENT, own=False)
MESSAGES_OUT = Series(
    "rocketmq_messages_out_total", MetricKind.COUNTER, "Messages given to consumers", _PULLED, own=False
)
BYTES_OUT = Series("rocketmq_throughput_out_total", MetricKind.COUNTER, "Bytes of their records", _PULLED, own=False)
DEAD = Series(
    "rocketmq_send_to_dlq_messages_total",
    MetricKind.COUNTER,
    "Messages that became dead letters, by their own topic",
    ("consumer_group", "topic", "is_system"),
    own=False,
)
COMMITTED = Series(
    "rocketmq_commit_messages_total", MetricKind.COUNTER, "Transactions that producers committed", ("topic",), own=False
)
ROLLED_BACK = Series(
    "rocketmq_rollback_messages_total",
    MetricKind.COUNTER,
    "Transactions that producers rolled back",
    ("topic",),
    own=False,
)
FINISH_TIME = Series(
    "rocketmq_finish_message_latency",
    MetricKind.HISTOGRAM,
    "Seconds from the birth of a half message to its commit",
    ("topic",),
    own=False,
)
HALF_MESSAGES = Series(
    "rocketmq_half_messages", MetricKind.GAUGE, "Master only: half messages that wait, of all topics", own=False
)
DELAY_TIME = Series(
    "rocketmq_delay_message_latency",
    MetricKind.HISTOGRAM,
    "Seconds for which timer messages are to wait, from their birth",
    ("topic",),
    own=False,
)
_MADE = ("invocation_status", "is_system")
TOPIC_TIME = Series(
    "rocketmq_topic_create_execution_time",
    MetricKind.HISTOGRAM,
    "Milliseconds until a topic that an operator makes or changes is held by the set and routed",
    _MADE,
    own=False,
)
GROUP_TIME = Series(
    "rocketmq_consumer_group_create_execution_time",
    MetricKind.HISTOGRAM,
    "Milliseconds until a group that an operator makes or changes is held by the set",
    _MADE,
    own=False,
)

ROLE = Series(
    "rocketmq_ha_role", MetricKind.GAUGE, "1 for the present role, no series for others", ("role", "broker_id")
)
EPOCH = Series("rocketmq_ha_epoch", MetricKind.GAUGE, "Master epoch that this replica goes by")
MIN_OFFSET = Series("rocketmq_ha_min_phy_offset", MetricKind.GAUGE, "Start of the log")
MAX_OFFSET = Series("rocketmq_ha_max_phy_offset", MetricKind.GAUGE, "End of the log")
CONFIRM_OFFSET = Series("rocketmq_ha_confirm_offset", MetricKind.GAUGE, "Records that end at or below it are visible")
SYNCED_OFFSET = Series("rocketmq_ha_synced_offset", MetricKind.GAUGE, "What is safe from a power loss ends here")
DISK_PROBLEM = Series("rocketmq_ha_disk_problem", MetricKind.GAUGE, "1 while the disk probe fails or the disk is full")
CONTROLLER_AWAY = Series("rocketmq_ha_controller_away", MetricKind.GAUGE, "1 while no controller answers this broker")
UNCLEAN = Series("rocketmq_ha_unclean", MetricKind.GAUGE, "1 after a power loss, until the log is whole again")
WRITABLE = Series("rocketmq_ha_writable", MetricKind.GAUGE, "Master only: 1 if it takes sends")
SET_SIZE = Series(
    "rocketmq_ha_sync_state_set_size", MetricKind.GAUGE, "Master only: confirmed members, itself included"
)
SET_EPOCH = Series("rocketmq_ha_sync_state_set_epoch", MetricKind.GAUGE, "Master only: epoch of the SyncStateSet")
TOTAL_REPLICAS = Series("rocketmq_ha_total_replicas", MetricKind.GAUGE, "Replicas that the group should have")
SET_UNCONFIRMED = Series(
    "rocketmq_ha_set_unconfirmed_seconds",
    MetricKind.GAUGE,
    "Master only, AP: how long the set has been smaller than the controllers know",
)
SLAVE_LAG = Series(
    "rocketmq_ha_slave_lag_bytes", MetricKind.GAUGE, "Master only: log bytes not acknowledged", ("slave", "in_sync")
)
SLAVE_LAG_TIME = Series(
    "rocketmq_ha_slave_lag_seconds",
    MetricKind.GAUGE,
    "Master only: since the slave was level last",
    ("slave", "in_sync"),
)
ACK_LATENCY = Series(
    "rocketmq_ha_ack_latency",
    MetricKind.HISTOGRAM,
    "Seconds from the append to the acknowledgement by the group's rule; the sends of one read of a socket wait as one",
)
FOLLOWING = Series("rocketmq_ha_following", MetricKind.GAUGE, "Slave only: 1 if it follows its master")
COPY_LEFT = Series(
    "rocketmq_ha_copy_left_bytes", MetricKind.GAUGE, "Slave only: what it still lacks of the master's log"
)
HA_BREACHES = Series(
    "rocketmq_ha_protocol_errors_total",
    MetricKind.COUNTER,
    "HA connections closed as the peer's bytes broke the protocol or met a bug in reading them (event ha_closed)",
)
HELD_PULLS = Series("rmqha_held_pulls", MetricKind.GAUGE, "Pulls that wait for messages")
REFUSED = Series("rmqha_sends_refused_total", MetricKind.COUNTER, "Sends refused before anything was written")
DAMAGED = Series(
    "rmqha_damaged_records",
    MetricKind.GAUGE,
    "Records of the log that wait to be mended; lacked: no replica has one",
    ("lacked",),
)
DAMAGE_FOUND = Series("rmqha_damaged_records_found_total", MetricKind.COUNTER, "Records that were found damaged")
REPAIRED = Series("rmqha_records_repaired_total", MetricKind.COUNTER, "Records that a replica's copy was written over")
RECORDS_REFUSED = Series(
    "rmqha_records_refused_total",
    MetricKind.COUNTER,
    "Slave only: records that its master sent and that were not sound",
)
SCRUBBED = Series("rmqha_scrub_checked_bytes_total", MetricKind.COUNTER, "Log bytes that the scrubber has checked")
SCRUB_PASSES = Series("rmqha_scrub_passes_total", MetricKind.COUNTER, "Times that it has come to the log's end")
SCRUB_UNREADABLE = Series("rmqha_scrub_unreadable", MetricKind.GAUGE, "1 if the disk could not read what it came to")
INDEX_BEHIND = Series("rmqha_index_behind_bytes", MetricKind.GAUGE, "Dispatched bytes not in the index of keys yet")
QUEUE_LAG = Series(
    "rmqha_consumer_queue_lag_messages",
    MetricKind.GAUGE,
    f"Messages not consumed yet, of each queue in which a group lags; the first {MAX_QUEUES}",
    ("consumer_group", "topic", "queue_id"),
)
QUEUES_LEFT_OUT = Series(
    "rmqha_queue_lag_series_left_out", MetricKind.GAUGE, f"Queues in which a group lags beyond {MAX_QUEUES}"
)
ACK_COPIES = Series(
    "rocketmq_ha_ack_copies",
    MetricKind.GAUGE,
    "Master only: replicas, itself included, that hold a record when its send is acknowledged now",
)
PAIRS_LEFT_OUT = Series("rmqha_lag_series_left_out", MetricKind.GAUGE, f"Pairs of topic and group beyond {MAX_PAIRS}")


def collect(core: BrokerCore, traffic: Traffic, remoting: Mapping[str, int]) -> Collecting:
    """Metrics in steps. `remoting`: counts of `rmqha.host.net.remoting.Statistics`."""
    config = core.config
    # the labels that RocketMQ's brokers have
    families = MetricFamilies(
        {"cluster": config.broker_cluster_name, "node_type": "broker", "node_id": config.broker_name}
    )
    state = core.driver.state()
    _put_replica(families, core, state)
    if core.replica.is_master:
        _put_master(families, core, state)
    else:
        families.put(FOLLOWING, core.replica.is_following)
        families.put(COPY_LEFT, core.replica.copy_left_bytes)
    _put_store(families, core)
    _put_timers(families, core)
    _put_pops(families, core)
    _put_clients(families, core)
    put_remoting(families, remoting)
    yield
    yield from _put_traffic(families, core, traffic)
    if core.driver.is_serving:
        yield from _put_lag(families, core)
    return families


def _put_replica(families: MetricFamilies, core: BrokerCore, state: ReplicaState) -> None:
    replica, store = core.replica, core.store
    broker_id = "" if replica.broker_id is None else str(replica.broker_id)
    families.put(ROLE, 1, replica.role.name.lower(), broker_id)
    families.put(EPOCH, replica.epoch)
    families.put(MIN_OFFSET, store.min_phy_offset)
    families.put(MAX_OFFSET, store.max_phy_offset)
    families.put(CONFIRM_OFFSET, store.confirm_offset)
    families.put(SYNCED_OFFSET, store.synced_offset)
    families.put(DISK_PROBLEM, bool(state.disk_problem))
    families.put(CONTROLLER_AWAY, state.controller == "away")
    families.put(UNCLEAN, bool(state.unclean))
    families.put(HA_BREACHES, core.driver.ha_breach_count)
    if state.total_replicas is not None:
        families.put(TOTAL_REPLICAS, state.total_replicas)


def _put_master(families: MetricFamilies, core: BrokerCore, state: ReplicaState) -> None:
    """Put the series of a master. Members of a static group have no set, and their addresses as names."""
    families.put(WRITABLE, state.writable)
    families.put(WATERMARK, state.waiting_count or 0, "send")
    waits = core.replica.ack_waits
    counts = [*waits.latency_counts[:ACK_PLACES], sum(waits.latency_counts[ACK_PLACES:])]
    families.put_histogram(ACK_LATENCY, Histogram(ACK_BOUNDS_S, counts, waits.latency_total_ms / 1000))
    if state.ack_rule is not None:
        families.put(ACK_COPIES, state.ack_rule.needed)
    if state.sync_state_set is not None:
        families.put(SET_SIZE, len(state.sync_state_set))
        families.put(SET_EPOCH, state.sync_state_set_epoch or 0)
        families.put(SET_UNCONFIRMED, (state.unconfirmed_for_ms or 0) / 1000)
    for slave in state.slaves or ():
        if slave.lag_bytes is None:
            continue
        labels = (slave.peer if slave.broker_id is None else str(slave.broker_id), truth(slave.in_set))
        families.put(SLAVE_LAG, slave.lag_bytes, *labels)
        families.put(SLAVE_LAG_TIME, (slave.lag_ms or 0) / 1000 if slave.lag_bytes else 0, *labels)


def _put_traffic(families: MetricFamilies, core: BrokerCore, traffic: Traffic) -> Iterator[None]:
    for place, ((topic, message_type), flow) in enumerate(list(traffic.sent.items()), 1):
        if place % PLACES_PER_STEP == 0:
            yield
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue  # as in RocketMQ: what comes back was counted when it came first
        labels: tuple[str, ...] = (topic, message_type, truth(is_system(core, topic)))
        families.put(MESSAGES_IN, flow.count, *labels)
        families.put(BYTES_IN, flow.size_bytes, *labels)
        families.put_histogram(MESSAGE_SIZE, flow.sizes, *labels)
    for place, ((group, topic), flow) in enumerate(list(traffic.pulled.items()), 1):
        if place % PLACES_PER_STEP == 0:
            yield
        labels = (topic, group, truth(topic.startswith(RETRY_PREFIX)), truth(is_system(core, topic, group)))
        families.put(MESSAGES_OUT, flow.count, *labels)
        families.put(BYTES_OUT, flow.size_bytes, *labels)
    _put_operations(families, core, traffic)


def _put_operations(families: MetricFamilies, core: BrokerCore, traffic: Traffic) -> None:
    for (group, topic), count in traffic.dead.items():
        families.put(DEAD, count, group, topic, truth(is_system(core, topic, group)))
    for topic, count in traffic.committed.items():
        families.put(COMMITTED, count, topic)
    for topic, count in traffic.rolled_back.items():
        families.put(ROLLED_BACK, count, topic)
    for topic, times in traffic.finished.items():
        families.put_histogram(FINISH_TIME, times, topic)
    for topic, times in traffic.delayed.items():
        families.put_histogram(DELAY_TIME, times, topic)
    for series, made in ((TOPIC_TIME, traffic.topics_made), (GROUP_TIME, traffic.groups_made)):
        for (succeeded, of_system), times in made.items():
            families.put_histogram(series, times, "success" if succeeded else "failure", truth(of_system))


def _put_store(families: MetricFamilies, core: BrokerCore) -> None:
    store = core.store
    families.put(STORAGE_SIZE, core.admin.disk_usage()[1], *_LOCAL_DISK)
    families.put(FLUSH_BEHIND, store.max_phy_offset - store.synced_offset, *_LOCAL_DISK)
    families.put(DISPATCH_BEHIND, store.dispatch_behind_bytes, *_LOCAL_DISK)
    earliest_at_ms = core.admin.earliest_at_ms()
    if earliest_at_ms > 0:
        families.put(RESERVE_TIME, core.admin.wall_ms() - earliest_at_ms, *_LOCAL_DISK)
    families.put(INDEX_BEHIND, store.index.behind_bytes)
    damage = store.damage
    families.put(DAMAGED, damage.lacked_count, "true")
    families.put(DAMAGED, len(damage.records) - damage.lacked_count, "false")
    families.put(DAMAGE_FOUND, damage.found_count)
    families.put(REPAIRED, damage.repaired_count)
    families.put(RECORDS_REFUSED, damage.refused_count)
    families.put(SCRUBBED, core.scrubber.checked_bytes)
    families.put(SCRUB_PASSES, core.scrubber.pass_count)
    families.put(SCRUB_UNREADABLE, bool(core.scrubber.unreadable))


def _put_timers(families: MetricFamilies, core: BrokerCore) -> None:
    """Put the series of timer messages, for the topics with the highest counts."""
    timers = core.timers
    families.put(TIMER_ENQUEUE_LAG, timers.unread_count)
    families.put(TIMER_LATENCY, timers.overdue_ms())
    for series, counts in ((TIMING, timers.topic_counts()), (TIMER_DEQUEUE, timers.delivered_counts)):
        for topic in nlargest(MAX_PAIRS, counts, key=counts.__getitem__):
            families.put(series, counts[topic], topic)


def _put_pops(families: MetricFamilies, core: BrokerCore) -> None:
    """Put the series of pops, for the groups with the highest counts."""
    pops, counts = core.pops, core.pops.counts
    by_type = (
        (POP_IN, "CK", counts.stored_checkpoints),
        (POP_IN, "ACK", counts.stored_acks),
        (POP_OUT, "CK", counts.read_checkpoints),
        (POP_OUT, "ACK", counts.read_acks),
    )
    for series, kind, of_pairs in by_type:
        for topic, group in nlargest(MAX_PAIRS, of_pairs, key=of_pairs.__getitem__):
            families.put(series, of_pairs[topic, group], group, topic, kind)
    for series, found in ((POP_RETRY, counts.revived), (POP_IN_FLIGHT, pops.in_flight())):
        for topic, group in nlargest(MAX_PAIRS, found, key=found.__getitem__):
            families.put(series, found[topic, group], group, topic)
    for queue_id, (lag, late_ms) in enumerate(pops.revive.lags()):
        families.put(POP_LAG, lag, str(queue_id))
        families.put(POP_LATENCY, late_ms, str(queue_id))


def _put_clients(families: MetricFamilies, core: BrokerCore) -> None:
    takes_sends = core.driver.admission()[0] is ResponseCode.SUCCESS
    serves_reads = core.replica.role is Role.MASTER or (core.config.slave_reads and core.replica.is_following)
    families.put(PERMISSION, (_READ * serves_reads + _WRITE * takes_sends) & core.config.broker_permission)
    families.put(TOPICS, len(core.topics))
    families.put(GROUPS, len(core.groups))
    families.put(HELD_PULLS, core.pull.hold_count)
    families.put(REFUSED, core.send.refused_count)
    if not core.driver.is_serving:
        return
    families.put(HALF_MESSAGES, core.transactions.waiting_count)
    families.put(PRODUCERS, core.clients.producer_connection_count)
    for group, mode, count in nlargest(MAX_PAIRS, core.clients.consumer_connections(), key=itemgetter(2)):
        families.put(CONSUMERS, count, group, mode)


def _put_lag(families: MetricFamilies, core: BrokerCore) -> Iterator[None]:
    pairs, left_out = core.offsets.first_pairs(MAX_PAIRS)
    families.put(PAIRS_LEFT_OUT, left_out)
    queried = queue_count = 0
    for place, (topic, group, offsets) in enumerate(pairs, 1):
        if place % PAIRS_PER_STEP == 0 or queried >= QUEUES_PER_STEP:
            queried = 0
            yield
        lag = ready = 0
        waiting: dict[int, int] = {}
        not_pulled: dict[int, int] = {}
        for queue_id, offset in offsets.items():
            _, end = core.store.queue_range(topic, queue_id)
            if end > offset:
                lag += end - offset
                waiting[queue_id] = offset
                queue_count += 1
                if queue_count <= MAX_QUEUES:
                    families.put(QUEUE_LAG, end - offset, group, topic, str(queue_id))
                pulled = max(offset, core.pull.pulled_to(group, topic, queue_id))
                if end > pulled:
                    ready += end - pulled
                    not_pulled[queue_id] = pulled
        labels = (group, topic, truth(topic.startswith(RETRY_PREFIX)), truth(is_system(core, topic, group)))
        families.put(LAG, lag, *labels)
        families.put(READY, ready, *labels)
        families.put(INFLIGHT, lag - ready, *labels)
        oldest_ms = _age_ms(core, topic, waiting)
        if oldest_ms is not None:
            families.put(LAG_TIME, oldest_ms, *labels)
        if not_pulled != waiting:
            oldest_ms = _age_ms(core, topic, not_pulled)
        if oldest_ms is not None:
            families.put(QUEUEING_TIME, oldest_ms, *labels)
        queried += len(waiting) + len(not_pulled)
    families.put(QUEUES_LEFT_OUT, max(0, queue_count - MAX_QUEUES))


def _age_ms(core: BrokerCore, topic: str, offsets: Mapping[int, int]) -> int | None:
    """Age (ms) of the oldest message at these entries (queue id → offset), 0 without any; None if unknown."""
    if not offsets:
        return 0
    stored_ms = core.store.first_stored_ms(topic, offsets)
    return None if stored_ms is None else max(0, core.admin.wall_ms() - stored_ms)


def truth(value: bool) -> str:
    """Boolean label as OpenTelemetry writes it."""
    return "true" if value else "false"


def is_system(core: BrokerCore, topic: str, group: str = "") -> bool:
    return topic in core.topics.system_topics or group.startswith(SYSTEM_GROUP_PREFIX)


SERIES = tuple(item for item in list(globals().values()) if isinstance(item, Series))
