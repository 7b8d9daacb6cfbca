"""Rules of a broker group as pure machines: who is in the set, what is committed, what may be acknowledged.

Start at replica.py, which composes the rest.
"""
