"""ControllerMachine: one controller as a machine, decide → replicate → apply. Control plane, pure.

Inputs take `now_ms` first. After every input the shell takes `actions()` and performs them, and serves `ready()` as
`rmqha.raft.node.Ready` says: make durable, then `advance`. Only events enter the log; every member applies them to its
`ReplicasInfo`, so a new leader needs no reload. What only a leader knows lives in a `Leadership`, which begins when the
node leads, holds a lease, and has applied everything decided before it:

    follower → leading    raft leads and has caught up       a Leadership, everybody presumed alive for one time-out
    leading  → follower   raft leads no more                 requests that proposed nothing are answered NOT_LEADER

A request whose events were proposed and then overtaken by another leader's is answered NOT_LEADER as well: it surely
had no effect. If its fate cannot be known, nobody answers, and the asker's time-out says just that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from itertools import count

from controller.config import ControllerConfig
from controller.elections.leadership import Leadership
from controller.operations import EntryWatch, NoEntryWatch, OperationResult
from controller.quorum.peer_addresses import PeerAddresses
from controller.quorum.quorum_requests import QUORUM_CODES, QuorumRequests
from controller.quorum.role_long_polls import RoleFeed, RoleLongPolls
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
from rmqha.wire.body_bound import body_fault
from rmqha.wire.command import Command
from rmqha.wire.config_answer import ConfigAnswer
from rmqha.wire.raft_codec import decode_message, encode_message
from rmqha.wire.raft_message import AnyMessage, Entry, EntryKind, Snapshot
from rmqha.wire.state.controller_state import RaftState

SLICE_ENTRIES = 64
"""Entries applied in one slice after a leader's snapshot was read."""
FREED_GROUPS = 500
"""Groups let go of in one slice; about a ms of work."""


