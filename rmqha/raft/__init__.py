"""Raft as a machine: messages and time in, `Ready` out; no clock, no disk, no network. See node.py."""
