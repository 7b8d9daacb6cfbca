"""Checks of records against what was written: slaves' incoming bytes, damage, repair, the scrubber, a start's tail."""
