"""`rmqha broker -c FILE` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmqha.ops.local.preflight import free_ports
from tests.support.command import rmqha
from tests.support.patience import HANG_S

HEAVY = ("rich", "pyspark", "pyarrow", "numpy", "hypothesis")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the configuration"),
        ("brokerNmae=x", "brokerName"),
        ("listenPort=many", "listenPort"),
        ("haMode=cp\ntotalReplicas=3\nenableAutoInSyncReplicas=true", "contradicts"),
        ("haMode=cp", "needs totalReplicas"),
        ("listenAddress=0.0.0.0\nhaSecurity=open", "brokerIP1"),
        ("controllerAddr=nowhere", "controllerAddr"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--check"]])
async def test_bad_input_is_one_sentence(tmp_path: Path, text: str | None, words: str, more: list[str]) -> None:
    path = tmp_path / "broker.conf"
    if text is not None:
        path.write_text(f"{text}\nstorePathRootDir={tmp_path}/store\n")
    done = await rmqha("broker", "-c", str(path), *more)
    assert done.returncode == 2
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "store").exists()


def test_a_server_loads_nothing_heavy() -> None:
    code = (
        f"import sys, rmqha.cli.main, rmqha.broker.server; print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == "[]"


def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    """Without a controller it waits as a slave; the store is closed all the same."""
    path = tmp_path / "broker.conf"
    path.write_text(
        f"listenPort={free_ports(4) + 2}\ncontrollerAddr=127.0.0.1:1\nnamesrvAddr=127.0.0.1:1\n"
        f"storePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\nmaxMessageSize=100000\n"
    )
    command = [sys.executable, "-m", "rmqha", "broker", "-c", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " listening " in line:
                break
        assert (tmp_path / "store" / "abort").exists()
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(timeout=HANG_S) == 0
    assert " stopped " in rest
    assert not (tmp_path / "store" / "abort").exists()
