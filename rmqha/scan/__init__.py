"""Columnar reading of stores without a broker; `rmqha.scan.api` is the way in. Needs the extra `scan`."""
