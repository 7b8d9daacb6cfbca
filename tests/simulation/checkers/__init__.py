"""Invariants of a run, one small file each. A checker sees brokers after every step, or the whole world at the end."""
