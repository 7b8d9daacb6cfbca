"""What a client gets wrong is told by ours in the same codes and words as by Apache's broker and name server."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.lenient_json import dumps
from tests.broker.support import pull_command, send_command
from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.processes import call, until
from tests.interop.lab.same_commands import Laboratory

pytestmark = pytest.mark.interop

TOPIC = "T"
MADE = {
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
MASKS = (
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"(?<=brokerName=)\S+?(?=[,\]])", "NAME"),
)


def topic(name: str, **ext: str) -> tuple[int, dict[str, str], bytes]:
    return RequestCode.UPDATE_AND_CREATE_TOPIC, {**MADE, "topic": name, **ext}, b""


def sent(name: str = TOPIC, queue_id: int = 0, body: bytes = b"x", **ext: str) -> tuple[int, dict[str, str], bytes]:
    command = send_command(name, queue_id, body, **ext)
    return command.code, command.ext, body


def pulled(name: str = TOPIC, queue_id: int = 0, **ext: str) -> tuple[int, dict[str, str], bytes]:
    command = pull_command(name, queue_id, 0, subVersion="1", commitOffset="0", **ext)
    return command.code, command.ext, b""


def committed(group: str, name: str) -> tuple[int, dict[str, str], bytes]:
    """The pulls above have made the group G."""
    ext = {"consumerGroup": group, "topic": name, "queueId": "0", "commitOffset": "0"}
    return RequestCode.UPDATE_CONSUMER_OFFSET, ext, b""


def asked(code: RequestCode, **ext: str) -> tuple[int, dict[str, str], bytes]:
    return code, ext, b""


SENT_BACK = {"group": "G", "offset": "99999999", "delayLevel": "0", "originTopic": TOPIC, "maxReconsumeTimes": "16"}
TO_BROKER = {
    "unknown code": (4711, dict[str, str](), b""),
    "send, blank topic": sent(" "),
    "send, illegal character": sent("no/slash"),
    "send, not ASCII": sent("ünicode"),
    "send, long topic": sent("x" * 128),
    "send, the broker's own topic": sent("SCHEDULE_TOPIC_XXXX"),
    "send, no default topic": sent("New", c="No"),
    "send, queue id": sent(queue_id=4),
    "send, large body": sent(body=bytes(4 * 1024 * 1024 + 1)),
    "send, large properties": sent(i="A\x01" + "x" * 32_760 + "\x02"),
    "pull, no topic": pulled("Nope"),
    "pull, queue id": pulled(queue_id=4),
    "pull, write only": pulled("WriteOnly"),
    "pull, closed group": pulled(consumerGroup="Closed"),
    "pull, long group": pulled(consumerGroup="g" * 300),
    "commit, no group": committed("Never", TOPIC),
    "commit, no group and no topic": committed("Never", "Nope"),
    "commit, no topic": committed("G", "Nope"),
    "commit": committed("G", TOPIC),
    "topic, illegal character": topic("a b"),
    "topic, blank": topic(""),
    "topic, of the system": topic("TBW102"),
    "topic, long": topic("x" * 128),
    "send back, nothing there": (RequestCode.CONSUMER_SEND_MSG_BACK, SENT_BACK, b""),
    "send back, long group": (RequestCode.CONSUMER_SEND_MSG_BACK, {**SENT_BACK, "group": "g" * 300}, b""),
}
TO_NAME_SERVER = {
    "unknown code": (4711, dict[str, str](), b""),
    "route, no topic": (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Nope"}, b""),
}
POPPED = {
    "consumerGroup": "G",
    "topic": TOPIC,
    "queueId": "0",
    "maxMsgNums": "1",
    "invisibleTime": "60000",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
}
WITHOUT_RIGHTS = {
    "4": {
        "send": sent(),
        "send, ordered": sent("Ordered"),
        "send back": (RequestCode.CONSUMER_SEND_MSG_BACK, SENT_BACK, b""),
        "pull": pulled(),
    },
    "2": {
        "send": sent(),
        "pull": pulled(),
        "pop": asked(RequestCode.POP_MESSAGE, **POPPED),
        "peek": asked(RequestCode.PEEK_MESSAGE, **POPPED),
        "notification": asked(RequestCode.NOTIFICATION, **POPPED),
        "polling info": asked(RequestCode.POLLING_INFO, **POPPED),
    },
    "6": {"send, ordered": sent("Ordered"), "pull": pulled()},
}
"""By brokerPermission."""
SETTINGS = {"groupName": "Closed", "consumeEnable": False, "consumeBroadcastEnable": False}
Requests = dict[str, tuple[int, dict[str, str], bytes]]
Answers = dict[str, tuple[int, str | None, str | None] | None]
"""Code, remark and forbiddenType."""


@pytest.fixture(scope="module")
def laboratories(pair: list[Laboratory]) -> list[Laboratory]:
    """Ours, Apache's."""
    for laboratory in pair:
        makes = [topic(TOPIC), topic("WriteOnly", perm="2"), topic("Ordered", order="true")]
        makes.append((RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(SETTINGS)))
        for code, ext, body in makes:
            reply = call(laboratory.master.address, code, ext, body)
            assert reply is not None and reply.code == 0
    return pair


