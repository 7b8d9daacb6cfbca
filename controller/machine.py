"""ControllerMachine: one controller as a machine, decide → replicate → apply. Control plane, pure.

Inputs take `now_ms` first. After every input the shell takes `actions()` and performs them, and serves `ready()` as
`rmqha.raft.node.Ready` says: make durable, then `advance`. Only events enter the log. Every member applies them to its
`ReplicasInfo`, so a new leader needs no reload. The state that only a leader has is in a `Leadership`. It begins when
the node leads, holds a lease, and has applied everything committed before:

    follower → leading    raft leads and has caught up       a Leadership; brokers count as alive for one time-out
    leading  → follower   raft leads no more                 requests without a proposal are answered NOT_LEADER

A request whose events were proposed and then replaced by another leader's entry is answered NOT_LEADER as well: it had
no effect. If the outcome of a request is unknown, it gets no answer, and the client runs into its time-out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from itertools import count

from controller.config import ControllerConfig
from controller.elections.leadership import Leadership
from controller.operations import EntryObserver, NoEntryObserver, OperationResult
from controller.quorum.peer_addresses import PeerAddresses
from controller.quorum.quorum_requests import QUORUM_CODES, QuorumRequests
from controller.quorum.role_long_polls import RoleChangeLog, RoleLongPolls
from controller.requests import LEADER_CODES, Requests
from controller.state.action import Action, Reply, SaveConfig, SendRaft, Token, WriteSnapshot
from controller.state.answers import MasterViews
from controller.state.event import Event, decode_events, encode_events
from controller.state.image import ImageReader, ImageWriter, decode_image
from controller.state.proposal import PendingRequest, Proposal
from controller.state.replicas_info import BrokerGroup, ReplicasInfo
from controller.state.state_view import controller_state
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import parse_properties
from rmqha.model.error import ConfigError, whole
from rmqha.model.offset import BrokerId, RaftIndex, Term
from rmqha.port import Tracer
from rmqha.raft.node import RaftNode, Ready
from rmqha.raft.quorum import id_of
from rmqha.wire.body_bound import body_refusal
from rmqha.wire.command import Command
from rmqha.wire.config_answer import ConfigAnswer
from rmqha.wire.raft_codec import decode_message, encode_message
from rmqha.wire.raft_message import AnyMessage, Entry, EntryKind, Snapshot
from rmqha.wire.state.controller_state import RaftState

SLICE_ENTRIES = 64
"""Entries applied in one slice after a leader's snapshot was read."""
FREED_GROUPS = 500
"""Groups freed in one slice, about a millisecond of work."""


