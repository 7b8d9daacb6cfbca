"""Decisions of the leading controller: functions from state, request and liveness to events or a refusal. Pure."""
