"""The command `rmqha` in the test's own process: a process of its own takes half a second of CPU to start."""

from __future__ import annotations

import io
import json
import os
import pwd
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import pytest
import trio

from rmqha.cli.main import main
from tests.support.patience import HANG_S


async def rmqha(*arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The test's other tasks go on meanwhile."""
    return decoded(await trio.to_thread.run_sync(partial(_run, directory or Path.cwd(), arguments, b"")))


async def rmqha_beside(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The same for a command that has an event loop of its own, and its output as bytes. It hears no signals: trio does
    in the main thread alone."""
    with patch("trio.open_signal_receiver", _no_signals):
        return await trio.to_thread.run_sync(partial(_run, Path.cwd(), arguments, stdin))


@contextmanager
def _no_signals(*signals: int) -> Iterator[AsyncIterator[int]]:
    async def never() -> AsyncIterator[int]:
        await trio.Event().wait()
        yield 0

    yield never()


def rmqha_in(directory: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    return decoded(rmqha_bytes(directory, *arguments, stdin=stdin))


def rmqha_bytes(directory: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """In the main thread, where a command may look out for signals, or beside a trio run of the test's: a command has
    a run of its own."""
    if not trio.lowlevel.in_trio_run():
        return _run(directory, arguments, stdin)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_run, directory, arguments, stdin).result()


def decoded(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    out, err = (told.decode("utf-8", "replace") for told in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def _run(directory: Path, arguments: tuple[str, ...], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    """The test waits for it, so streams and the working directory are nobody else's meanwhile."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = (io.TextIOWrapper(told, encoding="utf-8", write_through=True) for told in (out, err))
    code: object = None
    with chdir(directory), redirect_stdout(next(streams)), redirect_stderr(next(streams)), _standard_input(stdin):
        try:
            copy_context().run(main, arguments)  # whom it trusts and signs as ends with it
        except SystemExit as ended:
            code = ended.code
        told = (out.getvalue(), err.getvalue())
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, *told)


@contextmanager
def _standard_input(content: bytes) -> Iterator[None]:
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdin = before


def output_of(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], *, stdin: str | None = None
) -> list[str]:
    """Lines of what a command prints that runs in a process of its own, in `directory`, and has to succeed.
    `environment` comes on top of ours."""
    done = subprocess.run(
        command,
        input=stdin,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=directory,
    )
    assert done.returncode == 0, f"{done.stderr[:2000]}\n…\n{done.stderr[-2000:]}"
    return done.stdout.splitlines()


def loaded_by(arguments: Sequence[str]) -> tuple[set[str], str]:
    """Names of the modules that a command in a process of its own has loaded when it ends, and its standard output."""
    program = f"""
import json, sys
from rmqha.cli.main import main
try:
    main({list(arguments)!r})
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    return set(json.loads(done.stderr.splitlines()[-1])), done.stdout


def forget_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run as a user of whom the machine knows nothing, as in a container that runs with any uid."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
