"""Work that a broker does by itself: delays, transaction checks, retention, disk probes, figures."""
