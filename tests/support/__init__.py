"""Clocks and tracers that tests of all packages share."""
