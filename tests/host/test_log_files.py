"""A server's log in pieces: bounded, of its own files alone, and the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.host.log_files import MAX_PIECE_BYTES, LogFiles
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import ServerConfig
from rmqha.wire.command import Command


def ask(files: LogFiles, **fields: str) -> Command:
    return files.answer(Command(RequestCode.RMQHA_READ_LOG_FILE, fields))


@given(
    size=st.integers(0, 3 * MAX_PIECE_BYTES),
    offset=st.none() | st.integers(0, 4 * MAX_PIECE_BYTES),
    count=st.none() | st.integers(0, 10**18 - 1),
)
def test_a_piece_is_that_part_of_the_file_and_bounded(
    tmp_path_factory: pytest.TempPathFactory, size: int, offset: int | None, count: int | None
) -> None:
    path = tmp_path_factory.mktemp("log") / "broker.log"
    data = bytes(at % 251 for at in range(size))
    path.write_bytes(data)
    fields = {} if offset is None else {"offset": str(offset)}
    reply = ask(LogFiles(path, None), **fields, **({} if count is None else {"maxBytes": str(count)}))
    bound = MAX_PIECE_BYTES if count is None else min(count, MAX_PIECE_BYTES)
    start = max(0, size - bound) if offset is None else min(offset, size)
    assert reply.code == ResponseCode.SUCCESS
    assert bytes(reply.body) == data[start : start + bound]
    assert (reply.ext["offset"], reply.ext["end"]) == (str(start), str(size))


@pytest.mark.parametrize("field", ["offset", "maxBytes"])
@pytest.mark.parametrize("value", ["-1", "x", "", "1e3", "١", "9" * 19])
def test_what_is_no_number_is_refused(tmp_path: Path, field: str, value: str) -> None:
    (tmp_path / "broker.log").write_text("line\n")
    reply = ask(LogFiles(tmp_path / "broker.log", None), **{field: value})
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, f"{field} is a number from 0 on")


def test_no_path_is_taken_from_the_request(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "broker.log").write_text("line\n")
    files = LogFiles(tmp_path / "broker.log", tmp_path / "audit.log")
    for name in ("file", "path", "log", "logFile", "name"):
        assert bytes(ask(files, **{name: str(tmp_path / "secret")}).body) == b"line\n"


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    files = LogFiles.of(ServerConfig(log_file=str(tmp_path / "broker.log")))
    assert ask(files).remark == "this server has no log yet"
    assert (
        ask(files, audit="true").remark == "this server has no audit log; it keeps one with aclEnable or auditLogLevel"
    )
    assert ask(LogFiles.of(ServerConfig())).remark == "this server writes its log to standard error; set logFile"
    (tmp_path / "audit.log").write_text("{}\n")
    assert bytes(ask(files, audit="true").body) == b"{}\n"
    (tmp_path / "broker.log").mkdir()
    assert ask(files).remark == "the log cannot be read: Is a directory"


def test_the_audit_log_is_where_its_key_says(tmp_path: Path) -> None:
    (tmp_path / "who").write_text("{}\n")
    files = LogFiles.of(ServerConfig(audit_log_file=str(tmp_path / "who")))
    assert bytes(ask(files, audit="true").body) == b"{}\n"
