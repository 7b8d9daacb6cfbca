"""`rmqha selftest`: bounded, leaves nothing behind, says what it means."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from rmqha.cli.diagnosis import disk_test, net_test
from rmqha.cli.diagnosis.checks.mounts import Mount, mount_of, parse_mounts
from rmqha.cli.diagnosis.disk_test import DiskFigures
from rmqha.cli.diagnosis.selftest import selftest
from rmqha.host.disk import HostDisk
from rmqha.model.error import UnreachableError, UsageError
from tests.client.test_admin import peers
from tests.support.patience import HANG_S

pytestmark = pytest.mark.usefixtures("real_syncs")

ON_DISK = Mount("/", "ext4", read_only=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(selftest, list(arguments))


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    done = run("disk", str(tmp_path), "--seconds", "0.3", "--mb", "4", "-o", "json")
    found = json.loads(done.stdout)
    assert done.exit_code == (1 if found["hint"] and "network" not in found["hint"] else 0)
    assert found["syncCount"] > 0
    assert 0 < found["syncMicroseconds"]["p50"] <= found["syncMicroseconds"]["max"]
    assert 0 < found["writtenBytes"] <= 4_000_000
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_ends_in_time_and_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync

    calls: list[int] = []

    def slow(fd: int) -> None:
        calls.append(fd)
        time.sleep(0.05)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    figures = disk_test.measure(tmp_path, limit_s=0.5, limit_bytes=200_000_000)
    assert len(calls) <= 0.5 / 0.05 + disk_test.WARM_UP_COUNT + 2, "each half ends with the call that is over the limit"
    assert figures.median_us >= 50_000
    assert "very slow" in figures.verdict()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_in_the_middle_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(UsageError, match=r"cannot write in .*: Input/output error"):
        disk_test.measure(tmp_path, limit_s=1, limit_bytes=0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_filled_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDisk, "space", lambda self: (10**9, 10**7))
    with pytest.raises(UsageError, match="has 10 MB free, the test would write"):
        disk_test.measure(tmp_path, limit_s=0.2, limit_bytes=50_000_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_ended_cleans_up_first(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "rmqha", "selftest", "disk", str(tmp_path), "--seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + HANG_S
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [path.name for path in tmp_path.iterdir()] == [f"rmqha.selftest-{process.pid}"]
        process.send_signal(number)
        assert process.wait(HANG_S) == (143 if number is signal.SIGTERM else 130)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sync_us", "mount", "words"),
    [
        (1_000, ON_DISK, "costs little here: it adds 1.00 ms"),
        (5_000, ON_DISK, "is to be felt here"),
        (20_000, ON_DISK, "is slow here"),
        (90_000, ON_DISK, "at most 11/s"),
        (5, ON_DISK, "promises nothing here"),
        (1_000, Mount("/run", "tmpfs", read_only=False), "promises nothing here"),
    ],
)
def test_verdicts(sync_us: int, mount: Mount, words: str) -> None:
    figures = DiskFigures("/d", mount)
    figures.syncs.record(sync_us)
    assert words in figures.verdict()
    assert bool(figures.honesty()) == figures.in_memory


def test_mounts() -> None:
    text = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /data rw - nfs4 server:/x rw,vers=4\n"
        "24 22 0:6 / /with\\040space ro,nosuid - tmpfs tmpfs rw\n"
        "25 22 0:7 / /größe\\040\\134x\u00a0y\u2028z ro - tmpfs tmpfs ro\n"
        "nonsense\n"
    )
    assert parse_mounts(text) == [
        Mount("/", "ext4", read_only=False),
        Mount("/data", "nfs4", read_only=False),
        Mount("/with space", "tmpfs", read_only=True),
        Mount("/größe \\x\u00a0y\u2028z", "tmpfs", read_only=True),
    ]
    assert parse_mounts(text)[1].on_network
    assert mount_of(Path("/proc/self/no/such")).kind == "proc"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("disk", "/nowhere/at/all"), "is no directory"),
        (("net",), "one of both"),
        (("net", "1.2.3.4:5", "--serve", "1.2.3.4:5"), "one of both"),
        (("net", "nonsense"), "is not an address"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)


async def test_a_server_answers_round_trips_one_way() -> None:
    async with peers(1) as (peer,):
        figures = await net_test.measure(peer.address, limit_s=0.4, limit_bytes=2_000_000)
        assert {command.code for command in peer.asked} == {52090}, "nothing that could change anything is asked"
    found = figures.as_dict()
    assert (found["peer"], found["receivedBytesPerSecond"]) == ("server", None)
    assert found["tripCount"] > 0
    assert 0 < figures.sent_bytes <= 2_000_000
    assert found["sentBytesPerSecond"] > 0


async def test_the_other_end_answers_both_ways() -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(net_test.echo, "127.0.0.1:0", 60)
        figures = await net_test.measure(f"127.0.0.1:{port}", limit_s=0.4, limit_bytes=2_000_000)
        nursery.cancel_scope.cancel()
    assert figures.echoes
    assert figures.received_bytes == figures.sent_bytes > 0


async def test_the_other_end_ends_by_itself() -> None:
    with trio.fail_after(HANG_S):
        await net_test.echo("127.0.0.1:0", 0.1)


async def test_nobody_there() -> None:
    with pytest.raises(UnreachableError, match=r"cannot connect to 127.0.0.1:1"):
        await net_test.measure("127.0.0.1:1", limit_s=0.4, limit_bytes=1_000_000)