class ControllerMachine:
    """`raft` has been built from the durable log; `image` is the data of its stored snapshot, b"" without one."""

    def __init__(
        self,
        config: ControllerConfig,
        raft: RaftNode,
        image: bytes | bytearray,
        tracer: Tracer,
        wall_offset_ms: int = 0,
        overridden: frozenset[str] = frozenset(),
        release: str | None = None,
        watch: EntryWatch | None = None,
    ) -> None:
        """`now_ms + wall_offset_ms` is the wall time that elections are remembered with; `overridden` are the keys that
        an earlier request 1009 has changed; `release` is told to who asks for its state; `watch` hears of entries."""
        self._config = config
        self._overridden = overridden
        self._release = release
        self._watch = watch or NoEntryWatch()
        self._config_answer = ConfigAnswer({"listenPort": config.self_address.rpartition(":")[2]})
        self._wall_offset_ms = wall_offset_ms
        self._raft = raft
        self._tracer = tracer
        self._info = ReplicasInfo()
        self._info.replace(decode_image(image))
        self._views = MasterViews(self._info)
        self._feed = RoleFeed(self._info, raft.snapshot_index)
        self._image: ImageWriter | None = None
        """A snapshot under way: of the state after entry `_image_index`, its last slice written at `_image_at_ms`."""
        self._image_index = RaftIndex(0)
        self._image_at_ms = 0
        self._image_waits = False
        """The shell makes it durable."""
        self._restoring: ImageReader | None = None
        """A leader's snapshot being read; what is committed after it waits in `_backlog` to be applied."""
        self._restored_index = RaftIndex(0)
        self._backlog: deque[Entry] = deque()
        self._outdated: dict[str, BrokerGroup] = {}
        """Groups that a leader's snapshot has replaced, being let go of."""
        self._long_polls = RoleLongPolls(self._feed)
        self._actions: list[Action] = []
        self._addresses = PeerAddresses(config, raft)
        self._quorum = QuorumRequests(
            config, raft, self._addresses, self._actions_append, self._not_leader, self._begin_image
        )
        self._changes: dict[RaftIndex, tuple[Term, list[Proposal]]] = {}
        """Proposed by this node and not applied yet, by the index of their entry."""
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
        self._let_go(now_ms)
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
        """A request has arrived; Reply(token, …) follows now, later, or (its fate being unknown) never. Raises
        RemoteProtocolError for Raft messages that are not the protocol: close the session. So for any exception that
        nobody foresaw, other than BrokenInvariantError: reading a request, and deciding, change nothing that is
        replicated."""
        code = command.code
        if fault := body_fault(command):
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
        """True if another controller of the group may connect from there."""
        return self._addresses.may_be_at(host)

    @whole
    def session_closed(self, now_ms: int, session_id: int) -> None:
        if self._leadership is not None:
            self._leadership.session_closed(now_ms, session_id)
            self._settle(now_ms)

    @whole
    def probe_replied(self, now_ms: int, probe_id: int, reply: Command | None, *, refused: bool = False) -> None:
        """The end of Probe `probe_id`. `refused`: the address surely has no such process, the connection was refused or
        closed; a mere silence is not that."""
        if self._leadership is not None:
            self._leadership.probe_replied(now_ms, probe_id, reply, refused=refused)
            self._settle(now_ms)

    @whole
    def snapshot_written(self, now_ms: int, snapshot: Snapshot) -> None:
        """The end of WriteSnapshot: the log before it may go, unless a leader's snapshot has replaced both."""
        if self._image_waits and self._image is not None and snapshot.index == self._image_index:
            self._image = None
            self._raft.compact(snapshot.index, snapshot.data)
        self._settle(now_ms)

    @whole
    def stopping(self, now_ms: int) -> None:
        """SIGTERM: hand the leadership to the voter that the log has reached furthest."""
        target = self._raft.best_successor(now_ms)
        if target is not None:
            self._raft.transfer_leadership(now_ms, target)
            self._settle(now_ms)

    # --- outputs ----------------------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """Take what has accumulated; perform it in order."""
        taken, self._actions = self._actions, []
        return taken

    @whole
    def ready(self, now_ms: int) -> Ready | None:
        """Work to make durable (`must_persist` may be False); then call advance. Committed entries have been applied
        when it returns, or wait for the snapshot below them to be read: what a majority holds needs no further wait."""
        ready = self._raft.ready(now_ms)
        if ready is None:
            return None
        self._send(ready.early)
        if ready.snapshot is not None:
            self._begin_restore(now_ms, ready.snapshot)
        self._backlog.extend(ready.committed)
        if self._restoring is None:
            self._apply_backlog(now_ms, len(self._backlog))
        if self._feed.index - self._raft.snapshot_index >= self._config.snapshot_after_entries:
            self._begin_image(now_ms)
        self._settle(now_ms)
        return ready

    @whole
    def advance(self, now_ms: int, ready: Ready) -> None:
        """Everything that `ready` asked to persist is on stable storage."""
        self._raft.advance(ready)
        self._send(ready.messages)
        if self._image is not None:
            self._offer_image(self._image)
        self._settle(now_ms)

    # --- look -------------------------------------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        return self._leadership is not None

    @property
    def is_sole_voter(self) -> bool:
        """It will lead without asking anybody."""
        return self._raft.configuration.is_sole_voter(self._raft.node_id)

    @property
    def info(self) -> ReplicasInfo:
        """To read only."""
        return self._info

    @property
    def config(self) -> ControllerConfig:
        return self._config

    def raft_state(self, now_ms: int) -> RaftState:
        return self._raft.state(now_ms)

    def live_ids(self, now_ms: int, group: BrokerGroup) -> list[BrokerId]:
        """Replicas of the group that are heard of; none unless this controller leads."""
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

    def _leader_request(self, now_ms: int, asked: PendingRequest) -> None:
        command = asked.command
        if self._requests is not None and self._raft.lease_valid(now_ms):
            self._requests.serve(now_ms, asked)
            return
        if self._requests is not None and command.code == RequestCode.BROKER_HEARTBEAT:
            self._requests.observe(now_ms, asked)
        self._answer(asked.token, command, self._not_leader(command))

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
        """Live keys apply at once and are kept; a request with any other key changes nothing (ruling 25)."""
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
        # a key that needs a restart may be named with the value that it has; it is not kept
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
        """After every input: begin or end the leadership as raft says, and propose what was decided."""
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
        self._long_polls = RoleLongPolls(self._feed)
        self._requests = Requests(self._info, self._views, leadership, self._long_polls, self._wall_offset_ms)
        self._tracer.event("controller_leads", node=id_of(self._raft.node_id), term=self._led_term)

    def _actions_append(self, action: Action) -> None:
        self._actions.append(action)

    def _serve(self, now_ms: int, asked: PendingRequest) -> None:
        """A request that waited for its group."""
        self._leader_request(now_ms, asked)

    def _resign(self) -> None:
        leadership, self._leadership, self._requests = self._leadership, None, None
        assert leadership is not None
        for asked in leadership.resign():
            leadership.answer(asked, self._not_leader(asked.command))
        self._long_polls.resign(self._not_leader)
        self._tracer.event("controller_resigned", node=id_of(self._raft.node_id), term=self._led_term)

    def _propose(self, now_ms: int, leadership: Leadership) -> None:
        """All that one input has decided goes into one entry."""
        changes, leadership.batch = leadership.batch, []
        place = self._raft.propose(now_ms, encode_events([event for change in changes for event in change.events]))
        if place is None:
            self._watch.refused()
            self._refuse_changes(changes)
            leadership.lost(now_ms, changes)
            return
        term, index = place
        self._changes[index] = (term, changes)
        self._watch.proposed(index)

    def _refuse_changes(self, changes: list[Proposal]) -> None:
        for change in changes:
            for asked in change.asked:
                self._answer(asked.token, asked.command, self._not_leader(asked.command))

    def _begin_image(self, now_ms: int) -> RaftIndex:
        """A snapshot of what is applied, if none is under way; the index that it will reach."""
        if self._image is None and self._restoring is None and self._feed.index > self._raft.snapshot_index:
            self._image, self._image_index = ImageWriter(self._info), RaftIndex(self._feed.index)
            self._image_waits = False
            self._image_at_ms = now_ms
            self._offer_image(self._image)
        return self._raft.snapshot_index if self._image is None else self._image_index

    def _write_image(self, now_ms: int) -> None:
        """One slice. The whole image replaces the log once everything that it holds is applied for good."""
        image = self._image
        if image is None or image.is_done:
            return
        self._image_at_ms = now_ms
        image.write()
        self._offer_image(image)

    def _offer_image(self, image: ImageWriter) -> None:
        """Once the log below it is settled on this disk: a state that reaches beyond the log is damage at a start."""
        if image.is_done and not self._image_waits and self._image_index <= self._raft.settled_index:
            self._image_waits = True
            self._actions.append(WriteSnapshot(self._raft.snapshot_of(self._image_index, image.data)))

    def _apply(self, now_ms: int, index: RaftIndex, term: Term, events: list[Event]) -> None:
        for event in events:
            if self._image is not None and (group := self._info.groups.get(event.broker_name)) is not None:
                self._image.before_change(group)
            self._info.apply(event)
            self._views.changed(event.broker_name)
        self._feed.applied(index, events)
        proposed_term, changes = self._changes.pop(index, (Term(0), []))
        if not changes:
            return
        self._watch.ended(index, OperationResult.SUCCESS if proposed_term == term else OperationResult.FAILED)
        if proposed_term != term:
            self._refuse_changes(changes)
            return
        for change in changes:
            for asked in change.asked:
                if not asked.command.is_oneway:
                    self._actions.append(Reply(asked.token, change.answer(asked.command)))
        if self._leadership is not None and term == self._led_term:
            self._leadership.applied(now_ms, changes)

    def _apply_backlog(self, now_ms: int, entry_count: int) -> None:
        for _ in range(min(entry_count, len(self._backlog))):
            entry = self._backlog.popleft()
            events = decode_events(entry.data) if entry.kind is EntryKind.DATA else []
            self._apply(now_ms, entry.index, entry.term, events)
            self._quorum.applied(entry.index, entry.term)
        self._long_polls.news()

    def _begin_restore(self, now_ms: int, snapshot: Snapshot) -> None:
        """A leader's snapshot replaces everything; this node follows. Whether proposals below it took effect is
        unknown, so their askers get no answer."""
        assert self._leadership is None, "a leader installs no snapshot"
        self._restoring, self._restored_index = ImageReader(snapshot.data), snapshot.index
        self._image, self._image_at_ms = None, now_ms
        self._backlog.clear()
        for index in [index for index in self._changes if index <= snapshot.index]:
            del self._changes[index]
            self._watch.ended(index, OperationResult.TIMEOUT)

    def _let_go(self, now_ms: int) -> None:
        """One slice."""
        if self._outdated:
            self._image_at_ms = now_ms
            for _ in range(min(FREED_GROUPS, len(self._outdated))):
                self._outdated.popitem()

    def _read_image(self, now_ms: int) -> None:
        """One slice; at its end the state is the leader's at `_restored_index`. Then the backlog, in slices as well."""
        reader = self._restoring
        if reader is None:
            return
        self._image_at_ms = now_ms
        if not reader.is_done:
            reader.read()
            if not reader.is_done:
                return
        if self._feed.index < self._restored_index:
            self._outdated = self._info.replace(reader.info)
            self._views = MasterViews(self._info)
            self._feed.restart(self._restored_index)
        self._apply_backlog(now_ms, SLICE_ENTRIES)
        if not self._backlog:
            self._restoring = None