def told(address: str, requests: Requests) -> Answers:
    """What stands in each answer, without what differs from one process to the other."""
    found: Answers = {}
    for name, request in requests.items():
        reply = call(address, *request)
        remark = reply.remark if reply is not None else None
        for pattern, mask in MASKS:
            remark = re.sub(pattern, mask, remark) if remark is not None else None
        found[name] = (reply.code, remark, reply.ext.get("forbiddenType")) if reply is not None else None
    return found


def differences(ours: Answers, apaches: Answers) -> dict[str, tuple[object, object]]:
    """What each says where they do not say the same."""
    return {name: (ours[name], apaches[name]) for name in apaches if ours[name] != apaches[name]}


def test_the_brokers_say_the_same(laboratories: list[Laboratory]) -> None:
    with ThreadPoolExecutor(2) as pool:
        ours, apaches = pool.map(lambda laboratory: told(laboratory.master.address, TO_BROKER), laboratories)
    assert None not in apaches.values()
    assert differences(ours, apaches) == {}


def test_the_name_servers_say_the_same(laboratories: list[Laboratory]) -> None:
    ours, apaches = (told(laboratory.lab.name_server, TO_NAME_SERVER) for laboratory in laboratories)
    assert None not in apaches.values()
    assert differences(ours, apaches) == {}


def test_a_broker_without_a_right_says_the_same(laboratories: list[Laboratory]) -> None:
    """brokerPermission, live: what clients are told and what name servers are."""

    def answers(laboratory: Laboratory) -> dict[str, Answers]:
        lab, broker = laboratory.lab, laboratory.master
        found = {}
        for permission, requests in WITHOUT_RIGHTS.items():
            text = f"brokerPermission={permission}".encode()
            reply = call(broker.address, RequestCode.UPDATE_BROKER_CONFIG, {}, text)
            assert reply is not None and reply.code == 0, reply
            for name in (TOPIC, "Ordered", "WriteOnly"):
                wanted = int(permission) & (2 if name == "WriteOnly" else 6)
                until(f"{name} is told with {wanted}", lambda: lab.permission(name) == wanted, TIMEOUT_S)  # noqa: B023
            found[permission] = told(broker.address, requests)
        return found

    with ThreadPoolExecutor(2) as pool:
        ours, apaches = pool.map(answers, laboratories)
    for permission, said in apaches.items():
        assert None not in said.values()
        assert differences(ours[permission], said) == {}, permission
    codes = [said and said[0] for said in (*apaches["4"].values(), *apaches["2"].values(), *apaches["6"].values())]
    assert codes.count(ResponseCode.NO_PERMISSION) == 7
