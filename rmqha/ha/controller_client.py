"""A replica's client of the controllers: identity, registration, heartbeats, queries. A machine.

    APPLYING ──1012, 1013──▶ REGISTERING ──1003──▶ REGISTERED ──904 answered by 2010──▶ REGISTERING
        ▲                         │
        └── 1003 answered by 2010 ┘

A REGISTERED replica whose group the controllers have forgotten (1004 answered by 2008) goes to REGISTERING too.

APPLYING asks for an id in two phases: id and check code are on disk before the controller is asked to apply them,
so a crash in between repeats that application. REGISTERED sends a heartbeat (904) at every interval; our
controller's answer shows master and set, or that there is no master, which makes role changes level-triggered. The
answer of Apache's controller is empty, and its notice of a change comes once or never, so it is asked (1004) every
INFO_INTERVAL_MS. An unclean replica registers as such, sends no heartbeat and no election request, and registers again
instead until it is whole (ruling 3).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from rmqha.ha.action import CallController
from rmqha.ha.sync_state import Members
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import HaMode, make_check_code, node_name
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.port import IdentityStore, Tracer
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps

RETRY_MS = 200
CALL_TIMEOUT_MS = 1500
ELECT_INTERVAL_MS = 1000
INFO_INTERVAL_MS = 1000
UNFIT_INTERVAL_MS = 5000
OWN_CONTROLLER_KEY = "probeTimeoutMs"
HEARTBEAT_REFUSED = (ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, ResponseCode.NO_PERMISSION)
"""Response codes of a heartbeat that was refused; the answer to a new registration then says what is wrong."""
METADATA_GONE = (ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,)
"""Response codes of controllers that have forgotten the group. Apache's go on taking its heartbeats."""
AWAY_AFTER_MS = 2000
"""Time (ms) without any answer after which the controllers count as away (ruling 5)."""


class RegistrationState(Enum):
    """Stage of a replica's registration at the controllers."""

    APPLYING = "applying for an id"
    REGISTERING = "registering"
    REGISTERED = "registered"


class HeartbeatValues(NamedTuple):
    """Values of a heartbeat, read again for each."""

    epoch: Epoch
    """Epoch of the log's last byte; −1 without any."""
    accepted_epoch: Epoch
    max_phy_offset: PhyOffset
    confirm_offset: PhyOffset
    unclean: bool
    has_master: bool
    stopping: bool
    total_replicas: int
    """Number of replicas of the group as this replica knows it: the controllers' number, before that the configured
    one."""


