"""Commands for clusters on this machine: up, down, start, kill, join, remove, maintenance."""
