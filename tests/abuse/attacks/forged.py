"""Words that others would have to say: replicas, brokers, controllers, operators, members of foreign groups."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from hashlib import sha256
from itertools import count

from controller.peer_requests import REPLICA_CODES
from rmqha.broker.replication.ha_authenticator import MAGIC
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Credentials
from rmqha.model.message import HALF_TOPIC
from rmqha.model.offset import BrokerId, PhyOffset, RaftIndex, Term
from rmqha.wire.auth.session_signature import PROOF, VERSION, SessionSigner, session_proof
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from rmqha.wire.ha_stream import SlaveAck, SlaveHandshake
from rmqha.wire.raft_codec import encode_message
from rmqha.wire.raft_message import AppendRequest, TimeoutNow, VoteRequest
from tests.abuse.attack import Attack, made, over_and_over, requests
from tests.abuse.attacks.bodies import send_request
from tests.abuse.scene import NoAnswerError, Scene
from tests.nameserver.registration import register_broker_request

PROTECTED = frozenset(("protected",))
OPEN = frozenset(("open",))
FAR = PhyOffset(1 << 50)
CONTROLS = "\x1b[2J\r\n\x00\u202e"


def other_id(scene: Scene) -> int:
    return scene.master_id % 3 + 1


# --- HA -----------------------------------------------------------------------------------------------------------
def forged_acks(scene: Scene, number: int) -> Iterator[bytes]:
    """A replica of the group that holds more than the log has."""
    yield SlaveHandshake(BrokerId(other_id(scene) if number % 2 else 7)).encode()
    yield from over_and_over(SlaveAck(FAR).encode())


def old_acks(scene: Scene, number: int) -> Iterator[bytes]:
    """A replica of the group that holds nothing."""
    yield SlaveHandshake(BrokerId(other_id(scene))).encode()
    yield from over_and_over(SlaveAck(PhyOffset(0)).encode())


def silent_replica(scene: Scene, number: int) -> Iterator[bytes]:
    yield SlaveHandshake(BrokerId(other_id(scene))).encode()


def greetings_by_guest(scene: Scene, number: int) -> Iterator[bytes]:
    greeting = Command(RequestCode.RMQHA_HA_GREETING, {"version": "1"})
    yield MAGIC + scene.frame(greeting, "guest")
    yield SlaveHandshake(BrokerId(other_id(scene))).encode() + SlaveAck(FAR).encode()


# --- controllers ----------------------------------------------------------------------------------------------------
def controller_words(scene: Scene, number: int) -> list[Command]:
    """What a broker or an operator would say to depose the master."""
    other, name = str(other_id(scene)), scene.broker_name
    beat = {
        "clusterName": scene.cluster,
        "brokerName": name,
        "brokerAddr": scene.addresses["slave"],
        "brokerId": str(scene.master_id),
        "epoch": str(scene.epoch),
        "maxOffset": "0",
        "confirmOffset": "0",
        "heartbeatTimeoutMills": "1",
        "electionPriority": "0",
        "diskProblem": "the disk is broken",
        "stopping": "true",
    }
    alter = {
        "brokerName": name,
        "masterBrokerId": str(scene.master_id),
        "masterEpoch": str(scene.epoch),
        "invokeTime": "0",
    }
    alter_body = json.dumps({"syncStateSet": [scene.master_id], "syncStateSetEpoch": 1 + number}).encode()
    elect = {
        "clusterName": scene.cluster,
        "brokerName": name,
        "brokerId": other,
        "designateElect": "true",
        "invokeTime": "0",
    }
    register = {"clusterName": scene.cluster, "brokerName": name, "brokerId": other, "brokerAddress": "127.0.0.1:9"}
    return [
        Command(RequestCode.BROKER_HEARTBEAT, beat),
        Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, alter, alter_body),
        Command(RequestCode.CONTROLLER_ELECT_MASTER, elect),
        Command(RequestCode.CONTROLLER_ELECT_MASTER, {**elect, "unclean": "true"}),
        Command(RequestCode.CONTROLLER_REGISTER_BROKER, register),
        Command(RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, {**elect, "brokerControllerIdsToClean": other}),
        Command(RequestCode.CONTROLLER_UPDATE_CONFIG, {}, b"enableElectUncleanMaster=true\n"),
        Command(RequestCode.RMQHA_RESIZE_GROUP, {"brokerName": name, "totalReplicas": "1"}),
        Command(RequestCode.RMQHA_TRANSFER_LEADERSHIP, {"to": "n9"}),
        Command(RequestCode.RMQHA_REMOVE_CONTROLLER, {"id": "n0"}),
    ]


def replica_words(scene: Scene, number: int) -> Iterator[Command]:
    """What a broker alone would say: operators' words are anybody's where there are no accounts."""
    words = controller_words(scene, number)
    register = next(item for item in words if item.code == RequestCode.CONTROLLER_REGISTER_BROKER)
    apply_for = {**register.ext, "appliedBrokerId": "9", "registerCheckCode": "127.0.0.1:9;9"}
    ask = {**register.ext, "designateElect": "false"}
    while True:
        for word in words:
            if word.code in REPLICA_CODES:
                yield Command(word.code, dict(word.ext), word.body)
        yield Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, dict(apply_for))
        yield Command(RequestCode.CONTROLLER_ELECT_MASTER, dict(ask))


def forged_controls(scene: Scene, number: int) -> Iterator[Command]:
    while True:
        yield from controller_words(scene, number)


def broker_words(scene: Scene, number: int) -> Iterator[Command]:
    """What the controllers or an operator would say to a broker."""
    other = str(other_id(scene))
    role = {
        "masterBrokerId": other,
        "masterAddress": scene.addresses["slave"],
        "masterEpoch": str(scene.epoch + 1),
        "syncStateSetEpoch": "99",
        "brokerId": str(scene.master_id),
    }
    body = json.dumps({"syncStateSet": [int(other)], "syncStateSetEpoch": 99}).encode()
    hand_over = {"targetBrokerId": other, "masterEpoch": str(scene.epoch), "timeoutMs": "10000"}
    while True:
        yield Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, role, body)
        yield Command(RequestCode.RMQHA_HAND_OVER, hand_over)
        yield Command(RequestCode.RMQHA_DRAIN_REPLICA, {"brokerName": scene.broker_name})
        yield Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4\n")
        yield Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": scene.topic})
        yield Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": scene.group, "cleanOffset": "true"})
        yield Command(RequestCode.RMQHA_FOLLOW_TABLES, {"version": "1", "masterEpoch": "-1"})


def controllers_words(scene: Scene, number: int) -> Iterator[Command]:
    """What the controllers alone would say to a broker."""
    for word in broker_words(scene, number):
        if word.code in (RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.RMQHA_HAND_OVER):
            yield word


def followers_words(scene: Scene, number: int) -> Iterator[Command]:
    """Replicas that say that they hold all tables, and as many ids as fit."""
    held = dict.fromkeys(("topics", "groups", "offsets", "delays"), f"{scene.epoch}:{1 << 60}")
    for turn in count():
        ext = {"version": "1", "masterEpoch": str(scene.epoch), "brokerId": str(2 + turn % 500), "waitMs": "10000"}
        yield Command(RequestCode.RMQHA_FOLLOW_TABLES, ext | held)


def raft_messages(scene: Scene, number: int) -> Iterator[Command]:
    """A peer of the controllers with a higher term."""
    for turn in count(1):
        term = Term(turn * 1000)
        for message in (
            VoteRequest("n9#1", "n0", term, RaftIndex(1 << 40), term, True),
            TimeoutNow("n9#1", "n0", term),
            AppendRequest("n9#1", "n0", term, RaftIndex(0), Term(0), RaftIndex(1 << 40), ()),
        ):
            ext = {"address": scene.addresses["controller"]}
            yield Command(RequestCode.RMQHA_RAFT_MESSAGE, ext, encode_message(message))


# --- name server ----------------------------------------------------------------------------------------------------
def registration(scene: Scene, cluster: str, name: str, broker_id: int, topics: int) -> Command:
    table = {
        f"{name}-topic-{number}": {
            "topicName": f"{name}-topic-{number}",
            "readQueueNums": 8,
            "writeQueueNums": 8,
            "perm": 6,
            "topicSysFlag": 0,
            "topicFilterType": "SINGLE_TAG",
            "order": False,
        }
        for number in range(topics)
    }
    return register_broker_request(
        cluster_name=cluster,
        broker_name=name,
        broker_id=broker_id,
        address="127.0.0.1:9",
        ha_address="127.0.0.1:9",
        topic_config_table=table,
        data_version={"counter": 1 << 60, "stateVersion": 1 << 60, "timestamp": 1 << 60},
    )


def foreign_masters(scene: Scene, number: int) -> Iterator[Command]:
    """The group's own name, at an address of somebody else's."""
    while True:
        yield registration(scene, scene.cluster, scene.broker_name, 0, 3)
        ext = {
            "clusterName": scene.cluster,
            "brokerName": scene.broker_name,
            "brokerAddr": scene.addresses["master"],
            "brokerId": "0",
        }
        yield Command(RequestCode.UNREGISTER_BROKER, ext)
        yield Command(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": scene.broker_name})
        yield Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": scene.topic})
        yield Command(RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": scene.topic, "value": "x"})


def foreign_groups(scene: Scene, number: int) -> Iterator[Command]:
    """Many groups, each with many topics."""
    for turn in count():
        yield registration(scene, "foreign", f"foreign-{number}-{turn}", 0, 500)


def new_keys(scene: Scene, number: int) -> Iterator[Command]:
    for turn in count():
        ext = {"namespace": f"n{number}", "key": f"k{turn}", "value": "v" * 1000}
        yield Command(RequestCode.PUT_KV_CONFIG, ext)


# --- names ------------------------------------------------------------------------------------------------------------
def control_names(scene: Scene, number: int) -> Iterator[Command]:
    """Names that would clear a terminal or forge a line of a log."""
    name = f"x{CONTROLS}{number}"
    body = {
        "clientID": name,
        "producerDataSet": [{"groupName": name}],
        "consumerDataSet": [{"groupName": name, "subscriptionDataSet": [{"topic": name, "subString": name}]}],
    }
    while True:
        yield send_request(scene, name, b"x")
        yield Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        yield Command(RequestCode.UNREGISTER_CLIENT, {"clientID": name, "consumerGroup": name})
        yield Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": name})
        yield Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        yield Command(RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": name})


# --- what is not one's own ----------------------------------------------------------------------------------------
def foreign_things(scene: Scene, number: int) -> Iterator[Command]:
    """The guest reads, writes and moves what belongs to the honest clients."""
    pull = {
        "consumerGroup": scene.group,
        "topic": scene.topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    reset = {"topic": scene.topic, "group": scene.group, "timestamp": "0", "isForce": "true"}
    commit = {"consumerGroup": scene.group, "topic": scene.topic, "queueId": "0", "commitOffset": str(1 << 40)}
    query = {
        "topic": scene.topic,
        "key": "k",
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str(2**62),
    }
    while True:
        yield send_request(scene, scene.topic, b"00000000 forged")
        yield Command(RequestCode.PULL_MESSAGE, pull)
        yield Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        yield Command(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        yield Command(RequestCode.QUERY_MESSAGE, query)
        yield Command(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": scene.group, "offset": "0", "delayLevel": "0"})
        end = {"topic": HALF_TOPIC, "producerGroup": scene.group, "tranStateTableOffset": "0", "commitLogOffset": "0"}
        yield Command(RequestCode.END_TRANSACTION, {**end, "commitOrRollback": "8"})


def foreign_producers(scene: Scene, number: int) -> Iterator[Command]:
    """Somebody who says that he is a producer of the honest clients' group, and that they have gone."""
    body = {"clientID": "guest", "producerDataSet": [{"groupName": scene.group}], "consumerDataSet": []}
    while True:
        yield Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        yield Command(RequestCode.UNREGISTER_CLIENT, {"clientID": "guest", "producerGroup": scene.group})


