"""Work of a broker besides requests: delays, transaction checks, retention, disk probes, metrics."""