class ControllerClient:
    """Requests of one replica to the controllers, and their answers.

    `heartbeat_values` is called whenever a request is built, `report` for the further fields of a heartbeat.
    `candidacy` is called at every step of the replica. It returns two flags: the replica is unclean; it wants no
    election, because there is a master or it stops. `now_ms + wall_offset_ms` is the invokeTime of requests."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: IdentityStore,
        tracer: Tracer,
        heartbeat_values: Callable[[], HeartbeatValues],
        candidacy: Callable[[], tuple[bool, bool]],
        wall_offset_ms: Callable[[], int],
        report: Callable[[int], dict[str, str]] = lambda now_ms: {},
    ) -> None:
        self.broker_id: BrokerId | None = identity.broker_id()
        self.state = RegistrationState.REGISTERING if self.broker_id is not None else RegistrationState.APPLYING
        self.answered_at_ms: int | None = None
        self.refusal = ""
        """Reason why the controllers refuse this replica, in their words; "" when they do not."""
        self._preferred_id = None if self.broker_id is not None or config.broker_id <= 0 else BrokerId(config.broker_id)
        """Id of the configuration file to apply for; None once the controllers have refused it, or without one."""
        self._registered_unclean = False
        self._must_read_config = config.mode is HaMode.CP
        self._config = config
        self._identity = identity
        self._tracer = tracer
        self._heartbeat_values = heartbeat_values
        self._candidacy = candidacy
        self._report = report
        self._wall_offset_ms = wall_offset_ms
        self._calls: dict[int, RequestCode] = {}
        self._next_call_id = 1
        self._step_at_ms = 0
        self._heartbeat_at_ms = 0
        self._elect_at_ms = 0
        self._info_at_ms = 0
        self._must_ask = False
        """True if the controllers' answers to heartbeats tell nothing, as those of Apache's."""
        self._info_again = False
        """True if request 1004 must be sent again: the answer that is on its way may be older than the last change."""
        self._actions: list[CallController] = []

    # --- out ------------------------------------------------------------------------------------------------------
    def take(self) -> list[CallController]:
        actions, self._actions = self._actions, []
        return actions

    def _call(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> int:
        call_id = self._next_call_id
        self._next_call_id += 1
        self._calls[call_id] = code
        self._actions.append(CallController(call_id, Command(code, ext, body), CALL_TIMEOUT_MS))
        return call_id

    @property
    def last_call_id(self) -> int:
        """Number of the newest call; 0 before the first one."""
        return self._next_call_id - 1

    def _waits_for(self, *codes: RequestCode) -> bool:
        return any(code in codes for code in self._calls.values())

    def _group_ext(self) -> dict[str, str]:
        return {"clusterName": self._config.broker_cluster_name, "brokerName": self._config.broker_name}

    def is_away(self, now_ms: int) -> bool:
        return self.answered_at_ms is None or now_ms >= self.answered_at_ms + AWAY_AFTER_MS

    # --- time -----------------------------------------------------------------------------------------------------
    def timeout(self, now_ms: int) -> None:
        match self.state:
            case RegistrationState.APPLYING:
                codes = (RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, RequestCode.CONTROLLER_APPLY_BROKER_ID)
                if now_ms >= self._step_at_ms and not self._waits_for(*codes):
                    self._apply_id(now_ms)
            case RegistrationState.REGISTERING:
                codes = (RequestCode.CONTROLLER_GET_CONFIG, RequestCode.CONTROLLER_REGISTER_BROKER)
                if now_ms >= self._step_at_ms and not self._waits_for(*codes):
                    if self._must_read_config:
                        self._call(RequestCode.CONTROLLER_GET_CONFIG, {})
                    else:
                        self._register(now_ms)
            case RegistrationState.REGISTERED:
                self._send_periodic_requests(now_ms)

    def _apply_id(self, now_ms: int) -> None:
        pending = self._identity.pending()
        if pending is None and self._preferred_id is not None:
            self._identity.begin(self._preferred_id, self._check_code(now_ms, self._preferred_id))
            pending = self._identity.pending()
        if pending is None:
            self._call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self._group_ext())
            return
        broker_id, check_code = pending
        wished = {"wished": "true"} if broker_id == self._preferred_id else {}
        ext = {**self._group_ext(), "appliedBrokerId": str(broker_id), "registerCheckCode": check_code, **wished}
        self._call(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext)

    def _register(self, now_ms: int) -> None:
        config, heartbeat_values = self._config, self._heartbeat_values()
        ext = {
            **self._group_ext(),
            "brokerId": str(self.broker_id),
            "brokerAddress": config.address,
            "invokeTime": str(now_ms + self._wall_offset_ms()),
            "totalReplicas": str(heartbeat_values.total_replicas),
            "haMode": config.mode.name.lower(),
            "haAddress": config.ha_address,
            "asyncLearner": "true" if config.async_learner else "false",
            "unclean": "true" if heartbeat_values.unclean else "false",
            "acceptedEpoch": str(heartbeat_values.accepted_epoch),
        }
        self._registered_unclean = heartbeat_values.unclean
        self._call(RequestCode.CONTROLLER_REGISTER_BROKER, ext)

    def _send_periodic_requests(self, now_ms: int) -> None:
        config, heartbeat_values = self._config, self._heartbeat_values()
        if heartbeat_values.unclean:
            # Registering again also takes this replica out of the set if an election has put it there unknowingly.
            if now_ms >= self._info_at_ms:
                self._info_at_ms = now_ms + INFO_INTERVAL_MS
                if not self._waits_for(RequestCode.CONTROLLER_REGISTER_BROKER):
                    self._register(now_ms)
                if heartbeat_values.total_replicas == 1 and not self._waits_for(
                    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
                ):
                    self.ask_registered()
            return
        if now_ms >= self._heartbeat_at_ms:
            self.heartbeat(now_ms)
        may_ask = not heartbeat_values.has_master and not heartbeat_values.stopping and not config.async_learner
        if may_ask and now_ms >= self._elect_at_ms:
            self._elect_at_ms = now_ms + ELECT_INTERVAL_MS
            ext = {
                **self._group_ext(),
                "brokerId": str(self.broker_id),
                "designateElect": "false",
                "invokeTime": str(now_ms + self._wall_offset_ms()),
            }
            self._call(RequestCode.CONTROLLER_ELECT_MASTER, ext)

    def heartbeat(self, now_ms: int) -> None:
        """Send a heartbeat now; the next one follows an interval later."""
        if self.state is not RegistrationState.REGISTERED or self._heartbeat_values().unclean:
            return
        config, heartbeat_values = self._config, self._heartbeat_values()
        self._heartbeat_at_ms = now_ms + config.controller_heartbeat_interval_millis
        ext = {
            **self._group_ext(),
            "brokerAddr": config.address,
            "brokerId": str(self.broker_id),
            "epoch": str(heartbeat_values.epoch),
            "maxOffset": str(heartbeat_values.max_phy_offset),
            "confirmOffset": str(heartbeat_values.confirm_offset),
            "heartbeatTimeoutMills": str(config.controller_heart_beat_timeout_mills),
            "electionPriority": str(config.broker_election_priority),
            "totalReplicas": str(config.total_replicas),
            "haMode": config.mode.name.lower(),
            "stopping": "true" if heartbeat_values.stopping else "false",
            **self._report(now_ms),
        }
        self._call(RequestCode.BROKER_HEARTBEAT, ext)

    def ask_replica_info(self) -> None:
        """Ask for the group's set (request 1004), unless such a request is waiting for its answer."""
        if not self._waits_for(RequestCode.CONTROLLER_GET_REPLICA_INFO):
            ext = {**self._group_ext(), "brokerId": str(self.broker_id)}
            self._call(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext)

    def group_changed(self) -> None:
        """Ask for the group's set (request 1004) after an unproven notice of a change. Repeated notices cause one
        request at a time, and one more after it."""
        self._info_again = self._waits_for(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        if not self._info_again:
            self.ask_replica_info()

    def ask_registered(self) -> None:
        """Ask for the group's registered replicas and their addresses (request 1006)."""
        body = dumps([self._config.broker_name])
        self._call(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, body)

    def alter_sync_state_set(self, now_ms: int, epoch: Epoch, members: Members, set_epoch: int) -> int:
        ext = {
            "brokerName": self._config.broker_name,
            "masterBrokerId": str(self.broker_id),
            "masterEpoch": str(epoch),
            "invokeTime": str(now_ms + self._wall_offset_ms()),
            "acceptUnchanged": "true",
        }
        # acceptUnchanged is ours: an unchanged set is applied too and moves the set epoch (see SyncStateSetManager).
        body = dumps({"syncStateSet": list(members), "syncStateSetEpoch": set_epoch})
        return self._call(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)

    def deadline_ms(self) -> int | None:
        if self.state is not RegistrationState.REGISTERED:
            waits = self._waits_for(
                RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                RequestCode.CONTROLLER_GET_CONFIG,
                RequestCode.CONTROLLER_REGISTER_BROKER,
            )
            return None if waits else self._step_at_ms
        unclean, wants_no_election = self._candidacy()
        if unclean:
            return self._info_at_ms
        if wants_no_election or self._config.async_learner:
            return self._heartbeat_at_ms
        return min(self._heartbeat_at_ms, self._elect_at_ms)

    # --- in -------------------------------------------------------------------------------------------------------
    def register_again(self, now_ms: int) -> None:
        """Register again: the controllers do not know this session, or a registered value has changed."""
        if self.state is RegistrationState.REGISTERED:
            self.state = RegistrationState.REGISTERING
            self._step_at_ms = now_ms

    def replied(self, now_ms: int, call_id: int, reply: Command | None) -> RequestCode | None:
        """Handle an answer; returns the code of its request, None if that request is not known (any more)."""
        code = self._calls.pop(call_id, None)
        if code is RequestCode.CONTROLLER_GET_REPLICA_INFO and self._info_again:
            self.group_changed()
        if code is None or reply is None:
            self._step_at_ms = now_ms + RETRY_MS
            return code
        self.answered_at_ms = now_ms
        match code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                self._next_id_answered(now_ms, reply)
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                self._id_applied(now_ms, reply)
            case RequestCode.CONTROLLER_GET_CONFIG:
                self._config_answered(now_ms, reply)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                self._registered(now_ms, reply)
            case RequestCode.BROKER_HEARTBEAT if reply.code in HEARTBEAT_REFUSED:
                self.register_again(now_ms)
            case RequestCode.BROKER_HEARTBEAT if not reply.ext and now_ms >= self._info_at_ms:
                self._info_at_ms = now_ms + INFO_INTERVAL_MS
                self._must_ask = True
                self.ask_replica_info()
            case RequestCode.CONTROLLER_GET_REPLICA_INFO if reply.code in METADATA_GONE and self._must_ask:
                self.register_again(now_ms)
            case _:
                return code
        return code

    def _next_id_answered(self, now_ms: int, reply: Command) -> None:
        given = reply.ext.get("nextBrokerId", "")
        if reply.code != ResponseCode.SUCCESS or not given.isdigit() or int(given) < 1:
            self._refused(now_ms, reply)
            return
        self._identity.begin(BrokerId(int(given)), self._check_code(now_ms, int(given)))
        self._step_at_ms = now_ms

    def _id_applied(self, now_ms: int, reply: Command) -> None:
        pending = self._identity.pending()
        assert pending is not None, "an application is on disk before it is sent"
        if reply.code == ResponseCode.SUCCESS:
            self._identity.confirm()
            self.broker_id = pending[0]
            self.state = RegistrationState.REGISTERING
            self._step_at_ms = now_ms
            self._tracer.event("id_applied", broker_id=self.broker_id)
            return
        if reply.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._preferred_id = None
            self._identity.abandon()
            if self.broker_id is not None:
                # another broker has this id: `refusal` says so until that changes
                self.state = RegistrationState.REGISTERING
        self._refused(now_ms, reply)
        if self.broker_id is not None:
            self._step_at_ms = now_ms + INFO_INTERVAL_MS

    def _config_answered(self, now_ms: int, reply: Command) -> None:
        """Check the controller's configuration (ruling 10). With a controller that elects unclean masters the CP
        promise cannot be kept, so this replica does not register. A controller of rmqha never elects an unclean master
        of a CP group, whatever the key says; it is recognized by a key that only rmqha has."""
        lines = bytes(reply.body).decode(errors="replace").splitlines()
        keys = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
        if keys.get("enableElectUncleanMaster") == "true" and OWN_CONTROLLER_KEY not in keys:
            self.refusal = "haMode=cp needs a controller with enableElectUncleanMaster=false; set it there"
            self._tracer.event("controller_unfit", reason=self.refusal)
            self._step_at_ms = now_ms + UNFIT_INTERVAL_MS
            return
        self._must_read_config = False
        self._step_at_ms = now_ms

    def _registered(self, now_ms: int, reply: Command) -> None:
        if reply.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            self._apply_for_same_id(now_ms)
            return
        if reply.code != ResponseCode.SUCCESS:
            self._refused(now_ms, reply)
            return
        self.refusal = ""
        if self.state is not RegistrationState.REGISTERED:
            self._tracer.event("registered", broker_id=self.broker_id)
        self.state = RegistrationState.REGISTERED
        if self._heartbeat_values().unclean != self._registered_unclean:
            self.register_again(now_ms)  # that changed while the request was under way
        self._heartbeat_at_ms = self._elect_at_ms = now_ms
        self._info_at_ms = now_ms + INFO_INTERVAL_MS

    def _apply_for_same_id(self, now_ms: int) -> None:
        """Apply for the same id again: the controllers never issued it, or have forgotten it. Nothing is deleted."""
        assert self.broker_id is not None, "only a replica with an id registers"
        self._identity.begin(self.broker_id, self._check_code(now_ms, self.broker_id))
        self.state = RegistrationState.APPLYING
        self._step_at_ms = now_ms + RETRY_MS

    def _check_code(self, now_ms: int, broker_id: int) -> str:
        config = self._config
        name = node_name(config.broker_name, config.broker_id if config.broker_id > 0 else broker_id)
        return make_check_code(config.address, now_ms + self._wall_offset_ms(), name)

    def _refused(self, now_ms: int, reply: Command) -> None:
        refusal = f"code {reply.code}: {reply.remark or 'no remark'}"
        if refusal != self.refusal:
            self._tracer.event("controller_refuses", reason=refusal)
        self.refusal = refusal
        self._step_at_ms = now_ms + RETRY_MS
