"""The command `rmqha` in the test's own process: a process of its own takes half a second of CPU to start."""

from __future__ import annotations

import io
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import trio

from rmqha.cli.main import main


async def rmqha(*arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In a thread, since a command has a trio run of its own."""
    return await trio.to_thread.run_sync(partial(rmqha_in, directory or Path.cwd(), *arguments))


def rmqha_in(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The test waits for it, so streams and the working directory are nobody else's meanwhile."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = None
    with chdir(directory), redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code
    told = [stream.buffer.getvalue().decode() for stream in (out, err) if isinstance(stream.buffer, io.BytesIO)]
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, *told)
