"""Tests of the batch kernels."""
