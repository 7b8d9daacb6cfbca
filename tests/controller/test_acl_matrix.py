"""Every request code that a controller serves: looks are every account's, what changes something takes an admin.

The real controller is asked each known code, so one that is new fails here until it has a row.
"""

from __future__ import annotations

from pathlib import Path

from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.security import Security, ambient
from rmqha.host.net.remoting import RemotingClient
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.model.identity import Credentials
from rmqha.wire.command import Command
from tests.controller.test_server import running, sole
from tests.support.patience import HANG_MS

C = RequestCode
ANY_ACCOUNT = {
    C.CONTROLLER_GET_METADATA_INFO,
    C.CONTROLLER_GET_SYNC_STATE_DATA,
    C.RMQHA_EXPLAIN_GROUP,
    C.RMQHA_GET_CONTROLLER_STATE,
    C.RMQHA_GET_HISTORY,
    C.RMQHA_GET_QUORUM,
    C.RMQHA_GET_SECURITY_STATE,
}
ADMIN = {
    C.BROKER_HEARTBEAT,
    C.CONTROLLER_ALTER_SYNC_STATE_SET,
    C.CONTROLLER_ELECT_MASTER,
    C.CONTROLLER_REGISTER_BROKER,
    C.CONTROLLER_GET_REPLICA_INFO,
    C.CONTROLLER_UPDATE_CONFIG,
    C.CONTROLLER_GET_CONFIG,
    C.CONTROLLER_CLEAN_BROKER_METADATA,
    C.CONTROLLER_GET_NEXT_BROKER_ID,
    C.CONTROLLER_APPLY_BROKER_ID,
    C.RMQHA_RAFT_MESSAGE,
    C.RMQHA_RESIZE_GROUP,
    C.RMQHA_FOLLOW_GROUPS,
    C.RMQHA_DRAIN_REPLICA,
    C.RMQHA_SET_MAINTENANCE,
    C.RMQHA_ADD_CONTROLLER,
    C.RMQHA_REMOVE_CONTROLLER,
    C.RMQHA_TRANSFER_LEADERSHIP,
    C.RMQHA_TAKE_SNAPSHOT,
    C.RMQHA_READ_LOG_FILE,
}
UNSIGNED = {C.RMQHA_OPEN_SESSION}
"""Tells what signatures begin with, and nothing else."""
OPERATOR = Credentials(access_key="operator", secret_key="12345678")
ORDERS = Credentials(access_key="orders", secret_key="87654321")
ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: '12345678', admin: true}
- {accessKey: orders, secretKey: '87654321', defaultTopicPerm: PUB|SUB, defaultGroupPerm: PUB|SUB}
"""


async def answer(client: RemotingClient, address: str, code: int) -> int | None:
    """None: it serves the code, and waits or closes the connection."""
    ext = {"brokerName": "g", "brokerId": "1", "clusterName": "c"}
    try:
        return (await client.call(address, Command(code, ext), 500)).code
    except UnreachableError:
        return None


async def history(client: RemotingClient, address: str) -> bytes:
    return bytes((await client.call(address, Command(C.RMQHA_GET_HISTORY), HANG_MS)).body)


async def test_each_code_of_a_controller(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    token = ambient.set(Security(accounts=AccessFile(path), credentials=OPERATOR))
    served, open_to_all = set(), set()
    try:
        tracer = HostTracer(write=lambda _: None)
        tracer.event("request_failed", traceback="KeyError: a request's words")
        async with running(sole(tmp_path / "store"), tracer) as address:
            async with RemotingClient(security=Security(credentials=ORDERS)) as client:
                assert b"KeyError" not in await history(client, address), "a bug's traceback is for admins"
                for code in RequestCode:
                    if await answer(client, address, code) != ResponseCode.NO_PERMISSION:
                        open_to_all.add(code)
            async with RemotingClient(security=Security(credentials=OPERATOR)) as client:
                assert b"KeyError" in await history(client, address)
                for code in RequestCode:
                    if await answer(client, address, code) != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        served.add(code)
            async with RemotingClient(security=Security()) as client:
                for code in sorted(served - UNSIGNED):
                    assert await answer(client, address, code) == ResponseCode.NO_PERMISSION, "it is not signed"
    finally:
        ambient.reset(token)
    assert served == ANY_ACCOUNT | ADMIN | UNSIGNED
    assert open_to_all & served == ANY_ACCOUNT | UNSIGNED
