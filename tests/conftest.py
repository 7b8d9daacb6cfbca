"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rmqha", deadline=None)  # a law is not broken by a machine that is busy
settings.load_profile("rmqha")
