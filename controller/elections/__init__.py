"""Elections of masters: heartbeats, probes, the state of a leadership."""
