"""A controller in memory that answers what a test has decided."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command


@dataclass
class ScriptedController:
    """Answers as a controller would; the test decides who is elected and when it is away or silent."""

    next_broker_id: int | None = None
    """None: one more than have registered."""

    addresses: dict[int, str] = field(default_factory=dict)
    master: int | None = None
    epoch: int = 0
    members: list[int] = field(default_factory=list)
    set_epoch: int = 0
    away: bool = False
    lose_alter_replies: bool = False
    refuse_alter: int = 0
    elected_unclean: bool = False
    unclean_epoch: int = 0
    total_replicas: int = 0
    drained: list[int] = field(default_factory=list)
    config_text: bytes = b"enableElectUncleanMaster=false\n"
    silent: bool = False
    """Requests are under way and nothing comes back."""
    tells_registered: bool = True
    """As our controllers do, HA addresses too; Apache's are asked for it."""
    tells_group: bool = True
    """With the answer to each heartbeat, as our controllers do; Apache's are asked for it."""
    forgot_group: bool = False
    """The group was removed, or all data of Apache's controllers were."""
    refuses_ids: bool = False
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What hosts' names stand for."""
    forgotten: set[int] = field(default_factory=set)
    seen: list[Command] = field(default_factory=list)

    @classmethod
    def of(cls, broker_id: int) -> ScriptedController:
        """Of a group that has nine replicas, all registered, and this one as its master, alone in the set."""
        addresses = dict.fromkeys(range(1, 10), "127.0.0.1:1")
        return cls(broker_id, addresses, master=broker_id, epoch=1, members=[broker_id], set_epoch=1)

    def group(self) -> tuple[dict[str, str], bytes]:
        ext = {"masterEpoch": str(self.epoch), "syncStateSetEpoch": str(self.set_epoch)}
        if self.total_replicas:
            ext["totalReplicas"] = str(self.total_replicas)
        if self.drained:
            ext["drainedIds"] = ";".join(map(str, self.drained))
        if self.elected_unclean:
            ext["electedUnclean"] = "true"
        if self.unclean_epoch:
            ext["uncleanEpoch"] = str(self.unclean_epoch)
        if self.tells_registered:
            ext["registered"] = json.dumps({key: [address] for key, address in self.addresses.items()})
        if self.master is not None:
            ext |= {"masterBrokerId": str(self.master), "masterAddress": self.addresses[self.master]}
        body = {"syncStateSet": self.members, "syncStateSetEpoch": self.set_epoch}
        return ext, json.dumps(body).encode()

    def elect(self, broker_id: int) -> Command:
        self.master, self.epoch, self.members = broker_id, self.epoch + 1, [broker_id]
        self.set_epoch += 1
        return self.notice()

    def notice(self) -> Command:
        """Of the group as it is."""
        ext, body = self.group()
        return Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext, body)

    def answer(self, command: Command) -> Command | None:
        if self.away:
            return None
        self.seen.append(command)
        ext, body = self.group()
        match command.code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                return command.reply(ext={"nextBrokerId": str(self.next_broker_id or len(self.addresses) + 1)})
            case RequestCode.CONTROLLER_GET_CONFIG:
                return command.reply(body=self.config_text)
            case RequestCode.CONTROLLER_APPLY_BROKER_ID if self.refuses_ids:
                return command.reply(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                if command.ext.get("wished") and int(command.ext["appliedBrokerId"]) in self.addresses:
                    return command.reply(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark="taken")
                self.forgotten.discard(int(command.ext["appliedBrokerId"]))
                return command.reply(ext=dict(command.ext))
            case RequestCode.BROKER_HEARTBEAT if not self.tells_group:
                return command.reply(remark="Heart beat success")
            case RequestCode.CONTROLLER_GET_REPLICA_INFO if self.forgot_group:
                return command.reply(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
            case RequestCode.CONTROLLER_REGISTER_BROKER if int(command.ext["brokerId"]) in self.forgotten:
                return command.reply(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                self.addresses[int(command.ext["brokerId"])] = command.ext["brokerAddress"]
                return command.reply(ext=ext, body=body)
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                rows = [{"brokerId": key, "brokerAddress": item} for key, item in self.addresses.items()]
                if self.tells_registered:
                    rows = [row | {"haAddress": row["brokerAddress"]} for row in rows]
                inside = [row for row in rows if row["brokerId"] in self.members]
                outside = [row for row in rows if row["brokerId"] not in self.members]
                table = {
                    name: {"inSyncReplicas": inside, "notInSyncReplicas": outside} for name in self._names(command)
                }
                return command.reply(body=json.dumps({"replicasInfoTable": table}).encode())
            case RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                return self._alter(command)
            case RequestCode.CONTROLLER_ELECT_MASTER:
                code = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
                return command.reply(code, ext if self.master else {}, body if self.master else b"")
        return command.reply(ext=ext, body=body)

    @staticmethod
    def _names(command: Command) -> list[str]:
        return [str(name) for name in json.loads(bytes(command.body))]

    def _alter(self, command: Command) -> Command | None:
        wanted = json.loads(bytes(command.body))
        if int(command.ext["masterEpoch"]) != self.epoch or wanted["syncStateSetEpoch"] != self.set_epoch:
            return command.reply(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH)
        if self.refuse_alter:
            return command.reply(self.refuse_alter)
        self.members = wanted["syncStateSet"]
        self.set_epoch += 1
        body = json.dumps({"syncStateSet": self.members, "syncStateSetEpoch": self.set_epoch}).encode()
        if self.lose_alter_replies:
            return None
        return command.reply(ext={"newSyncStateSetEpoch": str(self.set_epoch)}, body=body)