def unsigned(scene: Scene, number: int) -> Iterator[Command]:
    while True:
        yield Command(RequestCode.GET_BROKER_CONFIG)
        yield send_request(scene, scene.topic, b"x")


def wrong_signature(scene: Scene, number: int) -> Iterator[Command]:
    while True:
        yield Command(RequestCode.GET_BROKER_CONFIG, {"AccessKey": "operator", "Signature": "A" * 28})


# --- what others have said ------------------------------------------------------------------------------------------
def recorded(scene: Scene) -> bytes:
    """A request of the operator in our own form, as it went over a connection of his; there it counted once."""
    key, secret_key = scene.accounts["operator"]
    with scene.connect("master") as connection:
        hello = Command(RequestCode.RMQHA_OPEN_SESSION, {"version": VERSION, "AccessKey": key})
        signer = SessionSigner(scene.ask_on(connection, hello).ext["nonce"])
        said = Command(RequestCode.GET_BROKER_CONFIG)
        signer.sign(said, Credentials(access_key=key, secret_key=secret_key))
        codes = [scene.ask_on(connection, said).code for _ in range(2)]
    if codes != [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]:
        raise NoAnswerError(f"the operator's request, said twice on his connection, was answered {codes}")
    return encode_frame(said)


def replayed(scene: Scene, number: int) -> Iterator[bytes]:
    """On a connection that has a number of its own, and on one that has none."""
    said = recorded(scene)
    if number % 2:
        yield scene.frame(Command(RequestCode.RMQHA_OPEN_SESSION, {"version": VERSION, "AccessKey": "operator"}))
    yield from over_and_over(said)


