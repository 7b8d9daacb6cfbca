"""Offline inspection of stores: fsck and its repairs, listings, the search in a log, migration checks."""
