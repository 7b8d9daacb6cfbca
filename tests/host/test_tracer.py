"""One line per event, files that rotate, the history that a peer may ask for."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rmqha.host.tracer import HISTORY_COUNT, KEPT_FILE_COUNT, WARNINGS, HostTracer, RotatingLogFile
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import UsageError
from rmqha.model.identity import Role
from tests.support.clock import ManualClock

CLOCK = ManualClock(0, 1_795_247_737_123)
FULL = Path("/dev/full")
PACKAGES = ("rmqha", "controller", "nameserver")


def test_a_line() -> None:
    lines: list[str] = []
    tracer = HostTracer(clock=CLOCK, write=lines.append)
    tracer.event(
        "role_changed", role=Role.MASTER, epoch=7, address="127.0.0.1:1", note='two words, "quoted"', none=None
    )
    tracer.event("set", members={3, 1, 2}, addresses={0: "a"}, code=ResponseCode.SUCCESS, empty="", fork=True)
    tracer.event("evil", text="line\nfeed", key="a=b", other=b"\xff")
    assert "".join(lines).splitlines() == [
        "2026-11-21T07:55:37.123Z role_changed role=MASTER epoch=7 address=127.0.0.1:1 "
        'note="two words, \\"quoted\\"" none=null',
        '2026-11-21T07:55:37.123Z set members=[1,2,3] addresses={"0":"a"} code=SUCCESS empty="" fork=true',
        '2026-11-21T07:55:37.123Z evil text="line\\nfeed" key="a=b" other=b\'\\xff\'',
    ]


def test_json_lines_are_tied_by_group_and_epoch() -> None:
    lines: list[str] = []
    broker = HostTracer(clock=CLOCK, write=lines.append, json_of={"server": "broker", "group": "broker-a"})
    broker.event("role_changed", role=Role.MASTER, epoch=7, note="line\nfeed")
    broker.event("ha_closed", conn_id=1, time="mine", server="mine")
    controller = HostTracer(clock=CLOCK, write=lines.append, json_of={"server": "controller"})
    controller.event("master_elected", group="broker-a", epoch=7, cause="MASTER_DEAD")
    controller.event("master_dead", group="broker-a", broker_id=1)
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    first, second, third, fourth = map(json.loads, lines)
    stamp = {"time": "2026-11-21T07:55:37.123Z"}
    assert first == stamp | {
        "level": "info",
        "event": "role_changed",
        "server": "broker",
        "group": "broker-a",
        "role": "MASTER",
        "epoch": 7,
        "note": "line\nfeed",
        "cause_id": "broker-a/7",
    }
    assert (second["time"], second["server"], "cause_id" in second) == (stamp["time"], "broker", False)
    assert (third["cause_id"], third["cause"], third["server"]) == ("broker-a/7", "MASTER_DEAD", "controller")
    assert (fourth["level"], "cause_id" in fourth) == ("warning", False)


def test_lines_of_words_load_no_structlog() -> None:
    code = "from rmqha.host.tracer import HostTracer; HostTracer().event('a'); print('structlog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"import sys; {code}"], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_events_that_warn_exist() -> None:
    root = Path(__file__).parents[2]
    text = "".join(path.read_text() for name in PACKAGES for path in (root / name).rglob("*.py"))
    assert [name for name in sorted(WARNINGS) if text.count(f'"{name}"') < 2] == []


def test_a_server_writes_as_its_keys_say_and_warns_where_it_serves_anybody(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    config = ServerConfig(log_file=str(log), log_format="json", listen_address="0.0.0.0", http_port=1, http_host="::")
    HostTracer.of(config, "namesrv").close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["event"], line["level"], line["server"]) for line in lines} == {("insecure", "warning", "namesrv")}
    assert [key for key in ("aclEnable", "tls.server.certPath", "httpHost") if key in str(lines)] == [
        "aclEnable",
        "tls.server.certPath",
        "httpHost",
    ]


def test_the_history_is_json_and_bounded() -> None:
    tracer = HostTracer(clock=CLOCK, write=lambda _: None)
    for n in range(HISTORY_COUNT + 5):
        tracer.event("step", n=n, role=Role.SLAVE, members=frozenset({2, 1}))
    history = json.loads(json.dumps(tracer.history()))
    assert len(history) == HISTORY_COUNT
    assert history[-1] == {
        "at_ms": 1_795_247_737_123,
        "event": "step",
        "n": HISTORY_COUNT + 4,
        "role": "SLAVE",
        "members": [1, 2],
    }


def test_files_rotate_and_keep_three_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "broker.log"
    tracer = HostTracer(str(path), 2_000)
    for n in range(400):
        tracer.event("step", n=n)
    tracer.close()
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["broker.log", *(f"broker.log.{n}" for n in range(1, KEPT_FILE_COUNT + 1))]
    assert all(file.stat().st_size <= 2_000 for file in path.parent.iterdir())
    assert path.read_text().splitlines()[-1].endswith("step n=399")


def test_a_log_that_cannot_be_rotated_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be the server's and its directory not; a network file system may tell a full disk at the close."""
    path = tmp_path / "broker.log"
    tracer = HostTracer(str(path), 2_000)

    def rename(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    class LateTrouble(io.TextIOWrapper):
        def close(self) -> None:
            was_open = not self.closed
            super().close()
            if was_open:
                raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        for n in range(100):
            tracer.event("step", n=n)
    assert isinstance(tracer._file, RotatingLogFile)
    assert tracer._file.stream is not None
    tracer._file.stream.close()
    tracer._file.stream = LateTrouble(path.open("ab"), encoding="utf-8")
    tracer.event("step", n=100)
    assert [line.split("=")[1] for line in path.read_text().splitlines()] == [str(n) for n in range(101)]
    assert tracer.statistics() == {"lost_line_count": 0}
    tracer.event("step", n=101)
    tracer.close()
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["broker.log", "broker.log.1"]
    assert path.read_text().splitlines()[-1].endswith("step n=101")


def test_reopen_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    tracer = HostTracer(str(path))
    tracer.event("before")
    path.rename(tmp_path / "moved.log")
    tracer.event("still")
    tracer.reopen()
    tracer.event("after")
    tracer.close()
    assert [line.split()[1] for line in (tmp_path / "moved.log").read_text().splitlines()] == ["before", "still"]
    assert [line.split()[1] for line in path.read_text().splitlines()] == ["after"]


def test_reopening_standard_error_does_nothing() -> None:
    lines: list[str] = []
    tracer = HostTracer(write=lines.append)
    tracer.reopen()
    tracer.event("x")
    tracer.close()
    assert len(lines) == 1


def test_a_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write the log file .*; set logFile"):
        HostTracer(str(tmp_path))


def test_a_full_disk_loses_lines_and_counts_them() -> None:
    tracer = HostTracer("/dev/full")
    tracer.event("one")
    tracer.event("two")
    tracer.close()
    assert tracer.statistics()["lost_line_count"] >= 1
    assert [event["event"] for event in tracer.history()] == ["one", "two"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    tracer = HostTracer(str(path))

    def write_many(thread: str) -> None:
        for n in range(200):
            tracer.event("step", thread=thread, n=n)

    threads = [threading.Thread(target=write_many, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracer.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 800
    assert all(len(line.split()) == 4 for line in lines)


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make standard error a pipe and give its reading end, which the caller closes."""
    reader, writer = os.pipe()
    with suppress(OSError), os.fdopen(writer, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield reader


def test_a_reader_of_standard_error_that_is_gone_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch) as reader:
        tracer = HostTracer()
        os.close(reader)
        for _ in range(3):
            tracer.event("unheard")
    assert tracer.statistics() == {"lost_line_count": 3}
    assert len(tracer.history()) == 3


def test_a_reader_of_standard_error_that_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch) as reader:
        tracer = HostTracer()
        filled = 0
        while not tracer.statistics()["lost_line_count"]:
            tracer.event("step", n=filled, text="\u2028" * 10_000)
            filled += 1
        assert filled < 20
        while select.select([reader], [], [], 0)[0]:
            os.read(reader, 65536)
        tracer.event("heard")
        assert os.read(reader, 65536).decode().endswith(" heard\n")
        os.close(reader)


def test_standard_error_on_a_full_disk_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(OSError), FULL.open("w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        tracer = HostTracer()
        tracer.event("one")
    assert tracer.statistics() == {"lost_line_count": 1}


def test_old_files_stay_where_the_present_one_cannot_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that may only grow (chattr +a): each line pushed the oldest file out."""
    path = tmp_path / "broker.log"
    tracer = HostTracer(str(path), 2_000)
    for n in range(400):
        tracer.event("step", n=n)
    old = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file != path}
    assert len(old) == KEPT_FILE_COUNT
    rename = os.rename

    def guarded(source: str | Path, target: str | Path) -> None:
        if Path(source) == path:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        rename(source, target)

    monkeypatch.setattr(os, "rename", guarded)
    for n in range(400, 500):
        tracer.event("step", n=n)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file != path} == old
    assert path.read_text().splitlines()[-1].endswith("step n=499")
    tracer.close()
