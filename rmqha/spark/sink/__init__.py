"""Places that rows of a DataFrame are written to: records of a store, messages to a live cluster."""
