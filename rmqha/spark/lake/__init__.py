"""The archive of a log: its files, its batches and its formats; restores from it, and copies of stores."""
