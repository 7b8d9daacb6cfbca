"""Examination of stores, nodes and their machine, for `rmqha doctor` and its kin."""
