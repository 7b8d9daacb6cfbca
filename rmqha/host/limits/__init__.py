"""Limits of what a process may take of its machine. Shell."""
