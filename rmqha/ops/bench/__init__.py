"""Load on a live group, and what it measures."""
