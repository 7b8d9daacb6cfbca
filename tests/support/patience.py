"""How long a test waits for an event."""

from __future__ import annotations

HANG_S = 300
"""Only what hangs takes so long: a machine with a load of 28 on two cores needs minutes for seconds of work."""
