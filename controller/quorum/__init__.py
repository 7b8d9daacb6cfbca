"""The controllers' own Raft group: durable log, admission of peers, membership requests."""
