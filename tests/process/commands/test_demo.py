"""The demo's edges: what it refuses, and that an interrupt leaves nothing behind. `make demo` runs all of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import HANG_S

DEMO = Path(__file__).parents[3] / "examples" / "demo.py"


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(tmp_path)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1}\nnot json\n', ":2 is not JSON"),
        (b"[1]\n", ":1 is not a JSON object: [1]"),
        (b"\n\n", "has no records"),
        (b"\xff\xfe", "cannot read"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_not_what_was_said_is_one_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "my.jsonl"
    if content is not None:
        path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, str(DEMO), "--input", str(path)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.glob("rmqha-demo-*")) == []


def processes_that_name(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text in command:
            found.append(command)
    return found


def test_ctrl_c_stops_all_that_was_started(tmp_path: Path) -> None:
    path = tmp_path / "my.jsonl"
    path.write_text("".join(json.dumps({"n": number}) + "\n" for number in range(2000)))
    with subprocess.Popen(
        [sys.executable, "-u", str(DEMO), "--input", str(path)],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "rmqha send" in line:
                break
        assert len(processes_that_name(str(tmp_path / "rmqha-demo-"))) >= 4
        os.killpg(demo.pid, signal.SIGINT)
        said, _ = demo.communicate(timeout=HANG_S)
    assert demo.returncode == 130, said
    assert "Traceback" not in said
    assert processes_that_name(str(tmp_path / "rmqha-demo-")) == []
    assert list(tmp_path.glob("rmqha-demo-*")) == []
