"""Users and policies (ACL 2.0): Apache's mqadmin against ours and Apache's broker, and a Java client's rights."""

from __future__ import annotations

import pytest

from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.lines import acknowledged
from tests.interop.lab.processes import until

pytestmark = pytest.mark.interop

STATIC = {"enableControllerMode": "false", "brokerRole": "ASYNC_MASTER", "brokerId": "0"}
AUTH = "org.apache.rocketmq.auth"
PROVIDERS = {
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
ROOT, ROOT_SECRET = "root", "root-secret"
COMMANDS = (
    "listUser",
    "createUser -u ann -p ann-secret -t Normal",
    "createUser -u bob -p bob-secret -t Super",
    "createUser -u ann -p other",
    "listUser",
    "listUser -f bo",
    "getUser -u ann",
    "getUser -u eve",
    "updateUser -u ann -s disable",
    "updateUser -u ann -p changed",
    "updateUser -u eve -p x",
    "getUser -u ann",
    "createAcl -s User:ann -r Topic:orders-*,Group:billing -a Pub,Sub -i 10.0.0.0/8,127.0.0.1 -d Allow",
    "createAcl -s User:eve -r Topic:T -a Pub -d Allow",
    "createAcl -s User:ann -r Topic:T -a Any -d Allow",
    "createAcl -s User:ann -r Topic:T -a Pub -i 10.0.0.300 -d Allow",
    "createAcl -s User:bob -r * -a All -d Deny",
    "getAcl -s User:ann",
    "getAcl -s User:eve",
    "updateAcl -s User:ann -r Topic:orders-* -a Sub -d Deny",
    "listAcl",
    "listAcl -s User:ann -r Group",
    "deleteAcl -s User:ann -r Group:billing",
    "listAcl",
    "deleteAcl -s User:bob",
    "deleteAcl -s User:bob",
    "deleteUser -u ann",
    "deleteUser -u eve",
    "listUser",
    "listAcl",
)


def said(lab: Lab, node: Node, command: str) -> tuple[str, ...]:
    """Lines of the answer, and the sentences of a refusal; the address that is named is left out."""
    name, *arguments = command.split()
    _, text, errors = lab.mqadmin(name, "-n", lab.name_server, "-b", node.address, *arguments)
    lines = text.splitlines() + [line for line in errors.splitlines() if "CODE:" in line]
    told = [" ".join(line.split()).replace(node.address, "ADDR") for line in lines if line.strip()]
    return tuple(line.partition("BROKER:")[0] for line in told if not line.startswith("at "))


def test_mqadmin_says_the_same_of_users_and_policies(lab: Lab) -> None:
    lab.start_our_name_server()
    ours = lab.run(lab.our_broker("ours", **STATIC, brokerName="ours"))
    theirs = lab.run(lab.java_broker("theirs", **STATIC, **PROVIDERS, brokerName="theirs"))
    answers = [(command, said(lab, ours, command), said(lab, theirs, command)) for command in COMMANDS]
    different = [answer for answer in answers if answer[1] != answer[2]]
    assert not different, different
    assert any("CODE:" in line for _, lines, _ in answers for line in lines), "refusals are compared too"


def as_root(lab: Lab, node: Node, *arguments: str) -> None:
    home = lab.scratch / "tools"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ROOT}\nsecretKey: {ROOT_SECRET}\n")
    command = (*arguments, "-n", lab.name_server, "-b", node.address)
    code, text, errors = lab.mqadmin(*command, settings={"rocketmq.home.dir": str(home)})
    assert code == 0 and "success" in text, text + errors


def test_a_java_producer_may_send_what_its_policies_allow(lab: Lab) -> None:
    lab.start_our_name_server()
    keys = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
    user = f'{{"username": "{ROOT}", "password": "{ROOT_SECRET}"}}'
    node = lab.run(lab.our_broker("ours", **STATIC, **keys, initAuthenticationUser=user))
    as_root(lab, node, "updateTopic", "-t", "Orders", "-w", "2", "-r", "2")
    as_root(lab, node, "createUser", "-u", "ann", "-p", "ann-secret")
    until("the topic is routed", lambda: bool(lab.route("Orders")), TIMEOUT_S)
    account = {"interop.accessKey": "ann", "interop.secretKey": "ann-secret"}
    refused = lab.client("Produce", "Orders", "0", "1", "100", "0", **account)
    until("it is refused", lambda: any("FAILED 0" in line for line in refused.lines()), TIMEOUT_S, refused)
    assert not acknowledged(refused)
    as_root(lab, node, "createAcl", "-s", "User:ann", "-r", "Topic:Orders", "-a", "Pub", "-d", "Allow")
    allowed = lab.client("Produce", "Orders", "0", "5", "100", "0", **account)
    assert allowed.wait(TIMEOUT_S) == 0 and len(acknowledged(allowed)) == 5, allowed.tail()
