"""Batch kernels: the per-message work of the data plane, as functions over buffers."""
