"""Faults on a scratch cluster of real processes, and the audit of what they left: `rmqha drill` and `make chaos`."""
