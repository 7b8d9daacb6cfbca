"""Checks of records against what was written: a slave's incoming bytes, damage, repair, scrubber, the log's tail."""
