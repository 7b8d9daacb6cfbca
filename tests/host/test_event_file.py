"""Events that outlive the process: bounded files, half lines, disks that hang or are full."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rmqha.host.event_file import KEPT_COUNT, KEPT_EVENTS, MAX_FILE_BYTES, MAX_LINE_BYTES, EventFile
from rmqha.host.tracer import HISTORY_COUNT, HostTracer
from rmqha.model.config.servers import BrokerConfig, ServerConfig
from tests.support.patience import HANG_S

PACKAGES = ("rmqha", "controller", "nameserver")


def tracer(path: Path) -> HostTracer:
    return HostTracer(write=lambda _: None, kept=EventFile(path))


def names(found: HostTracer) -> list[tuple[str, Any]]:
    return [(event["event"], event.get("epoch")) for event in found.history()]


def test_a_restarted_server_tells_the_elections_of_before(tmp_path: Path) -> None:
    path = tmp_path / "log" / "a.log.history"
    first = tracer(path)
    first.event("master_elected", group="broker-a", epoch=1, broker_id=2)
    first.event("ha_unreachable", address="127.0.0.1:1")
    first.event("role_changed", role="MASTER", epoch=1)
    first.close()
    second = tracer(path)
    second.event("role_changed", role="SLAVE", epoch=2)
    second.event("step")
    assert names(second) == [("master_elected", 1), ("role_changed", 1), ("role_changed", 2), ("step", None)]
    assert second.history()[0]["group"] == "broker-a" and "v" not in second.history()[0]
    second.close()
    assert names(tracer(path)) == [("master_elected", 1), ("role_changed", 1), ("role_changed", 2)]
    assert path.stat().st_mode & 0o137 == 0


def test_elections_outlive_the_noise_of_one_process(tmp_path: Path) -> None:
    found = tracer(tmp_path / "history")
    found.event("role_changed", epoch=1)
    for _ in range(HISTORY_COUNT + 5):
        found.event("ha_unreachable")
    assert len(found.history()) == HISTORY_COUNT + 1
    assert names(found)[0] == ("role_changed", 1)
    found.close()


def test_files_and_answers_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "history"
    found = EventFile(path)
    line = {"at_ms": 1, "event": "set_changed", "epoch": 1, "text": "x" * 1000}
    for number in range(3 * MAX_FILE_BYTES // 1000):
        found._write(b"%b\n" % str({**line, "n": number}).encode())
    assert sorted(item.name for item in tmp_path.iterdir()) == ["history", "history.1"]
    assert all(item.stat().st_size <= MAX_FILE_BYTES for item in tmp_path.iterdir())
    for number in range(KEPT_COUNT + 50):
        found.remember({"at_ms": number, "event": "writable"})
    assert [event["at_ms"] for event in found.events()] == list(range(50, KEPT_COUNT + 50))


def test_a_long_event_is_kept_without_its_fields(tmp_path: Path) -> None:
    found = EventFile(tmp_path / "history")
    found.remember({"at_ms": 7, "event": "route_changed", "epoch": 3, "addresses": "x" * MAX_LINE_BYTES})
    assert found.events() == [{"at_ms": 7, "event": "route_changed", "epoch": 3}]


@pytest.mark.parametrize(
    "rest",
    [
        b'{"v":1,"at_ms":2,"event":"writ',
        b"\xff\x00\n",
        b"[]\n",
        b"7\n",
        b'{"v":1,"at_ms":"2","event":"x"}\n',
        b'{"v":2,"at_ms":2,"event":"of a later release"}\n',
        b"[" * 3000 + b"\n",
        b"x" * (MAX_LINE_BYTES + 1) + b"\n",
    ],
)
def test_what_is_no_event_is_passed_over(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "history"
    good = b'{"v":1,"at_ms":1,"event":"writable"}\n'
    path.write_bytes(good + rest)
    assert EventFile(path).events() == [{"at_ms": 1, "event": "writable"}]
    path.write_bytes(rest + good)
    assert EventFile(path).events()[-1:] == ([] if rest.endswith(b"writ") else [{"at_ms": 1, "event": "writable"}])


def test_a_place_that_cannot_be_read_or_written_costs_lines_only(tmp_path: Path) -> None:
    for path in (Path("/dev/full"), tmp_path, tmp_path / "link"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        found = tracer(path)
        found.event("writable", epoch=1)
        found.close()
        assert names(found) == [("writable", 1)]
        assert found.statistics() == {"lost_line_count": 1}, path
    assert not (tmp_path / "elsewhere").exists()


def test_a_rotation_without_a_new_file_closes_the_old_one_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is closed twice may be another thread's file by then."""
    path = tmp_path / "history"
    path.write_bytes(b"x" * MAX_FILE_BYTES)
    found, opened = EventFile(path), os.open

    def full(file: str | Path, flags: int, mode: int = 0o777) -> int:
        if file == path and not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(file, flags, mode)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError) as caught:
        found._write(b"1\n")
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    found._write(b"2\n")
    assert path.read_bytes() == b"2\n" and path.with_name("history.1").stat().st_size == MAX_FILE_BYTES


def test_a_directory_that_is_moved_away_is_not_made_again(tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    found = EventFile(store / "history")
    found._write(b"1\n")
    store.rename(away)
    with pytest.raises(FileNotFoundError):
        found._write(b"2\n")
    assert not store.exists()
    away.rename(store)
    found._write(b"3\n")
    assert (store / "history").read_bytes() == b"1\n3\n"


def test_a_disk_that_hangs_takes_no_time_from_the_server(tmp_path: Path) -> None:
    """A pipe that nobody reads stands for it: opening it never ends."""
    path = tmp_path / "history"
    os.mkfifo(path)
    found = tracer(path)
    done = threading.Event()

    def many() -> None:
        for number in range(2_000):
            found.event("writable", epoch=number)
        done.set()

    threading.Thread(target=many, daemon=True).start()
    assert done.wait(HANG_S)
    assert found.statistics()["lost_line_count"] >= 900
    assert len(found.history()) == HISTORY_COUNT + KEPT_COUNT
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # lets the thread go on, and end
    found.close()
    os.close(reader)


def test_the_file_stands_beside_the_log_or_with_the_data() -> None:
    assert ServerConfig().history_file == ""
    assert ServerConfig(log_file="log/a.log").history_file == "log/a.log.history"
    assert BrokerConfig(store_path_root_dir="/var/lib/x").history_file == "/var/lib/x/rmqha.history"
    assert BrokerConfig(log_file="/log/b.log").history_file == "/log/b.log.history"


def test_events_that_are_kept_exist() -> None:
    root = Path(__file__).parents[2]
    text = "".join(path.read_text() for name in PACKAGES for path in (root / name).rglob("*.py"))
    lacking = [name for name in sorted(KEPT_EVENTS) if text.count(f'"{name}"') < 2]
    assert lacking == []
