"""Figures of rmqha, each beside a peer or a physical limit of the same run: `python -m benchmarks --help`."""
