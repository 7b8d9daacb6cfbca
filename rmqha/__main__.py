"""The console script `rmqha`, and `python -m rmqha`.

Ctrl-C while the command is still being imported, in the first tenth of a second, ends the process by the signal, as it
ends other programs, without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def open_what_is_closed() -> None:
    """Open /dev/null as each standard stream that whoever started this process has closed.

    Else the next file or connection gets its number, and Python has no stream there."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # the lowest free number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def main() -> NoReturn:
    open_what_is_closed()
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rmqha.cli.main import main as run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
