"""Rules of a broker group as pure machines: who is in the set, what is committed, who may acknowledge. See replica.py."""
