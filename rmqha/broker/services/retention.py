"""Retention of log files: checks log and disk, lets the store remove files, and reports what stays and why.

Each replica removes files on its own, as in RocketMQ. The decision is `rmqha.store.log.retention`; no trio here.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.requests.request import Channel, Handler, number
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import StoreError
from rmqha.model.offset import PhyOffset
from rmqha.port import Clock, Disk, Tracer
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.log.retention import HOUR_MS, HeldFile, ReplicaNeed, RetentionInput, RetentionPlan, plan, refusal_of
from rmqha.store.meta.problem import disk_errors
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import ReplicaState

CHECKS_ON_DEMAND = 20
"""Checks after an operator's request, as in RocketMQ: each removes a batch."""


class Retention:
    """Removal of old files at work. `check` is called in the broker's own thread, `schedule_unlink` in another."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        driver: ReplicaDriver,
        clock: Clock,
        tracer: Tracer,
        wake: Callable[[], None],
        local_hour: Callable[[], int] | None = None,
    ) -> None:
        """`wake` causes a call of `check` soon. Without `local_hour` the hours of deleteWhen are UTC's."""
        self._config = config
        self._disk = disk
        self._driver = driver
        self._store = driver.store
        self._clock = clock
        self._tracer = tracer
        self.local_hour = local_hour or (lambda: clock.wall_ms() // HOUR_MS % 24)
        self._checks_on_demand = 0
        self._start_offset = 0
        self._held: HeldFile | None = None
        self._has_error = False
        self._full = ""
        """Reason of the last plan for refusing sends."""
        self._wake = wake

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    # --- checks -----------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Decide and remove files from the store; `schedule_unlink` then does the slow part. While the log is being
        changed, the check is postponed."""
        if not self._driver.is_log_free:
            return
        store, driver = self._store, self._driver
        try:
            store.trim_derived()
            found = plan(self._config, self._situation())
            self._full = found.refusal or self._root_refusal()
            self._refuse()
            if found.removed:
                store.trim(PhyOffset(found.removed[-1][0].end_offset))
            if found.roll is not None:
                driver.roll()
        except StoreError as error:
            self._report_error(str(error))
            return
        self._report_error("")
        self._report(found)
        self._checks_on_demand = max(0, self._checks_on_demand - 1)
        if not self._checks_on_demand:
            self._start_offset = 0

    def _root_refusal(self) -> str:
        """The reason to refuse sends by the disk of queues, index and tables, which may be another one than the log's;
        "" without one."""
        return refusal_of(self._config, *self._space(""))

    def _space(self, path: str) -> tuple[int, int]:
        """(used, free) bytes of the disk of `path`, once removed files are off it."""
        with disk_errors(self._disk, "", "ask how full the disk is"):
            used_bytes, free_bytes = self._disk.space(path)
        pending_deletion_bytes = min(self._store.pending_deletion_bytes, used_bytes)
        return used_bytes - pending_deletion_bytes, free_bytes + pending_deletion_bytes

    def _situation(self) -> RetentionInput:
        store, driver, wall_ms = self._store, self._driver, self._clock.wall_ms()
        files, active = store.oldest_files(self._config.delete_file_batch_max, wall_ms)
        used_bytes, free_bytes = self._space(LOG_DIRECTORY)  # which may be a link to another disk
        return RetentionInput(
            wall_ms=wall_ms,
            local_hour=self.local_hour(),
            files=files,
            active=active,
            end_offset=store.max_phy_offset,
            settled_offset=store.settled_offset,
            used_bytes=used_bytes,
            free_bytes=free_bytes,
            needs=[ReplicaNeed(slave_id, offset) for slave_id, offset in driver.replica.slave_acks()],
            start_offset=self._start_offset,
            on_demand=self._checks_on_demand > 0,
            may_append=driver.is_serving and driver.admission()[0] is ResponseCode.SUCCESS,
        )

    def schedule_unlink(self) -> bool:
        """Unlink one removed log file; True if there are more. Blocks. A log file that could not be made is tried
        again."""
        config = self._config
        if self._file_refusal:
            self._store.allocation.allocate_ahead()
        return self._driver.is_log_free and self._store.schedule_unlink(
            self._clock.now_ms(), config.destroy_maped_file_interval_forcibly, config.redelete_hanged_file_interval
        )

    def pending_unlink(self) -> None:
        """Take note of the work of `schedule_unlink`, which may have synced the log; call in the broker's own
        thread."""
        self._driver.synced()
        self.allocated()

    def allocated(self) -> None:
        """Take note that the log's next file was made, or could not be, or whether the queues have room; call in the
        broker's own thread."""
        self._refuse()

    def demand(self, start_offset: int) -> None:
        """Remove expired files at any hour, and all that end at or below `start_offset`."""
        self._start_offset = start_offset
        self._checks_on_demand = CHECKS_ON_DEMAND
        self._wake()

    # --- reports ----------------------------------------------------------------------------------------------------
    def _report(self, found: RetentionPlan) -> None:
        if found.removed:
            reasons = sorted({reason.value for _, reason in found.removed})
            start = found.removed[-1][0].end_offset
            self._tracer.event("log_trimmed", start_offset=start, files=len(found.removed), reason="; ".join(reasons))
        if found.roll is not None:
            self._tracer.event("log_rolled", end_offset=self._store.max_phy_offset, reason=found.roll.value)
        if found.passed_over:
            self._tracer.event(
                "slaves_passed_over",
                brokers=[need.broker_id for need in found.passed_over],
                reason="the disk is fuller than diskSpaceWarningLevelRatio: they must copy the whole log again",
            )
        if found.held != self._held:
            self._held = found.held
            if found.held is not None:
                self._tracer.event("log_file_held", sentence=self.held)

    @property
    def held(self) -> str:
        """Sentence about a file that should be removed and its holder; "" for none."""
        held = self._held
        if held is None:
            return ""
        who = ", ".join(f"broker {need.broker_id}, which has the log up to {need.offset}" for need in held.by)
        return (
            f"the log file at {held.start_offset} stays, {held.reason.value}: needed by {who or 'this replica itself'}"
        )

    @property
    def _file_refusal(self) -> str:
        return self._store.allocation.refusal(self._config.max_message_size)

    def _refuse(self) -> None:
        replica, store = self._driver.replica, self._store
        refusal = self._full or self._file_refusal or (store.queue_refusal if store.dispatch_behind_bytes else "")
        if bool(refusal) != bool(replica.disk_refusal):
            self._tracer.event("disk_full" if refusal else "disk_has_room", reason=refusal)
        replica.disk_refusal = refusal

    def _report_error(self, reason: str) -> None:
        if reason and not self._has_error:
            self._tracer.event("old_files_not_removed", reason=reason)
        self._has_error = bool(reason)

    def add_state(self, state: ReplicaState) -> None:
        state.held_log_file, state.removed_log_bytes_on_disk = self.held, self._store.pending_deletion_bytes

    # --- requests ---------------------------------------------------------------------------------------------------
    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self._clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self._clean_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._delete_expired,
        }

    def _clean_queues(self, channel: Channel, command: Command) -> Command:
        self._store.trim_derived()
        self._wake()
        return command.reply()

    def _delete_expired(self, channel: Channel, command: Command) -> Command:
        """Process an operator's request to remove expired files; `startOffset` is not RocketMQ's."""
        self.demand(number(command, "startOffset", 0))
        return command.reply()
