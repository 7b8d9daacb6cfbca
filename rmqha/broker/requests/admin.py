"""Requests of operators: runtime info, settings, epochs, HA status (28, 26, 1007, 907), and rmqha's own ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.replication.waiter import HandOverWaiter
from rmqha.broker.requests.pull import PullProcessor
from rmqha.broker.requests.request import Channel, Handler, RequestError, number, text
from rmqha.broker.requests.send import SendProcessor
from rmqha.broker.services.live_config import LiveConfig
from rmqha.broker.services.schedule import ScheduleService
from rmqha.broker.services.statistics import BrokerStatistics, DayCounts, Meter, Meters
from rmqha.broker.shell import BrokerShell, HostFacts
from rmqha.broker.tables.config_table import DataVersion
from rmqha.broker.timers.service import TimerService
from rmqha.host.access import security, security_watch
from rmqha.host.clock import ClockStepDetector
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError
from rmqha.model.offset import MASTER_ID, OPEN_END, BrokerId, Epoch
from rmqha.model.principal import UNPROVEN
from rmqha.port import Clock
from rmqha.wire import lenient_json
from rmqha.wire.auth.shown import events_shown
from rmqha.wire.command import PROTOCOL_VERSION, Command
from rmqha.wire.config_answer import ConfigAnswer

VERSION_NAME = "V5_4_0"
"""RocketMQ version of the protocol; mqadmin shows it."""
_OWN_LOG = "own log"


class AdminRequests:
    """Handlers with the host's facts: `process` (pid, dataDirectory), `disk_usage` ((total, used, usable) bytes),
    `history` (last traced events), `local_hour`."""

    def __init__(
        self,
        live: LiveConfig[BrokerConfig],
        driver: ReplicaDriver,
        send: SendProcessor,
        pull: PullProcessor,
        schedule: ScheduleService,
        timers: TimerService,
        clock: Clock,
        host: HostFacts,
        local_hour: Callable[[], int],
        shell: BrokerShell,
        statistics: BrokerStatistics,
    ) -> None:
        self._live = live
        self._config = live.current
        self._config_answer = ConfigAnswer({"useTLS": str(self._config.tls_enable).lower()}, host.processor_count)
        self._driver = driver
        self._send = send
        self._pull = pull
        self._schedule = schedule
        self._timers = timers
        self._clock = clock
        self._process = host.process
        self.disk_usage = host.disk_usage
        self._history = host.history
        self._read_log = host.read_log
        self._local_hour = local_hour
        self._address_problem = shell.address_problem
        self._statistics = statistics
        self._put, self._found, self._missed = Meter(), Meter(), Meter()
        self._enqueued, self._dequeued = Meter(), Meter()
        self._put_days, self._got_days = DayCounts(), DayCounts()
        self._copied = Meters()
        """Rates of the ends of the slaves' logs, by id; on a slave of its own log."""
        self._started_at_ms = clock.wall_ms()
        self._steps = ClockStepDetector(clock)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            RequestCode.GET_BROKER_CONFIG: self._broker_config,
            RequestCode.UPDATE_BROKER_CONFIG: self._update_config,
            RequestCode.GET_BROKER_EPOCH_CACHE: self._epoch_cache,
            RequestCode.GET_BROKER_HA_STATUS: self._ha_status,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._role_changed,
            RequestCode.VIEW_BROKER_STATS_DATA: self._stats_data,
            RequestCode.RMQHA_GET_REPLICA_STATE: self._replica_state,
            RequestCode.RMQHA_GET_HISTORY: self._events,
            RequestCode.RMQHA_GET_SECURITY_STATE: self._security_state,
            RequestCode.RMQHA_HAND_OVER: self._hand_over,
            RequestCode.RMQHA_READ_LOG_FILE: self._log_file,
        }

    def sample(self) -> None:
        """Sample the counters; call about once a second."""
        now_ms = self._clock.now_ms()
        self._put.sample(now_ms, self._send.put_count)
        self._found.sample(now_ms, self._pull.get_count)
        self._missed.sample(now_ms, self._pull.miss_count)
        self._enqueued.sample(now_ms, self._timers.taken_count)
        self._dequeued.sample(now_ms, self._timers.delivered_count)
        hour = self._local_hour()
        self._put_days.sample(hour, self._send.put_count)
        self._got_days.sample(hour, self._pull.get_count)
        replica, own_end = self._driver.replica, self._driver.store.max_phy_offset
        self._copied.sample(now_ms, replica.slave_acks() if replica.is_master else [(_OWN_LOG, own_end)])
        self._statistics.sample(now_ms)

    # --- replica ----------------------------------------------------------------------------------------------------
    def _role_changed(self, channel: Channel, command: Command) -> Command:
        if command.principal is UNPROVEN:
            self._driver.role_notified_unproven()
        else:
            self._driver.role_notified(command)
        return command.reply()

    def _hand_over(self, channel: Channel, command: Command) -> None:
        """Hand the mastership over. Answered when the target has the whole log, or at the time-out."""
        target = number(command, "targetBrokerId")
        self._driver.hand_over(
            Epoch(number(command, "masterEpoch")),
            BrokerId(target) if target > 0 else None,
            max(0, number(command, "timeoutMs", 0)),
            HandOverWaiter(channel, command),
        )

    def _epoch_cache(self, channel: Channel, command: Command) -> Command:
        store, replica = self._driver.store, self._driver.replica
        history = store.epochs
        body = {
            "brokerId": MASTER_ID if replica.is_master else replica.broker_id or -1,
            "brokerName": self._config.broker_name,
            "clusterName": self._config.broker_cluster_name,
            "epochList": [
                {
                    "endOffset": history.end_offset(place, OPEN_END),
                    "epoch": item.epoch,
                    "startOffset": item.start_offset,
                }
                for place, item in enumerate(history)
            ],
            "maxOffset": store.max_phy_offset,
        }
        return command.reply(ext={"replicaId": str(replica.broker_id or -1)}, body=lenient_json.dumps(body))

    def _ha_status(self, channel: Channel, command: Command) -> Command:
        state, replica, wall_ms = self._driver.state(), self._driver.replica, self._clock.wall_ms()
        slaves = [item for item in state.slaves or () if item.ack_offset is not None]
        ids = [slave_id for slave_id, _ in replica.slave_acks()] if slaves else []
        heard_ms, said_ms = state.heard_ms_ago, state.said_ms_ago
        client = {
            "lastReadTimestamp": 0 if heard_ms is None else wall_ms - heard_ms,
            "lastWriteTimestamp": 0 if said_ms is None else wall_ms - said_ms,
            "masterAddr": state.follows or "",
            "masterFlushOffset": 0,
            "maxOffset": 0 if replica.is_master else state.max_phy_offset,
            "transferredByteInSecond": self._copied.per_second(_OWN_LOG),
        }
        body = {
            "haClientRuntimeInfo": client,
            "haConnectionInfo": [
                {
                    "addr": item.peer,
                    "diff": item.lag_bytes,
                    "inSync": item.in_set,
                    "slaveAckOffset": item.ack_offset,
                    "transferFromWhere": item.ack_offset,
                    "transferredByteInSecond": self._copied.per_second(slave_id),
                }
                for slave_id, item in zip(ids, slaves, strict=True)
            ],
            "inSyncSlaveNums": sum(1 for item in slaves if item.in_set),
            "master": replica.is_master,
            "masterCommitLogMaxOffset": state.max_phy_offset if replica.is_master else 0,
        }
        return command.reply(body=lenient_json.dumps(body))

    def _replica_state(self, channel: Channel, command: Command) -> Command:
        state = self._driver.state()
        state.pid, state.data_directory = self._process.get("pid"), self._process.get("dataDirectory")
        state.kernel, state.release = self._process.get("kernel"), self._process.get("release")
        state.address_problem = self._address_problem()
        state.put_count, state.get_count = self._send.put_count, self._pull.get_count
        state.held_pull_count = self._pull.hold_count
        state.put_tps, state.get_tps = self._put.per_second(), self._found.per_second()
        if state.damage is not None and not command.principal.sees_secrets_places:
            # reasons name files of queues, and so topics
            state.damage = replace(state.damage, records=(), refused=None)
        return command.reply(body=lenient_json.dumps(state.to_json()))

    def _events(self, channel: Channel, command: Command) -> Command:
        events = events_shown(command.principal, self._history())
        return command.reply(body=lenient_json.dumps({"events": events, **self._steps.view()}))

    def _log_file(self, channel: Channel, command: Command) -> Command:
        if self._read_log is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this server has no log")
        return self._read_log(command)

    def _security_state(self, channel: Channel, command: Command) -> Command:
        return command.reply(body=lenient_json.dumps(security_watch.view(security.ambient.get(), command.principal)))

    def _stats_data(self, channel: Channel, command: Command) -> Command:
        name, key = text(command, "statsName"), text(command, "statsKey")
        found = self._statistics.find(name, key)
        if found is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        return command.reply(
            body=lenient_json.dumps({window: item.to_json() for window, item in sorted(found.items())})
        )

    # --- process ----------------------------------------------------------------------------------------------------
    def _broker_config(self, channel: Channel, command: Command) -> Command:
        config = self._live.current
        version = DataVersion(0, 0, self._started_at_ms).to_json()
        ext, body = self._config_answer.of(config, self._live.overridden, command)
        return command.reply(ResponseCode.SUCCESS, {"version": lenient_json.dumps(version).decode(), **ext}, body)

    def _update_config(self, channel: Channel, command: Command) -> Command:
        try:
            self._live.update(str(command.body, "utf-8"))
        except UnicodeDecodeError:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the body of request 25 is not UTF-8 text") from None
        except ConfigError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return command.reply()

    def _runtime_info(self, channel: Channel, command: Command) -> Command:
        levels = self._schedule.statistics().items()
        delays = {f"scheduleMessageOffset_{level}": f"{offset},{end}" for level, (offset, end) in levels}
        # RocketMQ's exporter, whose client is of version 4.9, shows no runtime figures of a broker without this field
        version = {"brokerVersion": str(PROTOCOL_VERSION)} if command.version < PROTOCOL_VERSION else {}
        return command.reply(body=lenient_json.dumps({"table": self._runtime_table() | delays | version}))

    def _runtime_table(self) -> dict[str, str]:
        """Keys that mqadmin reads, all as text. What this broker lacks (thread pools) is 0."""
        store, send, pull, timers = self._driver.store, self._send, self._pull, self._timers
        put, found, missed = self._put.per_second(), self._found.per_second(), self._missed.per_second()
        uptime_s = max(0, self._clock.wall_ms() - self._started_at_ms) // 1000
        total_bytes, used_bytes, usable_bytes = self.disk_usage()
        ratio = _disk_ratio(used_bytes, usable_bytes)
        put_times, pooled = self._statistics.put_times, self._config.transient_store_pool_enable
        to_commit = {"remainHowManyDataToCommit": f"{store.uncommitted_bytes} B"} if pooled else {}
        days, hours, minutes = uptime_s // 86400, uptime_s // 3600 % 24, uptime_s // 60 % 60
        return (
            dict.fromkeys(_ABSENT, "0")
            | to_commit
            | {
                "bootTimestamp": str(self._started_at_ms),
                "brokerActive": str(self._driver.is_serving).lower(),
                "brokerVersionDesc": VERSION_NAME,
                "commitLogDirCapacity": f"Total : {_gib(total_bytes)}, Free : {_gib(total_bytes - used_bytes)}.",
                "commitLogDiskRatio": ratio,
                f"commitLogDiskRatio_{self._config.store_path_root_dir}/commitlog": ratio,
                "consumeQueueDiskRatio": ratio,
                "commitLogMaxOffset": str(store.max_phy_offset),
                "commitLogMinOffset": str(store.min_phy_offset if store.max_phy_offset else -1),
                "dispatchBehindBytes": str(store.dispatch_behind_bytes),
                "remainTransientStoreBufferNumbs": str(store.free_buffer_count),
                "remainHowManyDataToFlush": f"{store.max_phy_offset - store.synced_offset} B",
                "earliestMessageTimeStamp": str(self.earliest_at_ms()),
                "getFoundTps": f"{found} {found}",
                "getMissTps": f"{missed} {missed}",
                "getTotalTps": f"{round(found + missed, 2)} {round(found + missed, 2)}",
                "getTransferredTps": f"{found} {found}",
                "msgGetTotalTodayMorning": str(self._got_days.this_morning),
                "msgGetTotalYesterdayMorning": str(self._got_days.yesterday_morning),
                "msgPutTotalTodayMorning": str(self._put_days.this_morning),
                "msgPutTotalYesterdayMorning": str(self._put_days.yesterday_morning),
                "msgGetTotalTodayNow": str(pull.get_count),
                "msgPutTotalTodayNow": str(send.put_count),
                "putMessageAverageSize": str(send.put_bytes / send.put_count if send.put_count else 0.0),
                "putMessageDistributeTime": put_times.text(),
                "putLatency99": f"{put_times.percentile_ms(0.99):.2f}",
                "putLatency999": f"{put_times.percentile_ms(0.999):.2f}",
                "putMessageFailedTimes": str(send.failed_count),
                "putMessageSizeTotal": str(send.put_bytes),
                "putMessageTimesTotal": str(send.put_count or 1),  # RocketMQ's divisor for the average
                "putTps": f"{put} {put}",
                "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {uptime_s % 60} seconds ]",
                "timerCongestNum": str(timers.waiting_count),
                "timerDequeueTps": str(self._dequeued.per_second()),
                "timerEnqueueTps": str(self._enqueued.per_second()),
                "timerOffsetBehind": str(timers.unread_count),
                "timerReadBehind": str(timers.overdue_ms() // 1000),
            }
        )

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def earliest_at_ms(self) -> int:
        """storeTimestamp of the oldest record, −1 without one."""
        store = self._driver.store
        if store.confirm_offset <= store.min_phy_offset:
            return -1
        found = store.verified_record_at(store.min_phy_offset)
        return -1 if found is None else found.record.store_timestamp_ms


def _disk_ratio(used_bytes: int, usable_bytes: int) -> str:
    """Used share of the disk as RocketMQ and df count it: without root's reserve, rounded up to whole percents."""
    entire_bytes = used_bytes + usable_bytes
    return str(-(-used_bytes * 100 // entire_bytes) / 100 if entire_bytes else 0.0)


_ABSENT = (
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "ackThreadPoolQueueCapacity",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueSize",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "litePullThreadPoolQueueCapacity",
    "litePullThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueSize",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "putMessageEntireTimeMax",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.1f} GiB"