class ControllerMachine:
    """State machine of one controller. `raft` was built from the durable log; `image` is its snapshot, b"" without
    one."""

    def __init__(
        self,
        config: ControllerConfig,
        raft: RaftNode,
        image: bytes | bytearray,
        tracer: Tracer,
        wall_offset_ms: Callable[[], int] = lambda: 0,
        overridden: frozenset[str] = frozenset(),
        release: str | None = None,
        observer: EntryObserver | None = None,
    ) -> None:
        """`now_ms + wall_offset_ms()` is the wall time of elections. `overridden` are the keys that request 1009 has
        changed before. `release` is shown in states. `observer` is called for log entries."""
        self._config = config
        self._overridden = overridden
        self._release = release
        self._observer = observer or NoEntryObserver()
        self._config_answer = ConfigAnswer({"listenPort": config.self_address.rpartition(":")[2]})
        self._wall_offset_ms = wall_offset_ms
        self._raft = raft
        self._tracer = tracer
        self._info = ReplicasInfo()
        self._info.replace(decode_image(image))
        self._views = MasterViews(self._info)
        self._role_changes = RoleChangeLog(self._info, raft.snapshot_index)
        self._image: ImageWriter | None = None
        """Snapshot being written: the state after entry `_image_index`; its last slice was written at
        `_image_at_ms`."""
        self._image_index = RaftIndex(0)
        self._image_at_ms = 0
        self._image_waits = False
        """True while the shell makes the snapshot durable."""
        self._restoring: ImageReader | None = None
        """Leader's snapshot being read; entries committed after it wait in `_backlog`."""
        self._restored_index = RaftIndex(0)
        self._backlog: deque[Entry] = deque()
        self._outdated: dict[str, BrokerGroup] = {}
        """Groups that a leader's snapshot has replaced, freed in slices."""
        self._long_polls = RoleLongPolls(self._role_changes)
        self._actions: list[Action] = []
        self._addresses = PeerAddresses(config, raft)
        self._quorum = QuorumRequests(
            config, raft, self._addresses, self._actions_append, self._not_leader, self._begin_image
        )
        self._proposals: dict[RaftIndex, tuple[Term, list[Proposal]]] = {}
        """Proposals of this node that are not applied yet, by the index of their entry."""
        self._leadership: Leadership | None = None
        self._requests: Requests | None = None
        self._led_term = Term(0)
        self._probe_ids = count(1)

    # --- inputs -----------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Call once before anything else."""
        if finding := self._addresses.finding():
            self._tracer.event("controller_group", node=id_of(self._raft.node_id), finding=finding)
        self._settle(now_ms)

    @whole
    def timeout(self, now_ms: int) -> None:
        """Call at or after deadline_ms, and whenever in doubt."""
        self._write_image(now_ms)
        self._read_image(now_ms)
        self._free_replaced_groups(now_ms)
        self._raft.timeout(now_ms)
        self._settle(now_ms)
        if self._leadership is not None:
            self._leadership.timeout(now_ms)
            self._settle(now_ms)
        self._long_polls.timeout(now_ms)

    def deadline_ms(self) -> int | None:
        """Time (ms) at which to call timeout next."""
        own_ms = self._leadership.deadline_ms() if self._leadership is not None else None
        writing = self._image is not None and not self._image.is_done
        image_ms = self._image_at_ms if writing or self._restoring is not None or self._outdated else None
        deadlines = (self._raft.deadline_ms(), own_ms, self._long_polls.deadline_ms(), image_ms)
        return min((item for item in deadlines if item is not None), default=None)

    def request(self, now_ms: int, session_id: int, token: Token, command: Command) -> None:
        """Take a request. Reply(token, …) follows now, later, or, if the outcome stays unknown, never. Raises
        RemoteProtocolError for malformed Raft messages: close the session. Close it for any other exception as well,
        except BrokenInvariantError: parsing and deciding change no replicated state."""
        code = command.code
        if fault := body_refusal(command):
            self._answer(token, command, command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=fault))
            return
        if code in LEADER_CODES:
            self._leader_request(now_ms, PendingRequest(session_id, token, command))
        elif code == RequestCode.RMQHA_RAFT_MESSAGE:
            message = decode_message(bytes(command.body))
            self._addresses.heard(message.sender, command.ext.get("address", ""))
            self._step(now_ms, message)
        elif code in QUORUM_CODES:
            self._quorum.serve(now_ms, token, command)
        elif code == RequestCode.CONTROLLER_UPDATE_CONFIG:
            self._update_config(token, command)
            return
        else:
            self._answer(token, command, self._any_node_answer(now_ms, command))
            return
        self._settle(now_ms)

    def may_have_peer_at(self, host: str) -> bool:
        """True if another controller of the group may connect from `host`."""
        return self._addresses.may_be_at(host)

    @whole
    def session_closed(self, now_ms: int, session_id: int) -> None:
        if self._leadership is not None:
            self._leadership.session_closed(now_ms, session_id)
            self._settle(now_ms)

    @whole
    def probe_replied(self, now_ms: int, probe_id: int, reply: Command | None, *, refused: bool = False) -> None:
        """Take the end of probe `probe_id`. `refused`: the connection was refused or closed, so no such process serves
        the address; a time-out does not prove that."""
        if self._leadership is not None:
            self._leadership.probe_replied(now_ms, probe_id, reply, refused=refused)
            self._settle(now_ms)

    @whole
    def snapshot_written(self, now_ms: int, snapshot: Snapshot) -> None:
        """Take the end of WriteSnapshot: the log before the snapshot may go, unless a leader's snapshot has replaced
        both."""
        if self._image_waits and self._image is not None and snapshot.index == self._image_index:
            self._image = None
            self._raft.compact(snapshot.index, snapshot.data)
        self._settle(now_ms)

    @whole
    def stopping(self, now_ms: int) -> None:
        """Transfer the leadership, on SIGTERM, to the voter with the most of the log."""
        target = self._raft.best_successor(now_ms)
        if target is not None:
            self._raft.transfer_leadership(now_ms, target)
            self._settle(now_ms)

    # --- outputs ----------------------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """Take the actions so far, to perform them in order."""
        taken, self._actions = self._actions, []
        return taken

    @whole
    def ready(self, now_ms: int) -> Ready | None:
        """Work to make durable (`must_persist` may be False), then to be passed to `advance`. Committed entries have
        been applied on return, or wait until the snapshot before them is read: a majority holds them already."""
        ready = self._raft.ready(now_ms)
        if ready is None:
            return None
        self._send(ready.early)
        if ready.snapshot is not None:
            self._begin_restore(now_ms, ready.snapshot)
        self._backlog.extend(ready.committed)
        if self._restoring is None:
            self._apply_backlog(now_ms, len(self._backlog))
        if self._role_changes.index - self._raft.snapshot_index >= self._config.snapshot_after_entries:
            self._begin_image(now_ms)
        self._settle(now_ms)
        return ready

    @whole
    def advance(self, now_ms: int, ready: Ready) -> None:
        """Take note that everything in `ready` is on stable storage."""
        self._raft.advance(ready)
        self._send(ready.messages)
        if self._image is not None:
            self._offer_image(self._image)
        self._settle(now_ms)

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        return self._leadership is not None

    @property
    def is_sole_voter(self) -> bool:
        """True if this controller leads without any other vote."""
        return self._raft.configuration.is_sole_voter(self._raft.node_id)

    @property
    def info(self) -> ReplicasInfo:
        """State of all groups; read only."""
        return self._info

    @property
    def config(self) -> ControllerConfig:
        return self._config

    def raft_state(self, now_ms: int) -> RaftState:
        return self._raft.state(now_ms)

    def live_ids(self, now_ms: int, group: BrokerGroup) -> list[BrokerId]:
        """Live replicas of the group; none unless this controller leads."""
        leadership = self._leadership
        return [item for item in group.replicas if leadership is not None and leadership.is_alive(now_ms, group, item)]

    def state(self, now_ms: int) -> Generator[None, None, bytes]:
        """Body of an answer to 52003, in steps."""
        return controller_state(now_ms, self._info, self._raft.state(now_ms), self._leadership, self._release)

    # --- inside -----------------------------------------------------------------------------------------------------

    @whole
    def _step(self, now_ms: int, message: AnyMessage) -> None:
        self._raft.step(now_ms, message)

    def _leader_address(self) -> str:
        return self._addresses.of(self._raft.leader_id)

    def _answer(self, token: Token, command: Command, reply: Command) -> None:
        if not command.is_oneway:
            self._actions.append(Reply(token, reply))

    def _not_leader(self, command: Command) -> Command:
        ext = {"controllerLeaderAddress": "" if self._raft.is_leader else self._leader_address()}
        remark = f"the controllers' leader is {id_of(self._raft.leader_id) or 'not elected yet'}"
        return command.reply(ResponseCode.CONTROLLER_NOT_LEADER, ext, remark=remark)

    def _leader_request(self, now_ms: int, pending: PendingRequest) -> None:
        command = pending.command
        if self._requests is not None and self._raft.lease_valid(now_ms):
            self._requests.serve(now_ms, pending)
            return
        if self._requests is not None and command.code == RequestCode.BROKER_HEARTBEAT:
            self._requests.observe(now_ms, pending)
        self._answer(pending.token, command, self._not_leader(command))

    def _any_node_answer(self, now_ms: int, command: Command) -> Command:
        match command.code:
            case RequestCode.CONTROLLER_GET_METADATA_INFO:
                return command.reply(
                    ext={
                        "group": self._config.controller_dleger_group,
                        "controllerLeaderId": id_of(self._raft.leader_id),
                        "controllerLeaderAddress": self._leader_address(),
                        "isLeader": str(self._raft.is_leader).lower(),
                        "peers": "".join(f"{node}:{address};" for node, address in self._addresses.members()),
                    }
                )
            case RequestCode.CONTROLLER_GET_CONFIG:
                ext, body = self._config_answer.of(self._config, frozenset(self._overridden), command)
                return command.reply(ext=ext, body=body)
            case _:
                return command.reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"a controller has no request {command.code}"
                )

    def _update_config(self, token: Token, command: Command) -> None:
        """Apply live keys at once and store them; a request with any other key changes nothing (ruling 25)."""
        try:
            changes = parse_properties(str(command.body, "utf-8"), "request 1009")
            config, needs_restart = self._config.updated(changes, "request 1009")
            if needs_restart:
                keys = ", ".join(needs_restart)
                raise ConfigError(f"{keys}: restart needed; write it to the controller's file and restart it")
        except (UnicodeDecodeError, ConfigError) as problem:
            remark = str(problem) if isinstance(problem, ConfigError) else "the body is no UTF-8 text"
            refusal = command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=remark)
            self._answer(token, command, refusal)
            return
        # a key that needs a restart may be named with its present value, and is not stored
        changes = config.live_part(changes)[0]
        self._config = config
        self._overridden |= changes.keys()
        self._actions.append(SaveConfig(changes, token, None if command.is_oneway else command.reply()))

    def _send(self, messages: tuple[AnyMessage, ...]) -> None:
        for message in messages:
            if address := self._addresses.of(message.to):
                own_address = self._config.self_address
                self._actions.append(SendRaft(id_of(message.to), address, own_address, encode_message(message)))

    @whole
    def _settle(self, now_ms: int) -> None:
        """Begin or end the leadership as raft says, and propose the decisions; called after every input."""
        if self._leadership is not None and (not self._raft.is_leader or self._raft.term != self._led_term):
            self._resign()
        if self._leadership is None and self._raft.has_caught_up and self._restoring is None:
            self._lead(now_ms)
        while self._leadership is not None and self._leadership.batch:
            self._propose(now_ms, self._leadership)

    def _lead(self, now_ms: int) -> None:
        self._led_term = self._raft.term
        leadership = Leadership(
            now_ms,
            self._info,
            lambda: self._config,
            self._tracer,
            self._actions_append,
            self._serve,
            self._probe_ids,
            self._wall_offset_ms,
        )
        self._leadership = leadership
        self._long_polls = RoleLongPolls(self._role_changes)
        self._requests = Requests(self._info, self._views, leadership, self._long_polls, self._wall_offset_ms)
        self._tracer.event("controller_leads", node=id_of(self._raft.node_id), term=self._led_term)

    def _actions_append(self, action: Action) -> None:
        self._actions.append(action)

    def _serve(self, now_ms: int, pending: PendingRequest) -> None:
        """Serve a request that waited for its group."""
        self._leader_request(now_ms, pending)

    def _resign(self) -> None:
        leadership, self._leadership, self._requests = self._leadership, None, None
        assert leadership is not None
        for pending in leadership.resign():
            leadership.answer(pending, self._not_leader(pending.command))
        self._long_polls.resign(self._not_leader)
        self._tracer.event("controller_resigned", node=id_of(self._raft.node_id), term=self._led_term)

    def _propose(self, now_ms: int, leadership: Leadership) -> None:
        """Propose all decisions of one input as one entry."""
        proposals, leadership.batch = leadership.batch, []
        place = self._raft.propose(
            now_ms, encode_events([event for proposal in proposals for event in proposal.events])
        )
        if place is None:
            self._observer.refused()
            self._refuse_proposals(proposals)
            leadership.proposals_dropped(now_ms, proposals)
            return
        term, index = place
        self._proposals[index] = (term, proposals)
        self._observer.proposed(index)

    def _refuse_proposals(self, proposals: list[Proposal]) -> None:
        for proposal in proposals:
            for pending in proposal.pending:
                self._answer(pending.token, pending.command, self._not_leader(pending.command))

    def _begin_image(self, now_ms: int) -> RaftIndex:
        """Begin a snapshot of the applied state, if none is being written. Returns the index that it covers."""
        if self._image is None and self._restoring is None and self._role_changes.index > self._raft.snapshot_index:
            self._image, self._image_index = ImageWriter(self._info), RaftIndex(self._role_changes.index)
            self._image_waits = False
            self._image_at_ms = now_ms
            self._offer_image(self._image)
        return self._raft.snapshot_index if self._image is None else self._image_index

    def _write_image(self, now_ms: int) -> None:
        """Write one slice. The complete image replaces the log once all its entries are settled."""
        image = self._image
        if image is None or image.is_done:
            return
        self._image_at_ms = now_ms
        image.write()
        self._offer_image(image)

    def _offer_image(self, image: ImageWriter) -> None:
        """Give the image to the shell once the log before it is durable here: an image beyond the log counts as
        damage."""
        if image.is_done and not self._image_waits and self._image_index <= self._raft.compactable_index:
            self._image_waits = True
            self._actions.append(WriteSnapshot(self._raft.snapshot_of(self._image_index, image.data)))

    def _apply(self, now_ms: int, index: RaftIndex, term: Term, events: list[Event]) -> None:
        for event in events:
            if self._image is not None and (group := self._info.groups.get(event.broker_name)) is not None:
                self._image.before_change(group)
            self._info.apply(event)
            self._views.changed(event.broker_name)
        self._role_changes.applied(index, events)
        proposed_term, proposals = self._proposals.pop(index, (Term(0), []))
        if not proposals:
            return
        self._observer.ended(index, OperationResult.SUCCESS if proposed_term == term else OperationResult.FAILED)
        if proposed_term != term:
            self._refuse_proposals(proposals)
            return
        for proposal in proposals:
            for pending in proposal.pending:
                if not pending.command.is_oneway:
                    self._actions.append(Reply(pending.token, proposal.answer(pending.command)))
        if self._leadership is not None and term == self._led_term:
            self._leadership.applied(now_ms, proposals)

    def _apply_backlog(self, now_ms: int, entry_count: int) -> None:
        for _ in range(min(entry_count, len(self._backlog))):
            entry = self._backlog.popleft()
            events = decode_events(entry.data) if entry.kind is EntryKind.DATA else []
            self._apply(now_ms, entry.index, entry.term, events)
            self._quorum.applied(entry.index, entry.term)
        self._long_polls.changed()

    def _begin_restore(self, now_ms: int, snapshot: Snapshot) -> None:
        """Begin to replace the whole state by a leader's snapshot; this node follows. The outcome of proposals before
        the snapshot is unknown, so their requests get no answer."""
        assert self._leadership is None, "a leader installs no snapshot"
        self._restoring, self._restored_index = ImageReader(snapshot.data), snapshot.index
        self._image, self._image_at_ms = None, now_ms
        self._backlog.clear()
        for index in [index for index in self._proposals if index <= snapshot.index]:
            del self._proposals[index]
            self._observer.ended(index, OperationResult.TIMEOUT)

    def _free_replaced_groups(self, now_ms: int) -> None:
        """Free one slice of the replaced groups."""
        if self._outdated:
            self._image_at_ms = now_ms
            for _ in range(min(FREED_GROUPS, len(self._outdated))):
                self._outdated.popitem()

    def _read_image(self, now_ms: int) -> None:
        """Read one slice of the leader's snapshot, then apply the backlog in slices. At the end the state is the
        leader's at `_restored_index`."""
        reader = self._restoring
        if reader is None:
            return
        self._image_at_ms = now_ms
        if not reader.is_done:
            reader.read()
            if not reader.is_done:
                return
        if self._role_changes.index < self._restored_index:
            self._outdated = self._info.replace(reader.info)
            self._views = MasterViews(self._info)
            self._role_changes.restart(self._restored_index)
        self._apply_backlog(now_ms, SLICE_ENTRIES)
        if not self._backlog:
            self._restoring = None
