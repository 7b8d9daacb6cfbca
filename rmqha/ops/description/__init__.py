"""Descriptions of groups, replicas and topics: what they are and promise."""
