"""The archive of a log: its files, its batches, and the forms that it may have."""
