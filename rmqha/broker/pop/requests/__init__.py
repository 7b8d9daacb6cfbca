"""Requests of pop consumers: pops, notifications, acknowledgements."""
