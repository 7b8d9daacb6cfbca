"""Columns by native code, where a program has it."""
