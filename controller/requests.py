"""Answers of the leading controller to brokers and operators, request by request. Pure.

The heartbeat (904) is the only frequent request. It changes no durable state, and its answer carries master and set of
the group, so a lost notice (1008) is replaced within one interval.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from controller.decisions.elect_master import DEFAULT_PRIORITY, ElectionRequest
from controller.decisions.membership import (
    MAX_TOTAL_REPLICAS,
    ReplicaRegistration,
    apply_broker_id,
    clean_brokers,
    drain,
    next_broker_id,
    register,
    resize,
    set_maintenance,
)
from controller.decisions.refusal import Refusal
from controller.decisions.sync_state_set import alter_sync_state_set
from controller.elections.explain import explain
from controller.elections.heartbeat import MAX_TIMEOUT_MS, BrokerHeartbeat, BrokerKey
from controller.elections.leadership import Leadership
from controller.quorum.role_long_polls import RoleLongPolls
from controller.state.answers import (
    MAX_EPOCH,
    MAX_OFFSET,
    InvalidRequestError,
    MasterViews,
    elect_answer,
    flag,
    integer,
    parse_names,
    parse_set,
    require_plausible,
    set_body,
    sync_state_data,
    text,
)
from controller.state.event import Cause, Event
from controller.state.proposal import PendingRequest, Proposal
from controller.state.replicas_info import BrokerGroup, ReplicasInfo
from controller.state.state_view import group_state
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

MAX_PRIORITY = 2**31 - 1
MAX_TEXT_CHARS = 255
MAX_SLAVES_CHARS = 4096
_NOT_REGISTERED = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def refuse(command: Command, refusal: Refusal, ext: dict[str, str] | None = None) -> Command:
    return command.reply(refusal.code, ext, remark=refusal.remark)


def parse_heartbeat(ext: dict[str, str]) -> BrokerHeartbeat:
    """Heartbeat of the fields of request 904. Raises InvalidRequestError for a missing number or one out of range."""
    try:
        heartbeat = BrokerHeartbeat(
            Epoch(int(ext["epoch"])),
            PhyOffset(int(ext["maxOffset"])),
            PhyOffset(int(ext["confirmOffset"])),
            int(ext.get("heartbeatTimeoutMills") or 0),
            int(ext.get("electionPriority") or DEFAULT_PRIORITY),
            ext.get("stopping") == "true",
            ext.get("zone", "")[:MAX_TEXT_CHARS],
            ext.get("diskProblem", "")[:MAX_TEXT_CHARS],
            ext.get("slaves", "")[:MAX_SLAVES_CHARS],
            int(ext.get("boundTotalReplicas") or 0),
        )
    except KeyError as missing:
        raise InvalidRequestError(f"the heartbeat lacks the field {missing.args[0]}") from None
    except ValueError:
        raise InvalidRequestError("a field of the heartbeat is no whole number") from None
    if not (
        -1 <= heartbeat.epoch <= MAX_EPOCH
        and 0 <= heartbeat.max_offset <= MAX_OFFSET
        and -1 <= heartbeat.confirm_offset <= MAX_OFFSET
        and 0 <= heartbeat.timeout_ms <= MAX_TIMEOUT_MS
        and -MAX_PRIORITY - 1 <= heartbeat.priority <= MAX_PRIORITY
        and 0 <= heartbeat.total_replicas <= MAX_TOTAL_REPLICAS
    ):
        raise InvalidRequestError("a number of the heartbeat is out of range")
    return heartbeat


class Requests:
    """Request handlers of one leadership. Each request is answered at once, or after its change has been applied."""

    def __init__(
        self,
        info: ReplicasInfo,
        views: MasterViews,
        leadership: Leadership,
        long_polls: RoleLongPolls,
        wall_offset_ms: Callable[[], int],
    ) -> None:
        self._info = info
        self._long_polls = long_polls
        self._wall_offset_ms = wall_offset_ms
        self._views = views
        self._leadership = leadership
        self._handlers: dict[int, Callable[[int, PendingRequest], None]] = {
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter_sync_state_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect_master,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register_broker,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._get_replica_info,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._get_sync_state_data,
            RequestCode.CONTROLLER_CLEAN_BROKER_METADATA: self._clean_broker_metadata,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._get_next_broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._apply_broker_id,
            RequestCode.RMQHA_RESIZE_GROUP: self._resize_group,
            RequestCode.RMQHA_DRAIN_REPLICA: self._drain_replica,
            RequestCode.RMQHA_SET_MAINTENANCE: self._set_maintenance,
            RequestCode.RMQHA_EXPLAIN_GROUP: self._explain_group,
            RequestCode.RMQHA_FOLLOW_GROUPS: self._follow_groups,
        }

    def serve(self, now_ms: int, pending: PendingRequest) -> None:
        """Handle a request whose code is one of LEADER_CODES."""
        try:
            self._handlers[pending.command.code](now_ms, pending)
        except InvalidRequestError as problem:
            self._refuse(pending, Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, str(problem)))

    def observe(self, now_ms: int, pending: PendingRequest) -> None:
        """Count a heartbeat as a sign of life while this leader's lease is in doubt and forbids an answer."""
        try:
            self._record_heartbeat(now_ms, pending)
        except InvalidRequestError:
            return

    def _refuse(self, pending: PendingRequest, refusal: Refusal) -> None:
        self._leadership.answer(pending, refuse(pending.command, refusal))

    def _decided(
        self,
        pending: PendingRequest,
        broker_name: str,
        result: Event | Refusal | None,
        answer: Callable[[Command], Command] = Command.reply,
    ) -> None:
        """Answer a refusal or a request without a change at once, and an event after it has been applied."""
        if isinstance(result, Refusal):
            self._refuse(pending, result)
        elif result is None:
            self._leadership.answer(pending, answer(pending.command))
        else:
            self._leadership.propose(Proposal(broker_name, (result,), (pending,), answer))

    # --- liveness ---------------------------------------------------------------------------------------------------

    def _record_heartbeat(self, now_ms: int, pending: PendingRequest) -> BrokerGroup | None:
        ext = pending.command.ext
        heartbeat = parse_heartbeat(ext)
        key = BrokerKey(text(ext, "brokerName"), BrokerId(integer(ext, "brokerId")))
        group = self._info.group(key.broker_name)
        if group is None or key.broker_id not in group.replicas:
            return None
        require_plausible(heartbeat.epoch, group.master_epoch)
        if self._leadership.table.heartbeat(now_ms, key, pending.session_id, heartbeat):
            self._leadership.reconcile(now_ms, key.broker_name, urgent=True)
        return group

    def _heartbeat(self, now_ms: int, pending: PendingRequest) -> None:
        command = pending.command
        group = self._record_heartbeat(now_ms, pending)
        if command.is_oneway:
            return
        if group is None:
            self._refuse(pending, Refusal(_NOT_REGISTERED, "no such replica here; register first"))
            return
        view = self._views.of(group.broker_name)
        ext = dict(view.ext) or {"hasMaster": "false"}
        if command.ext.get("stopping") == "true":
            broker_id = BrokerId(int(command.ext["brokerId"]))
            ext["released"] = str(self._leadership.is_released(now_ms, group, broker_id)).lower()
        self._leadership.answer(pending, command.reply(ext=ext, body=view.body if view.ext else b""))

    def _register_broker(self, now_ms: int, pending: PendingRequest) -> None:
        ext = pending.command.ext
        request = ReplicaRegistration(
            broker_name=text(ext, "brokerName"),
            broker_id=BrokerId(integer(ext, "brokerId")),
            address=text(ext, "brokerAddress"),
            ha_address=text(ext, "haAddress", ""),
            total_replicas=integer(ext, "totalReplicas", 0),
            ha_mode=text(ext, "haMode", ""),
            unclean=flag(ext, "unclean"),
            async_learner=flag(ext, "asyncLearner"),
            accepted_epoch=integer(ext, "acceptedEpoch") if "acceptedEpoch" in ext else None,
        )
        name, accepted = request.broker_name, Epoch(-1 if request.accepted_epoch is None else request.accepted_epoch)
        if not -1 <= accepted <= MAX_EPOCH:
            raise InvalidRequestError("acceptedEpoch is out of range")
        if self._leadership.must_wait(name, pending):
            return
        group, key = self._info.group(name), BrokerKey(name, request.broker_id)
        if group is not None:
            require_plausible(accepted, group.master_epoch)
        if two := self._two_processes(now_ms, group, request, pending.session_id):
            self._refuse(pending, Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, two))
            return
        events = register(
            group,
            request,
            lambda item: group is not None and self._leadership.is_alive(now_ms, group, item),
            now_ms + self._wall_offset_ms(),
        )
        if isinstance(events, Refusal):
            self._refuse(pending, events)
            return
        self._leadership.table.registered(
            now_ms, key, pending.session_id, unclean=request.unclean, accepted_epoch=accepted
        )
        if events:
            self._leadership.propose(Proposal(name, tuple(events), (pending,), self._registered_answer))
        else:
            self._leadership.answer(pending, self._registered_answer(pending.command))
            self._leadership.reconcile(now_ms, name, urgent=True)

    def _two_processes(
        self, now_ms: int, group: BrokerGroup | None, request: ReplicaRegistration, session_id: int
    ) -> str:
        """Sentence if the replica is alive at another address: a copied store must not replace the original."""
        known = None if group is None else group.replicas.get(request.broker_id)
        if known is None or group is None or not known.ha_address or known.address == request.address:
            return ""
        key = BrokerKey(group.broker_name, request.broker_id)
        if not self._leadership.table.has_other_session(now_ms, key, session_id):
            return ""
        return (
            f"{group.label(request.broker_id)} lives at {known.address}, this one says {request.address}: two "
            "processes with one identity, a copied store? stop one of them"
        )

    def _registered_answer(self, command: Command) -> Command:
        name = command.ext["brokerName"]
        group, view = self._info.groups[name], self._views.of(name)
        ext = {"clusterName": group.cluster_name, "brokerName": name, **view.ext}
        if group.binding_total_replicas:
            ext["totalReplicas"] = str(group.binding_total_replicas)
        return command.reply(ext=ext, body=set_body(group))

    # --- ids --------------------------------------------------------------------------------------------------------

    def _get_next_broker_id(self, now_ms: int, pending: PendingRequest) -> None:
        ext = pending.command.ext
        cluster_name, broker_name = text(ext, "clusterName"), text(ext, "brokerName")
        number = next_broker_id(self._info.groups.get(broker_name))
        self._leadership.answer(
            pending,
            pending.command.reply(
                ext={"clusterName": cluster_name, "brokerName": broker_name, "nextBrokerId": str(number)}
            ),
        )

    def _apply_broker_id(self, now_ms: int, pending: PendingRequest) -> None:
        ext = pending.command.ext
        cluster_name, name = text(ext, "clusterName"), text(ext, "brokerName")
        if self._leadership.must_wait(name, pending):
            return
        result = apply_broker_id(
            self._info.groups.get(name),
            cluster_name,
            name,
            integer(ext, "appliedBrokerId"),
            text(ext, "registerCheckCode"),
            recorded=flag(ext, "wished"),
        )
        echo = {"clusterName": cluster_name, "brokerName": name}
        if isinstance(result, Refusal):
            self._leadership.answer(pending, refuse(pending.command, result, echo))
        elif result is None:
            self._leadership.answer(pending, pending.command.reply(ext=echo))
        else:
            self._leadership.propose(Proposal(name, (result,), (pending,), lambda command: command.reply(ext=echo)))

    # --- set and master ---------------------------------------------------------------------------------------------

    def _alter_sync_state_set(self, now_ms: int, pending: PendingRequest) -> None:
        ext, name = pending.command.ext, text(pending.command.ext, "brokerName")
        master_id, master_epoch = integer(ext, "masterBrokerId"), integer(ext, "masterEpoch")
        new_set, set_epoch = parse_set(pending.command.body)
        if self._leadership.must_wait(name, pending):
            return
        group = self._info.group(name)
        result = (
            alter_sync_state_set(
                group,
                master_id,
                master_epoch,
                new_set,
                set_epoch,
                lambda broker_id: self._leadership.is_alive(now_ms, group, broker_id),
                accept_unchanged=flag(ext, "acceptUnchanged"),
            )
            if group is not None
            else Refusal(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, f"there is no group {name}")
        )
        if isinstance(result, Refusal):
            self._leadership.answer(pending, refuse(pending.command, result, {"newSyncStateSetEpoch": "0"}))
        else:
            self._leadership.propose(Proposal(name, (result,), (pending,), self._altered_answer))

    def _altered_answer(self, command: Command) -> Command:
        group = self._info.groups[command.ext["brokerName"]]
        return command.reply(ext={"newSyncStateSetEpoch": str(group.sync_state_set_epoch)}, body=set_body(group))

    def _elect_master(self, now_ms: int, pending: PendingRequest) -> None:
        """Serve a broker that asks for any master, or an operator who designates one."""
        ext, name = pending.command.ext, text(pending.command.ext, "brokerName")
        broker_id, designated = integer(ext, "brokerId", -1), flag(ext, "designateElect")
        if self._leadership.must_wait(name, pending):
            return
        group = self._info.group(name)
        known = group is not None and (designated or broker_id in group.replicas)
        if group is None or not known:
            self._refuse(pending, Refusal(_NOT_REGISTERED, "Broker hasn't been registered"))
            return
        has_master = self._leadership.has_live_master(now_ms, group)
        if has_master and (not designated or broker_id == group.master_id):
            code = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            self._leadership.answer(pending, elect_answer(pending.command, group, code))
            return
        if designated:
            target = BrokerId(broker_id) if broker_id > 0 else None
            avoid = group.master_id if target is None and has_master else None
            why = (
                "an operator asked for another master"
                if target is None
                else f"an operator asked for {group.label(target)}"
            )
            election_request = ElectionRequest(
                Cause.DESIGNATED, target=target, avoid=avoid, unclean=flag(ext, "unclean"), why=why
            )
        else:
            cause = Cause.MEMBER_RETURNED if group.master_id is None else Cause.MASTER_DEAD
            election_request = ElectionRequest(
                cause, asker=BrokerId(broker_id), why=f"{group.label(broker_id)} asked for a master"
            )
        refusal = self._leadership.elect(now_ms, group, election_request, (pending,))
        if refusal is not None:
            self._refuse(pending, refusal)

    def _clean_broker_metadata(self, now_ms: int, pending: PendingRequest) -> None:
        ext, name = pending.command.ext, text(pending.command.ext, "brokerName")
        if self._leadership.must_wait(name, pending):
            return
        group = self._info.group(name)
        result = clean_brokers(
            group,
            name,
            text(ext, "brokerControllerIdsToClean", ""),
            flag(ext, "isCleanLivingBroker") or flag(ext, "cleanLivingBroker"),
            lambda broker_id: group is not None and self._leadership.is_alive(now_ms, group, broker_id),
            lambda broker_id: self._leadership.table.log_end(BrokerKey(name, broker_id)),
            now_ms + self._wall_offset_ms(),
        )
        self._decided(pending, name, result)

    def _resize_group(self, now_ms: int, pending: PendingRequest) -> None:
        name = text(pending.command.ext, "brokerName")
        total_replicas = integer(pending.command.ext, "totalReplicas")
        if self._leadership.must_wait(name, pending):
            return
        result = resize(self._info.group(name), name, total_replicas)
        self._decided(pending, name, result, self._resized_answer)

    def _resized_answer(self, command: Command) -> Command:
        group = self._info.groups[command.ext["brokerName"]]
        ext = {"totalReplicas": str(group.total_replicas), "nextTotalReplicas": str(group.next_total_replicas)}
        return command.reply(ext=ext)

    def _drain_replica(self, now_ms: int, pending: PendingRequest) -> None:
        ext, name = pending.command.ext, text(pending.command.ext, "brokerName")
        broker_id, drained = integer(ext, "brokerId"), flag(ext, "drained")
        if self._leadership.must_wait(name, pending):
            return
        table = self._leadership.table
        result = drain(
            self._info.group(name), name, broker_id, drained, lambda item: table.is_available(BrokerKey(name, item))
        )
        self._decided(pending, name, result)

    def _set_maintenance(self, now_ms: int, pending: PendingRequest) -> None:
        ext, name = pending.command.ext, text(pending.command.ext, "brokerName")
        broker_id, on = integer(ext, "brokerId"), flag(ext, "on")
        if self._leadership.must_wait(name, pending):
            return
        result = set_maintenance(self._info.group(name), name, broker_id, on)
        self._decided(pending, name, result)

    # --- queries ----------------------------------------------------------------------------------------------------

    def _explain_group(self, now_ms: int, pending: PendingRequest) -> None:
        name = text(pending.command.ext, "brokerName")
        group = self._info.group(name)
        if group is None:
            code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            self._refuse(pending, Refusal(code, f"there is no group {name}; see rmqha status for those there are"))
            return
        view = explain(group_state(now_ms, group, self._leadership))
        self._leadership.answer(pending, pending.command.reply(body=lenient_json.dumps(view.to_json())))

    def _follow_groups(self, now_ms: int, pending: PendingRequest) -> None:
        self._long_polls.ask(now_ms, pending.command, partial(self._leadership.answer, pending))

    def _get_replica_info(self, now_ms: int, pending: PendingRequest) -> None:
        name = text(pending.command.ext, "brokerName")
        group = self._info.group(name)
        if group is None:
            code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            self._refuse(pending, Refusal(code, f"there is no group {name}"))
            return
        view = self._views.of(name)
        ext = {key: value for key, value in view.ext.items() if key != "syncStateSetEpoch"}
        self._leadership.answer(
            pending, pending.command.reply(ext=ext or {"masterEpoch": str(group.master_epoch)}, body=view.body)
        )

    def _get_sync_state_data(self, now_ms: int, pending: PendingRequest) -> None:
        names = parse_names(pending.command.body)
        groups = [group for name in names if (group := self._info.group(name)) is not None]

        def is_alive(name: str, broker_id: BrokerId) -> bool:
            return self._leadership.table.is_alive(now_ms, BrokerKey(name, broker_id))

        self._leadership.answer(pending, pending.command.reply(body=sync_state_data(groups, is_alive)))


LEADER_CODES = frozenset(
    {
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.CONTROLLER_CLEAN_BROKER_METADATA,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.RMQHA_RESIZE_GROUP,
        RequestCode.RMQHA_DRAIN_REPLICA,
        RequestCode.RMQHA_SET_MAINTENANCE,
        RequestCode.RMQHA_EXPLAIN_GROUP,
        RequestCode.RMQHA_FOLLOW_GROUPS,
    }
)
"""Requests that only a leader with a valid lease answers."""
