"""Producers: single sends, pipelines, batches, transactions."""
