"""The console script `rmqha`, and `python -m rmqha`.

Ctrl-C while the command is still being imported, in the first tenth of a second, ends the process by the signal, as it
ends other programs, without a traceback."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rmqha.cli.main import main as run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