def replayed_proof(scene: Scene, number: int) -> Iterator[bytes]:
    """The operator's proof of one connection, with a request of his behind it, on others."""
    key, secret_key = scene.accounts["operator"]
    hello = Command(RequestCode.RMQHA_OPEN_SESSION, {"version": VERSION, "AccessKey": key})
    with scene.connect("master") as connection:
        assert isinstance(connection, ssl.SSLSocket)
        nonce = scene.ask_on(connection, hello).ext["nonce"]
        binding = sha256(connection.getpeercert(binary_form=True) or b"").digest()
        proof = session_proof(Credentials(access_key=key, secret_key=secret_key), nonce, binding)
        proven = Command(RequestCode.RMQHA_OPEN_SESSION, {**hello.ext, PROOF: proof})
        codes = [scene.ask_on(connection, asked).code for asked in (proven, Command(RequestCode.GET_BROKER_CONFIG))]
    if codes != [ResponseCode.SUCCESS, ResponseCode.SUCCESS]:
        raise NoAnswerError(f"the operator's proof and a request of his were answered {codes}")
    yield from over_and_over(encode_frame(proven) + encode_frame(Command(RequestCode.GET_BROKER_CONFIG)))


def replayed_in_apaches_form(scene: Scene, number: int) -> Iterator[bytes]:
    """Nothing in it says when and where it was said, so accounts that may everything must not use it."""
    return over_and_over(scene.frame(Command(RequestCode.GET_BROKER_CONFIG), "operator"))


