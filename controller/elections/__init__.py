"""Elections of masters: heartbeats, probes, who is watched, the leadership of each group."""
