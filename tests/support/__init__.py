"""Clocks, tracers and controllers that tests of all packages share."""