NO_RIGHT = "NO_PERMISSION, and a line of the audit log"
REFUSED = frozenset((16,))
REPLICAS_ONLY = "The master believes replicas that the controllers have registered, each on one connection"
ATTACKS = [
    Attack(
        "forged-acks", "ha", forged_acks, "A replica that says it holds more than there is", REPLICAS_ONLY, tls=False
    ),
    Attack("old-acks", "ha", old_acks, "A replica that says it holds nothing", REPLICAS_ONLY, tls=False),
    Attack(
        "silent-replicas",
        "ha",
        silent_replica,
        "HA connections that are never read",
        REPLICAS_ONLY,
        reads=False,
        tls=False,
    ),
    Attack(
        "guest-greetings",
        "ha",
        greetings_by_guest,
        "HA greetings signed by the lowest account",
        "The connection is refused",
        setups=PROTECTED,
    ),
    Attack(
        "forged-controls",
        "controller",
        made(forged_controls),
        "Heartbeats, alters, elections, cleaning without the right",
        NO_RIGHT,
        setups=PROTECTED,
        answers=REFUSED,
    ),
    Attack(
        "forged-controls-open",
        "controller",
        made(replica_words),
        "Registrations, heartbeats, alters and elections in a broker's name, without accounts",
        "NO_PERMISSION: they need the cluster's secret",
        setups=OPEN,
        answers=REFUSED,
    ),
    Attack(
        "forged-notices-open",
        "master",
        made(controllers_words),
        "Role notices and hand-overs in a controller's name, without accounts",
        "A notice is no more than a reason to ask the controllers; a hand-over is NO_PERMISSION",
        setups=OPEN,
        answers=frozenset((0, *REFUSED)),
    ),
    Attack(
        "forged-followers-open",
        "master",
        made(followers_words),
        "Replicas that hold all tables by their own word, without accounts",
        "NO_PERMISSION: they need the cluster's secret",
        setups=OPEN,
        answers=REFUSED,
    ),
    Attack(
        "forged-notices",
        "master",
        made(broker_words),
        "Role notices and hand-overs without the right",
        NO_RIGHT,
        setups=PROTECTED,
        answers=REFUSED,
    ),
    Attack(
        "forged-raft", "controller", made(raft_messages), "Raft messages of no controller", NO_RIGHT, setups=PROTECTED
    ),
    Attack(
        "forged-raft-open",
        "controller",
        made(raft_messages),
        "The same without accounts",
        "Messages of non-members are dropped",
        setups=OPEN,
    ),
    Attack(
        "forged-registrations",
        "namesrv",
        made(foreign_masters),
        "Registrations under the group's own name",
        NO_RIGHT,
        setups=PROTECTED,
        answers=REFUSED,
    ),
    Attack(
        "foreign-registrations",
        "namesrv",
        made(foreign_groups),
        "Registrations of many groups with many topics",
        "The tables are bounded, and forgotten when the connection ends; with accounts NO_PERMISSION",
    ),
    Attack(
        "new-kv",
        "namesrv",
        made(new_keys),
        "KV pairs without an end",
        "The table is bounded; with accounts NO_PERMISSION",
    ),
    Attack(
        "control-names",
        "master",
        made(control_names),
        "Names with control characters",
        "Refused; what is printed is escaped",
    ),
    Attack(
        "control-names-namesrv",
        "namesrv",
        made(control_names),
        "The same at the name server",
        "Refused; what is printed is escaped",
        in_short=False,
    ),
    Attack(
        "foreign-things",
        "master",
        made(foreign_things),
        "Topics and groups of others: send, pull, reset, commit, send back, end a transaction",
        NO_RIGHT,
        setups=PROTECTED,
        answers=frozenset((*REFUSED, 1)),
    ),
    Attack(
        "foreign-producers",
        "master",
        made(foreign_producers),
        "Members of a producer group of others",
        "They hear no transaction checks without a right on the topic, and unregister only themselves",
        setups=PROTECTED,
    ),
    Attack(
        "unsigned", "master", made(unsigned, account=""), "Requests without a signature", NO_RIGHT, setups=PROTECTED
    ),
    Attack(
        "wrong-signature",
        "master",
        made(wrong_signature, account=""),
        "Requests with a wrong signature",
        NO_RIGHT,
        setups=PROTECTED,
        answers=REFUSED,
    ),
    Attack(
        "replays",
        "master",
        replayed,
        "A request of the operator in rmqha's own form, said again on his and on other connections",
        "NO_PERMISSION: it counts once, on its own connection",
        setups=PROTECTED,
        answers=REFUSED,
    ),
    Attack(
        "replays-proof",
        "master",
        replayed_proof,
        "The operator's proof of a connection, said again on others",
        "NO_PERMISSION: it is of its own connection",
        setups=PROTECTED,
        answers=REFUSED,
    ),
    Attack(
        "replays-apache",
        "master",
        replayed_in_apaches_form,
        "A request of the operator in Apache's form, said again",
        "NO_PERMISSION where `aclSignature` is `admin` or `own`; else it is served again, on any connection",
        setups=PROTECTED,
        answers=REFUSED,
    ),
    Attack(
        "plain-bytes",
        "master",
        requests(Command(RequestCode.GET_BROKER_CONFIG)),
        "Plain bytes where TLS is enforced",
        "The connection is closed",
        setups=PROTECTED,
        tls=False,
    ),
]
