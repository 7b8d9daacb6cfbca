"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("rmqha", deadline=None)  # a law is not broken by a machine that is busy
settings.load_profile("rmqha")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a script that runs `make test &` passes this on, and what tests start and interrupt would hear nothing
    signal.signal(signal.SIGINT, signal.default_int_handler)
