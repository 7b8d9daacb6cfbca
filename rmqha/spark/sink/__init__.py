"""Sinks for rows of a DataFrame: records of a store, messages of a live cluster."""
